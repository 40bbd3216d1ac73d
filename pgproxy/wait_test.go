package pgproxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// superuser logs in straight on a server that trusts it, or on a gateway before one.
func superuser(t testing.TB, addr string) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, conn)
	params := []pgwire.Param{{Name: "user", Value: "postgres"}, {Name: "database", Value: "postgres"}}
	w.send(&pgwire.StartupMessage{Version: pgwire.Version30, Params: params})
	w.until(pgwire.TypeReadyForQuery)
	return w
}

// toTheEnd reads messages until the connection ends, types and bodies.
func (w *wire) toTheEnd() string {
	w.t.Helper()
	var all strings.Builder
	for {
		typ, body, err := w.try()
		if err != nil {
			if !isEnd(err) {
				w.t.Errorf("after %q: %v", all.String(), err)
			}
			return all.String()
		}
		all.WriteString(string(typ) + body + "\n")
	}
}

// pidIn finds the value of the one DataRow with one column.
func pidIn(t testing.TB, bodies string) string {
	t.Helper()
	for i := 4; i < len(bodies); i++ {
		n := i
		for n < len(bodies) && bodies[n] >= '0' && bodies[n] <= '9' {
			n++
		}
		if n > i && int(binary.BigEndian.Uint32([]byte(bodies[i-4:]))) == n-i {
			return bodies[i:n]
		}
	}
	t.Fatalf("no process ID in %q", bodies)
	return ""
}

// silences are situations in which a client can be silent for as long as it likes while it has a server connection, the process ID of
// which they return.
var silences = map[string]func(w *wire) (pid string){
	"in a transaction": func(w *wire) string {
		_, bodies := w.ask(query("begin; select pg_backend_pid()"))
		return pidIn(w.t, bodies)
	},
	"in a failed transaction": func(w *wire) string {
		_, bodies := w.ask(query("begin; select pg_backend_pid()"))
		w.ask(query("select 1/0"))
		return pidIn(w.t, bodies)
	},
	"in a batch without Sync": func(w *wire) string {
		w.send(&pgwire.Parse{Query: "select pg_backend_pid()"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Flush{})
		_, bodies := w.until(pgwire.TypeCommandComplete)
		w.send(&pgwire.Parse{Query: "select 2"}, &pgwire.Bind{}, &pgwire.Flush{})
		w.until(pgwire.TypeBindComplete)
		return pidIn(w.t, bodies)
	},
	"with a suspended portal": func(w *wire) string {
		w.send(&pgwire.Parse{Query: "select pg_backend_pid() from generate_series(1,3)"}, &pgwire.Bind{}, &pgwire.Execute{MaxRows: 1}, &pgwire.Flush{})
		_, bodies := w.until(pgwire.TypePortalSuspended)
		return pidIn(w.t, bodies)
	},
	"within COPY": func(w *wire) string {
		w.send(query("select pg_backend_pid(); copy silent from stdin"))
		_, bodies := w.until(pgwire.TypeCopyInResponse)
		w.send(&pgwire.CopyData{Data: []byte("1\n")})
		return pidIn(w.t, bodies)
	},
	"after much COPY data in a transaction": func(w *wire) string {
		w.send(query("begin; select pg_backend_pid(); copy silent from stdin"))
		_, bodies := w.until(pgwire.TypeCopyInResponse)
		data := &pgwire.CopyData{Data: bytes.Repeat([]byte("1\n"), 100<<10)}
		w.ask(data, &pgwire.CopyDone{})
		return pidIn(w.t, bodies)
	},
	"after a long pipeline in a transaction": func(w *wire) string {
		_, bodies := w.ask(query("begin; select pg_backend_pid()"))
		long := &pgwire.Parse{Query: "select '" + strings.Repeat("long", 10<<10) + "'"}
		w.send(long, &pgwire.Sync{}, long, &pgwire.Sync{})
		w.until(pgwire.TypeReadyForQuery)
		w.until(pgwire.TypeReadyForQuery)
		return pidIn(w.t, bodies)
	},
	"in the middle of a message in a transaction": func(w *wire) string {
		_, bodies := w.ask(query("begin; select pg_backend_pid()"))
		if _, err := w.Write(bytesOf(query("select 1"))[:8]); err != nil {
			w.t.Fatal(err)
		}
		return pidIn(w.t, bodies)
	},
	"in the middle of a message that is read whole": func(w *wire) string {
		_, bodies := w.ask(query("begin; select pg_backend_pid()"))
		if _, err := w.Write(bytesOf(query("select '" + strings.Repeat("long", 10<<10) + "'"))[:30<<10]); err != nil {
			w.t.Fatal(err)
		}
		return pidIn(w.t, bodies)
	},
	"in the middle of a long Parse": func(w *wire) string {
		_, bodies := w.ask(query("begin; select pg_backend_pid()"))
		if _, err := w.Write(bytesOf(&pgwire.Parse{Name: "long", Query: "select '" + strings.Repeat("long", 50<<10) + "'"})[:90<<10]); err != nil {
			w.t.Fatal(err)
		}
		return pidIn(w.t, bodies)
	},
	"in the middle of a long message": func(w *wire) string {
		_, bodies := w.ask(query("begin; select pg_backend_pid()"))
		if _, err := w.Write(bytesOf(query("select '" + strings.Repeat("long", 20<<10) + "'"))[:60<<10]); err != nil {
			w.t.Fatal(err)
		}
		return pidIn(w.t, bodies)
	},
}

// copyLine is how far the server has read COPY data, which is chance.
var copyLine = regexp.MustCompile(`, line \d[^\x00]*`)

// TestServerEndsSilentClient ends the server's process of a client that is silent: the client gets the server's message
// without asking, and another client gets its place.
func TestServerEndsSilentClient(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists silent (a int)")
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) { c.Mode, pc.Limits.MaxSize = mode, 1 })
		for name, silent := range silences {
			heard := make(map[string]string)
			for _, addr := range []string{db.Addr(), g.addr} {
				w := superuser(t, addr)
				db.Exec(t, "select pg_terminate_backend("+silent(w)+")")
				heard[addr] = copyLine.ReplaceAllString(w.toTheEnd(), "")
			}
			if got, want := heard[g.addr], heard[db.Addr()]; got != want || !has(want, "57P01") {
				t.Errorf("%s, silent %s: got %q, straight %q", mode, name, got, want)
			}
			next := g.connect(t, "")
			do(t, next, "select 1")
			_ = next.Close(t.Context())
		}
	}
}

