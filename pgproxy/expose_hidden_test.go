package pgproxy_test

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// oneServer has all clients share one server connection.
func oneServer(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 }

// TestStatementsOfOthersAreHidden has a client look for the texts of another one's statements.
func TestStatementsOfOthersAreHidden(t *testing.T) {
	g := start(t, pgtest.Shared(t), oneServer)
	other, w := g.connect(t, ""), g.dial(t)
	prepareNamed(t, other, "theirs", "select 'secret'")
	const lists = "select statement from pg_prepared_statements"
	sync, list := &pgwire.Sync{}, query(lists)
	w.ask(&pgwire.Parse{Name: "lst", Query: lists}, sync)
	w.ask(&pgwire.Parse{Name: "own", Query: "select 'own'"}, sync)
	long := "/*" + strings.Repeat("x", 257<<10) + "*/" + lists
	w.ask(&pgwire.Parse{Name: "long", Query: long}, sync)
	for _, c := range []struct {
		what   string
		before []pgwire.Message // is answered before the other client has the server connection again
		then   []pgwire.Message
	}{
		{"by EXECUTE", nil, []pgwire.Message{query("execute lst")}},
		{"by EXECUTE in a pipeline", nil, []pgwire.Message{query("select 1"), query("execute lst")}},
		{"behind a Query", nil, []pgwire.Message{query("select 1"), list}},
		{"behind a Sync", nil, []pgwire.Message{&pgwire.Parse{Query: "select 1"}, sync, list}},
		{"behind a failed one", nil, []pgwire.Message{query("begin; select 1/0"), query("rollback;" + lists)}},
		{"in a transaction", nil, []pgwire.Message{query("begin"), list, query("commit")}},
		{"in a pipeline", nil, []pgwire.Message{&pgwire.Parse{Query: "select 1"}, &pgwire.Parse{Query: lists}, &pgwire.Bind{}, &pgwire.Execute{}, sync}},
		{"without Sync", nil, []pgwire.Message{&pgwire.Parse{Query: "select 1"}, list}},
		{"by code points", nil, []pgwire.Message{query(`select statement from U&"!0070!0067_!0070repared_statements" uescape '!'`)}},
		{"by escapes", nil, []pgwire.Message{query(`select statement from U&"\0070g_\0070repared_statements"`)}},
		{"in a string", nil, []pgwire.Message{query("select query_to_xml('" + lists + "', true, true, '')")}},
		{"in a block", nil, []pgwire.Message{query("do $$ declare s text; begin for s in " + lists + " loop raise notice '%', s; end loop; end $$")}},
		{"behind a long comment", nil, []pgwire.Message{query("select 1 /*" + strings.Repeat("x", 17<<10) + "*/;" + lists)}},
		{"behind a comment that is not read", nil, []pgwire.Message{query("select 1 /*" + strings.Repeat("x", 70<<10) + "*/;" + lists)}},
		{"behind a longer comment", nil, []pgwire.Message{&pgwire.Parse{Query: long}, &pgwire.Bind{}, &pgwire.Execute{}, sync}},
		{"by the protocol's name", nil, []pgwire.Message{&pgwire.Bind{Statement: "lst"}, &pgwire.Execute{}, sync}},
		{"by name in a pipeline", nil, []pgwire.Message{&pgwire.Bind{Statement: "own"}, &pgwire.Bind{Statement: "lst"}, &pgwire.Execute{}, sync}},
		{"by a cursor", nil, []pgwire.Message{query("begin; declare c cursor for " + lists + "; fetch all from c; commit")}},
		{"behind COPY without a Sync", nil, []pgwire.Message{&pgwire.Parse{Query: "copy (select 1) to stdout"}, &pgwire.Bind{}, &pgwire.Execute{}, list}},
		{"by a long one's name", nil, []pgwire.Message{&pgwire.Bind{Statement: "long"}, &pgwire.Execute{}, sync}},
		{"by EXECUTE of a long one", nil, []pgwire.Message{query("execute long")}},
		{"by a long one that is there", []pgwire.Message{&pgwire.Parse{Query: long}, sync}, []pgwire.Message{&pgwire.Bind{}, &pgwire.Execute{}, sync}},
	} {
		for range 2 {
			if c.before != nil {
				w.ask(c.before...)
			}
			useNamed(t, other, "theirs")
			w.send(c.then...)
			w.send(query("select 'the end'"))
			for all := ""; !strings.Contains(all, "the end"); {
				_, bodies := w.until(pgwire.TypeReadyForQuery)
				if all += bodies; strings.Contains(all, "secret") {
					t.Errorf("%s: another client's statement is shown", c.what)
				}
				if strings.HasSuffix(bodies, "T") && strings.Contains(all, "the end") { // PostgreSQL 18: the pipeline's transaction is open until the next Sync
					w.ask(sync)
				}
			}
		}
	}
	useNamed(t, other, "theirs")
}

