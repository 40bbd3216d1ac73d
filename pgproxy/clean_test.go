package pgproxy_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// leaveTorn has a client write the pieces of a message of a failing COPY, and leave. The table torn is empty afterwards.
func (g *gateway) leaveTorn(t *testing.T, w *wire, pieces ...[]byte) {
	t.Helper()
	written := make(chan error, 1)
	go func() {
		var err error
		for _, piece := range pieces {
			_, err = w.Write(piece)
		}
		written <- err
	}()
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "EZ" {
		t.Fatalf("answer to a bad COPY: %s", types)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	next := g.connect(t, "")
	if n := one[int](t, next, "select count(*) from torn"); n != 0 {
		t.Fatal(n)
	}
	_ = next.Close(t.Context())
}

// TestTornCopyData lets a client leave in the middle of a message of a COPY that had failed
// before: nothing is outstanding, but the server waits for the rest of the message.
func TestTornCopyData(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists torn (a int)")
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	w := g.pipe(t).login()
	w.send(query("copy torn from stdin"))
	w.until(pgwire.TypeCopyInResponse)
	bad := bytesOf(&pgwire.CopyData{Data: bytes.Repeat([]byte("not a number\n"), 5000)})
	torn := pgwire.AppendHeader(bad, pgwire.TypeCopyData, 1<<20)
	g.leaveTorn(t, w, torn, make([]byte, 16<<10), make([]byte, 16<<10)) // each as much as the gateway reads at once
}

// TestServerLostWhileReaderWrites resets the server connection while the client both sends a
// long message and does not read.
func TestServerLostWhileReaderWrites(t *testing.T) {
	for range 10 {
		g, f := startFake(t, session)
		w := g.pipe(t)
		logged := make(chan struct{})
		go func() { defer close(logged); w.login() }()
		srv := <-f.conns
		<-logged
		if _, err := w.Write(append(pgwire.AppendHeader(nil, pgwire.TypeQuery, 1<<20), make([]byte, 64<<10)...)); err != nil {
			t.Fatal(err)
		}
		srv.send(&pgwire.NoticeResponse{Severity: "NOTICE", Code: "00000", Message: "hello"})
		var first [1]byte
		if _, err := w.Read(first[:]); err != nil { // the server reader is writing now
			t.Fatal(err)
		}
		_ = srv.Conn.(*net.TCPConn).SetLinger(0)
		_ = srv.Close()
		written := make(chan struct{})
		go func() {
			defer close(written)
			_, _ = w.Write(make([]byte, 512<<10))
		}()
		for buf := make([]byte, 1); ; {
			if _, err := w.Read(buf); err != nil {
				break
			}
		}
		<-written
	}
}

// TestLeaveAsTheAnswerEnds lets clients leave just when the answer of their pipeline is there,
// others using the same server connection.
func TestLeaveAsTheAnswerEnds(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	other := g.connect(t, "")
	for i := range 300 {
		w := g.dial(t)
		w.send(&pgwire.Parse{Query: "select 1"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Flush{})
		w.until(pgwire.TypeCommandComplete)
		w.send(&pgwire.Sync{}, &pgwire.Terminate{})
		if _, err := other.Exec(t.Context(), "select 2", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		_ = w.Close()
	}
}

// TestCheckKeepsUnnamedStatement runs the pool's check between Parse and Bind.
func TestCheckKeepsUnnamedStatement(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.MaxSize, pc.Limits.CheckAfter = 1, time.Nanosecond
	})
	w := g.dial(t)
	w.send(&pgwire.Parse{Query: "select 7"}, &pgwire.Sync{})
	w.until(pgwire.TypeReadyForQuery)
	w.send(&pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{})
	if types, body := w.until(pgwire.TypeReadyForQuery); types != "2DCZ" {
		t.Fatalf("Bind after a check: %s %q", types, body)
	}
}

// TestSettingsOfSharedStatements prepares the same text under settings that give its literals
// another meaning.
func TestSettingsOfSharedStatements(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	for sql, c := range map[string][2][2]string{ // settings → result
		"select extract(epoch from timestamptz '2020-01-01 00:00')::bigint::text": {
			{"timezone=Asia/Tokyo", "1577804400"}, {"timezone=UTC", "1577836800"},
		},
		"select (date '01/02/2020' - date '2020-01-01')::text": {
			{"datestyle='ISO, DMY'", "31"}, {"datestyle='ISO, MDY'", "1"},
		},
		`select length('a\\b')::text`: {{"standard_conforming_strings=off", "3"}, {"standard_conforming_strings=on", "4"}},
	} {
		for _, set := range c {
			conn := g.connect(t, set[0])
			if _, err := conn.PgConn().Prepare(t.Context(), "s", sql, nil); err != nil {
				t.Fatal(err)
			}
			r := conn.PgConn().ExecPrepared(t.Context(), "s", nil, nil, nil).Read()
			if r.Err != nil || string(r.Rows[0][0]) != set[1] {
				t.Errorf("%s with %s: %s %v, want %s", sql, set[0], r.Rows, r.Err, set[1])
			}
			_ = conn.Close(t.Context())
		}
	}
	conn := g.connect(t, "timezone=UTC")
	epoch := "select extract(epoch from timestamptz '2020-01-01 00:00')::bigint::text"
	if _, err := conn.PgConn().Prepare(t.Context(), "s", epoch, nil); err != nil {
		t.Fatal(err)
	}
	do(t, conn, "set timezone='Asia/Tokyo'", pgx.QueryExecModeSimpleProtocol)
	_ = conn.PgConn().ExecPrepared(t.Context(), "s", nil, nil, nil).Read()
	utc := g.connect(t, "timezone=UTC")
	if got := one[string](t, utc, epoch); got != "1577836800" {
		t.Errorf("after another client changed its time zone: %s", got)
	}
}

// TestGatewaysNamesAreOutOfReach names prepared statements of others as the gateway does.
func TestGatewaysNamesAreOutOfReach(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	owner, w := g.connect(t, ""), g.dial(t)
	prepared := func() {
		t.Helper()
		r := owner.PgConn().ExecPrepared(t.Context(), "mine", nil, nil, nil).Read()
		if r.Err != nil || string(r.Rows[0][0]) != "secret" {
			t.Fatalf("the owner's statement: %s %v", r.Rows, r.Err)
		}
	}
	if _, err := owner.PgConn().Prepare(t.Context(), "mine", "select 'secret'", nil); err != nil {
		t.Fatal(err)
	}
	prepared()
	name := one[string](t, owner, "select name from pg_prepared_statements limit 1", pgx.QueryExecModeSimpleProtocol)
	for what, m := range map[string][]pgwire.Message{
		"bind":     {&pgwire.Bind{Statement: name}, &pgwire.Execute{}, &pgwire.Sync{}},
		"describe": {&pgwire.Describe{Object: 'S', Name: name}, &pgwire.Sync{}},
	} {
		w.send(m...)
		if types, body := w.until(pgwire.TypeReadyForQuery); types != "EZ" || !has(body, "C26000\x00") || !has(body, name) {
			t.Errorf("%s of another's statement: %s %q", what, types, body)
		}
	}
	w.send(&pgwire.Close{Object: 'S', Name: name}, &pgwire.Sync{})
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "3Z" {
		t.Errorf("close: %s", types)
	}
	prepared()
	w.send(query("deallocate " + name))
	w.until(pgwire.TypeReadyForQuery)
	prepared()
}

// TestFailedStatementsAreForgotten prepares many statements that fail, in different ways.
func TestFailedStatementsAreForgotten(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.MaxSize, pc.StatementCache = 1, 10
	})
	w := g.dial(t)
	for i := range 300 {
		n := itoa(i)
		w.send(&pgwire.Parse{Name: "a" + n, Query: "selec " + n}, &pgwire.Parse{Name: "b" + n, Query: "select " + n}, &pgwire.Sync{})
		w.until(pgwire.TypeReadyForQuery)
		w.send(&pgwire.Parse{Name: "c", Query: "select 1000+" + n}, &pgwire.Sync{})
		w.until(pgwire.TypeReadyForQuery)
		w.send(&pgwire.Parse{Query: "selec"}, &pgwire.Close{Object: 'S', Name: "c"}, &pgwire.Sync{},
			&pgwire.Close{Object: 'S', Name: "c"}, &pgwire.Sync{})
		w.until(pgwire.TypeReadyForQuery)
		w.until(pgwire.TypeReadyForQuery)
	}
	left := g.dial(t)
	left.send(&pgwire.Parse{Name: "d", Query: "select pg_sleep(0.01)"}, &pgwire.Bind{Statement: "d"}, &pgwire.Execute{},
		&pgwire.Close{Object: 'S', Name: "d"})
	_ = left.Close()
	_ = w.Close()
	if err := g.Drain(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if shared, onServer, doubtful := g.backend.Statements(bounded(t)); shared > onServer || onServer > 10 || doubtful > 10 {
		t.Errorf("left behind: %d statements in the table, %d + %d of a server connection", shared, onServer, doubtful)
	}
}

