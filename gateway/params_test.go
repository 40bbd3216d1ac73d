package gateway_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

// TestParamsOfAnUpstream reach the server, and a reload changes them.
func TestParamsOfAnUpstream(t *testing.T) {
	db := pgtest.Start(t)
	text := func(timeout string) string {
		return `
listeners:
  - {name: db, protocol: postgres, listen: "` + "{listen}" + `", upstream: pg, postgres: {databases: {"*": pg}}}
upstreams:
  pg:
    endpoints: ["{db}"]
    postgres: {user: "{user}", password: "{password}", dbname: postgres, params: {statement_timeout: ` + timeout + `, app.tenant: "$${one}"}}
`
	}
	listen := freeAddresses(t, 1)[0]
	pairs := []string{"{listen}", listen, "{db}", db.Addr(), "{user}", db.Superuser(), "{password}", db.Password()}
	show := func(more string) string {
		t.Helper()
		conn, err := pgx.Connect(context.Background(), "postgres://me@"+listen+"/app?sslmode=disable"+more)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		var got string
		if err := conn.QueryRow(context.Background(), "select current_setting('statement_timeout') || current_setting('app.tenant')").Scan(&got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	g := run(t, parse(t, text("17s"), pairs...))
	for _, c := range [][2]string{{"", "17s${one}"}, {"&statement_timeout=3s", "3s${one}"}, {"", "17s${one}"}} {
		if got := show(c[0]); got != c[1] {
			t.Errorf("a client with %q: %s, want %s", c[0], got, c[1])
		}
	}
	if err := g.Reload(parse(t, text("18s"), pairs...)); err != nil {
		t.Fatal(err)
	}
	if got := show(""); got != "18s${one}" {
		t.Errorf("after a reload: %s", got)
	}
}

// TestReloadWithAnotherPassword changes the password of the gateway's own login: clients that were connected before the
// reload get an error that tells them to connect again when their upstream, which has the old one, can open no
// connection for them.
func TestReloadWithAnotherPassword(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM))
	db.Exec(t, "create role rotated login password 'old'")
	listen := freeAddresses(t, 1)[0]
	config := func(password string) []string {
		return []string{"{listen}", listen, "{db}", db.Addr(), "{password}", password}
	}
	const text = `
listeners:
  - {name: db, protocol: postgres, listen: "{listen}", upstream: pg, postgres: {databases: {"*": pg}}}
upstreams:
  pg:
    endpoints: ["{db}"]
    postgres: {user: rotated, password: "{password}", dbname: postgres}
`
	g := run(t, parse(t, text, config("old")...))
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), "postgres://me@"+listen+"/app?sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	conn := connect()
	if _, err := conn.Exec(t.Context(), "select 1"); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "all connections are idle", func() bool { // a reload closes those that are in use or being opened, once they are free
		p := g.Snapshot().Upstreams[0].Endpoints[0].Pool
		return p.Idle > 0 && p.InUse+p.Opening+p.Busy == 0
	})
	db.Exec(t, "alter role rotated password 'new'")
	if err := g.Reload(parse(t, text, config("new")...)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "select 1"); err != nil {
		t.Errorf("with the server connection of before: %v", err)
	}
	db.Exec(t, "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = 'rotated'")
	_, err := conn.Exec(t.Context(), "select 1")
	if pe, ok := errors.AsType[*pgconn.PgError](err); !ok || pe.Code != "57P01" || !conn.IsClosed() {
		t.Errorf("without: %v, closed %v", err, conn.IsClosed())
	}
	if _, err := connect().Exec(t.Context(), "select 1"); err != nil {
		t.Errorf("connected again: %v", err)
	}
}
