package pgproxy_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// TestLeaveWhileNobodyReads: a client disconnects that sends more than the server reads, without reading answers: the
// sender to the server must notice, too, or the server connection is lost.
func TestLeaveWhileNobodyReads(t *testing.T) {
	for what, mode := range map[string]func(*pgproxy.Config, *pgproxy.PostgresConfig){"transaction": transaction, "session": session} {
		t.Run(what, func(t *testing.T) {
			dialed := make(chan *wire, 10)
			g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
				mode(c, pc)
				pc.Limits.MaxSize = 1
				pc.Dial = func(context.Context, string) (net.Conn, error) { // nothing fits on the way
					gateway, server := net.Pipe()
					dialed <- newWire(t, server)
					return gateway, nil
				}
			})
			w := g.pipe(t)
			logged := make(chan struct{})
			go func() { defer close(logged); w.login() }()
			srv := <-dialed
			if _, err := srv.r.Startup(); err != nil {
				t.Fatal(err)
			}
			srv.send(&pgwire.Authentication{}, &pgwire.BackendKeyData{ProcessID: 7, Key: []byte("key7")}, &pgwire.ReadyForQuery{Status: pgwire.TxIdle})
			<-logged
			written := make(chan error, 1)
			go func() { // more than the gateway reads at once, so that it writes some of it
				_, err := w.Write(append(pgwire.AppendHeader(bytesOf(&pgwire.Parse{Query: "first"}), pgwire.TypeBind, 1<<20), make([]byte, 20<<10)...))
				written <- err
			}()
			if typ, body := srv.read(); typ != pgwire.TypeParse {
				t.Fatalf("%c %q", typ, body)
			}
			if err := <-written; err != nil {
				t.Fatal(err)
			}
			told := make(chan error, 1)
			go func() {
				_, err := srv.Write(bytesOf(&pgwire.NoticeResponse{ErrorResponse: pgwire.ErrorResponse{Severity: "NOTICE", Code: "00000", Message: strings.Repeat("y", 1<<20)}}))
				told <- err
			}()
			var first [1]byte
			if _, err := w.Read(first[:]); err != nil { // the server reader is writing now
				t.Fatal(err)
			}
			_ = w.Close()
			_ = srv.SetDeadline(time.Now().Add(time.Minute))
			if err := <-told; err == nil || !isEnd(err) {
				t.Errorf("the server connection of a client that has gone: %v", err)
			}
		})
	}
}

// TestTerminateAtOnce sends Terminate with the last statement: the server must execute the statement before.
func TestTerminateAtOnce(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists farewell (what text)", "truncate farewell")
	count := db.Connect(t)
	insert := "insert into farewell values ('x')"
	long := strings.Repeat(" ", 100<<10)
	for mode, change := range map[string]func(*pgproxy.Config, *pgproxy.PostgresConfig){"transaction": transaction, "session": session} {
		g := start(t, db, change)
		for what, sent := range map[string][]pgwire.Message{
			"query":           {query(insert)},
			"slow query":      {query("select pg_sleep(0.2);" + insert)},
			"pipeline":        {&pgwire.Parse{Query: insert}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}},
			"two":             {query("select 1"), query(insert)},
			"long":            {query("select 1"), query(insert + long), &pgwire.Parse{Query: "select 1"}, &pgwire.Sync{}},
			"with Flush":      {&pgwire.Parse{Query: insert}, &pgwire.Flush{}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}},
			"commit":          {query("begin"), query(insert), query("commit")},
			"after a failure": {query("select 1/0"), query(insert)},
			"copy":            {query("copy farewell from stdin"), &pgwire.CopyData{Data: []byte("x\n")}, &pgwire.CopyDone{}},
		} {
			t.Run(mode+"/"+what, func(t *testing.T) {
				db.Exec(t, "truncate farewell")
				for _, addr := range []string{db.Addr(), g.addr} {
					conn, err := net.Dial("tcp", addr)
					if err != nil {
						t.Fatal(err)
					}
					w := newWire(t, conn)
					w.send(&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: db.Superuser()}, {Name: "database", Value: "postgres"}}})
					w.until(pgwire.TypeReadyForQuery)
					w.send(append(sent, &pgwire.Terminate{})...)
					for err := error(nil); err == nil; {
						_, _, err = w.try()
					}
				}
				if n := one[int](t, count, "select count(*) from farewell"); n != 2 {
					t.Errorf("%d rows, want one of each", n)
				}
			})
		}
	}
}