// TestNamesInOtherEncodings has a client leave statements under names that the next client's encoding does not have.
func TestNamesInOtherEncodings(t *testing.T) {
	g := start(t, pgtest.Shared(t), oneServer)
	a, b := g.dial(t, pgwire.Param{Name: "client_encoding", Value: "LATIN1"}), g.dial(t, pgwire.Param{Name: "client_encoding", Value: "UTF8"})
	prepare := func(w *wire, name, sql string) {
		if types, bodies := w.ask(&pgwire.Parse{Name: name, Query: sql}, &pgwire.Sync{}); strings.Contains(types, "E") {
			t.Fatalf("%q: %q", name, bodies)
		}
	}
	prepare(b, "s", "select 'of b'")
	prepare(a, "s", "select 'of a'")
	all := "execute s"
	for i := range 20 {
		name := fmt.Sprintf("\xe9%d", i)
		prepare(a, name, "select 1")
		all += "; execute \"" + name + "\""
	}
	for range 2 {
		if types, bodies := a.ask(query(all)); strings.Contains(types, "E") || !strings.Contains(bodies, "of a") {
			t.Errorf("%s: %q", types, bodies)
		}
		if types, bodies := b.ask(query("execute s")); strings.Contains(types, "E") || !strings.Contains(bodies, "of b") {
			t.Errorf("%s: %q", types, bodies)
		}
		if _, bodies := b.ask(query("select 'n=' || count(*) from pg_prepared_statements")); !strings.Contains(bodies, "n=1") {
			t.Errorf("not b's alone: %q", bodies)
		}
	}
	// One client, two encodings.
	a.ask(query(all))
	a.ask(query("begin"), query(all), query("set local client_encoding = 'UTF8'"))
	for range 2 {
		a.until(pgwire.TypeReadyForQuery)
	}
	a.ask(query("execute s"))
	a.ask(query("commit"))
	if _, bodies := b.ask(query("select 'n=' || count(*) from pg_prepared_statements")); !strings.Contains(bodies, "n=1") {
		t.Errorf("behind another encoding: not b's alone: %q", bodies)
	}
}

// TestOwnNamesCannotBeGuessed has a client try names that the gateway could give to statements.
func TestOwnNamesCannotBeGuessed(t *testing.T) {
	g := start(t, pgtest.Shared(t), oneServer)
	other, c := g.connect(t, ""), g.connect(t, "")
	prepareNamed(t, other, "theirs", "select 'secret'")
	for i := range 20 {
		for _, sql := range []string{"execute headpond_%d", `explain (verbose) execute "headpond_%d"`} {
			if _, err := c.PgConn().Exec(t.Context(), fmt.Sprintf(sql, i)).ReadAll(); sqlstate(err) != "26000" {
				t.Errorf(sql+": %v", i, err)
			}
		}
	}
	useNamed(t, other, "theirs")
}

// TestNamedListSeesItselfOnce has a prepared statement list statements.
func TestNamedListSeesItselfOnce(t *testing.T) {
	g := start(t, pgtest.Shared(t), oneServer)
	c, other := g.connect(t, ""), g.connect(t, "")
	prepareNamed(t, other, "theirs", "select 'secret'")
	prepareNamed(t, c, "a", "select 1")
	prepareNamed(t, c, "lst", "select string_agg(name, ' ' order by name) from pg_prepared_statements")
	for range 3 {
		useNamed(t, other, "theirs")
		got := c.PgConn().ExecPrepared(t.Context(), "lst", nil, nil, nil).Read()
		if got.Err != nil || string(got.Rows[0][0]) != "a lst" {
			t.Errorf("listed %q (%v)", got.Rows, got.Err)
		}
	}
}

