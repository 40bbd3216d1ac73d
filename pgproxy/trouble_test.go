package pgproxy_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// TestRestartIsNotSeen restarts the server under idle clients.
func TestRestartIsNotSeen(t *testing.T) {
	for _, kill := range []bool{false, true} {
		db := pgtest.Start(t)
		g := start(t, db, nil)
		var conns []*pgx.Conn
		var work errgroup.Group
		for range 6 {
			conns = append(conns, g.connect(t, ""))
		}
		for _, c := range conns {
			work.Go(func() error { _, err := c.Exec(t.Context(), "select pg_sleep(0.05)"); return err })
		}
		if err := work.Wait(); err != nil {
			t.Fatal(err)
		}
		if kill {
			db.Kill(t)
		}
		db.Restart(t)
		for i, c := range conns {
			if _, err := c.Exec(t.Context(), "select $1::int", i); err != nil {
				t.Errorf("kill=%v client %d after the restart: %v", kill, i, err)
			}
		}
	}
}

// TestLostBehindAnError: a server connection is lost between the error of a statement and ReadyForQuery. The client gets one error for
// its statement, as from a server, and goes on.
func TestLostBehindAnError(t *testing.T) {
	g, f := startFake(t, nil)
	logged := make(chan *wire, 1)
	go func() { logged <- g.dial(t) }()
	srv := <-f.conns
	w := <-logged
	for name, request := range map[string][]pgwire.Message{
		"simple":   {query("select 1/0")},
		"extended": {&pgwire.Parse{Query: "select 1/0"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}},
	} {
		w.send(request...)
		for typ := byte(0); typ != pgwire.TypeQuery && typ != pgwire.TypeSync; {
			typ, _ = srv.read()
		}
		srv.send(&pgwire.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "22012", Message: "division by zero"})
		_ = srv.Close()
		if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "EZ" || !strings.Contains(bodies, "22012") {
			t.Errorf("%s: the client gets %s %q", name, types, bodies)
		}
		w.send(query("select 2"))
		srv = <-f.conns
		srv.answerQuery()
		if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "CZ" {
			t.Errorf("%s: then the client gets %s %q", name, types, bodies)
		}
	}
}

// TestRestartUnused restarts the server under connections that were opened ahead of demand and never used.
func TestRestartUnused(t *testing.T) {
	db := pgtest.Start(t)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits = pool.Limits{MaxSize: 3, MinIdle: 3, CheckAfter: time.Hour}
	})
	conntest.Eventually(t, "three server connections", func() bool { return db.Backends(t) == 3 })
	db.Restart(t)
	for range 3 {
		if n := one[int](t, g.connect(t, ""), "select 8"); n != 8 {
			t.Errorf("got %d", n)
		}
	}
}

// TestLateLook: an idle server connection that has ended is not lent because the machine was too busy to look at it in time.
func TestLateLook(t *testing.T) {
	dialed := make(chan *lateConn, 2)
	g, f := startFake(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.CheckInterval = time.Hour
		pc.Dial = func(ctx context.Context, endpoint string) (net.Conn, error) {
			conn, err := enginetest.Dial(ctx, endpoint)
			if c, ok := conn.(*fiber.Conn); ok {
				late := &lateConn{Conn: c}
				dialed <- late
				return late, err
			}
			return conn, err
		}
	})
	if enginetest.Kind() == fiber.Goroutine {
		return // the system reports it at once
	}
	logged := make(chan *wire, 1)
	go func() { logged <- g.dial(t) }()
	srv, first := <-f.conns, <-dialed
	w := <-logged
	w.send(query("select 1"))
	srv.answerQuery()
	w.until(pgwire.TypeReadyForQuery)
	_ = srv.Close()
	conntest.Eventually(t, "the end of the idle connection", first.PeerClosed)
	idle := time.Now() // within a millisecond of its use there is no check
	conntest.Eventually(t, "the engine knows", func() bool { return first.State() != fiber.Silent && time.Since(idle) > 2*time.Millisecond })
	first.late.Store(true)
	w.send(query("select 2"))
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		select {
		case srv := <-f.conns:
			srv.answerQuery()
		case <-t.Context().Done():
		}
	}()
	if types, body := w.until(pgwire.TypeReadyForQuery); types != "CZ" {
		t.Fatalf("the client got %s %q", types, body)
	}
	<-answered
}

// lateConn is an engine's connection. Once it is late, a Read comes when the deadline that was set for it has passed.
type lateConn struct {
	*fiber.Conn
	late atomic.Bool
}

