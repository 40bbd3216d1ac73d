package pgproxy_test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestKilledInACheck kills a client while the server does not answer the gateway's question about the client's settings: another
// client gets the place in the pool at once.
func TestKilledInACheck(t *testing.T) {
	db, name := ownDatabase(t)
	aside := asideOf(t, db, name).connect(t, "")
	simple(t, aside, "begin")
	simple(t, aside, "lock table pg_catalog.pg_settings in access exclusive mode")
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsNever, 1))
	for _, sql := range []string{"set timezone = 'Asia/Tokyo'", "do $$ begin perform set_config('work_mem', '1MB', false); end $$"} {
		c := g.dial(t, pgwire.Param{Name: "application_name", Value: "asks"})
		if types, bodies := c.ask(query(sql)); has(types, "E") {
			t.Fatalf("%q", bodies)
		}
		conntest.Eventually(t, "the gateway waits for the settings", func() bool {
			return one[int](t, aside, "select count(*) from pg_locks where not granted and relation = 'pg_settings'::regclass") == 1
		})
		for _, s := range g.Sessions() {
			if id, stream, ok := listener.ParseID(s.ID); s.Application == "asks" && (!ok || !g.Kill(id, stream)) {
				t.Errorf("cannot kill %+v", s)
			}
		}
		other := g.dial(t)
		if types, bodies := other.ask(query("select 7")); types != "TDCZ" {
			t.Errorf("after %s: another client gets %s: %q", sql, types, bodies)
		}
		_ = other.Close()
		conntest.Eventually(t, "the server has noticed", func() bool {
			return one[int](t, aside, "select count(pg_terminate_backend(pid)) from pg_locks where not granted and relation = 'pg_settings'::regclass") == 0
		})
	}
}

// beforeSession is a backend that does something before each session begins.
type beforeSession struct {
	watched
	do atomic.Pointer[func()]
}

// Serve implements pgproxy.Backend.
func (b *beforeSession) Serve(ctx context.Context, c *pgproxy.Client) error {
	if do := b.do.Load(); do != nil {
		(*do)()
	}
	return b.watched.Serve(ctx, c)
}

// TestKilledBeforeAWait kills a client that is about to wait for a server connection: it does not begin to.
func TestKilledBeforeAWait(t *testing.T) {
	b := &beforeSession{watched: watched{suspended: make(chan struct{}, 16)}}
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		session(c, pc)
		pc.Limits.MaxSize, pc.Limits.AcquireTimeout = 1, time.Hour
		c.Databases = map[string]pgproxy.Backend{"*": b}
	})
	b.pg.Store(g.backend)
	g.connect(t, "")
	kill := func() {
		for _, s := range g.Sessions() {
			if s.Application == "late" {
				g.kill(t, s)
			}
		}
	}
	b.do.Store(&kill)
	ctx, cancel := context.WithTimeout(t.Context(), conntest.Patience)
	defer cancel()
	_, err := pgx.Connect(ctx, g.dsn("application_name=late"))
	wantKilled(t, err)
	conntest.Eventually(t, "only the holder is left", func() bool { return len(g.Sessions()) == 1 })
}

// killingConn is a gateway's connection to a client whose session an operator kills before a text is written to it.
type killingConn struct {
	net.Conn
	text string
	kill func()
}

func (c *killingConn) Write(p []byte) (int, error) {
	if c.text != "" && bytes.Contains(p, []byte(c.text)) {
		c.text = ""
		c.kill()
	}
	return c.Conn.Write(p)
}

// TestKilledInAnAnswer: an operator kills a session while it writes an answer. The client gets the answer and 57P01.
func TestKilledInAnAnswer(t *testing.T) {
	g := start(t, pgtest.Shared(t), nil)
	client, server := conntest.Pair(t, "tcp", "127.0.0.1:0")
	l := &oneConn{done: make(chan struct{})}
	l.conn = &killingConn{Conn: server, text: "the answer", kill: func() {
		id, stream, _ := listener.ParseID(g.Sessions()[0].ID)
		if !g.Kill(id, stream) {
			t.Error("there is no session to kill")
		}
	}}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() { _ = client.Close(); _ = l.Close(); <-served })
	w := newWire(t, client).login()
	w.send(query("select 'the ' || 'answer'"))
	if types, bodies := w.until(pgwire.TypeErrorResponse); types != "TDCZE" || !has(bodies, "57P01") {
		t.Errorf("the client gets %s %q", types, bodies)
	}
}
