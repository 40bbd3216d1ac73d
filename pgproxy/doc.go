// Package pgproxy is the listener protocol "postgres": it authenticates PostgreSQL clients and
// serves them from a pool of server connections, in transaction or session mode, or from any
// other Backend.
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
//	)
//
//	func main() {
//		pg, err := pgproxy.NewPostgres(pgproxy.PostgresConfig{
//			Name: "pg", Endpoints: []string{"127.0.0.1:5432"},
//			User: "app", Password: "secret", DBName: "app",
//			Limits: pool.Limits{MaxSize: 20},
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
// The files follow the life of a connection: admit.go reads the start-up packets,
// authenticate.go lets the client prove who it is, lease.go gets a server connection
// (connect.go opens one), relay.go carries messages, release.go gives the server connection
// back. What a session may do next is decided by the state machine in state.go, which knows
// no socket.
//
// In transaction mode a server connection is leased at the first message that needs one and
// given back at ReadyForQuery 'I' once everything sent has been answered: no Sync is
// outstanding, no pipeline or portal open, no COPY under way. Named prepared statements work:
// they are kept per client and prepared where a server connection lacks them. What a session
// sets by SET lasts until the end of the transaction, except for the parameters the server
// reports (client_encoding, DateStyle, TimeZone, IntervalStyle, application_name,
// standard_conforming_strings), which follow the client, as do those given at start-up. LISTEN,
// PREPARE and WITH HOLD cursors are undone; set_config(), temporary tables and session-level
// advisory locks leave nothing the proxy could see, stay where they are, and need session mode.
//
// In session mode a client has one server connection from its first to its last message;
// DISCARD ALL runs before somebody else gets it.
//
// Unstable until 1.0.
package pgproxy