func (c *lateConn) SetReadDeadline(at time.Time) error {
	if c.late.Load() && !at.IsZero() {
		at = time.Unix(1, 0)
	}
	return c.Conn.SetReadDeadline(at)
}

// TestKilledInQuery kills a server connection under a statement outside a transaction: the client
// gets an error and stays; and under a transaction: the client is disconnected.
func TestKilledInQuery(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, nil)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheStatement} {
		conn := g.connect(t, "")
		done := make(chan error, 1)
		go func() {
			_, err := conn.Exec(t.Context(), "select pg_sleep(61)", mode)
			done <- err
		}()
		waitFor(t, g, "pg_sleep(61)")
		db.Exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where state='active' and query like '%pg_sleep(61)%' and pid <> pg_backend_pid()")
		if err := <-done; sqlstate(err) != "57P01" || !has(err.Error(), `upstream "pg": server connection lost`) || has(err.Error(), db.Addr()) {
			t.Errorf("killed query: %v", err)
		}
		if n := one[int](t, conn, "select 8"); n != 8 {
			t.Error("the client cannot continue")
		}
	}
	conn := g.connect(t, "")
	do(t, conn, "begin")
	pid := one[int](t, conn, "select pg_backend_pid()")
	db.Exec(t, "select pg_terminate_backend("+itoa(pid)+")")
	if _, err := conn.Exec(t.Context(), "select 1"); err == nil || !conn.IsClosed() {
		t.Errorf("statement in a transaction that is lost: %v", err)
	}
	conntest.Eventually(t, "three are counted", func() bool { return g.Stats().Errors[listener.ReasonBackendGone] == 3 })
}

// TestClientGone makes clients disconnect in every state; others must not see their unfinished
// work.
func TestClientGone(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists gone (a int)", "truncate gone")
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) { c.Mode, pc.Limits.MaxSize = mode, 1 })
		for _, leave := range []func(*pgx.Conn){
			func(c *pgx.Conn) { _ = c.Close(context.Background()) },
			func(c *pgx.Conn) { _ = c.PgConn().Conn().Close() },
			func(c *pgx.Conn) { _ = c.PgConn().Conn().(*net.TCPConn).SetLinger(0); _ = c.PgConn().Conn().Close() },
		} {
			conn := g.connect(t, "")
			do(t, conn, "begin")
			do(t, conn, "insert into gone values (1)")
			leave(conn)
			next := g.connect(t, "")
			if n := one[int](t, next, "select count(*) from gone"); n != 0 {
				t.Errorf("%s: %d rows of a transaction that was left are seen", mode, n)
			}
			if s := next.PgConn().TxStatus(); s != 'I' {
				t.Errorf("%s: transaction status %c", mode, s)
			}
			_ = next.Close(t.Context())
		}
	}
}

// TestClientGoneInStatement lets a client leave while the server works for it.
func TestClientGoneInStatement(t *testing.T) {
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) { c.Mode, pc.Limits.MaxSize = mode, 1 })
		conn := g.connect(t, "")
		raw := conn.PgConn().Conn()
		if _, err := raw.Write((&pgwire.Query{SQL: "select pg_sleep(600)"}).Append(nil)); err != nil {
			t.Fatal(err)
		}
		waitFor(t, g, "pg_sleep(600)")
		_ = raw.Close()
		if n := one[int](t, g.connect(t, ""), "select 1"); n != 1 { // long before the statement would end
			t.Error(n)
		}
		left := "select count(*) from pg_stat_activity where state='active' and query='select pg_sleep(600)'"
		for direct := pgtest.Shared(t).Connect(t); one[int](t, direct, left) > 0; {
			if t.Context().Err() != nil {
				t.Fatal("the server still runs the statement of a client that has gone")
			}
		}
	}
}

// TestSessionsAreIsolated leaves state that DISCARD ALL undoes, and looks for it in the next session. The temporary
// table's text does not show it: the server connection would be closed.
func TestSessionsAreIsolated(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.Mode, pc.Limits.MaxSize = pgproxy.Session, 1
	})
	first := g.connect(t, "application_name=first")
	pid := one[int](t, first, "select pg_backend_pid()")
	for _, sql := range []string{
		"set work_mem='13MB'", "set role pg_monitor", "do $$ begin execute 'create t'||'emp table t1 (a int)'; end $$", "select pg_advisory_lock(4711)",
		"prepare p1 as select 1", "listen c1", "reset role", "declare cur cursor with hold for select 1",
	} {
		do(t, first, sql, pgx.QueryExecModeSimpleProtocol)
	}
	_ = first.Close(t.Context())
	second := g.connect(t, "")
	if n := one[int](t, second, "select pg_backend_pid()"); n != pid {
		t.Fatal("not the same server connection: nothing is shown")
	}
	for sql, want := range map[string]string{
		"select current_setting('work_mem')":                                "4MB",
		"select count(*)::text from pg_class where relname='t1'":            "0",
		"select count(*)::text from pg_locks where locktype='advisory'":     "0",
		"select count(*)::text from pg_prepared_statements where name='p1'": "0",
		"select count(*)::text from pg_listening_channels()":                "0",
		"select count(*)::text from pg_cursors where name='cur'":            "0",
		"select current_setting('application_name')":                        "",
		"select (current_user = session_user)::text":                        "true",
	} {
		if got := one[string](t, second, sql); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
}