// TestLeaveWithoutSync has a client go after Execute and Flush.
func TestLeaveWithoutSync(t *testing.T) {
	for what, mode := range map[string]func(*pgproxy.Config, *pgproxy.PostgresConfig){"transaction": transaction, "session": session} {
		g := start(t, pgtest.Shared(t), mode)
		w := g.dial(t)
		w.send(&pgwire.Parse{Query: "select pg_sleep(601)"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Flush{})
		waitFor(t, g, "pg_sleep(601)")
		_ = w.Close()
		left := "select count(*) from pg_stat_activity where state='active' and query='select pg_sleep(601)'"
		for direct, end := pgtest.Shared(t).Connect(t), time.Now().Add(time.Minute); one[int](t, direct, left) > 0; {
			if time.Now().After(end) {
				t.Fatalf("%s: the server still runs the statement of a client that has gone", what)
			}
		}
	}
}

// TestServerLostWithMoreOnItsWay loses the server under a statement outside a transaction, when another message was
// sent already: that message must not be treated as unsent.
func TestServerLostWithMoreOnItsWay(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, nil)
	w := g.dial(t)
	w.send(&pgwire.Parse{Query: "select pg_sleep(64)"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}, &pgwire.Parse{Name: "later", Query: "select 1"})
	waitFor(t, g, "pg_sleep(64)")
	db.Exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where state='active' and query like '%pg_sleep(64)%' and pid <> pg_backend_pid()")
	types, bodies := w.until(pgwire.TypeErrorResponse)
	if !has(bodies, "SFATAL\x00") {
		t.Errorf("%s %q", types, bodies)
	}
}

// TestRetiredBackend takes the servers away from a replaced backend: clients stay while there are server connections
// for them, and are then disconnected, so that they reconnect to the new backend.
func TestRetiredBackend(t *testing.T) {
	db := pgtest.Shared(t)
	var shut atomic.Bool
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.MaxSize = 1
		pc.Dial = func(ctx context.Context, endpoint string) (net.Conn, error) {
			if shut.Load() {
				return nil, errors.New("the password has changed")
			}
			return enginetest.Dial(ctx, endpoint)
		}
	})
	conn, other := g.connect(t, ""), g.connect(t, "")
	g.backend.Retire()
	pid := one[int](t, conn, "select pg_backend_pid()")
	shut.Store(true)
	db.Exec(t, "select pg_terminate_backend("+itoa(pid)+", 10000)")
	if _, err := conn.Exec(t.Context(), "select 1"); sqlstate(err) != "57P01" || !conn.IsClosed() {
		t.Errorf("without a server connection: %v, closed %v", err, conn.IsClosed())
	}
	g.backend.Close()
	if _, err := other.Exec(t.Context(), "select 1"); sqlstate(err) != "57P01" || !other.IsClosed() {
		t.Errorf("closed: %v, closed %v", err, other.IsClosed())
	}
}

// TestLongPipelineThatFails prepares very many statements in a pipeline the beginning of which fails when all are on their way: the client has
// none of them.
func TestLongPipelineThatFails(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	w := g.dial(t)
	const n = 5000
	m := []pgwire.Message{&pgwire.Parse{Query: "select pg_sleep(0.3), 1/(random()*0)::int"}, &pgwire.Bind{}, &pgwire.Execute{}}
	for i := range n {
		m = append(m, &pgwire.Parse{Name: "s" + itoa(i), Query: "select " + itoa(i)})
	}
	w.send(append(m, &pgwire.Sync{})...)
	if types, body := w.until(pgwire.TypeReadyForQuery); types != "12EZ" {
		t.Fatalf("%s %q", types, body)
	}
	for _, i := range []int{0, n / 2, n - 1} {
		w.send(&pgwire.Bind{Statement: "s" + itoa(i)}, &pgwire.Sync{}, &pgwire.Parse{Name: "s" + itoa(i), Query: "select 1"}, &pgwire.Sync{})
		if types, body := w.until(pgwire.TypeReadyForQuery); types != "EZ" || !has(body, "C26000\x00") {
			t.Errorf("statement %d: %s %q", i, types, body)
		}
		if types, body := w.until(pgwire.TypeReadyForQuery); types != "1Z" {
			t.Errorf("statement %d again: %s %q", i, types, body)
		}
	}
}

// TestRetiredBackendLetsGo checks a backend that was replaced, for instance by one with another password: it keeps no
// idle server connection, and does not log in for probes.
func TestRetiredBackendLetsGo(t *testing.T) {
	l := conntest.Listen(t)
	logins, silent := make(chan struct{}, 1000), make(chan struct{}, 1000)
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w := newWire(t, conn)
			if _, err := w.r.Startup(); err != nil {
				silent <- struct{}{}
				continue
			}
			logins <- struct{}{}
			_, _ = w.Write(bytesOf(&pgwire.Authentication{}, &pgwire.ParameterStatus{Name: "client_encoding", Value: "UTF8"}, idle))
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-accepting })
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Endpoints, pc.Password = upstream.Endpoints(l.Addr().String()), ""
		pc.Limits = pool.Limits{MinIdle: 2, MaxSize: 4, IdleTimeout: time.Millisecond}
		pc.Health = upstream.Health{Probe: pgproxy.Probe(*pc), Interval: time.Millisecond}
	})
	connections := func() int { s := g.backend.Status().Endpoints[0].Pool; return s.Idle + s.Opening }
	conntest.Eventually(t, "warm connections", func() bool { return connections() == 2 })
	<-logins
	g.backend.Retire()
	conntest.Eventually(t, "no connection", func() bool { return connections() == 0 })
	for range 3 {
		<-silent // probes go on, without a password
	}
	for len(logins) > 0 {
		<-logins
	}
	for range 3 {
		<-silent
	}
	if n := len(logins); n > 0 {
		t.Errorf("%d logins after the last", n)
	}
}