// TestStatementsAreBoundedInBytes prepares long statements.
func TestStatementsAreBoundedInBytes(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	conn := g.connect(t, "")
	long := strings.Repeat("x", 200<<10)
	for i := range 40 {
		n := itoa(i)
		if _, err := conn.PgConn().Prepare(t.Context(), "s"+n, "select length('"+long+n+"')", nil); err != nil && sqlstate(err) != "53400" {
			t.Fatal(err)
		}
	}
	on := one[int](t, conn, "select sum(length(statement)) from pg_prepared_statements", pgx.QueryExecModeSimpleProtocol)
	if on > 5<<20 {
		t.Errorf("%d bytes of statements on one server connection", on)
	}
	if r := conn.PgConn().ExecPrepared(t.Context(), "s0", nil, nil, nil).Read(); r.Err != nil {
		t.Error(r.Err)
	}
}

// TestNameAfterServerWasLost prepares under a name again after the first attempt was lost with
// the server connection.
func TestNameAfterServerWasLost(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, nil)
	w := g.dial(t)
	request := []pgwire.Message{&pgwire.Parse{Name: "s1", Query: "select pg_sleep(62)"}, &pgwire.Bind{Statement: "s1"},
		&pgwire.Execute{}, &pgwire.Sync{}}
	w.send(request...)
	waitFor(t, g, "pg_sleep(62)")
	db.Exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where state='active' and query like '%pg_sleep(62)%' and pid <> pg_backend_pid()")
	first, _ := w.until(pgwire.TypeReadyForQuery)
	if !strings.HasSuffix(first, "EZ") {
		t.Fatalf("lost server: %s", first)
	}
	w.send(&pgwire.Parse{Name: "s1", Query: "select 1"}, &pgwire.Sync{})
	if types, body := w.until(pgwire.TypeReadyForQuery); types != "1Z" {
		t.Fatalf("Parse again after %s: %s %q", first, types, body)
	}
}

