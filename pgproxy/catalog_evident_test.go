package pgproxy_test

import (
	"fmt"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// evidentFixture has tables whose triggers leave something, perhaps or certainly, each named after what its trigger does.
const evidentFixture = `
create function run(sql text) returns int language plpgsql as $$ begin execute sql; return 1; end $$;
create function helper() returns void language plpgsql as $$ begin perform set_config('work_mem', '1MB', false); end $$;
create view by_view as select set_config('work_mem', '1MB', false);
create view by_lock as select pg_try_advisory_lock(4712) as n;
create view by_run as select run('select 1') as n;
create view reads_settings as select name from pg_settings;
create view of_view as select * from by_view;`

// evidentTriggers are bodies of triggers, by the name of their table, with whether they evidently leave something.
var evidentTriggers = map[string]struct {
	body string
	left bool
}{
	"by_set":         {"set work_mem = '1MB'; return new;", true},
	"by_comment":     {"/* a */ -- b\n set work_mem = '1MB'; return new;", true},
	"by_branch":      {"if true then reset work_mem; end if; return new;", true},
	"by_config":      {"perform set_config('work_mem', '1MB', false); return new;", true},
	"by_helper":      {"perform helper(); return new;", true},
	"by_listen":      {"listen x; return new;", true},
	"by_temp":        {"create temp table if not exists t (n int); return new;", true},
	"by_seed":        {"perform setseed(0.5); return new;", true},
	"local_set":      {"set local work_mem = '1MB'; return new;", false},
	"local_config":   {"perform set_config('app.user', 'x', true); return new;", false},
	"local_temp":     {"create temp table if not exists t (n int) on commit drop; return new;", false},
	"by_execute":     {"execute 'insert into log values (1)'; return new;", false},
	"by_update":      {"update log set n = 1; return new;", false},
	"by_conflict":    {"insert into log values (1) on conflict do nothing; return new;", false},
	"by_unknown":     {"perform unknown_function(1); return new;", false},
	"by_transaction": {"set constraints all deferred; return new;", false},
}

// TestEvidentCatalogs has the catalogs read for what evidently leaves state: statements are checked for that, and for nothing else.
func TestEvidentCatalogs(t *testing.T) {
	fixtures := []string{evidentFixture, "create table log (n int)"}
	for table, trigger := range evidentTriggers {
		fixtures = append(fixtures, fmt.Sprintf("create table %[1]s (n int); create function %[1]s_f() returns trigger language plpgsql as $$ begin %[2]s end $$; "+
			"create trigger g before insert on %[1]s for each row execute function %[1]s_f()", table, trigger.body))
	}
	db, name := ownDatabase(t, fixtures...)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 1))
	judge, err := g.backend.JudgedByEvidence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for table, trigger := range evidentTriggers {
		if got := judge("insert into " + table + " values (1)"); (got == "?") != trigger.left {
			t.Errorf("%s: %q", table, got)
		}
	}
	for view, want := range map[string]string{"by_view": "?", "of_view": "?", "by_lock": "?", "by_run": "", "reads_settings": ""} {
		if got := judge("select * from " + view); got != want {
			t.Errorf("%s: %q", view, got)
		}
	}
	c, other := g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	for _, sql := range []string{"select * from by_view", "insert into by_helper values (1)", "insert into by_comment values (1)"} {
		simple(t, c, "reset work_mem")
		simple(t, c, sql)
		hasOwnWorkMem(t, c, other, sql)
	}
	simple(t, c, "select * from by_lock")
	conntest.Eventually(t, "the client is pinned for its lock", func() bool { return g.Stats().Pinned == 1 })
	simple(t, c, "select pg_advisory_unlock_all()")
}

// TestEvidentAlone has databases in which a single object, without a text to judge, leaves a setting.
func TestEvidentAlone(t *testing.T) {
	const set = "set_config('work_mem', '1MB', false)"
	for ddl, sql := range map[string]string{
		"create function f() returns text begin atomic select " + set + "; end; create view t as select f()":    "select * from t",
		"create table t (n int, s text default " + set + ")":                                                    "insert into t values (1)",
		"create table t (n int check (" + set + " is not null))":                                                "insert into t values (1)",
		"create domain d as text default " + set + "; create table t (n int, s d)":                              "insert into t values (1)",
		"create table t (n int); create policy p on t using (" + set + " is not null)":                          "select * from t",
		"create table l (n int); create table t (n int); create rule r as on insert to t do also select " + set: "insert into t values (1)",
	} {
		db, name := ownDatabase(t, ddl)
		g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 1))
		judge, err := g.backend.JudgedByEvidence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := judge(sql); got != "?" {
			t.Errorf("%s: %q", ddl, got)
		}
	}
}

