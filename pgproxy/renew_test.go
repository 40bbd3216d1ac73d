package pgproxy_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// replaced returns how many server connections have been replaced.
func (g *gateway) replaced() (n uint64) {
	for _, e := range g.backend.Status().Endpoints {
		n += e.Pool.Replaced
	}
	return n
}

// seesNull is what a client is told whose server connection has never had the setting app.seen.
const seesNull = "select current_setting('app.seen', true) is null"

// TestNamesOfOthersAreNotSeen has a client make the name of a custom setting in many ways on the only server connection: another client reads
// NULL, as on a direct connection.
func TestNamesOfOthersAreNotSeen(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	for _, texts := range [][]string{
		{"set app.seen = 'a'"}, {"SET LOCAL App.Seen = 'a'"}, {"begin", "set local app.seen = 'a'", "commit"}, {"begin", "set app.seen = 'a'", "rollback"},
		{"select set_config('app.seen', 'a', false)"}, {"select set_config('app.seen', 'a', true)"}, {"select 1; set app.seen = 'a'"}, {"set app.seen = 'a'", "reset all"},
		{"set app.seen = 'a'", "discard all"}, {"reset app.seen"}, {"do $$ begin perform set_config('app.seen', 'a', false); end $$"},
		{"select set_config('app' || '.seen', 'a', true)"}, {"do $$ begin execute 'set local app.' || 'seen = 1'; end $$"},
	} {
		maker, reader := g.connect(t, ""), g.connect(t, "")
		for _, sql := range texts {
			simple(t, maker, sql)
		}
		before := g.replaced()
		if got := sees(t, reader, "select (current_setting('app.seen', true) is null)::text"); got != "true" {
			t.Errorf("%q: another client reads the name", texts)
		}
		if n := g.replaced() - before; n != 1 {
			t.Errorf("%q: %d server connections were replaced", texts, n)
		}
		_, _ = maker.Close(t.Context()), reader.Close(t.Context())
	}
}

// TestWaysToReadNames has another client read the name in many ways.
func TestWaysToReadNames(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	parse := func(name, sql string) pgwire.Message { return &pgwire.Parse{Name: name, Query: sql} }
	for name, way := range map[string]struct {
		first, then []pgwire.Message // first comes before the name is made
		types       string           // of the answers to then
		tells       string
	}{
		"Query":        {nil, []pgwire.Message{query(seesNull)}, "TDCZ", "t"},
		"SHOW":         {nil, []pgwire.Message{query("show app.seen")}, "EZ", "42704"},
		"SHOW, quoted": {nil, []pgwire.Message{query(`SHOW "app" . "seen"`)}, "EZ", "42704"},
		"extended":     {nil, []pgwire.Message{parse("", seesNull), &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}}, "12DCZ", "t"},
		"named":        {nil, []pgwire.Message{parse("n", seesNull), &pgwire.Bind{Statement: "n"}, &pgwire.Execute{}, &pgwire.Sync{}}, "12DCZ", "t"},
		"prepared":     {[]pgwire.Message{parse("p", seesNull), &pgwire.Sync{}}, []pgwire.Message{&pgwire.Bind{Statement: "p"}, &pgwire.Execute{}, &pgwire.Sync{}}, "2DCZ", "t"},
		"parsed":       {[]pgwire.Message{parse("", seesNull), &pgwire.Sync{}}, []pgwire.Message{&pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}}, "2DCZ", "t"},
		"parameter":    {nil, []pgwire.Message{parse("", "select current_setting($1, true) is null"), &pgwire.Flush{}, &pgwire.Sync{}}, "1Z", ""},
		"parameter, Bind": {[]pgwire.Message{parse("q", "select current_setting($1, true) is null"), &pgwire.Sync{}},
			[]pgwire.Message{&pgwire.Bind{Statement: "q", Params: [][]byte{[]byte("app.seen")}}, &pgwire.Execute{}, &pgwire.Sync{}}, "2DCZ", "t"},
		"after BEGIN": {nil, []pgwire.Message{query("begin"), query(seesNull)}, "CZTDCZ", "t"},
		"DO":          {nil, []pgwire.Message{query("do $$ begin assert current_setting('app.seen', true) is null; end $$")}, "CZ", ""},
		"COPY":        {nil, []pgwire.Message{query("copy (" + seesNull + ") to stdout")}, "HdcCZ", "t"},
	} {
		t.Run(name, func(t *testing.T) {
			maker, reader := g.connect(t, ""), g.dial(t)
			if len(way.first) > 0 {
				reader.send(way.first...)
				reader.until(pgwire.TypeReadyForQuery)
			}
			simple(t, maker, "set app.seen = 'a'")
			reader.send(way.then...)
			types, bodies := "", ""
			for strings.Count(types, "Z") < strings.Count(way.types, "Z") {
				some, said := reader.until(pgwire.TypeReadyForQuery)
				types, bodies = types+some, bodies+said
			}
			if types != way.types || !strings.Contains(bodies, way.tells) {
				t.Errorf("%s %q, want %s with %s", types, bodies, way.types, way.tells)
			}
			reader.ask(query("rollback"))
			if got := sees(t, maker, "select current_setting('app.seen', true)"); got != "a" {
				t.Errorf("the client itself reads %q", got)
			}
			_, _ = maker.Close(t.Context()), reader.Close()
		})
	}
}