// TestIdleInTransactionTimeout has clients fill a pool with transactions in which nothing happens: when the server ends these, others
// have their places.
func TestIdleInTransactionTimeout(t *testing.T) {
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
			c.Mode, pc.Limits.MaxSize = mode, 2
			pc.Params = []pgwire.Param{{Name: "idle_in_transaction_session_timeout", Value: "100ms"}}
		})
		silent := []*wire{g.dial(t), g.dial(t)}
		for _, w := range silent {
			w.ask(query("begin"))
		}
		do(t, g.connect(t, ""), "select 1")
		for _, w := range silent {
			if all := w.toTheEnd(); !has(all, "C25P03\x00") || !has(all, "VFATAL\x00") {
				t.Errorf("%s: the client heard %q", mode, all)
			}
		}
	}
}

// TestRestartUnderTransactions restarts the server while transactions are open.
func TestRestartUnderTransactions(t *testing.T) {
	for _, kill := range []bool{false, true} {
		db := pgtest.Start(t)
		g := start(t, db, small)
		w := g.dial(t)
		w.ask(query("begin"))
		if kill {
			db.Kill(t)
		}
		db.Restart(t)
		if all := w.toTheEnd(); !has(all, "VFATAL\x00") {
			t.Errorf("kill=%v: the client heard %q", kill, all)
		}
		do(t, g.connect(t, ""), "select 1")
	}
}

// TestServerSpeaksToSilentClient makes a server send messages that are allowed at any time: the client gets them
// unchanged.
func TestServerSpeaksToSilentClient(t *testing.T) {
	said := bytesOf(
		&pgwire.NoticeResponse{ErrorResponse: pgwire.ErrorResponse{Severity: "WARNING", Code: "01000", Message: "soon"}},
		&pgwire.ParameterStatus{Name: "in_hot_standby", Value: "off"},
		&pgwire.NotificationResponse{ProcessID: 7, Channel: "news", Payload: "none"})
	for _, change := range []func(*pgproxy.Config, *pgproxy.PostgresConfig){transaction, session} {
		g, f := startFake(t, change)
		w, srv := openOnFake(t, g, f)
		for cut := range said {
			for _, piece := range [][]byte{said[:cut], said[cut:]} {
				if _, err := srv.Write(piece); err != nil {
					t.Fatal(err)
				}
			}
			for _, want := range "NSA" {
				if typ, body := w.read(); typ != byte(want) {
					t.Fatalf("cut at %d: got %c: %q, want %c", cut, typ, body, want)
				}
			}
		}
		w.send(query("commit"))
		srv.answerQuery()
		if types, _ := w.until(pgwire.TypeReadyForQuery); types != "CZ" {
			t.Errorf("the end of the transaction was answered with %s", types)
		}
	}
}

