package pgproxy_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

const listsStatements = "select coalesce(string_agg(name || ': ' || statement, ', ' order by name), '') from pg_prepared_statements"

// TestExecuteOfProtocolStatements has SQL's EXECUTE run statements that clients have prepared by the protocol, as on a direct connection.
func TestExecuteOfProtocolStatements(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	c, other := g.connect(t, ""), g.connect(t, "")
	prepareNamed(t, c, "one", "select 'c' || $1::text")
	prepareNamed(t, c, "Two words", "select 'two'")
	prepareNamed(t, other, "one", "select 'other'")
	for range 2 {
		for sql, want := range map[string]string{
			"execute one('x')":          "cx",
			"/* e */ EXECUTE One ('y')": "cy",
			`execute "Two words"`:       "two",
		} {
			if got := sees(t, c, sql); got != want {
				t.Errorf("%s: %s", sql, got)
			}
			if got := sees(t, other, "execute one"); got != "other" {
				t.Errorf("another client: %s", got)
			}
		}
		simple(t, c, "begin")
		for range 2 {
			if got := sees(t, c, "execute one('in')"); got != "cin" {
				t.Errorf("in a transaction: %s", got)
			}
		}
		simple(t, c, "commit")
	}
	if _, err := c.PgConn().Exec(t.Context(), "execute never").ReadAll(); sqlstate(err) != "26000" {
		t.Errorf("an unknown one: %v", err)
	}
	simple(t, c, "begin; execute one('x')")
	simple(t, c, "deallocate one; commit")
	if _, err := c.PgConn().Exec(t.Context(), "execute one('x')").ReadAll(); sqlstate(err) != "26000" {
		t.Errorf("a deallocated one: %v", err)
	}
	for _, drop := range []func(){func() { simple(t, c, "deallocate again") }, func() { _ = c.PgConn().Deallocate(t.Context(), "again") }} {
		prepareNamed(t, c, "again", "select 1")
		simple(t, c, "begin")
		simple(t, c, "execute again")
		drop()
		if _, err := c.PgConn().Exec(t.Context(), "execute again").ReadAll(); sqlstate(err) != "26000" {
			t.Errorf("a deallocated one, in a transaction: %v", err)
		}
		simple(t, c, "rollback")
	}
	if got := c.PgConn().ExecPrepared(t.Context(), "Two words", nil, nil, nil).Read(); got.Err != nil || string(got.Rows[0][0]) != "two" {
		t.Errorf("by the protocol: %v", got)
	}
	if n := g.Stats().Pinned; n != 0 {
		t.Errorf("%d are pinned", n)
	}
}

// TestExecuteWithoutSync has SQL's EXECUTE run statements whose Parse no Sync has followed, or that is not answered yet.
func TestExecuteWithoutSync(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, oneServer)
	flush, sync, object := &pgwire.Flush{}, &pgwire.Sync{}, byte(pgwire.ObjectStatement)
	for name, c := range map[string]struct {
		first []pgwire.Message // up to Flush; NoData or RowDescription is the last answer
		then  []pgwire.Message
		want  string // types of the answers to then
	}{
		"Query":                     {[]pgwire.Message{&pgwire.Parse{Name: "s", Query: "select 'found'"}, &pgwire.Describe{Object: object, Name: "s"}, flush}, []pgwire.Message{query("execute s")}, "TDCZ"},
		"extended protocol":         {[]pgwire.Message{&pgwire.Parse{Name: "s", Query: "select 'found'"}, &pgwire.Describe{Object: object, Name: "s"}, flush}, []pgwire.Message{&pgwire.Parse{Name: "e", Query: "execute s"}, &pgwire.Describe{Object: object, Name: "e"}, &pgwire.Bind{Statement: "e"}, &pgwire.Execute{}, sync}, "1tT2DCZ"},
		"list":                      {[]pgwire.Message{&pgwire.Parse{Name: "s", Query: "select 'found'"}, &pgwire.Describe{Object: object, Name: "s"}, flush}, []pgwire.Message{query("select statement from pg_prepared_statements")}, "TDCZ"},
		"not answered":              {nil, []pgwire.Message{&pgwire.Parse{Name: "s", Query: "select 'found'"}, query("execute s")}, "1TDCZ"},
		"not answered, extended":    {nil, []pgwire.Message{&pgwire.Parse{Name: "s", Query: "select 'found'"}, &pgwire.Parse{Query: "execute s"}, &pgwire.Bind{}, &pgwire.Execute{}, sync}, "112DCZ"},
		"not answered, in a block":  {nil, []pgwire.Message{&pgwire.Parse{Name: "b", Query: "begin"}, &pgwire.Parse{Name: "s", Query: "select 'found'"}, &pgwire.Parse{Query: "execute s"}, &pgwire.Bind{}, &pgwire.Execute{}, sync}, "1112DCZ"},
		"parsed after what uses it": {nil, []pgwire.Message{&pgwire.Parse{Query: "execute s"}, &pgwire.Parse{Name: "s", Query: "select 'found'"}, &pgwire.Bind{}, &pgwire.Execute{}, sync}, "112DCZ"},
	} {
		w := g.dial(t)
		if c.first != nil {
			w.send(c.first...)
			w.until(pgwire.TypeRowDescription)
		}
		if types, bodies := w.ask(c.then...); types != c.want || !strings.Contains(bodies, "found") {
			t.Errorf("%s: %s %q, want %s", name, types, bodies, c.want)
		}
		if types, bodies := w.ask(&pgwire.Parse{Name: "s", Query: "select 1"}, sync); types != "EZ" || !has(bodies, "42P05") {
			t.Errorf("%s, the name again: %s %q", name, types, bodies)
		}
		_ = w.Close()
	}
}