// TestTransactionBeginsAgain: the look comes after BEGIN, alone and answered. The transaction is as the client has begun it.
func TestTransactionBeginsAgain(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	for _, begin := range []string{"begin", "BEGIN;", "begin isolation level serializable read only", "start transaction isolation level serializable, read only"} {
		maker, reader := g.connect(t, ""), g.connect(t, "work_mem=7MB")
		simple(t, maker, "set app.seen = 'a'")
		simple(t, reader, begin)
		if got := sees(t, reader, "select concat_ws(' ', current_setting('app.seen', true) is null, current_setting('work_mem'), current_setting('transaction_isolation'), current_setting('transaction_read_only'))"); !strings.HasPrefix(got, "t 7MB ") ||
			strings.Contains(begin, "serializable") != strings.HasSuffix(got, " serializable on") {
			t.Errorf("%s: %s", begin, got)
		}
		if status := reader.PgConn().TxStatus(); status != 'T' {
			t.Errorf("%s: status %c", begin, status)
		}
		simple(t, reader, "rollback")
		_, _ = maker.Close(t.Context()), reader.Close(t.Context())
	}
	if n := g.replaced(); n != 4 {
		t.Errorf("%d server connections were replaced, want 4", n)
	}
}

// TestUsualClientsReplaceNothing: clients that read no names of others keep their server connection.
func TestUsualClientsReplaceNothing(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	maker, other := g.connect(t, ""), g.connect(t, "")
	simple(t, maker, "set app.seen = 'a'")
	simple(t, maker, "create temp table t (n int)")
	simple(t, maker, "drop table t")
	for _, sql := range []string{
		"select 1", "show work_mem", "select current_setting('work_mem')", "set work_mem = '5MB'", "reset work_mem", "set other.name = 'b'", "select current_setting('other.name')",
		"set local app.seen = 'c'", "select current_setting('app.seen', true)", "begin", "select current_setting('app.mine', true)", "set local app.mine = 'd'", "select current_setting('app.mine')", "commit",
	} {
		simple(t, other, sql)
		if other.PgConn().TxStatus() == 'T' {
			continue
		}
		if got := sees(t, maker, "select current_setting('app.seen')"); got != "a" {
			t.Errorf("%s: the first client reads %q", sql, got)
		}
	}
	if n := g.replaced(); n != 0 {
		t.Errorf("%d server connections were replaced", n)
	}
}

// TestOwnNamesStay: what a client has set and reset is empty for it, also on another server connection, as on a direct one.
func TestOwnNamesStay(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	for _, again := range []string{"reset all", "discard all", "reset app.seen"} {
		maker, reader := g.connect(t, ""), g.connect(t, "")
		simple(t, maker, "set app.seen = 'a'")
		simple(t, maker, again)
		if got := sees(t, reader, "select (current_setting('app.seen', true) is null)::text"); got != "true" {
			t.Errorf("%s: another client reads the name", again)
		}
		if got := sees(t, maker, "select (current_setting('app.seen', true) = '')::text"); got != "true" {
			t.Errorf("%s: the client itself does not read an empty value", again)
		}
		if got := sees(t, maker, "select 'it is ' || current_setting('app.seen')"); got != "it is " {
			t.Errorf("%s: %q", again, got)
		}
		_, _ = maker.Close(t.Context()), reader.Close(t.Context())
	}
}

