package pgproxy_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// TestUnreadableCatalogsAreTold has the catalogs be out of reach: the log tells of it once, and when they can be read again.
func TestUnreadableCatalogsAreTold(t *testing.T) {
	db := pgtest.Shared(t)
	log := &conntest.Log{}
	b, settings := unreachable(t, db, slog.New(slog.NewTextHandler(log, nil)))
	for i := range 5 {
		if !b.ReadCatalog() {
			t.Fatal("a reading is under way")
		}
		if told := strings.Count(log.String(), "could not be read"); told != min(1, (i+1)/3) {
			t.Errorf("after %d readings the log has told of them %d times", i+1, told)
		}
	}
	settings.Endpoints = upstream.Endpoints(db.Addr())
	if err := b.Update(settings); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b.ReadCatalog()
	}
	if n := strings.Count(log.String(), "can be read again"); n != 1 {
		t.Errorf("the log tells %d times that they can be read:\n%s", n, log)
	}
}

// TestCatalogsWithoutLogger has a backend without a logger fail to read the catalogs.
func TestCatalogsWithoutLogger(t *testing.T) {
	b, _ := unreachable(t, pgtest.Shared(t), nil)
	for range 3 {
		b.ReadCatalog()
	}
}

// unreachable returns a backend that reads the catalogs, without an endpoint that answers.
func unreachable(t *testing.T, db *pgtest.Cluster, logger *slog.Logger) (*pgproxy.Postgres, upstream.Settings) {
	t.Helper()
	settings := upstream.Settings{Endpoints: upstream.Endpoints("unix:/nowhere"), Limits: pool.Limits{MaxSize: 1, AcquireTimeout: 20 * time.Second}}
	b, err := pgproxy.NewPostgres(pgproxy.PostgresConfig{
		Name: "pg", Settings: settings, User: db.Superuser(), Password: db.Password(), DBName: "postgres", ReadCatalogs: pgproxy.CatalogsTrusted, Dial: enginetest.Dial, Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := b.Drain(ctx); err != nil {
			t.Error(err)
		}
	})
	return b, settings
}

// TestListeningConnectionPanics has a goroutine of a listening connection panic: the connection ends, and nothing else.
func TestListeningConnectionPanics(t *testing.T) {
	g := startListening(t, pgtest.Shared(t), 3, nil)
	w := g.dial(t, pgwire.Param{Name: "application_name", Value: "listener"})
	w.ask(query("listen a"))
	g.awaitParked(t, "listener")
	g.backend.PanicListening()
	if said := w.toTheEnd(); !has(said, "08006") {
		t.Errorf("the client that listens is told %q", said)
	}
	if !strings.Contains(g.log.String(), "panic of the listening connection") {
		t.Error("the log does not tell of it")
	}
	again := g.dial(t)
	if types, bodies := again.ask(query("listen a")); types != "CZ" {
		t.Errorf("another client: %q %q", types, bodies)
	}
}

// TestListeningLoginPanics has the login of the listening connection panic: the client listens by its server connection, and the log tells why.
func TestListeningLoginPanics(t *testing.T) {
	var panics atomic.Bool
	g := startListening(t, pgtest.Shared(t), 1, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Dial = func(ctx context.Context, endpoint string) (net.Conn, error) {
			if panics.Load() {
				panic("a test")
			}
			return enginetest.Dial(ctx, endpoint)
		}
	})
	w := g.named(t, "first")
	w.ask(query("select 1")) // there is a server connection
	panics.Store(true)
	if types, bodies := w.ask(query("listen a")); types != "CZ" {
		t.Errorf("listen: %q %q", types, bodies)
	}
	g.session(t, "first", listener.StatePinned)
	panics.Store(false)
	for _, text := range []string{"panic of the listening connection", "LISTEN pins clients"} {
		if n := strings.Count(g.log.String(), text); n != 1 {
			t.Errorf("the log has %q %d times:\n%s", text, n, g.log)
		}
	}
	simple(t, pgtest.Shared(t).Connect(t), "notify a, 'x'")
	heardUpTo(t, w, "x")
}