// openOnFake returns a client of a fake server, and the server's end, in a transaction with LISTEN.
func openOnFake(t *testing.T, g *gateway, f *fakeServer) (w, srv *wire) {
	t.Helper()
	logged := make(chan *wire, 1)
	go func() { logged <- g.dial(t) }()
	srv = <-f.conns
	w = <-logged
	w.send(query("begin; listen news"))
	srv.read()
	srv.send(&pgwire.CommandComplete{Tag: "BEGIN"}, &pgwire.CommandComplete{Tag: "LISTEN"}, &pgwire.ReadyForQuery{Status: pgwire.TxActive})
	w.until(pgwire.TypeReadyForQuery)
	return w, srv
}

// TestServerVanishesUnderSilentClient has a server connection end without a word.
func TestServerVanishesUnderSilentClient(t *testing.T) {
	for _, change := range []func(*pgproxy.Config, *pgproxy.PostgresConfig){transaction, session} {
		for _, reset := range []bool{false, true} {
			g, f := startFake(t, change)
			w, srv := openOnFake(t, g, f)
			if reset {
				_ = srv.Conn.(*net.TCPConn).SetLinger(0)
			}
			_ = srv.Close()
			if all := w.toTheEnd(); !has(all, "C08006\x00") || !has(all, "VFATAL\x00") {
				t.Errorf("reset=%v: the client heard %q", reset, all)
			}
			served := make(chan struct{})
			go func() {
				defer close(served)
				g.dial(t).ask(query("select"))
			}()
			(<-f.conns).answerQuery()
			<-served
		}
	}
}

// TestSilentClientWithTLS does the same with TLS on both sides.
func TestSilentClientWithTLS(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithTLS())
	forClients, _ := certs.New().Configs()
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
			c.Mode, c.TLS, pc.Limits.MaxSize = mode, forClients, 1
			pc.TLS = &tls.Config{InsecureSkipVerify: true}
		})
		for range 2 {
			conn := g.connect(t, "sslmode=require")
			do(t, conn, "begin")
			db.Exec(t, "select pg_terminate_backend("+itoa(one[int](t, conn, "select pg_backend_pid()"))+")")
			if err := conn.PgConn().WaitForNotification(bounded(t)); sqlstate(err) != "57P01" || has(err.Error(), "upstream") {
				t.Errorf("%s: the client heard %v", mode, err)
			}
		}
	}
}

// TestSuspendedInTransaction keeps a client idle until its session gives up its stack, in a transaction and in session
// mode.
func TestSuspendedInTransaction(t *testing.T) {
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		withAndWithoutTLS(t, func(t *testing.T, secure *tls.Config, sslmode string) { silentForLong(t, mode, secure, sslmode) })
	}
}

func silentForLong(t *testing.T, mode pgproxy.Mode, secure *tls.Config, sslmode string) {
	g, suspended := startWatched(t, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.Mode, c.TLS, pc.Limits.MaxSize = mode, secure, 1
	})
	conn := g.connect(t, sslmode+"application_name=patient")
	drainOf(suspended)
	do(t, conn, "begin")
	if _, err := conn.Prepare(t.Context(), "later", "select $1::int + 1"); err != nil {
		t.Fatal(err)
	}
	do(t, conn, "create temp table mine on commit drop as select 1 as a")
	for range 2 {
		<-suspended
		if n := one[int](t, conn, "later", 41); n != 42 {
			t.Errorf("the prepared statement says %d", n)
		}
		if n := one[int](t, conn, "select count(*) from mine"); n != 1 {
			t.Errorf("%d rows in the transaction's table", n)
		}
	}
	<-suspended
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Errorf("a cancel request for an idle client: %v", err)
	}
	do(t, conn, "commit")
	if mode == pgproxy.Session {
		<-suspended
	}
	do(t, conn, "begin")
	pid := one[int](t, conn, "select pg_backend_pid()")
	<-suspended
	pgtest.Shared(t).Exec(t, "select pg_terminate_backend("+itoa(pid)+")")
	if err := conn.PgConn().WaitForNotification(bounded(t)); sqlstate(err) != "57P01" {
		t.Errorf("the client heard %v", err)
	}
	other := g.connect(t, sslmode)
	drainOf(suspended)
	do(t, other, "begin")
	<-suspended
	_ = other.PgConn().Conn().Close()
	do(t, g.connect(t, sslmode), "select 1")
}