// TestNamesOfTheDatabase: server connections that have a name from the beginning are not replaced for it, after the first.
func TestNamesOfTheDatabase(t *testing.T) {
	db, name := ownDatabase(t, "")
	db.Exec(t, "alter database "+name+" set app.seen = 'given'")
	g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) { small(c, pc); pc.DBName = name })
	maker, reader := g.connect(t, ""), g.connect(t, "")
	for range 3 {
		simple(t, maker, "set local app.seen = 'a'")
		if got := sees(t, reader, "select current_setting('app.seen')"); got != "given" {
			t.Errorf("%q", got)
		}
	}
	if n := g.replaced(); n != 1 {
		t.Errorf("%d server connections were replaced, want 1", n)
	}
}

// TestReadersOfTheirOwnNames: a statement that sets what it reads, and a client that brings the setting along, replace nothing.
func TestReadersOfTheirOwnNames(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	maker := g.connect(t, "options='-c app.seen=a'")
	simple(t, maker, "select 1")
	for _, sql := range []string{"select set_config('app.seen', 'b', true), current_setting('app.seen')", "begin; set local app.seen = 'b'; select current_setting('app.seen'); commit"} {
		simple(t, g.connect(t, ""), sql)
	}
	again := g.connect(t, "options='-c app.seen=a'")
	if got := sees(t, again, "select current_setting('app.seen')"); got != "a" {
		t.Errorf("%q", got)
	}
	if n := g.replaced(); n != 0 {
		t.Errorf("%d server connections were replaced", n)
	}
}

// TestIdleConnectionWithoutTheName: where there is one, nothing is replaced.
func TestIdleConnectionWithoutTheName(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 2 })
	maker, reader := g.connect(t, ""), g.connect(t, "")
	simple(t, reader, "begin")
	simple(t, maker, "begin")
	simple(t, reader, "rollback")
	simple(t, maker, "set local app.seen = 'a'")
	simple(t, maker, "commit") // the newest idle one has the name
	if got := sees(t, reader, "select (current_setting('app.seen', true) is null)::text"); got != "true" {
		t.Error("it reads the name")
	}
	if n := g.replaced(); n != 0 {
		t.Errorf("%d server connections were replaced", n)
	}
}

// TestBuffersAfterTemporaryTables: a client may change temp_buffers on a server connection on which another one has used temporary tables, and
// its value follows it; clients with and without a value take turns.
func TestBuffersAfterTemporaryTables(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	user, setter, plain := g.connect(t, ""), g.connect(t, ""), g.connect(t, "")
	uses := func(c *pgx.Conn) {
		t.Helper()
		simple(t, c, "create temp table t as select 1 as n")
		simple(t, c, "drop table t")
	}
	uses(user)
	simple(t, setter, "set temp_buffers = '9MB'")
	for range 3 {
		uses(user)
		if got := sees(t, setter, "select current_setting('temp_buffers')"); got != "9MB" {
			t.Errorf("the value that follows is %q", got)
		}
		uses(setter)
		for _, c := range []*pgx.Conn{plain, user} {
			if got := sees(t, c, "select current_setting('temp_buffers')"); got != "8MB" {
				t.Errorf("another client has %q", got)
			}
		}
	}
	simple(t, plain, "begin")
	simple(t, plain, "set temp_buffers = '10MB'")
	simple(t, plain, "commit")
	if got := sees(t, plain, "select current_setting('temp_buffers')"); got != "10MB" {
		t.Errorf("set in a transaction: %q", got)
	}
}

// TestTooManyReplacements: beyond a limit server connections stay, and the log says so once.
func TestTooManyReplacements(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	g.backend.ExhaustRenewals()
	maker, reader := g.connect(t, ""), g.connect(t, "")
	simple(t, maker, "set app.seen = 'a'")
	for range 2 {
		if got := sees(t, reader, "select (current_setting('app.seen', true) = '')::text"); got != "true" {
			t.Error("it does not read the name")
		}
		simple(t, reader, "begin")
		if got := sees(t, reader, "select (current_setting('app.seen', true) = '')::text"); got != "true" {
			t.Error("it does not read the name in a transaction")
		}
		simple(t, reader, "commit")
	}
	if n := strings.Count(g.log.String(), "than server connections can be replaced"); n != 1 || g.replaced() != 0 {
		t.Errorf("the log says so %d times; %d were replaced", n, g.replaced())
	}
}

