// Package pgproxy is the listener protocol "postgres": it authenticates PostgreSQL clients and
// serves them from a pool of server connections, in transaction, session or statement mode, or from
// any other Backend.
//
//	package main
//
//	import (
//		"log"
//		"net"
//
//		"github.com/headpond/headpond/listener"
//		"github.com/headpond/headpond/pgproxy"
//		"github.com/headpond/headpond/pool"
//		"github.com/headpond/headpond/upstream"
//	)
//
//	func main() {
//		pg, err := pgproxy.NewPostgres(pgproxy.PostgresConfig{
//			Name: "pg",
//			User: "app", Password: "secret", DBName: "app",
//			Settings: upstream.Settings{
//				Endpoints: upstream.Endpoints("127.0.0.1:5432"),
//				Limits:    pool.Limits{MaxSize: 20},
//			},
//		})
//		if err != nil {
//			log.Fatal(err)
//		}
//		p, err := pgproxy.New(pgproxy.Config{
//			Listener:  listener.Config{Name: "db"},
//			Auth:      pgproxy.AuthTrust,
//			Databases: map[string]pgproxy.Backend{"*": pg},
//		})
//		if err != nil {
//			log.Fatal(err)
//		}
//		l, err := net.Listen("tcp", "127.0.0.1:6432")
//		if err != nil {
//			log.Fatal(err)
//		}
//		log.Fatal(p.Serve(l)) // psql -h 127.0.0.1 -p 6432 app
//	}
//
// The files follow the life of a connection: startup.go reads the startup packets, authenticate.go
// authenticates the client, lease.go gets a server connection (connect.go opens one), relay.go
// carries messages, release.go gives the server connection back.
//
// # The machine
//
// The protocol machine (machine.go) decides about every message. It gets each message of the client and of the server,
// and returns an action: pass the message on, unchanged or with other names in it, consume it, show more of it, wait
// for answers, lease a server connection. The machine keeps the queue of pending answers (state.go), the client's
// prepared statements and their names on servers (prepare.go, unnamed.go, deallocate.go, fingerprint.go) and the
// settings that follow the client (machine_settings.go). It has no socket, clock, goroutine or lock. Two drivers
// execute its actions and have no rules about messages: the session's straight-line code (relay.go), and the fast path
// on the loop (fastpath.go). Scripts in testdata/machine drive the machine message by message; a model of a server
// checks that clients get the answers of a direct connection.
//
// In transaction mode a server connection is leased at the first message that needs one, and released at ReadyForQuery
// 'I' once everything sent has been answered: no Sync is outstanding, no pipeline or portal is open, and no COPY is
// under way. Named prepared statements work: the gateway keeps them for each client, and prepares them where a server
// connection lacks them. Settings follow the client, those given at startup and those made by SET or set_config, which
// the gateway reads from the server after the transaction (keep.go). State that cannot follow a client, such as
// temporary tables and session-level advisory locks, pins the client: the lease lasts until that state is gone
// (pin.go). The text of a statement shows what state the statement may leave (pintext.go); where only the server can
// tell, the gateway asks the server after the transaction (keep.go). Between the transactions of clients that LISTEN,
// one server connection listens for all of them (listening.go, notify.go, subscription.go).
//
// In session mode a client has one server connection from its login to its last message, and gets the process ID of
// that server. Before another client gets the server connection, DISCARD ALL runs there; if the text of a statement
// shows effects that DISCARD ALL does not undo (remains.go), the server connection is closed instead.
//
// In every mode, a client's replication connection gets a server connection of its own, and the gateway copies
// between both (replication.go).
//
// # Reading both sides
//
// A leased server connection is always watched (wait.go). A session that waits for its client waits for its server in
// the same call ([fiber.Stream]'s WaitEither), and passes messages of the server on at once: the error of a request
// without Sync, a notice, the FATAL that ends an idle transaction. After 100 ms of silence the session is suspended
// with its lease. A second fiber, the server reader (serverreader.go), runs only while both sides send much (COPY, long
// pipelines), or where one wait for two connections is not possible: on the goroutine engine and for servers behind a
// tunnel.
//
// The fast path (fastpath.go) serves the most common requests on the loop itself, without switching to the session's
// fiber: a Query, or messages of the extended protocol up to their Sync, that arrive complete, with an answer that
// arrives in one piece. Resuming a fiber costs more than such a request, because its stack and buffers have left the
// processor's caches. The fast path handles no errors: it leaves everything unusual to the session.
//
// # Memory
//
// An idle client takes 424 bytes of the heap: 176 for fiber.Conn, 80 for listener.Conn, 80 for [Client], 16 to resume
// it, and 72 in the tables of the loop, the listener and the proxy. Clients with the same startup parameters or
// settings share them; the key for cancel requests is computed; only a client's own statements take more. Tests check
// these sizes: one more byte costs each client sixteen.
//
// Unstable until 1.0.
package pgproxy
