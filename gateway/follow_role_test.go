package gateway_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

// TestFollowersAskForRoles: a client of an upstream with a target waits for the end of a pause, in which a reload replaces
// the upstream, and gets its answer from a server that has the role.
func TestFollowersAskForRoles(t *testing.T) {
	db := pgtest.Start(t)
	db.CreateUser(t, "moved", "a new password")
	text := `
drain_timeout: 10s
listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: pg, postgres: {databases: {"*": pg}, auth: trust}}
upstreams:
  pg: {endpoints: ["{addr}"], pool: {acquire_timeout: 20s}, postgres: {user: "{user}", dbname: postgres, password: "{password}", target: primary}}
`
	cfg := func(user, password string) []string {
		return []string{"{addr}", db.Addr(), "{user}", user, "{password}", password}
	}
	gw := run(t, parse(t, text, cfg(db.Superuser(), "")...))
	conn, err := pgx.Connect(t.Context(), "postgres://u@"+gw.Addr("db")+"/any?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	name := func() string {
		var name string
		if err := conn.QueryRow(t.Context(), "select current_user").Scan(&name); err != nil {
			return err.Error()
		}
		return name
	}
	if got := name(); got != db.Superuser() {
		t.Fatal(got)
	}
	pause(t, gw, "pg")
	got := make(chan string, 1)
	go func() { got <- name() }()
	waitsInOld(t, gw)
	look := db.Connect(t)
	conntest.Eventually(t, "the gateway has no connection to the server", func() bool {
		var n int
		return look.QueryRow(t.Context(), "select count(*) from pg_stat_activity where backend_type = 'client backend'").Scan(&n) == nil && n == 1
	})
	if err := gw.Reload(parse(t, text, cfg("moved", "a new password")...)); err != nil {
		t.Fatal(err)
	}
	resume(t, gw, "pg")
	if name := <-got; name != "moved" {
		t.Errorf("after the pause: %s", name)
	}
	if name := name(); name != "moved" {
		t.Errorf("the next statement: %s", name)
	}
}