// startBreaking has a pool, and a switch that makes further connections fail.
func startBreaking(t *testing.T, down *atomic.Bool, size func(*pgproxy.Config, *pgproxy.PostgresConfig)) *gateway {
	return start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		size(c, pc)
		pc.ReadCatalogs = pgproxy.CatalogsNever
		pc.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			if down.Load() {
				return nil, errors.New("down for the test")
			}
			return enginetest.Dial(ctx, addr)
		}
	})
}

// TestReplacementFails: outside a transaction the client gets an error and continues, after BEGIN its session ends. No slot is lost.
func TestReplacementFails(t *testing.T) {
	var down atomic.Bool
	g := startBreaking(t, &down, small)
	for _, begun := range []bool{false, true} {
		maker, reader := g.connect(t, ""), g.connect(t, "")
		simple(t, maker, "set app.seen = 'a'")
		if begun {
			simple(t, reader, "begin")
		}
		down.Store(true)
		_, err := reader.Exec(t.Context(), seesNull, pgx.QueryExecModeSimpleProtocol)
		down.Store(false)
		if said, ok := errors.AsType[*pgconn.PgError](err); !ok || said.Code != "08006" || (said.Severity == "FATAL") != begun {
			t.Errorf("begun %v: %v", begun, err)
		}
		if !begun {
			conntest.Eventually(t, "the client works", func() bool {
				_, err := reader.Exec(t.Context(), "select 1", pgx.QueryExecModeSimpleProtocol)
				return err == nil
			})
		}
		conntest.Eventually(t, "the other one works", func() bool {
			_, err := maker.Exec(t.Context(), "select 1", pgx.QueryExecModeSimpleProtocol)
			return err == nil
		})
		_, _ = maker.Close(t.Context()), reader.Close(t.Context())
	}
}

// TestEndOfWaitForReplacement: a client cancels, leaves or is killed while its new server connection is being opened. The slot is free again,
// also after BEGIN; there a cancel request does nothing, since the transaction must begin.
func TestEndOfWaitForReplacement(t *testing.T) {
	var gated atomic.Bool
	waiting := make(chan struct{}, 1)
	open := make(chan struct{})
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		small(c, pc)
		pc.ReadCatalogs = pgproxy.CatalogsNever
		pc.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			if gated.CompareAndSwap(true, false) {
				waiting <- struct{}{}
				select {
				case <-open:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return enginetest.Dial(ctx, addr)
		}
	})
	for _, begun := range []bool{false, true} {
		for _, end := range []string{"cancel", "leave", "kill"} {
			maker, w := g.connect(t, ""), g.dial(t, pgwire.Param{Name: "application_name", Value: "reader"})
			simple(t, maker, "set local app.seen = 'a'")
			if begun {
				w.ask(query("begin"))
			}
			gated.Store(true)
			w.send(query(seesNull))
			<-waiting
			switch end {
			case "cancel":
				g.cancel(t, w)
				if begun {
					open <- struct{}{}
				}
				if types, bodies := w.until(pgwire.TypeReadyForQuery); begun && types != "TDCZ" || !begun && !has(bodies, "57014") {
					t.Errorf("begun %v, %s: %s %q", begun, end, types, bodies)
				}
				w.send(&pgwire.Terminate{})
			case "leave":
				_ = w.Close()
				open <- struct{}{}
			case "kill":
				for _, s := range g.Sessions() {
					if s.Application == "reader" {
						g.kill(t, s)
					}
				}
			}
			if got := sees(t, maker, "select (current_setting('app.seen') = '')::text"); got != "true" {
				t.Errorf("begun %v, %s: the other client reads %q", begun, end, got)
			}
			_, _ = maker.Close(t.Context()), w.Close()
		}
	}
}