// TestNothingEvident has a database in which nothing evidently leaves state: what was read changes the verdict on no text.
func TestNothingEvident(t *testing.T) {
	db, name := ownDatabase(t, `create table log (n int); create function logs() returns trigger language plpgsql as $$ begin execute 'insert into log values (1)';
		perform set_config('app.user', 'x', true); return new; end $$; create table t (n int); create trigger g before insert on t for each row execute function logs();
		create sequence q`)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.DBName, pc.ReadCatalogs = name, pgproxy.CatalogsEvident
	})
	judge, err := g.backend.JudgedByEvidence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if caches, err := g.backend.HasCaches(t.Context()); err != nil || caches {
		t.Error(caches, err)
	}
	for _, sql := range []string{"insert into t values (1)", "select * from t", "select logs()", "create table u (n int)", "select nextval('q')"} {
		if got, want := judge(sql), pgproxy.Judged(sql); got != want {
			t.Errorf("%s: %q, without the catalogs %q", sql, got, want)
		}
	}
	settle(t, g)
	c := g.connect(t, "")
	simple(t, c, "create view later as select set_config('work_mem', '1MB', false)")
	settle(t, g)
	simple(t, c, "select * from later")
	if got := sees(t, g.connect(t, ""), "show work_mem"); got != "4MB" {
		t.Errorf("behind a view that was made later, another client sees %s", got)
	}
}

// TestSequenceCaches has clients take values of a sequence with a CACHE in turn, on one server connection and in every way: none gets a value
// that was cached for the other one.
func TestSequenceCaches(t *testing.T) {
	db, name := ownDatabase(t, "create sequence q cache 10; create table numbered (id bigint default nextval('q'), n int)")
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsHidden, 1))
	rival := g.connect(t, "")
	settle(t, g)
	const takes, inserts = "select nextval('q')", "insert into numbered (n) values (1) returning id"
	extended := func(sqls ...string) (messages []pgwire.Message) {
		for _, sql := range sqls {
			messages = append(messages, &pgwire.Parse{Query: sql}, &pgwire.Bind{}, &pgwire.Execute{})
		}
		return append(messages, &pgwire.Sync{})
	}
	for _, messages := range [][]pgwire.Message{
		{query(takes)}, {query(inserts)}, {query("begin"), query(takes), query("commit")}, {query("select 1; " + takes)}, {query("begin; select 1; " + takes + "; commit")},
		{query("select 1"), query(takes)}, extended(takes), extended(inserts), extended("select 1", inserts), extended("begin", takes, "commit"),
		append([]pgwire.Message{&pgwire.Parse{Name: "s", Query: inserts}, &pgwire.Sync{}}, &pgwire.Bind{Statement: "s"}, &pgwire.Execute{}, &pgwire.Sync{}),
		{query("do $$ begin insert into numbered (n) values (1); end $$"), query("select max(id) from numbered")},
	} {
		for _, params := range [][]pgwire.Param{nil, {{Name: "work_mem", Value: "1MB"}}} {
			w := g.dial(t, params...)
			taken := one[int](t, rival, takes)
			w.send(messages...)
			said := ""
			for _, m := range messages {
				switch m.(type) {
				case *pgwire.Query, *pgwire.Sync:
					types, bodies := w.until(pgwire.TypeReadyForQuery)
					if has(types, "E") {
						t.Errorf("%+v: %q", messages, bodies)
					}
					said += bodies
				}
			}
			for cached := taken + 1; cached < taken+10; cached++ {
				if has(said, string(rune(len(itoa(cached))))+itoa(cached)) {
					t.Errorf("%+v with settings %v: got %q after another client's %d", messages, params, said, taken)
				}
			}
			_ = w.Close()
		}
	}
	w := g.dial(t)
	taken := one[int](t, rival, takes)
	w.ask(query("select n from numbered limit 1"))
	if next := one[int](t, rival, takes); next != taken+1 {
		t.Errorf("after another client's SELECT: %d follows %d", next, taken)
	}
}

// TestSequenceCachesAreUsedUp: with CatalogsEvident, the gateway's default, no value of a CACHE is lost.
func TestSequenceCachesAreUsedUp(t *testing.T) {
	db, name := ownDatabase(t, "create sequence q cache 10")
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 1))
	next, other := g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	for want := 1; want < 12; want++ {
		if got := one[int](t, next, "select nextval('q')"); got != want {
			t.Errorf("got %d, want %d", got, want)
		}
		next, other = other, next
	}
}

// TestNarrowSequenceCaches has sequences whose values would soon be used up if those of a CACHE were discarded: they are not.
func TestNarrowSequenceCaches(t *testing.T) {
	for ddl, want := range map[string]bool{
		"create sequence q cache 10":                                                                     true,
		"create sequence q increment -1 cache 10":                                                        true,
		"create sequence q as int cache 10":                                                              false,
		"create sequence q maxvalue 100000 cache 10":                                                     false,
		"create sequence q cycle cache 10":                                                               false,
		"create sequence q cache 100000000":                                                              false,
		"create sequence q":                                                                              false,
		"create table t (id int generated always as identity (cache 5))":                                 false,
		"create table t (id bigint generated always as identity (cache 5))":                              true,
		"create sequence q cache 10; create table t (id int default nextval('q'))":                       false,
		"create sequence q cache 10; create sequence r as smallint cache 10":                             false,
		"create sequence q cache 10; create table t (id bigint default nextval('q')); create sequence r": true,
	} {
		db, name := ownDatabase(t, ddl)
		g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.DBName = name })
		if caches, err := g.backend.HasCaches(t.Context()); err != nil || caches != want {
			t.Errorf("%s: %t, %v", ddl, caches, err)
		}
	}
}