// TestExecuteCommitsNothing has a client execute a statement by SQL in a pipeline that has inserted a row: what the gateway does for that ends
// no transaction, so that an error undoes the insert.
func TestExecuteCommitsNothing(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "drop table if exists uncommitted; create table uncommitted (n int)")
	g := start(t, db, oneServer)
	w := g.dial(t)
	w.ask(&pgwire.Parse{Name: "divide", Query: "select 1/0"}, &pgwire.Sync{})
	w.send(&pgwire.Parse{Query: "insert into uncommitted values (1)"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Flush{})
	w.until(pgwire.TypeCommandComplete)
	if types, _ := w.ask(query("execute divide")); types != "EZ" {
		t.Errorf("%s", types)
	}
	if _, bodies := w.ask(query("select 'n=' || count(*) from uncommitted")); !strings.Contains(bodies, "n=0") {
		t.Errorf("the insert was not undone: %q", bodies)
	}
}

// TestPreparedStatementsListed has clients list prepared statements: each sees its own, under its own names.
func TestPreparedStatementsListed(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	c, other, none := g.connect(t, ""), g.connect(t, ""), g.connect(t, "")
	prepareNamed(t, c, "b", "select 2")
	prepareNamed(t, c, "a", "select 1")
	prepareNamed(t, other, "a", "select 'secret'")
	for range 2 {
		for client, want := range map[*pgx.Conn]string{c: "a: select 1, b: select 2", other: "a: select 'secret'", none: ""} {
			if got := sees(t, client, listsStatements); got != want {
				t.Errorf("listed %q, want %q", got, want)
			}
		}
		if got := c.PgConn().ExecPrepared(t.Context(), "b", nil, nil, nil).Read(); got.Err != nil || string(got.Rows[0][0]) != "2" {
			t.Errorf("by the protocol: %v", got)
		}
	}
	for _, name := range []string{`"pg_prepared_statements"`, `pg_catalog."pg_prepared_statements"`, "PG_Prepared_Statements", "pg_prepared_statement()"} {
		useNamed(t, other, "a") // the server has it, under a name of the gateway's
		if got := sees(t, c, strings.ReplaceAll(listsStatements, "pg_prepared_statements", name)); got != "a: select 1, b: select 2" {
			t.Errorf("%s: listed %q", name, got)
		}
	}
	// Of a pinned client those of SQL stay.
	simple(t, c, "prepare own as select 3")
	if got := sees(t, c, listsStatements); got != "a: select 1, b: select 2, own: prepare own as select 3" {
		t.Errorf("listed %q", got)
	}
	if err := c.PgConn().Deallocate(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got := sees(t, c, listsStatements); got != "b: select 2, own: prepare own as select 3" {
		t.Errorf("listed %q", got)
	}
	simple(t, c, "deallocate all")
	// By the extended protocol, too.
	got := none.PgConn().ExecParams(t.Context(), "select count(*) from pg_prepared_statements where statement like '%secret%' and statement not like '%count%'", nil, nil, nil, nil).Read()
	if got.Err != nil || string(got.Rows[0][0]) != "0" {
		t.Errorf("%v", got)
	}
}

// TestExposedIsOutOfDate has a statement's table be dropped: SQL that executes it fails, and the session goes on.
func TestExposedIsOutOfDate(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	c := g.connect(t, "")
	db.Exec(t, "create table exposed (n int)")
	prepareNamed(t, c, "gone", "select n from exposed")
	prepareNamed(t, c, "good", "select 1")
	db.Exec(t, "drop table exposed")
	if _, err := c.PgConn().Exec(t.Context(), "execute gone").ReadAll(); sqlstate(err) != "42P01" {
		t.Errorf("%v", err)
	}
	if got := sees(t, c, "execute good"); got != "1" {
		t.Errorf("%s", got)
	}
	if _, err := c.PgConn().Exec(t.Context(), "begin; execute good; execute gone").ReadAll(); sqlstate(err) != "42P01" {
		t.Errorf("in a transaction: %v", err)
	}
	simple(t, c, "rollback")
	if got := sees(t, c, "execute good"); got != "1" {
		t.Errorf("%s", got)
	}
}

// TestExposedBehindOwnRequests has the gateway forget sequences, which is a request of its own, just before a client lists or executes.
func TestExposedBehindOwnRequests(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	c, other := g.connect(t, ""), g.connect(t, "")
	db.Exec(t, "drop sequence if exists exposed_numbers; create sequence exposed_numbers")
	prepareNamed(t, c, "one", "select 'c'")
	prepareNamed(t, other, "theirs", "select 'secret'")
	if _, err := c.PgConn().Exec(t.Context(), "select lastval()").ReadAll(); sqlstate(err) != "55000" {
		t.Errorf("%v", err)
	}
	for range 2 {
		for sql, want := range map[string]string{
			listsStatements:                   "one: select 'c'",
			"execute one":                     "c",
			"execute one; " + listsStatements: "one: select 'c'",
		} {
			useNamed(t, other, "theirs")
			simple(t, other, "select nextval('exposed_numbers')")
			results, err := c.PgConn().Exec(t.Context(), sql).ReadAll()
			if err != nil {
				t.Errorf("%s: %v", sql, err)
			} else if got := string(results[len(results)-1].Rows[0][0]); got != want {
				t.Errorf("%s: %q, want %q", sql, got, want)
			}
		}
	}
}

// TestListedInTransaction has a client list statements in a transaction, some of which are out of date: nothing of its work is lost, and
// nothing of other clients shown.
func TestListedInTransaction(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	c, other := g.connect(t, ""), g.connect(t, "")
	db.Exec(t, "drop table if exists listed, kept; create table listed (n int)")
	prepareNamed(t, other, "theirs", "select 'secret'")
	prepareNamed(t, c, "gone", "select n from listed")
	prepareNamed(t, c, "good", "select 'good'")
	prepareNamed(t, c, "lost", "select n + 1 from listed")
	prepareNamed(t, c, "also", "select 'also'")
	db.Exec(t, "drop table listed; create table kept (n int)")
	useNamed(t, other, "theirs")
	const want = "also: select 'also', good: select 'good'"
	simple(t, c, "begin")
	simple(t, c, "insert into kept values (1)")
	if got := sees(t, c, listsStatements); got != want {
		t.Errorf("listed %q", got)
	}
	if got := sees(t, c, "execute good"); got != "good" {
		t.Errorf("%q", got)
	}
	if got := sees(t, c, "select string_agg(name, ' ' order by prepare_time) from pg_prepared_statements"); got != "good also" {
		t.Errorf("by their times: %q", got)
	}
	useNamed(t, c, "good")
	unnamed := c.PgConn().ExecParams(t.Context(), listsStatements, nil, nil, nil, nil).Read()
	if unnamed.Err != nil || string(unnamed.Rows[0][0]) != want {
		t.Errorf("listed by the extended protocol %q (%v)", unnamed.Rows, unnamed.Err)
	}
	if got := sees(t, c, "show lock_timeout"); got != "0" {
		t.Errorf("lock_timeout is %s", got)
	}
	if _, err := c.PgConn().Exec(t.Context(), "release headpond_exposure").ReadAll(); sqlstate(err) != "3B001" {
		t.Errorf("a savepoint is left: %v", err)
	}
	simple(t, c, "rollback")
	simple(t, c, "begin")
	sees(t, c, listsStatements)
	simple(t, c, "insert into kept values (2)")
	simple(t, c, "commit")
	if got := sees(t, other, "select string_agg(n::text, '') from kept"); got != "2" {
		t.Errorf("%s was inserted", got)
	}
}

// TestLongListInTransaction has a client list statements in a transaction that take more than what is sent to a server before it is heard.
func TestLongListInTransaction(t *testing.T) {
	c := start(t, pgtest.Shared(t), oneServer).connect(t, "")
	for i := range 200 {
		prepareNamed(t, c, fmt.Sprint("s", i), "select '"+strings.Repeat("x", 1000)+"'")
	}
	prepareNamed(t, c, "count", "select count(*)::text from pg_prepared_statements where length(statement) > 1000")
	simple(t, c, "begin")
	for range 2 {
		if got := c.PgConn().ExecPrepared(t.Context(), "count", nil, nil, nil).Read(); got.Err != nil || string(got.Rows[0][0]) != "200" {
			t.Errorf("%v", got)
		}
		simple(t, c, "commit and chain")
	}
}

// TestListEndsNoPortal has a client list statements in a transaction, by a named statement and portal: its unnamed statement and portal stay.
func TestListEndsNoPortal(t *testing.T) {
	w := start(t, pgtest.Shared(t), oneServer).dial(t)
	sync := &pgwire.Sync{}
	if types, bodies := w.ask(&pgwire.Parse{Name: "s", Query: "select 's'"}, &pgwire.Parse{Name: "list", Query: "select name from pg_prepared_statements where name = 's'"}, sync); types != "11Z" {
		t.Fatal(types, bodies)
	}
	w.ask(query("begin"))
	if types, bodies := w.ask(&pgwire.Parse{Query: "select n from generate_series(1, 3) n"}, &pgwire.Bind{}, &pgwire.Execute{MaxRows: 1}, sync); types != "12DsZ" {
		t.Fatal(types, bodies)
	}
	if types, bodies := w.ask(&pgwire.Bind{Portal: "p", Statement: "list"}, &pgwire.Execute{Portal: "p"}, sync); types != "2DCZ" {
		t.Errorf("the list: %s %q", types, bodies)
	}
	if types, bodies := w.ask(&pgwire.Execute{MaxRows: 1}, sync); types != "DsZ" || !has(bodies, "2") {
		t.Errorf("the unnamed portal: %s %q", types, bodies)
	}
	if types, bodies := w.ask(&pgwire.Bind{}, &pgwire.Execute{MaxRows: 1}, sync); types != "2DsZ" || !has(bodies, "1") {
		t.Errorf("the unnamed statement: %s %q", types, bodies)
	}
	if types, bodies := w.ask(query("select name from pg_cursors where name like 'headpond%'")); types != "TCZ" {
		t.Errorf("portals: %s %q", types, bodies)
	}
}

// TestListWaitsForNoLock has a client list statements in a transaction that another session waits for, which has locked a table of one of them: the
// list waits for nothing, keeps no lock, and nobody gets a deadlock.
func TestListWaitsForNoLock(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "drop table if exists locked, free; create table locked (n int); create table free (n int); insert into free values (1)")
	c := start(t, db, oneServer).connect(t, "")
	prepareNamed(t, c, "a", "select 'a'")
	prepareNamed(t, c, "b", "select n from locked")
	prepareNamed(t, c, "c", "select 'c'")
	direct := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), db.DSN(db.Superuser(), db.Password(), "postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	locker, watcher := direct(), direct()
	simple(t, c, "begin")
	simple(t, c, "update free set n = 2")
	if got := sees(t, c, listsStatements); !has(got, "b: select n from locked") {
		t.Errorf("listed %q", got)
	}
	if n := one[int](t, watcher, "select count(*) from pg_locks where relation = 'locked'::regclass"); n != 0 {
		t.Errorf("%d locks are held", n)
	}
	simple(t, c, "commit")
	simple(t, c, "begin")
	simple(t, c, "update free set n = 3")
	do(t, locker, "begin")
	do(t, locker, "lock table locked")
	waits := make(chan error, 1)
	go func() {
		_, err := locker.Exec(context.Background(), "update free set n = 4")
		waits <- err
	}()
	conntest.Eventually(t, "the other session waits", func() bool {
		return one[int](t, watcher, "select count(*) from pg_locks where not granted") == 1
	})
	if got := sees(t, c, listsStatements); !has(got, "a: select 'a'") || has(got, "locked") {
		t.Errorf("listed %q", got)
	}
	select {
	case err := <-waits:
		t.Errorf("the other session does not wait any more: %v", err)
	default:
	}
	simple(t, c, "commit")
	if err := <-waits; err != nil {
		t.Errorf("the other session: %v", err)
	}
}