// drainOf takes all values in a channel.
func drainOf(c <-chan struct{}) {
	for {
		select {
		case _, open := <-c:
			if !open {
				return
			}
		default:
			return
		}
	}
}

// TestDrainEndsSuspendedSessions drains a proxy in session mode whose client is idle, and one whose client never ends its transaction.
func TestDrainEndsSuspendedSessions(t *testing.T) {
	for _, open := range []bool{false, true} {
		g, suspended := startWatched(t, session)
		conn := g.connect(t, "")
		drainOf(suspended)
		if open {
			do(t, conn, "begin")
		}
		<-suspended
		ctx, cancel := context.WithCancel(t.Context())
		drained := make(chan error, 1)
		go func() { drained <- g.Drain(ctx) }()

		if open {
			cancel()
		}
		if err := conn.PgConn().WaitForNotification(bounded(t)); sqlstate(err) != "57P01" {
			t.Errorf("open=%v: the client heard %v", open, err)
		}
		if err := <-drained; open != errors.Is(err, context.Canceled) {
			t.Errorf("open=%v: drain: %v", open, err)
		}
		cancel()
	}
}

// TestDrainCutsStatement ends the patience of a drain while a statement runs: the client gets the reason.
func TestDrainCutsStatement(t *testing.T) {
	for _, change := range []func(*pgproxy.Config, *pgproxy.PostgresConfig){transaction, session} {
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheStatement} {
			g := start(t, pgtest.Shared(t), change)
			conn := g.connect(t, "")
			done := make(chan error, 1)
			go func() {
				_, err := conn.Exec(t.Context(), "select pg_sleep(62)", mode)
				done <- err
			}()
			waitFor(t, g, "pg_sleep(62)")
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := g.Drain(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("drain: %v", err)
			}
			if err := <-done; sqlstate(err) != "57P01" {
				t.Errorf("the client heard %v", err)
			}
		}
	}
}

// TestAnswersDoNotWaitForSync sends requests without Sync and without Flush: the server's early messages are passed on
// at once.
func TestAnswersDoNotWaitForSync(t *testing.T) {
	db := pgtest.Shared(t)
	for _, change := range []func(*pgproxy.Config, *pgproxy.PostgresConfig){transaction, session} {
		g := start(t, db, change)
		for _, addr := range []string{db.Addr(), g.addr} {
			w := superuser(t, addr)
			w.send(&pgwire.Parse{Query: "selekt 1"}, &pgwire.Bind{}, &pgwire.Execute{})
			if types, bodies := w.until(pgwire.TypeErrorResponse); types != "E" || !has(bodies, "C42601\x00") {
				t.Errorf("an error without Sync: %s %q", types, bodies)
			}
			w.ask(&pgwire.Sync{})
			w.send(&pgwire.Parse{Query: "do $$ begin raise notice 'now'; end $$"}, &pgwire.Bind{}, &pgwire.Execute{})
			w.until(pgwire.TypeNoticeResponse)
			w.ask(&pgwire.Sync{})
			const rows, size = 2000, 10 << 10 // 20 MB
			w.send(&pgwire.Parse{Query: "select repeat('x', " + itoa(size) + ") from generate_series(1," + itoa(rows) + ")"}, &pgwire.Bind{}, &pgwire.Execute{})
			for range rows - 10 { // the server keeps the last ones until it is asked for more
				w.until(pgwire.TypeDataRow)
			}
			if types, _ := w.ask(&pgwire.Sync{}); types != "DDDDDDDDDDCZ" {
				t.Errorf("the end of a large result is %s", types)
			}
			if types, _ := w.ask(query("select 1")); types != "TDCZ" {
				t.Errorf("the next statement is answered with %s", types)
			}
		}
	}
}

// TestLoginIsNoTransaction checks that a client's login is not in the access log.
func TestLoginIsNoTransaction(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Listener.AccessLog = true })
	conn := g.connect(t, "")
	do(t, conn, "select 1", pgx.QueryExecModeSimpleProtocol)
	_ = conn.Close(t.Context())
	if err := g.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if n := strings.Count(g.log.String(), "status=transaction"); n != 1 {
		t.Errorf("%d transactions in the access log, want 1", n)
	}
}