// TestCancelInDoubt leaves a cancel request unanswered: the server may still handle it, so the
// connection must not go to another client.
func TestCancelInDoubt(t *testing.T) {
	g, f := startFake(t, nil)
	patience := func(d time.Duration) {
		err := g.Update(pgproxy.Config{
			Listener: listener.Config{Name: "db", Logger: slog.New(slog.NewTextHandler(g.log, nil))}, Auth: pgproxy.AuthTrust,
			Databases: map[string]pgproxy.Backend{"*": g.backend}, LoginTimeout: d,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	logged := make(chan struct{})
	var a *wire
	go func() { defer close(logged); a = g.dial(t) }()
	first := <-f.conns
	<-logged
	a.send(query("slow"))
	first.read()
	patience(2 * time.Second) // with cancel requests; logins have longer
	canceler, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	cw := newWire(t, canceler)
	cw.send(&pgwire.CancelRequest{ProcessID: a.key.ProcessID, Key: a.key.Key})
	<-f.cancels
	if _, _, err := cw.try(); !isEnd(err) { // given up
		t.Fatal(err)
	}
	patience(0)
	first.send(&pgwire.CommandComplete{Tag: "SELECT 0"}, &pgwire.ReadyForQuery{Status: pgwire.TxIdle})
	a.until(pgwire.TypeReadyForQuery)
	b := g.dial(t)
	b.send(query("next"))
	second := <-f.conns
	if sql := second.answerQuery(); sql != "next" {
		t.Fatal(sql)
	}
	b.until(pgwire.TypeReadyForQuery)
}

// TestDrainCutsOffStatements ends a drain's patience while the server works.
func TestDrainCutsOffStatements(t *testing.T) {
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Mode = mode })
		w := g.dial(t)
		w.send(query("select pg_sleep(63)"))
		waitFor(t, g, "pg_sleep(63)")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Drain(ctx); err == nil {
			t.Errorf("%s: nothing was cut off", mode)
		}
		if has(g.log.String(), "sessions do not end") {
			t.Errorf("%s: the session did not end", mode)
		}
		left := "select count(*) from pg_stat_activity where state='active' and query='select pg_sleep(63)'"
		for direct := pgtest.Shared(t).Connect(t); one[int](t, direct, left) > 0; {
			if t.Context().Err() != nil {
				t.Fatal("the server still runs the statement of a client that has gone")
			}
		}
	}
}

// TestNotificationsOfOthers listens where the gateway cannot see it.
func TestNotificationsOfOthers(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.OnState, pc.Limits.MaxSize = pgproxy.ResetState, 1
	})
	do(t, g.connect(t, ""), "do $$ begin execute 'listen private'; end $$")
	cfg, err := pgx.ParseConfig(g.dsn(""))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { got = append(got, n.Payload) }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for i := range 3 {
		do(t, conn, fmt.Sprintf("notify private, 'n%d'", i))
	}
	if len(got) > 0 {
		t.Errorf("a client that never listened got %q", got)
	}
}

// TestRowsNobodyAskedFor: rows behind the end of an answer reach no client, and no client gets that
// server connection.
func TestRowsNobodyAskedFor(t *testing.T) {
	for _, more := range []pgwire.Message{&pgwire.DataRow{Values: [][]byte{[]byte("of whom?")}}, &pgwire.CopyData{Data: []byte("of whom?")}} {
		g, f := startFake(t, nil)
		w := g.dial(t)
		w.send(query("select 1"))
		srv := <-f.conns
		srv.read()
		row := &pgwire.DataRow{Values: [][]byte{[]byte("1")}}
		srv.send(row, row, &pgwire.CommandComplete{Tag: "SELECT 2"}, idle, more)
		if types, _ := w.until(pgwire.TypeReadyForQuery); types != "DDCZ" {
			t.Errorf("the first answer: %q", types)
		}
		w.send(query("select 2"))
		if sql := (<-f.conns).answerQuery(); sql != "select 2" { // the pool has room for one
			t.Error(sql)
		}
		if types, _ := w.until(pgwire.TypeReadyForQuery); types != "CZ" {
			t.Errorf("%T: the second answer: %q", more, types)
		}
	}
}
