package gateway_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/upstream"
)

// waitsInOld waits until a client waits at an upstream that a reload has replaced, or will replace.
func waitsInOld(t *testing.T, gw *gatewaytest.Gateway) {
	t.Helper()
	status(t, gw, "a client waits", func(s upstream.Status) bool { n, quiet := waiting(s); return n == 1 && quiet })
}

// TestRequestsFollowAReplacedPausedUpstream: a request that waits for the end of a pause goes to the servers of the
// upstream that replaces the paused one, also after two reloads.
func TestRequestsFollowAReplacedPausedUpstream(t *testing.T) {
	one, two, at := webServer(t, "one"), webServer(t, "two"), conntest.FreeAddress(t)
	gw := run(t, parse(t, webText, "{listen}", at, "{web}", one, "{more}", ""))
	pause(t, gw, "web")
	got := make(chan string, 2)
	ask := func() {
		_, body, err := get(client(t), "http://"+at+"/")
		got <- errors.Join(errors.New(body), err).Error()
	}
	for _, timeout := range []string{"4s", "3s"} {
		go ask()
		waitsInOld(t, gw)
		if err := gw.Reload(parse(t, webText, "{listen}", at, "{web}", two, "{more}", ", connect_timeout: "+timeout)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case body := <-got:
		t.Errorf("%s during the pause", body)
	default:
	}
	resume(t, gw, "web")
	for range 2 {
		if body := <-got; body != "two" {
			t.Error(body)
		}
	}
	conntest.Eventually(t, "what was replaced is gone", func() bool { return len(gw.Snapshot().Retiring) == 0 })
}

// TestSessionsFollowAReplacedPausedUpstream: a PostgreSQL client whose statement waits for the end of a pause gets its
// answer from the upstream that replaces the paused one, also if it has to ask servers for their role, and stays connected.
func TestSessionsFollowAReplacedPausedUpstream(t *testing.T) {
	db := pgtest.Start(t)
	db.CreateUser(t, "moved", "a new password")
	db.CreateDatabase(t, "moved", "moved")
	for _, target := range []string{"any", "primary"} {
		t.Run(target, func(t *testing.T) {
			text := `
drain_timeout: 10s
listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: pg, postgres: {databases: {"*": pg}, auth: trust}}
upstreams:
  pg: {endpoints: ["{addr}"], pool: {acquire_timeout: 20s}, postgres: {user: "{user}", dbname: "{name}", password: "{password}", target: {target}}}
`
			cfg := func(user, name, password string) []string {
				return []string{"{addr}", db.Addr(), "{user}", user, "{name}", name, "{password}", password, "{target}", target}
			}
			gw := run(t, parse(t, text, cfg(db.Superuser(), "postgres", "")...))
			conn, err := pgx.Connect(t.Context(), "postgres://u@"+gw.Addr("db")+"/any?sslmode=disable")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close(context.Background()) }()
			name := func() string {
				var name string
				if err := conn.QueryRow(t.Context(), "select current_database() || current_user").Scan(&name); err != nil {
					return err.Error()
				}
				return name
			}
			if got := name(); !strings.HasPrefix(got, "postgres") {
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
			if err := gw.Reload(parse(t, text, cfg("moved", "moved", "a new password")...)); err != nil {
				t.Fatal(err)
			}
			select {
			case name := <-got:
				t.Errorf("%s during the pause", name)
			default:
			}
			resume(t, gw, "pg")
			if name := <-got; name != "movedmoved" {
				t.Errorf("after the pause: %s", name)
			}
			if name := name(); name != "movedmoved" {
				t.Errorf("the next statement: %s", name)
			}
		})
	}
}