// TestExposedIsKeptByAnError has the server skip what would have closed an exposed statement.
func TestExposedIsKeptByAnError(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	w := g.dial(t)
	w.ask(&pgwire.Parse{Name: "again", Query: "select 'again'"}, &pgwire.Sync{})
	for _, sql := range []string{"begin", "savepoint s", "execute again"} {
		if types, bodies := w.ask(query(sql)); strings.Contains(types, "E") {
			t.Fatalf("%s: %s", sql, bodies)
		}
	}
	if types, _ := w.ask(&pgwire.Parse{Query: "bad"}, &pgwire.Close{Object: pgwire.ObjectStatement, Name: "again"}, &pgwire.Sync{}); types != "EZ" {
		t.Errorf("the failing pipeline: %s", types)
	}
	for _, sql := range []string{"rollback to s", "deallocate again"} {
		if types, bodies := w.ask(query(sql)); strings.Contains(types, "E") {
			t.Errorf("%s: %s", sql, bodies)
		}
	}
	if types, bodies := w.ask(query("execute again")); !strings.Contains(types, "E") || !has(bodies, "26000") {
		t.Errorf("a deallocated one: %s %s", types, bodies)
	}
}

// TestNamesThatAreNotExecuted has texts with EXECUTE in comments and strings call functions of which nobody knows what they do: the client's
// statement of that name is left alone, though its table is gone, and the transaction goes on.
func TestNamesThatAreNotExecuted(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create or replace function unknown_length(text) returns int language sql as 'select length($1)'; drop table if exists not_executed; create table not_executed (n int)")
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	c := g.connect(t, "")
	prepareNamed(t, c, "gone", "select n from not_executed")
	prepareNamed(t, c, "good", "select 'good'")
	db.Exec(t, "drop table not_executed")
	simple(t, c, "begin")
	for _, sql := range []string{"/* execute gone */ select unknown_length('')::text", "select unknown_length('execute gone')::text -- execute gone"} {
		sees(t, c, sql)
	}
	simple(t, c, "do $$ declare t text; begin execute 'execute good' into t; end $$")
	simple(t, c, "commit")
}

