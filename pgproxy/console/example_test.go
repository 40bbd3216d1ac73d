package console_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgproxy/console"
	"github.com/headpond/headpond/upstream"
)

// program is a program with one listener and one database.
type program struct {
	proxy *pgproxy.Proxy
	pg    *pgproxy.Postgres
}

func (p *program) State() console.State {
	return console.State{
		PoolMode: "transaction", Databases: []console.Database{{Name: "app", Upstream: p.pg.Status(), User: "app", DBName: "app", Pausable: true}},
	}
}

func (p *program) Sessions() []listener.Info { return p.proxy.Sessions() }

func (p *program) Usage() (now, then []pgproxy.Usage, ago time.Duration) {
	then, ago = p.proxy.RecentUsage()
	return p.proxy.Usage(), then, ago
}

func (p *program) Kill(id string) bool {
	session, stream, ok := listener.ParseID(id)
	return ok && p.proxy.Kill(session, stream)
}

func (p *program) Pause(_ string, limit time.Duration) (undo func(), err error) {
	return func() { p.pg.Resume() }, p.pg.Pause(limit) // only one operator pauses it
}

func (p *program) Resume(string) error {
	if !p.pg.Resume() {
		return errors.New("it is not paused")
	}
	return nil
}

func (p *program) Reload() error { return errors.New("there is no configuration file") }

// A program that embeds pgproxy gives it a console.
func Example() {
	pg, err := pgproxy.NewPostgres(pgproxy.PostgresConfig{
		Name: "pg", User: "app", Settings: upstream.Settings{Endpoints: upstream.Endpoints("127.0.0.1:5432")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pg.Close()
	p := &program{pg: pg}
	c, err := console.New(console.Config{Database: "pgbouncer", Viewers: []string{"stats"}, LocalOnly: true, Gateway: p})
	if err != nil {
		fmt.Println(err)
		return
	}
	p.proxy, err = pgproxy.New(pgproxy.Config{
		Auth: pgproxy.AuthTrust, Databases: map[string]pgproxy.Backend{"app": pg}, Console: pgproxy.Console{Database: "pgbouncer", Backend: c},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	served := make(chan error, 1)
	go func() { served <- p.proxy.Serve(l) }()
	show(l.Addr().String())
	fmt.Println(p.proxy.Drain(context.Background()), <-served)
	// Output:
	// SHOW DATABASES: app pool_size 20
	// SHOW DATABASES: pgbouncer pool_size 0
	// PAUSE: admin access needed
	// <nil> <nil>
}

// show is a client.
func show(address string) {
	ctx := context.Background()
	conn, err := pgconn.Connect(ctx, "postgres://stats@"+address+"/pgbouncer?sslmode=disable")
	if err != nil {
		fmt.Println(err)
		return
	}
	results, err := conn.Exec(ctx, "SHOW DATABASES").ReadAll()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, row := range results[0].Rows {
		fmt.Printf("SHOW DATABASES: %s %s %s\n", row[0], results[0].FieldDescriptions[5].Name, row[5])
	}
	_, err = conn.Exec(ctx, "PAUSE").ReadAll()
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		fmt.Println("PAUSE:", e.Message)
	}
	_ = conn.Close(ctx)
}