// TestReadersWhileTheServerAdmitsNobody: clients that read names of others close no more than one server connection that works.
func TestReadersWhileTheServerAdmitsNobody(t *testing.T) {
	var down atomic.Bool
	g := startBreaking(t, &down, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 3 })
	clients := []*pgx.Conn{g.connect(t, ""), g.connect(t, ""), g.connect(t, "")}
	for _, c := range clients {
		simple(t, c, "begin")
		simple(t, c, "set local app.seen = 'a'")
	}
	for _, c := range clients {
		simple(t, c, "commit")
	}
	down.Store(true)
	reader := g.connect(t, "")
	for _, begin := range []string{"", "begin", "", "begin", ""} {
		if begin != "" {
			simple(t, reader, begin)
		}
		if got := sees(t, reader, "select (current_setting('app.seen', true) = '')::text"); got != "true" {
			t.Errorf("it reads %q", got)
		}
		if begin != "" {
			simple(t, reader, "rollback")
		}
	}
	if n := g.backend.Status().Endpoints[0].Pool.Idle; n != 2 {
		t.Errorf("%d server connections are left, want 2", n)
	}
}

// TestPairsShareReplacements: all pairs of an upstream together replace no more than it may, because their logins are one server's.
func TestPairsShareReplacements(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	g := startPairs(t, db, passwordsOf(t, db), small)
	g.backend.ExhaustRenewals()
	maker, reader := g.login(t, "ada", "ada's secret", "shop"), g.login(t, "ada", "ada's secret", "shop")
	simple(t, maker, "set app.seen = 'a'")
	if got := sees(t, reader, "select (current_setting('app.seen', true) = '')::text"); got != "true" || g.replaced() != 0 {
		t.Errorf("%q; %d server connections were replaced", got, g.replaced())
	}
}

// slowToBegin is a server connection whose BEGIN takes time.
type slowToBegin struct {
	net.Conn
	begins, goOn chan struct{}
}

func (c slowToBegin) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("begin")) {
		c.begins <- struct{}{}
		<-c.goOn
	}
	return c.Conn.Write(b)
}

// TestCancelWhileBeginningAgain: a cancel request does not reach the server while the client's transaction begins again there.
func TestCancelWhileBeginningAgain(t *testing.T) {
	var slow atomic.Bool
	var dials atomic.Int64
	begins, goOn := make(chan struct{}), make(chan struct{})
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		small(c, pc)
		pc.ReadCatalogs = pgproxy.CatalogsNever
		pc.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			dials.Add(1)
			conn, err := enginetest.Dial(ctx, addr)
			if err == nil && slow.CompareAndSwap(true, false) {
				conn = slowToBegin{conn, begins, goOn}
			}
			return conn, err
		}
	})
	maker, w := g.connect(t, ""), g.dial(t)
	simple(t, maker, "set local app.seen = 'a'")
	w.ask(query("begin"))
	slow.Store(true)
	w.send(query(seesNull))
	<-begins
	before := dials.Load()
	g.cancel(t, w)
	if n := dials.Load() - before; n != 0 {
		t.Errorf("%d connections were opened to cancel something", n)
	}
	close(goOn)
	if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "TDCZ" {
		t.Errorf("%s %q", types, bodies)
	}
}

// cancel sends a client's cancel request, and waits until the gateway has dealt with it.
func (g *gateway) cancel(t *testing.T, w *wire) {
	t.Helper()
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	canceler := newWire(t, conn)
	canceler.send(&pgwire.CancelRequest{ProcessID: w.key.ProcessID, Key: w.key.Key})
	_, _ = canceler.Read(make([]byte, 1))
}

// TestBeginWithMore: a Query that does more than begin is not run again, also if a comment hides that.
func TestBeginWithMore(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	maker, reader := g.connect(t, ""), g.connect(t, "")
	simple(t, maker, "set app.seen = 'a'")
	for _, begin := range []string{"begin; select 1", "begin /*;--*/; select 1", "begin --;--\n; select 1"} {
		simple(t, reader, begin)
		if got := sees(t, reader, "select (current_setting('app.seen', true) = '')::text"); got != "true" {
			t.Errorf("%q: the transaction began again", begin)
		}
		simple(t, reader, "rollback")
	}
	if n := g.replaced(); n != 0 {
		t.Errorf("%d server connections were replaced", n)
	}
}