// TestExecuteByTheProtocol has EXECUTE be a statement of the extended protocol, unnamed and named.
func TestExecuteByTheProtocol(t *testing.T) {
	g := start(t, pgtest.Shared(t), oneServer)
	c, other := g.connect(t, ""), g.connect(t, "")
	prepareNamed(t, c, "one", "select 'c'")
	prepareNamed(t, other, "one", "select 'other'")
	prepareNamed(t, c, "runs", "execute one")
	for range 2 {
		useNamed(t, other, "one")
		for _, got := range []string{
			string(c.PgConn().ExecParams(t.Context(), "execute one", nil, nil, nil, nil).Read().Rows[0][0]),
			string(c.PgConn().ExecPrepared(t.Context(), "runs", nil, nil, nil).Read().Rows[0][0]),
		} {
			if got != "c" {
				t.Errorf("%q", got)
			}
		}
		if got := sees(t, other, "execute one"); got != "other" {
			t.Errorf("another client: %q", got)
		}
	}
}

// TestNamesOfSQLAndProtocol has SQL and the protocol prepare statements of the same names: the second is refused, as on a direct connection.
func TestNamesOfSQLAndProtocol(t *testing.T) {
	g := start(t, pgtest.Shared(t), oneServer)
	c := g.connect(t, "")
	prepareNamed(t, c, "one", "select 'protocol'")
	for _, sql := range []string{"prepare one as select 'sql'", `/* again */ prepare "one" as select 'sql'`} {
		if _, err := c.PgConn().Exec(t.Context(), sql).ReadAll(); sqlstate(err) != "42P05" {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if got := sees(t, c, "execute one"); got != "protocol" {
		t.Errorf("%q", got)
	}
	simple(t, c, "prepare two as select 'sql'")
	if _, err := c.PgConn().Prepare(t.Context(), "two", "select 'protocol'", nil); sqlstate(err) != "42P05" {
		t.Errorf("by the protocol: %v", err)
	}
	prepareNamed(t, c, "three", "select 3")
	if got := sees(t, c, "execute two") + sees(t, c, "execute one") + sees(t, c, "execute three"); got != "sqlprotocol3" {
		t.Errorf("%q", got)
	}
	simple(t, c, "deallocate two")
	prepareNamed(t, c, "two", "select 'now'")
	if got := sees(t, c, "execute two"); got != "now" {
		t.Errorf("%q", got)
	}
}

// TestListIsWholeDespiteOneOutOfDate has one of a client's statements be no use any more: the others are listed.
func TestListIsWholeDespiteOneOutOfDate(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, oneServer)
	c := g.connect(t, "")
	db.Exec(t, "create table listed_once (n int)")
	prepareNamed(t, c, "a", "select 1")
	prepareNamed(t, c, "b", "select n from listed_once")
	prepareNamed(t, c, "c", "select 3")
	db.Exec(t, "drop table listed_once")
	if got := sees(t, c, listsStatements); got != "a: select 1, c: select 3" {
		t.Errorf("listed %q", got)
	}
	// EXECUTE gets the server's error, once.
	if _, err := c.PgConn().Exec(t.Context(), "begin; execute b").ReadAll(); sqlstate(err) != "42P01" {
		t.Errorf("%v", err)
	}
	if _, err := c.PgConn().Exec(t.Context(), "execute a").ReadAll(); sqlstate(err) != "25P02" {
		t.Errorf("in a transaction that has failed: %v", err)
	}
	simple(t, c, "rollback")
	if _, err := c.PgConn().Exec(t.Context(), "execute never").ReadAll(); sqlstate(err) != "26000" {
		t.Errorf("%v", err)
	}
}

// TestUnknownStatementBehindOwnRequest has a request that waits for nothing begin with a request of the gateway's own.
func TestUnknownStatementBehindOwnRequest(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, oneServer)
	c, w := g.dial(t), g.dial(t)
	db.Exec(t, "drop sequence if exists behind_numbers; create sequence behind_numbers")
	if types, _ := w.ask(query("select lastval()")); !strings.Contains(types, "E") {
		t.Errorf("lastval: %s", types)
	}
	for _, w := range []*wire{c, w} {
		w.ask(&pgwire.Parse{Name: "one", Query: "select 1"}, &pgwire.Sync{})
	}
	for _, sql := range []string{"select nextval('behind_numbers')", "execute one", "table pg_prepared_statements"} {
		for _, request := range [][]pgwire.Message{
			{&pgwire.Bind{Statement: "missing"}, &pgwire.Sync{}},
			{&pgwire.Describe{Object: pgwire.ObjectStatement, Name: "missing"}, &pgwire.Sync{}},
			{&pgwire.Parse{Query: "select 1"}, &pgwire.Bind{Statement: "missing"}, &pgwire.Sync{}},
		} {
			for _, before := range []*wire{c, w} { // the second is on the loop of the server connection: the fast path is taken
				if types, bodies := before.ask(query(sql)); strings.Contains(types, "E") {
					t.Errorf("%s: %s", sql, bodies)
				}
				if types, bodies := w.ask(request...); !strings.HasSuffix(types, "EZ") || !has(bodies, "26000") {
					t.Errorf("behind %s: %s", sql, types)
				}
			}
		}
	}
}

