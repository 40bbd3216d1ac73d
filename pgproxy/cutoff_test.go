package pgproxy_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/headpond/headpond/internal/certs"
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

// killingConn is a gateway's connection to a client whose session an operator kills before the next write of at least so many bytes,
// once it is armed.
type killingConn struct {
	net.Conn
	armed atomic.Bool
	least int
	kill  func()
}

func (c *killingConn) Write(p []byte) (int, error) {
	if len(p) >= c.least && c.armed.CompareAndSwap(true, false) {
		c.kill()
	}
	return c.Conn.Write(p)
}

// dialKilling returns a client whose session an operator kills at the gateway's first write after conn was armed.
func (g *gateway) dialKilling(t *testing.T, secure bool) (w *wire, conn *killingConn) {
	client, server := conntest.Pair(t, "tcp", "127.0.0.1:0")
	conn = &killingConn{Conn: server, kill: func() {
		id, stream, _ := listener.ParseID(g.Sessions()[0].ID)
		if !g.Kill(id, stream) {
			t.Error("there is no session to kill")
		}
	}}
	l := &oneConn{conn: conn, done: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() { _ = client.Close(); _ = l.Close(); <-served })
	w = newWire(t, client)
	if secure {
		w.send(&pgwire.SSLRequest{})
		if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		w = newWire(t, tls.Client(client, &tls.Config{InsecureSkipVerify: true})) //nolint:gosec // a throw-away certificate
	}
	return w.login(), conn
}

// TestKilledInAnAnswer: an operator kills a session while it writes an answer. The client gets what was ready of the answer, and
// then 57P01: it takes no part of the answer for the whole.
func TestKilledInAnAnswer(t *testing.T) {
	withAndWithoutTLS(t, func(t *testing.T, secure *tls.Config, _ string) {
		for rows, least := range map[int]int{1: 1, 1000: 8 << 10} { // bytes
			g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.TLS = secure })
			w, conn := g.dialKilling(t, secure != nil)
			conn.least = least
			conn.armed.Store(true)
			w.send(query(fmt.Sprintf("select repeat('x', 1000) from generate_series(1, %d)", rows)))
			types, bodies := w.until(pgwire.TypeErrorResponse)
			if !strings.HasPrefix(types, "TD") || strings.Contains(types, "C") != (strings.Count(types, "D") == rows) || !strings.Contains(bodies, "57P01") {
				t.Errorf("of %d rows the client gets %d: %.20s, ..., %.200q", rows, strings.Count(types, "D"), types, bodies[max(0, len(bodies)-200):])
			}
			if e := g.Stats().Errors; e[listener.ReasonKilled] != 1 {
				t.Errorf("errors: %v", e)
			}
		}
	})
}

// TestKilledWhileTheClientSends: a client that is sending when its session ends can send on, and reads why it has ended. The
// connection is not reset.
func TestKilledWhileTheClientSends(t *testing.T) {
	withAndWithoutTLS(t, func(t *testing.T, secure *tls.Config, _ string) {
		g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.TLS = secure })
		client, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		w := newWire(t, client)
		if secure != nil {
			w.send(&pgwire.SSLRequest{})
			if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			w = newWire(t, tls.Client(client, &tls.Config{InsecureSkipVerify: true})) //nolint:gosec // a throw-away certificate
		}
		w.login(pgwire.Param{Name: "application_name", Value: "sends"})
		w.send(query("select pg_sleep(603)"))
		waitFor(t, g, "pg_sleep(603)")
		sent := make(chan error, 1)
		go func() {
			_, err := w.Write(bytesOf(query("select '" + strings.Repeat("x", 1<<20) + "'")))
			sent <- err
		}()
		g.kill(t, g.session(t, "sends", listener.StateActive))
		if err := <-sent; err != nil {
			t.Errorf("the client cannot send: %v", err)
		}
		if types, bodies := w.until(pgwire.TypeErrorResponse); types != "E" || !strings.Contains(bodies, "57P01") {
			t.Errorf("the client gets %s %q", types, bodies)
		}
		if _, _, err := w.try(); err != io.EOF {
			t.Errorf("then the client gets %v, want the end", err)
		}
		_ = w.Close()
		conntest.Eventually(t, "the session is over", func() bool { return g.Stats().Active == 0 })
	})
}

// TestKilledInTheLogin: a client that is killed while it logs in is told so, and counted once.
func TestKilledInTheLogin(t *testing.T) {
	withAndWithoutTLS(t, func(t *testing.T, secure *tls.Config, sslmode string) {
		g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
			c.TLS, c.Auth, c.Users = secure, pgproxy.AuthSCRAM, pgproxy.Users{"app": "pw"}
		})
		cfg, err := pgx.ParseConfig(g.dsn(sslmode + " password=pw"))
		if err != nil {
			t.Fatal(err)
		}
		cfg.ConnectTimeout = conntest.Patience
		cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
			return pgproto3.NewFrontend(r, &beforeWrite{Writer: w, nth: 2, do: func() { g.killAll(t) }})
		}
		_, err = pgx.ConnectConfig(t.Context(), cfg)
		wantKilled(t, err)
		conntest.Eventually(t, "no session is left", func() bool { return len(g.Sessions()) == 0 })
		if e := g.Stats().Errors; len(e) != 1 || e[listener.ReasonKilled] != 1 {
			t.Errorf("errors: %v, want one killed and nothing else", e)
		}
	})
}

// TestKilledBeforeTheLogin: a client that is killed before it has sent a startup packet is counted once.
func TestKilledBeforeTheLogin(t *testing.T) {
	server, _ := certs.New().Configs()
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.TLS = server })
	for killed, secure := range []bool{false, true} {
		client := conntest.Dial(t, g.addr)
		if secure {
			if _, err := client.Write(bytesOf(&pgwire.SSLRequest{})); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		g.kill(t, g.session(t, "", listener.StateStarting))
		conntest.WantGone(t, client)
		conntest.Eventually(t, "no session is left", func() bool { return len(g.Sessions()) == 0 })
		if e := g.Stats().Errors; len(e) != 1 || e[listener.ReasonKilled] != uint64(killed+1) {
			t.Errorf("in TLS: %v, errors: %v, want %d killed and nothing else", secure, e, killed+1)
		}
	}
}

// beforeWrite does something before a write.
type beforeWrite struct {
	io.Writer
	nth int // which one
	do  func()
}

func (w *beforeWrite) Write(p []byte) (int, error) {
	if w.nth--; w.nth == 0 {
		w.do()
	}
	return w.Writer.Write(p)
}

// killAll kills the sessions that are listed.
func (g *gateway) killAll(t *testing.T) {
	t.Helper()
	for _, s := range g.Sessions() {
		g.kill(t, s)
	}
}
