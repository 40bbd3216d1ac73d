package pgproxy_test

import (
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// leaves has a client leave something in a pool of one server connection. It must be pinned for it, or another client must not see it.
func (g *gateway) leaves(t *testing.T, pinned bool, texts []string, see string, gone func(types, bodies string) bool) {
	t.Helper()
	w := g.dial(t, pgwire.Param{Name: "application_name", Value: "maker"})
	for _, sql := range texts {
		w.ask(query(sql))
	}
	if pinned {
		conntest.Eventually(t, texts[0]+": pinned", func() bool { return g.Stats().Pinned == 1 })
		w.send(&pgwire.Terminate{})
		conntest.Eventually(t, "nothing is pinned", func() bool { return g.Stats().Pinned == 0 })
	}
	if !pinned {
		g.session(t, "maker", listener.StateIdle)
	}
	other := g.dial(t)
	if types, bodies := other.ask(query(see)); !gone(types, bodies) {
		t.Errorf("%.200q: another client is told %s %q", texts, types, bodies)
	}
	for _, c := range []*wire{w, other} {
		c.send(&pgwire.Terminate{})
		_ = c.Close()
	}
}

// TestPinAlsoUnseenSequences has clients use sequences in ways of which lastval does not tell.
func TestPinAlsoUnseenSequences(t *testing.T) {
	g := startAlso(t, 1, nil)
	for _, k := range []struct {
		pinned bool
		texts  []string
	}{
		{false, []string{"select pg_advisory_lock(77)", "select pin.run('select setval(''pin.z'', 4711)')", "insert into pin.none values (1)", "discard sequences; select setval('pin.z', 1)", "select pg_advisory_unlock(77)", "discard sequences"}},
		{false, []string{"begin; select nextval('pin.z'); create sequence pin.gone; select nextval('pin.gone'); drop sequence pin.gone; commit"}},
		{false, []string{"begin; select nextval('pin.z'); create table pin.gone (id serial, n int); insert into pin.gone (n) values (1); rollback"}},
		{false, []string{"select pin.run('select setval(''pin.z'', 4711)')"}}, {false, []string{"select pin.run('select setval(''pin.z'', 4711)')", "insert into pin.none values (1)"}},
		{false, []string{"select nextval('pin.z')", "begin; discard sequences; select pin.run('select setval(''pin.z'', 4711)'); commit", "insert into pin.none values (1)"}},
		{true, []string{"select nextval('pin.z')", "begin", "discard sequences", "select setval('pin.z', 4711)", "commit"}},
		{true, []string{"select nextval('pin.z')", "discard sequences; select setval('pin.z', 4711)"}},
		{true, []string{"begin", "discard sequences", "select setval('pin.z', 4711)", "commit"}},
		{true, []string{"select nextval('pin.z')", "discard sequences", "begin", "discard sequences", "select setval('pin.z', 4712)", "insert into pin.none values (1)", "commit"}},
	} {
		g.leaves(t, k.pinned, k.texts, "select currval('pin.z')", func(types, bodies string) bool { return strings.Contains(types, "E") && has(bodies, "55000") })
	}
}

// TestPinAlsoUnusualNames has clients make names of settings in ways that look otherwise.
func TestPinAlsoUnusualNames(t *testing.T) {
	g := startAlso(t, 1, nil)
	pgtest.Shared(t).Exec(t, "create or replace function pin.altered() returns int language sql as 'select 1'")
	long := strings.Repeat("x", 70000)
	for _, texts := range [][]string{
		{"reset pin.name"}, {"begin", "alter function pin.altered() set pin.name = 'a'", "rollback"}, {"begin", "create function pin.made() returns int language sql set pin.name = 'a' as 'select 1'", "rollback"},
		{"set pin.name = 'a'; select '" + long + "'"}, {"select set_config('pin.name', 'a', true), '" + long + "'"}, {"do $$ begin execute 'set ' || 'local pin.name = 1'; end $$"},
		{`set U&"\0070in".name = 'a'`}, {"set /* " + strings.Repeat("c", 600) + " */ pin.name = 'a'"}, {"select set_config('pin'::text || '.name', 'a', true)"},
		{"select set_config('pin'::text operator(pg_catalog.||) '.name', 'a', false)"}, {"set standard_conforming_strings = off", `select set_config('pin\056name', 'a', true)`},
		{"select set_config('pin'\n'.name', 'a', true)"}, {"prepare unusual(text) as select set_config($1, 'a', true)", "execute unusual('pin.name')", "deallocate unusual"},
	} {
		g.leaves(t, true, texts, namesSeen, func(_, bodies string) bool { return has(bodies, "false") })
	}
}

// TestPinAlsoUnusualTables has clients use temporary tables in ways that look otherwise.
func TestPinAlsoUnusualTables(t *testing.T) {
	g := startAlso(t, 1, nil)
	for _, texts := range [][]string{
		{"set search_path = pg_temp", "begin", "create table buffered (n int) on commit drop", "insert into buffered values (1)", "commit"},
		{"select set_config('search_path', 'pg_temp, pg_catalog', false)", "begin", "create table buffered (n int)", "insert into buffered values (1)", "rollback"},
		{"begin; create temp table buffered on commit drop as select 1 as n, '" + strings.Repeat("x", 70000) + "' as z; commit"},
		{"do $$ begin create temp table buffered as select 1 as n; drop table buffered; end $$"}, {"begin; select 1 as n into temporary table buffered; rollback"},
	} {
		g.leaves(t, true, texts, "set temp_buffers = '9MB'", func(types, _ string) bool { return types == "CZ" })
	}
}

// TestPinAlsoStartupBeyondMax has a client bring a custom setting along where no more may be pinned: each request is refused, which costs others
// nothing.
func TestPinAlsoStartupBeyondMax(t *testing.T) {
	g := startAlso(t, 2, func(c *pgproxy.Config) { c.MaxPinned = 1 })
	first := g.connect(t, "application_name=first")
	simple(t, first, "set pin.name = 'a'")
	g.session(t, "first", listener.StatePinned)
	w := g.dial(t, pgwire.Param{Name: "options", Value: "-c pin.name=b"})
	other := g.connect(t, "")
	pid := sees(t, other, "select pg_backend_pid()::text")
	for range 3 {
		if types, bodies := w.ask(query("select 1")); types != "EZ" || !has(bodies, "53400") || !has(bodies, "the client's settings") {
			t.Errorf("%s %q", types, bodies)
		}
		w.send(&pgwire.Parse{Query: "select 1"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{})
		if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "EZ" || !has(bodies, "the client's settings") {
			t.Errorf("extended: %s %q", types, bodies)
		}
		if now := sees(t, other, "select pg_backend_pid()::text"); now != pid {
			t.Errorf("the server connection was closed: %s, before %s", now, pid)
		}
	}
	_ = first.Close(t.Context())
	conntest.Eventually(t, "there is room", func() bool { types, _ := w.ask(query("select 1")); return types == "TDCZ" })
}

// TestPinAlsoWithoutLanguage has a client's role that must not use PL/pgSQL: writes pin, and what else it has left is seen.
func TestPinAlsoWithoutLanguage(t *testing.T) {
	db, name := ownDatabase(t, "create table none (n int); revoke usage on language plpgsql from public")
	db.Exec(t, "do $$ begin create role also_mute; exception when duplicate_object then null; end $$")
	g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.DBName, pc.Limits.MaxSize, c.PinAlso, c.MaxPinned = name, 2, pgproxy.PinSequences, 1
	})
	c := g.connect(t, "application_name=maker")
	simple(t, c, "grant all on none to also_mute")
	simple(t, c, "set role also_mute")
	simple(t, c, "create temp table kept as select 1 as n")
	conntest.Eventually(t, "pinned for both", func() bool {
		held := g.session(t, "maker", listener.StatePinned).Pinned
		return strings.Contains(held, "temporary objects") && strings.Contains(held, "values of sequences")
	})
	if got := sees(t, c, "select n::text from kept"); got != "1" {
		t.Errorf("the temporary table: %q", got)
	}
}

