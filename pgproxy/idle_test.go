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
	"github.com/headpond/headpond/pgwire"
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

// TestActiveClientsStay: whatever a client sends, it is not idle since an earlier time than that of the last answer.
func TestActiveClientsStay(t *testing.T) {
	for name, mode := range map[string]pgproxy.Mode{"transaction": pgproxy.Transaction, "session": pgproxy.Session} {
		t.Run(name, func(t *testing.T) {
			withAndWithoutTLS(t, func(t *testing.T, secure *tls.Config, sslmode string) { activeClientsStay(t, mode, secure, sslmode) })
		})
	}
}

func activeClientsStay(t *testing.T, mode pgproxy.Mode, secure *tls.Config, sslmode string) {
	db := pgtest.Shared(t)
	g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.Mode, c.TLS, pc.Limits.MaxSize, c.MaxPinned, c.ShowStatements = mode, secure, 20, 19, true
	})
	ask := func(w *wire, name string, requests ...pgwire.Message) {
		t.Helper()
		if w.send(requests...); requests == nil {
			return
		}
		for typ, body := w.read(); typ != pgwire.TypeReadyForQuery; typ, body = w.read() {
			if typ == pgwire.TypeErrorResponse {
				t.Fatalf("%s: %q", name, body)
			}
		}
	}
	sync := []pgwire.Message{&pgwire.Sync{}}
	requests := map[string][2][]pgwire.Message{
		"asks":            {nil, {query("select 1")}},
		"executes":        {parse("s", "select 1"), run("s")},
		"pinned":          {{query("create temp table active (n int)")}, {query("select 1")}},
		"pinned, syncs":   {{query("create temp table active (n int)")}, sync},
		"listens":         {{query("listen active")}, {query("select 1")}},
		"listens, syncs":  {{query("listen active")}, sync},
		"syncs":           {nil, sync},
		"empty":           {nil, {query("")}},
		"parses":          {nil, parse("", "select 1")},
		"ends its block":  {{query("begin; select 1")}, {query("commit")}},
		"waits for a row": {nil, {query("select pg_advisory_xact_lock(57005)")}},
	}
	clients := map[string]*wire{}
	for name, r := range requests {
		conn := g.connect(t, sslmode).PgConn()
		if err := conn.SyncConn(t.Context()); err != nil { // on a busy machine it may still be reading in the background
			t.Fatal(err)
		}
		clients[name] = newWire(t, conn.Conn())
		ask(clients[name], name, r[0]...)
	}
	holder := db.Connect(t)
	do(t, holder, "select pg_advisory_lock(57005)")
	slow := clients["waits for a row"]
	slow.send(requests["waits for a row"][1]...)
	waitFor(t, g, "57005")
	before := g.Tick()
	conntest.Eventually(t, "time passes", func() bool { return g.Tick() > before })
	now := g.Tick()
	for name, w := range clients {
		if w != slow {
			ask(w, name, requests[name][1]...)
		}
	}
	do(t, holder, "select pg_advisory_unlock(57005)")
	slow.until(pgwire.TypeReadyForQuery)
	conntest.Eventually(t, "all are idle", func() bool { return g.Idle() == len(clients) })
	g.EndIdleBefore(now)
	for name, w := range clients {
		ask(w, name, query("select 1"))
	}
}
