package gateway_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

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
