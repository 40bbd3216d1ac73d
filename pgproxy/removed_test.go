package pgproxy_test

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// removal is a policy for the leases of an endpoint that is removed.
type removal struct {
	name  string
	how   upstream.Removal
	limit time.Duration
}

// removals are the policies that end a lease.
var removals = []removal{{"close", upstream.CloseRemoved, 0}, {"limit", upstream.DrainRemoved, 20 * time.Millisecond}}

// move has the backend's only endpoint become another.
func (g *gateway) move(t *testing.T, r removal, to string) {
	t.Helper()
	err := g.backend.Update(upstream.Settings{
		Endpoints: upstream.Endpoints(to), Limits: pool.Limits{MaxSize: 1}, OnRemoved: r.how, RemovedTimeout: r.limit,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wantRemoved checks that a client got the error of a removed endpoint, that no lease of that endpoint remains, and
// that the next client is served.
func (g *gateway) wantRemoved(t *testing.T, w *wire, what string) {
	t.Helper()
	if all := w.toTheEnd(); !has(all, "VFATAL\x00C57P01\x00") || !has(all, "removed") {
		t.Errorf("%s: the client heard %q", what, all)
	}
	conntest.Eventually(t, "no lease is left", func() bool { return len(g.backend.Status().Endpoints) == 1 })
	next := g.connect(t, "")
	do(t, next, "select 1")
	_ = next.Close(context.Background())
}

// TestRemovedEndpointEndsSilentClient removes the endpoint of a client that is silent and holds a server connection.
func TestRemovedEndpointEndsSilentClient(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists silent (a int)")
	for _, r := range removals {
		for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
			g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) { c.Mode, pc.Limits.MaxSize = mode, 1 })
			addrs := []string{db.SocketAddr(), db.Addr()}
			for name, silent := range silences {
				w := superuser(t, g.addr)
				silent(w)
				g.move(t, r, addrs[0])
				g.wantRemoved(t, w, r.name+", "+mode.String()+", "+name)
				addrs[0], addrs[1] = addrs[1], addrs[0]
			}
		}
	}
}

// TestRemovedEndpointEndsSuspendedSession does that to sessions that have been suspended.
func TestRemovedEndpointEndsSuspendedSession(t *testing.T) {
	withAndWithoutTLS(t, func(t *testing.T, secure *tls.Config, sslmode string) {
		for _, r := range removals {
			for _, sql := range []string{"begin", "select 1"} {
				g, suspended := startWatched(t, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.TLS, c.Mode = secure, pgproxy.Session })
				conn := g.connect(t, sslmode)
				do(t, conn, sql)
				<-suspended
				g.move(t, r, pgtest.Shared(t).SocketAddr())
				if _, err := conn.WaitForNotification(t.Context()); sqlstate(err) != "57P01" {
					t.Errorf("%s, after %q: the client got %v", r.name, sql, err)
				}
				conntest.Eventually(t, "no lease is left", func() bool { return len(g.backend.Status().Endpoints) == 1 })
			}
		}
	})
}

// TestRemovedEndpointWithTLS has server connections with TLS, which sessions watch in another way.
func TestRemovedEndpointWithTLS(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithTLS(), pgtest.WithHBA("host all all 127.0.0.0/8 trust"), pgtest.WithSetting("listen_addresses", "127.0.0.1,127.0.0.2"))
	for _, r := range removals {
		for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
			g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
				c.Mode, pc.Limits.MaxSize, pc.TLS = mode, 1, &tls.Config{InsecureSkipVerify: true}
			})
			w := g.dial(t)
			w.ask(query("begin"))
			g.move(t, r, "127.0.0.2:"+itoa(db.Port()))
			g.wantRemoved(t, w, r.name+", "+mode.String())
		}
	}
}

// TestRemovedEndpointUnderStatement removes the endpoint while its server works: the client gets an error, and the
// statement is canceled.
func TestRemovedEndpointUnderStatement(t *testing.T) {
	const much = "copy (select repeat('x', 1000) from generate_series(1, 100000000)) to stdout"
	db := pgtest.Start(t)
	look := db.Connect(t)
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		for _, sql := range []string{"select pg_sleep(1000)", "begin; select pg_sleep(1000)", much} {
			g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) { c.Mode, pc.Limits.MaxSize = mode, 1 })
			w := g.dial(t)
			w.send(query(sql))
			conntest.Eventually(t, "the server works", func() bool {
				return one[int](t, look, "select count(*) from pg_stat_activity where state = 'active' and query = $1", sql) == 1
			})
			g.move(t, removals[0], db.SocketAddr())
			last := w.last()
			if sql != much && !has(last, "C57P01\x00") || sql == much && last[0] != pgwire.TypeCopyData && !has(last, "C57P01\x00") {
				t.Errorf("%s, %s: the client heard %q in the end", mode, sql, last)
			}
			conntest.Eventually(t, "no lease and no statement is left", func() bool {
				return len(g.backend.Status().Endpoints) == 1 && db.Backends(t) == 0
			})
		}
	}
}

// last reads what comes until the request or the connection ends, and returns the message before that.
func (w *wire) last() (message string) {
	for {
		typ, body, err := w.try()
		if err != nil || typ == pgwire.TypeReadyForQuery {
			return message
		}
		message = string(typ) + body
	}
}
