package pgproxy_test

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
)

// TestClientIdleTimeout: a reload that sets the time-out ends clients that are idle, whatever they have done before, and no
// others.
func TestClientIdleTimeout(t *testing.T) { withAndWithoutTLS(t, endsIdleClients) }

func endsIdleClients(t *testing.T, secure *tls.Config, sslmode string) {
	var cfg pgproxy.Config
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.TLS, pc.Limits.MaxSize, c.MaxPinned = secure, 4, 3
		cfg = *c
	})
	idle := map[string]*pgx.Conn{}
	for name, statements := range map[string][]string{
		"asked nothing": nil,
		"asked":         {"select 1"},
		"pinned":        {"create temp table kept (n int)"},
		"listens":       {"listen events"},
		"committed":     {"begin", "select 1", "commit"},
	} {
		idle[name] = g.connect(t, sslmode)
		for _, s := range statements {
			do(t, idle[name], s)
		}
	}
	busy, open := g.connect(t, sslmode), g.connect(t, sslmode)
	answered := asks(t, busy, "select pg_sleep(604)")
	waitFor(t, g, "pg_sleep(604)")
	do(t, open, "begin")
	do(t, open, "select 1")
	cfg.Databases, cfg.ClientIdleTimeout = map[string]pgproxy.Backend{"*": g.backend}, time.Second
	if err := g.Update(cfg); err != nil {
		t.Fatal(err)
	}
	for name, c := range idle {
		if _, err := c.WaitForNotification(t.Context()); sqlstate(err) != "57P05" {
			t.Errorf("the client that %s got %v", name, err)
		}
	}
	if err := busy.PgConn().CancelRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; sqlstate(err) != "57014" {
		t.Errorf("the client with a statement under way got %v", err)
	}
	do(t, open, "select 1")
	do(t, open, "commit")
	if n := g.Stats().Errors[listener.ReasonTimeout]; n < uint64(len(idle)) {
		t.Errorf("%d sessions count as timed out, want %d", n, len(idle))
	}
	conntest.Eventually(t, "no server connection is in use", func() bool { return g.backend.Status().Endpoints[0].Pool.InUse == 0 })
}
