package pgproxy_test

import (
	"fmt"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pgproxy"
)

// TestDeallocatedByFunctions has a function run DEALLOCATE ALL, with a check, a digest or a question behind it: the statements of
// other clients still work.
func TestDeallocatedByFunctions(t *testing.T) {
	db, name := ownDatabase(t, "create function run(sql text) returns int language plpgsql as $$ begin execute sql; return 1; end $$",
		"create function plain() returns int language plpgsql as $$ begin deallocate all; return 1; end $$")
	for _, catalogs := range []pgproxy.Catalogs{pgproxy.CatalogsNever, pgproxy.CatalogsEvident} {
		g := start(t, db, readingCatalogs(name, catalogs, 1))
		c, other := g.dial(t), g.dial(t)
		other.ask(parse("s", "select 7")...)
		serves := func(after string) {
			t.Helper()
			if types, bodies := other.ask(run("s")...); types != "2DCZ" {
				t.Errorf("%v, after %s: another client gets %s: %q", catalogs, after, types, bodies)
			}
		}
		if catalogs != pgproxy.CatalogsNever {
			settle(t, g)
		}
		for i, sql := range []string{"select run('deallocate all')", "do $$ begin execute 'deallocate all'; end $$", "select run('select 1')", "select run('select 1')", "select run('deallocate all')",
			"select plain()", "select plain()", "do $$ begin deallocate all; end $$"} {
			if types, bodies := c.ask(query(sql)); has(types, "E") {
				t.Fatalf("%s: %q", sql, bodies)
			}
			serves(fmt.Sprint(i, ", ", sql))
		}
		c.ask(query("begin"))
		c.ask(query("select run('deallocate all')"))
		c.ask(parse("n", "select 8")...)
		c.ask(query("commit"))
		serves("a later Parse in the same transaction")
	}
}

// TestDigestsMissNothing has a function leave nothing many times, and then each kind of state: it is its client's, as if a check
// had followed each time.
func TestDigestsMissNothing(t *testing.T) {
	db, name := ownDatabase(t, "create function run(sql text) returns int language plpgsql as $$ begin execute sql; return 1; end $$")
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 1))
	c, other := g.connect(t, "application_name=one"), g.connect(t, "application_name=other")
	nothing := func() {
		for range 3 {
			simple(t, c, "select run('select 1')")
			simple(t, other, "select run('set local work_mem = 1234')")
		}
	}
	nothing()
	settle(t, g)
	nothing()
	if got := sees(t, c, "show application_name") + sees(t, other, "show application_name"); got != "oneother" {
		t.Errorf("the clients' names are %s", got)
	}
	for _, setting := range []struct{ name, value, others string }{
		{"work_mem", "1MB", "4MB"}, {"datestyle", "SQL, DMY", "ISO, MDY"}, {"role", "pg_monitor", "none"}, {"app.usr", "x", ""},
		{"search_path", "public, pg_catalog", `"$user", public`}, {"default_transaction_read_only", "on", "off"}, {"enable_seqscan", "off", "on"},
	} {
		nothing()
		simple(t, c, fmt.Sprintf("select run('select set_config(''%s'', ''%s'', false)')", setting.name, setting.value))
		show := fmt.Sprintf("select current_setting('%s', true)", setting.name)
		if got := sees(t, other, show); got != setting.others {
			t.Errorf("another client sees %s = %s", setting.name, got)
		}
		if got := sees(t, c, show); got != setting.value && setting.name != "app.usr" { // a custom setting that only a function names does not follow
			t.Errorf("the client sees %s = %s", setting.name, got)
		}
		nothing()
		if got := sees(t, c, show); got != setting.value && setting.name != "app.usr" {
			t.Errorf("the client sees %s = %s later", setting.name, got)
		}
		simple(t, c, "reset "+setting.name)
	}
	for _, state := range []struct{ leave, undo string }{
		{"select pg_advisory_lock(1)", "select pg_advisory_unlock_all()"}, {"create temp table t (n int)", "drop table t"},
		{"declare c cursor with hold for select 1", "close c"}, {"prepare p as select 1", "deallocate p"},
	} {
		nothing()
		simple(t, c, fmt.Sprintf("select run('%s')", state.leave))
		conntest.Eventually(t, state.leave+" pins the client", func() bool { return g.Stats().Pinned == 1 })
		simple(t, c, state.undo)
		conntest.Eventually(t, state.undo+" ends that", func() bool { return g.Stats().Pinned == 0 })
	}
	nothing()
}