// TestExecuted finds names behind EXECUTE, and makes no garbage of texts without.
func TestExecuted(t *testing.T) {
	for text, want := range map[string][]string{
		"execute one": {"one"},
		"select 1; /* x */EXECUTE/**/One(1);execute one":  {"one"},
		`execute "Two ""words""" ; execute a`:             {"Two \"words\"", "a"},
		"explain (verbose) execute -- which\n it":         {"it"},
		"executes one; re_execute two; execute":           nil,
		"eexecute one; e execute two, éexecute three":     {"two"},
		strings.Repeat("execute ", 2000):                  {"execute"},
		"execute" + strings.Repeat(" ", 1000) + "too far": nil,
		"/* execute no */ select 1 -- prepare no":         nil,
		"select f('execute no', E'\\'execute no', $$ execute no $$, $a$ $$execute no$$ $a$), 'it''s execute no'; execute yes": {"yes"},
		`select "execute no", $1, 'a''b'; execute yes`:                               {"yes"},
		"do $$ begin execute 'execute yes'; end $$; select 'execute no'":             {"yes"},
		"/**/Do language plpgsql 'begin execute ''execute yes''; end'":               {"yes"},
		`select 'a\'b'; execute yes --'; execute also`:                               {"also", "yes"}, // it depends on a setting
		"select E'\x83\\', 'execute yes'":                                            {"yes"},         // on the encoding
		`select E'\\', 'execute no', 'a\b', 'execute no'`:                            nil,
		"execute" + "/* c */ yes; create table t as execute/**/also(1)":              {"also", "yes"},
		"select 1 as e, 'execute no', 1 where'execute no'='' and e'' = 'execute no'": nil,
	} {
		if got := pgproxy.Executed([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%.60q: %q, want %q", text, got, want)
		}
	}
	for _, unit := range []string{"(1,'e'),", "ee ", "a.b\n", "exec;", "\"", "/* ", "'execute x'", "$$ execute x $$", "-- execute x\n"} {
		text := bytes.Repeat([]byte(unit), 16<<10/len(unit))
		if n := testing.AllocsPerRun(10, func() { pgproxy.Executed(text) }); n > 0 {
			t.Errorf("%q…: %v allocations", unit, n)
		}
	}
}

// TestFirstOf picks the first of many names.
func TestFirstOf(t *testing.T) {
	for n := range 60 {
		var names []string
		for _, i := range rand.Perm(n) {
			names = append(names, fmt.Sprintf("%03d", i))
		}
		want := slices.Sorted(slices.Values(names))
		if got := pgproxy.FirstOf(names, 10); !slices.Equal(got, want[:min(n, 10)]) {
			t.Errorf("of %q: %q", names, got)
		}
	}
}

// TestLongQueriesHideNothing has a client send long texts: the server connection keeps what others have prepared there, unless the text is too
// long to be read.
func TestLongQueriesHideNothing(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create or replace view all_statements as select name from pg_prepared_statements") // in which the gateway does not see what it lists
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	c, other := g.connect(t, ""), g.connect(t, "")
	prepareNamed(t, other, "theirs", "select 'theirs'")
	for size, want := range map[int]string{17 << 10: "1", 60 << 10: "1", 70 << 10: "0"} {
		useNamed(t, other, "theirs")
		simple(t, c, "select '"+strings.Repeat("x", size)+"'")
		if got := sees(t, c, "select count(*)::text from all_statements"); got != want {
			t.Errorf("after %d bytes there are %s statements", size, got)
		}
	}
}

func prepareNamed(t *testing.T, c *pgx.Conn, name, sql string) {
	t.Helper()
	if _, err := c.PgConn().Prepare(t.Context(), name, sql, nil); err != nil {
		t.Fatal(err)
	}
}

// useNamed has the server connection get a client's statement.
func useNamed(t *testing.T, c *pgx.Conn, name string) {
	t.Helper()
	if got := c.PgConn().ExecPrepared(t.Context(), name, nil, nil, nil).Read(); got.Err != nil {
		t.Fatal(got.Err)
	}
}

// TestListBehindARequest executes a statement that lists prepared statements in the same write behind another request: it lists the client's.
func TestListBehindARequest(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	w, other := g.dial(t), g.dial(t)
	w.ask(&pgwire.Parse{Name: "list", Query: "select string_agg(name, ' ' order by name) from pg_prepared_statements"}, &pgwire.Parse{Name: "one", Query: "select 1"}, &pgwire.Sync{})
	for _, begin := range []string{"select 2", "begin"} {
		other.ask(&pgwire.Parse{Name: "theirs", Query: "select 3"}, &pgwire.Bind{Statement: "theirs"}, &pgwire.Execute{}, &pgwire.Close{Object: 'S', Name: "theirs"}, &pgwire.Sync{})
		w.send(query(begin), &pgwire.Bind{Statement: "list"}, &pgwire.Execute{}, &pgwire.Sync{})
		w.until(pgwire.TypeReadyForQuery)
		if _, bodies := w.until(pgwire.TypeReadyForQuery); !has(bodies, "list one") {
			t.Errorf("behind %s: %q", begin, bodies)
		}
	}
	w.ask(query("rollback"))
	w.send(query("select 2"), &pgwire.Parse{Name: "two", Query: "select 2"}, &pgwire.Bind{Statement: "list"}, &pgwire.Execute{}, &pgwire.Sync{})
	w.until(pgwire.TypeReadyForQuery)
	if _, bodies := w.until(pgwire.TypeReadyForQuery); !has(bodies, "list one two") {
		t.Errorf("behind a request and a Parse: %q", bodies)
	}
}
