package pgproxy_test

import (
	"context"
	"fmt"
	"net"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

func Example() {
	pg, err := pgproxy.NewPostgres(pgproxy.PostgresConfig{
		Name: "pg", Settings: upstream.Settings{Endpoints: upstream.Endpoints("127.0.0.1:5432"), Limits: pool.Limits{MaxSize: 20}},
		User: "app", Password: "secret", DBName: "app",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pg.Close()
	p, err := pgproxy.New(pgproxy.Config{
		Listener:  listener.Config{Name: "db"},
		Users:     pgproxy.Users{"app": "secret"}, // clients authenticate by SCRAM-SHA-256
		Databases: map[string]pgproxy.Backend{"app": pg},
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
	served := make(chan error)
	go func() { served <- p.Serve(l) }()
	// psql -h 127.0.0.1 -p … -U app app
	fmt.Println(p.Drain(context.Background()), <-served)
	// Output: <nil> <nil>
}
