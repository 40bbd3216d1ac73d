package sqlite_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/jackc/pgx/v5"
)

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "headpond")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	b, err := sqlite.New(sqlite.Config{Path: filepath.Join(dir, "app.db")})
	if err != nil {
		log.Fatal(err)
	}
	if err := b.Exec(ctx, "CREATE TABLE users (name TEXT); INSERT INTO users VALUES ('ada'), ('grace')"); err != nil {
		log.Fatal(err)
	}
	p, err := pgproxy.New(pgproxy.Config{
		Listener: listener.Config{Name: "db"}, Auth: pgproxy.AuthTrust,
		Databases: map[string]pgproxy.Backend{"*": b},
	})
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go p.Serve(l)

	conn, err := pgx.Connect(ctx, fmt.Sprintf("postgres://demo@%s/app?sslmode=disable", l.Addr()))
	if err != nil {
		log.Fatal(err)
	}
	var users int
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM users").Scan(&users); err != nil {
		log.Fatal(err)
	}
	fmt.Println(users, "users")
	conn.Close(ctx)
	p.Drain(ctx)
	b.Drain(ctx)
	// Output: 2 users
}