// TestRoleIsUndone has a client give up the role that it has begun with: it has none until it asks for that role again.
func TestRoleIsUndone(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "drop role if exists begun_role; create role begun_role superuser")
	g := start(t, db, oneServer)
	c, other := g.connect(t, "role=begun_role"), g.connect(t, "")
	for _, step := range []struct{ sql, want string }{
		{"select 1", "begun_role"}, {"set role none", "none"}, {"set work_mem = '5MB'", "none"}, {"reset role", "begun_role"},
		{"begin; set role none; commit", "none"}, {"set role to default", "begun_role"}, {"begin; set role none; rollback", "begun_role"},
		{"select set_config('role', 'none', false)", "none"}, {"discard all", "begun_role"},
	} {
		simple(t, c, step.sql)
		simple(t, other, "select 1")
		if got := sees(t, c, "select current_setting('role')"); got != step.want {
			t.Errorf("behind %s: %s, want %s", step.sql, got, step.want)
		}
	}
}

// TestListsAreExposedOnce has a text execute many statements each of which lists statements: they are gathered once, not for each.
func TestListsAreExposedOnce(t *testing.T) {
	m := pgproxy.NewExposer(2000, "table pg_prepared_statements")
	text := func(n int) (sql string) {
		for i := range n {
			sql += fmt.Sprintf("execute s%d;", i)
		}
		return sql
	}
	few, many := text(100), text(300)
	m.Expose(many) // all stand from now on
	less := testing.AllocsPerRun(5, func() { m.Expose(few) })
	if more := testing.AllocsPerRun(5, func() { m.Expose(many) }); more > less+200*5 {
		t.Errorf("%v allocations for 300 names, %v for 100", more, less)
	}
}

// TestBindCopiesNoText has a long statement that executes others be bound again and again: its text is not copied, nor read, for that.
func TestBindCopiesNoText(t *testing.T) {
	m := pgproxy.NewExposer(1, "select f() /*"+strings.Repeat(" execute s0", 100_000)+"*/")
	m.Bind("s0")
	if n := testing.AllocsPerRun(5, func() { m.Bind("s0") }); n > 10 {
		t.Errorf("%v allocations", n)
	}
}

// TestOwnMessagesDoNotBlock has the server answer each of the gateway's own messages at length, and read the next one only then: the gateway
// must read meanwhile.
func TestOwnMessagesDoNotBlock(t *testing.T) {
	g, f := startFake(t, nil)
	w := g.dial(t)
	srv := <-f.conns
	if c, ok := srv.Conn.(*net.TCPConn); ok {
		_ = c.SetReadBuffer(64 << 10)
	}
	notice := bytesOf(&pgwire.NoticeResponse{ErrorResponse: pgwire.ErrorResponse{Severity: "NOTICE", Code: "00000", Message: strings.Repeat("n", 64<<10)}})
	var talks atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			typ, _, err := srv.try()
			if err != nil {
				return
			}
			answer := bytesOf(&pgwire.ParseComplete{})
			switch typ {
			case pgwire.TypeParse:
				if talks.Load() {
					answer = append(bytes.Repeat(notice, 64), answer...)
				}
			case pgwire.TypeClose:
				answer = bytesOf(&pgwire.CloseComplete{})
			case pgwire.TypeSync:
				answer = bytesOf(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
			case pgwire.TypeQuery:
				answer = bytesOf(&pgwire.CommandComplete{Tag: "SELECT 0"}, &pgwire.ReadyForQuery{Status: pgwire.TxIdle})
			}
			if _, err := srv.Write(answer); err != nil {
				return
			}
		}
	}()
	all, text := "", "select '"+strings.Repeat("x", 900<<10)+"'"
	for i := range 8 {
		name := fmt.Sprint("s", i)
		if types, _ := w.ask(&pgwire.Parse{Name: name, Query: text}, &pgwire.Sync{}); types != "1Z" {
			t.Fatal(types)
		}
		all += "execute " + name + ";"
	}
	talks.Store(true)
	if types, _ := w.ask(query(all)); types != "CZ" {
		t.Errorf("%s", types)
	}
	_ = w.Close()
	_ = srv.Close()
	<-ended
}