// TestPinAlsoAndCatalogs has a domain and a trigger set custom settings: without PinAlso that means nothing.
func TestPinAlsoAndCatalogs(t *testing.T) {
	db, name := ownDatabase(t, `create function chk(int) returns boolean language plpgsql as $$ begin perform set_config('app.x', '1', true); return true; end $$;
create domain dom as int check (chk(value)); create function audit() returns trigger language plpgsql as $$ begin perform set_config('app.user', 'x', true); return new; end $$;
create table audited (n int); create trigger a before insert on audited for each row execute function audit()`)
	for _, also := range []pgproxy.PinAlso{0, pinAll} {
		g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
			pc.DBName, c.PinAlso, pc.ReadCatalogs, pc.Limits.MaxSize, c.MaxPinned = name, also, pgproxy.CatalogsHidden, 2, 1
		})
		settle(t, g)
		judged, err := g.backend.JudgedByCatalog(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := judged("select $1\x00\x00\x01\x00\x00\x40\x00"); got != "" {
			t.Errorf("a parameter of some type: %q", got)
		}
		c := g.connect(t, "application_name=maker")
		simple(t, c, "insert into audited values (1)")
		state := listener.StateIdle
		if also != 0 {
			state = listener.StatePinned
		}
		g.session(t, "maker", state)
	}
}
