package pgproxy_test

import (
	"context"
	"crypto/tls"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// watched reports when a session has been suspended.
type watched struct {
	pgproxy.Backend // nil; the methods below use pg, and nothing drains it
	pg              atomic.Pointer[pgproxy.Postgres]
	suspended       chan struct{}
}

func (w *watched) Serve(ctx context.Context, c *pgproxy.Client) error {
	err := w.pg.Load().Serve(ctx, c)
	if errors.Is(err, pgproxy.ErrSuspended) {
		w.suspended <- struct{}{}
	}
	return err
}

func (w *watched) Unwrap() pgproxy.Backend { return w.pg.Load() }

func (w *watched) Name() string { return "pg" }

func (w *watched) Status() upstream.Status { return upstream.Status{Name: "pg"} }

// startWatched returns a proxy and its reports of suspended sessions; sessions on goroutines never
// are.
func startWatched(t *testing.T, change func(*pgproxy.Config, *pgproxy.PostgresConfig)) (*gateway, <-chan struct{}) {
	w := &watched{suspended: make(chan struct{}, 16)}
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		change(c, pc)
		c.Databases = map[string]pgproxy.Backend{"*": w}
	})
	w.pg.Store(g.backend)
	if enginetest.Kind() == fiber.Goroutine {
		close(w.suspended)
	}
	return g, w.suspended
}

// withAndWithoutTLS runs a test for clients of either kind; sslmode is theirs.
func withAndWithoutTLS(t *testing.T, run func(t *testing.T, secure *tls.Config, sslmode string)) {
	t.Run("plain", func(t *testing.T) { run(t, nil, "") })
	server, _ := certs.New().Configs()
	t.Run("tls", func(t *testing.T) { run(t, server, "sslmode=require ") })
	t.Run("direct", func(t *testing.T) { run(t, server, "sslmode=require sslnegotiation=direct ") })
}

// A client that was idle for long finds everything as it left it.
func TestSuspendedSession(t *testing.T) { withAndWithoutTLS(t, idleAgainAndAgain) }

func idleAgainAndAgain(t *testing.T, secure *tls.Config, sslmode string) {
	g, suspended := startWatched(t, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.TLS = secure })
	conn := g.connect(t, sslmode+"application_name=patient timezone=Asia/Tokyo")
	do(t, conn, "set datestyle to 'SQL, DMY'")
	if _, err := conn.Prepare(t.Context(), "later", "select $1::int + 1"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		<-suspended
		if n := one[int](t, conn, "later", 41); n != 42 {
			t.Errorf("the prepared statement says %d", n)
		}
		if s := one[string](t, conn, "select current_setting('datestyle') || current_setting('timezone') || current_setting('application_name')"); s != "SQL, DMYAsia/Tokyopatient" {
			t.Errorf("settings are %s", s)
		}
	}
	<-suspended
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Errorf("a cancel request for an idle client: %v", err)
	}
	do(t, conn, "begin")
	do(t, conn, "commit")
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := g.Drain(t.Context()); err != nil {
		t.Errorf("a session is left: %v", err)
	}
}

// Sessions of clients that ask seldom are suspended again at once; others wait for the next request.
func TestPatience(t *testing.T) {
	const long, short = 100 * time.Millisecond, 5 * time.Millisecond
	for _, c := range []struct{ idle, first, second time.Duration }{
		{0, short, long}, {time.Second, short, long}, {time.Minute, short, long}, {time.Second / 4, long, long},
	} {
		if first, second := pgproxy.PatiencesAfter(c.idle); first != c.first || second != c.second {
			t.Errorf("after %v: %v and %v, want %v and %v", c.idle, first, second, c.first, c.second)
		}
	}
}

func TestDrainTellsSuspendedClients(t *testing.T) { withAndWithoutTLS(t, drainWhileIdle) }

func drainWhileIdle(t *testing.T, secure *tls.Config, sslmode string) {
	g, suspended := startWatched(t, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.TLS = secure })
	conn := g.connect(t, sslmode)
	do(t, conn, "select 1")
	<-suspended
	drained := make(chan error, 1)
	go func() { drained <- g.Drain(t.Context()) }()
	if _, err := conn.WaitForNotification(t.Context()); sqlstate(err) != "57P01" {
		t.Errorf("the client got %v", err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// A client that has gone leaves nothing behind.
func TestSuspendedClientLeaves(t *testing.T) {
	g, suspended := startWatched(t, transaction)
	conn := g.connect(t, "")
	do(t, conn, "select 1")
	<-suspended
	if err := conn.PgConn().Conn().Close(); err != nil {
		t.Fatal(err)
	}
	if err := g.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if st := g.Stats(); st.Active != 0 {
		t.Errorf("%d sessions, want none", st.Active)
	}
}

// The unnamed statement outlasts a long wait, too.
func TestSuspendedUnnamedStatement(t *testing.T) {
	g, suspended := startWatched(t, transaction)
	w := g.dial(t)
	w.send(&pgwire.Parse{Query: "select 'name' || 'less'"}, &pgwire.Sync{})
	w.until(pgwire.TypeReadyForQuery)
	for range 2 { // the first may have come before the statement
		<-suspended
		w.send(&pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{})
		if _, bodies := w.until(pgwire.TypeReadyForQuery); !has(bodies, "nameless") {
			t.Errorf("the statement says %q", bodies)
		}
	}
}