// TestTransactionsAreIsolated does the same with state that can be undone in transaction mode.
func TestTransactionsAreIsolated(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.OnState, pc.Limits.MaxSize = pgproxy.ResetState, 1
	})
	first, second := g.connect(t, ""), g.connect(t, "")
	for _, sql := range []string{"set work_mem='13MB'", "set session authorization default", "prepare p1 as select 1", "listen c1",
		"declare cur cursor with hold for select 1"} {
		do(t, first, sql, pgx.QueryExecModeSimpleProtocol)
		for sql, want := range map[string]string{
			"select current_setting('work_mem')":                                "4MB",
			"select count(*)::text from pg_prepared_statements where name='p1'": "0",
			"select count(*)::text from pg_listening_channels()":                "0",
			"select count(*)::text from pg_cursors where name='cur'":            "0",
		} {
			if got := one[string](t, second, sql); got != want {
				t.Errorf("%s: %q, want %q", sql, got, want)
			}
		}
	}
}

// TestUnnamedStatementIsNotShared binds the unnamed statement of an earlier transaction after
// another client used the server connection.
func TestUnnamedStatementIsNotShared(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	a, b := g.connect(t, ""), g.connect(t, "")
	prepare := func(c *pgx.Conn, sql string) {
		t.Helper()
		if _, err := c.PgConn().Prepare(t.Context(), "", sql, nil); err != nil {
			t.Fatal(err)
		}
	}
	prepare(a, "select 'a'")
	prepare(b, "select 'b'")
	for range 2 {
		if r := a.PgConn().ExecPrepared(t.Context(), "", nil, nil, nil).Read(); r.Err != nil || string(r.Rows[0][0]) != "a" {
			t.Fatalf("a's statement: %v %v", r.Rows, r.Err)
		}
	}
	c := g.connect(t, "")
	if r := c.PgConn().ExecPrepared(t.Context(), "", nil, nil, nil).Read(); sqlstate(r.Err) != "26000" {
		t.Fatalf("an unnamed statement that was never prepared: %v %v", r.Rows, r.Err)
	}
}

func TestListen(t *testing.T) {
	g := start(t, pgtest.Shared(t), session)
	conn := g.connect(t, "")
	do(t, conn, "listen news")
	pgtest.Shared(t).Exec(t, "notify news, 'hello'")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	if err != nil || n.Payload != "hello" {
		t.Fatal(n, err)
	}
}

func TestDrain(t *testing.T) {
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Mode = mode })
		idle, busy := g.connect(t, ""), g.connect(t, "")
		do(t, idle, "select 1")
		do(t, busy, "begin")
		drained := make(chan error, 1)
		go func() { drained <- g.Drain(t.Context()) }()
		if _, err := idle.WaitForNotification(t.Context()); sqlstate(err) != "57P01" {
			t.Errorf("%s: idle client: %v", mode, err)
		}
		if n := one[int](t, busy, "select 2"); n != 2 {
			t.Error("a transaction could not continue")
		}
		do(t, busy, "commit")
		if err := <-drained; err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		if _, err := busy.Exec(t.Context(), "select 3"); err == nil {
			t.Errorf("%s: a client continues after the drain", mode)
		}
	}
}

// TestServerThatNeverAnswers has connections accepted, by the system, for a server that says nothing. Either limit may end the wait.
func TestServerThatNeverAnswers(t *testing.T) {
	l := conntest.Listen(t)
	defer l.Close()
	for _, limits := range []pool.Limits{{OpenTimeout: time.Second}, {AcquireTimeout: time.Second}} {
		g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
			pc.Endpoints, pc.Limits = upstream.Endpoints(l.Addr().String()), limits
		})
		_, err := pgx.Connect(t.Context(), g.dsn(""))
		if sqlstate(err) != "08006" || !has(err.Error(), "did not answer in time") || has(g.log.String(), `exceeded\n`) {
			t.Errorf("%+v: %v\n%s", limits, err, g.log)
		}
	}
}
