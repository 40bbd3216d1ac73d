package pgproxy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// pinAll is all that can pin on request.
const pinAll = pgproxy.PinSequences | pgproxy.PinSettingNames | pgproxy.PinTempBuffers

// startAlso is startPins with all of Config.PinAlso, and with tables and sequences.
func startAlso(t *testing.T, size int, change func(*pgproxy.Config)) *gateway {
	g := startPins(t, size, func(c *pgproxy.Config) {
		c.PinAlso = pinAll
		if change != nil {
			change(c)
		}
	})
	pgtest.Shared(t).Exec(t, `drop table if exists pin.serial, pin.none; create table pin.serial (id bigserial, n int); create table pin.none (n int);
drop sequence if exists pin.cached; create sequence pin.cached cache 10; drop sequence if exists pin.z; create sequence pin.z`)
	return g
}

const (
	namesSeen = "select (current_setting('pin.name', true) is not null)::text"
	lastSeen  = "select (lastval() > 0)::text"
)

// alsoKinds are the kinds of state of PinAlso, made in plain sight and unseen. see fails where another client has made temp_buffers what it is.
var alsoKinds = []pinned{
	{name: "values of sequences", make: []string{"select nextval('pin.z')"}, see: lastSeen, want: "true", gone: "discard sequences"},
	{name: "values of sequences", make: []string{"insert into pin.serial (n) values (1)"}, see: lastSeen, want: "true", gone: "discard all"},
	{name: "values of sequences", make: []string{"begin", "insert into pin.serial (n) values (1)", "rollback"}, see: lastSeen, want: "true", gone: "begin; discard sequences; rollback"},
	{name: "values of sequences", make: []string{"select pin.run('insert into pin.serial (n) values (1)')"}, see: lastSeen, want: "true", gone: "discard sequences"},
	{name: "values of sequences", make: []string{"do $$ begin perform nextval('pin.z'); end $$"}, see: lastSeen, want: "true", gone: "discard sequences"},
	{name: "values of sequences", make: []string{"select setval('pin.z', 4711)"}, see: "select currval('pin.z')::text", want: "4711", gone: "discard sequences"},
	{name: "values of sequences", make: []string{"discard sequences; select nextval('pin.z')"}, see: lastSeen, want: "true"},
	{name: "names of settings", make: []string{"set pin.name = 'a'"}, see: namesSeen, want: "true"},
	{name: "names of settings", make: []string{"begin", "set local pin.name = 'a'", "commit"}, see: namesSeen, want: "true"},
	{name: "names of settings", make: []string{"begin", "select set_config('pin.' || 'name', 'a', true)", "rollback"}, see: namesSeen, want: "true"},
	{name: "names of settings", make: []string{"set pin.name = 'a'; reset pin.name", "discard all"}, see: namesSeen, want: "true"},
	{name: "names of settings", make: []string{"do $$ begin set local pin.name = 'a'; end $$"}, see: namesSeen, want: "true"},
}

// TestPinAlso has a client leave what pins on request, while another one works: see TestPins.
func TestPinAlso(t *testing.T) {
	g := startAlso(t, 2, nil)
	for _, k := range alsoKinds {
		other, c := g.dial(t), g.connect(t, "application_name=maker")
		for _, sql := range k.make {
			simple(t, c, sql)
		}
		if held := g.session(t, "maker", listener.StatePinned); held.Pinned != k.name {
			t.Errorf("%q: pinned for %q, want %q", k.make, held.Pinned, k.name)
		}
		if types, bodies := other.ask(query(k.see)); !strings.Contains(types, "E") && has(bodies, k.want) {
			t.Errorf("%q: another client sees %q", k.make, bodies)
		}
		if got := sees(t, c, k.see); got != k.want {
			t.Errorf("%q: the client sees %q, want %q", k.make, got, k.want)
		}
		if k.gone != "" {
			simple(t, c, k.gone)
			g.session(t, "maker", listener.StateIdle)
		}
		_ = c.Close(t.Context())
		other.send(&pgwire.Terminate{})
		conntest.Eventually(t, "nothing is pinned", func() bool { return g.Stats().Pinned == 0 })
		next := g.dial(t)
		if types, bodies := next.ask(query(k.see)); !strings.Contains(types, "E") && has(bodies, k.want) {
			t.Errorf("%q: a later client sees %q", k.make, bodies)
		}
		next.send(&pgwire.Terminate{})
	}
}

// TestPinAlsoTempBuffers has clients use temporary tables in ways that leave none, and finds that others can change temp_buffers.
func TestPinAlsoTempBuffers(t *testing.T) {
	g := startAlso(t, 2, nil)
	table := "create temp table buffered on commit drop as select 1 as n"
	for _, sql := range []string{
		table, "begin; " + table + "; rollback", "begin; create temp table buffered (n int); insert into buffered values (1); rollback",
		"create temp table buffered as select 1 as n; drop table buffered", "create temp table buffered as select 1 as n; discard all",
		"select pin.run('create temp table buffered as select 1 as n')",
	} {
		w := g.dial(t, pgwire.Param{Name: "application_name", Value: "maker"})
		for part := range strings.SplitSeq(sql, "; ") { // DISCARD ALL refuses to be one of several
			if types, bodies := w.ask(query(part)); strings.Contains(types, "E") {
				t.Fatalf("%s: %s %q", part, types, bodies)
			}
		}
		if held := g.session(t, "maker", listener.StatePinned); !strings.Contains(held.Pinned, "temp_buffers") {
			t.Errorf("%s: pinned for %q", sql, held.Pinned)
		}
		for _, gone := range []bool{false, true} {
			if gone {
				w.send(&pgwire.Terminate{})
				conntest.Eventually(t, "nothing is pinned", func() bool { return g.Stats().Pinned == 0 })
			}
			simple(t, g.connect(t, ""), "set temp_buffers = '9MB'")
		}
	}
	w := g.dial(t)
	w.ask(query("begin"))
	w.ask(query(table))
	w.send(&pgwire.Terminate{}) // within the transaction
	w.toTheEnd()
	for range 2 {
		simple(t, g.connect(t, ""), "set temp_buffers = '9MB'")
	}
}

// TestPinAlsoNothing has clients do what leaves none of that, and finds them unpinned.
func TestPinAlsoNothing(t *testing.T) {
	g := startAlso(t, 1, nil)
	db := pgtest.Shared(t)
	c := g.connect(t, "application_name=maker")
	pid := sees(t, c, "select pg_backend_pid()::text")
	for _, sql := range []string{
		"insert into pin.none values (1)", "update pin.none set n = 2", "delete from pin.none", "set work_mem = '1MB'", "select set_config('work_mem', '2MB', true)",
		"create table pin.made (id serial); drop table pin.made", "select pin.run('insert into pin.none values (1)')", "explain select nextval('pin.z')",
	} {
		simple(t, c, sql)
		g.session(t, "maker", listener.StateIdle)
	}
	other := g.connect(t, "")
	if got := sees(t, other, "select pg_backend_pid()::text"); got != pid {
		t.Errorf("the server connection was %s, and is %s: it was closed", pid, got)
	}
	db.Exec(t, "drop table if exists pin.made")
}

// TestPinAlsoAtStartup has a client bring custom settings along. Nobody else gets its server connection.
func TestPinAlsoAtStartup(t *testing.T) {
	g := startAlso(t, 2, nil)
	for range 2 { // the second time they are known
		c := g.connect(t, "application_name=maker options='-c pin.name=a'")
		if got := sees(t, c, "select current_setting('pin.name')"); got != "a" {
			t.Errorf("the client sees %q", got)
		}
		if held := g.session(t, "maker", listener.StatePinned); held.Pinned != "names of settings" {
			t.Errorf("pinned for %q", held.Pinned)
		}
		if got := sees(t, g.connect(t, ""), namesSeen); got != "false" {
			t.Errorf("another client sees the name: %q", got)
		}
		_ = c.Close(t.Context())
		conntest.Eventually(t, "nothing is pinned", func() bool { return g.Stats().Pinned == 0 })
		for range 2 {
			if got := sees(t, g.connect(t, ""), namesSeen); got != "false" {
				t.Errorf("a later client sees the name: %q", got)
			}
		}
	}
}

// TestPinAlsoBeyondMax has clients that cannot be pinned: they are told so, but for values of sequences, which others never see.
func TestPinAlsoBeyondMax(t *testing.T) {
	g := startAlso(t, 2, func(c *pgproxy.Config) { c.MaxPinned = 1 })
	first := g.connect(t, "application_name=first")
	simple(t, first, "set pin.name = 'a'")
	g.session(t, "first", listener.StatePinned)
	w, other := g.dial(t, pgwire.Param{Name: "application_name", Value: "second"}), g.dial(t)
	for _, sql := range []string{"set pin.name = 'b'", "set local pin.name = 'b'", "select set_config('pin.name', 'b', true)", "create temp table beyond (n int) on commit drop"} {
		if types, bodies := w.ask(query(sql)); types != "EZ" || !has(bodies, "53400") || !has(bodies, "max_pinned is 1") {
			t.Errorf("%s: %s %q", sql, types, bodies)
		}
	}
	w.send(&pgwire.Parse{Query: "select set_config($1, $2, true)"}, &pgwire.Bind{Params: [][]byte{[]byte("pin.name"), []byte("b")}}, &pgwire.Execute{}, &pgwire.Sync{})
	if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "EZ" && types != "1EZ" || !has(bodies, "53400") {
		t.Errorf("extended: %s %q", types, bodies)
	}
	for i, sql := range []string{"select nextval('pin.z')", "insert into pin.serial (n) values (1)", "select setval('pin.z', 9)", "select nextval('pin.cached')"} {
		if types, bodies := w.ask(query(sql)); strings.Contains(types, "E") {
			t.Errorf("%s: %s %q", sql, types, bodies)
		}
		g.session(t, "second", listener.StateIdle)
		if types, bodies := other.ask(query("select lastval()")); !strings.HasSuffix(types, "EZ") || !has(bodies, "55000") {
			t.Errorf("%s: another client is told %s %q", sql, types, bodies)
		}
		if types, bodies := other.ask(query("select nextval('pin.cached')")); i < 3 && strings.Contains(types, "E") {
			t.Errorf("%s %q", types, bodies)
		}
	}
	if got := sees(t, g.connect(t, ""), namesSeen); got != "false" {
		t.Errorf("another client sees the name: %q", got)
	}
	_ = first.Close(context.Background())
	conntest.Eventually(t, "there is room again", func() bool { types, _ := w.ask(query("set pin.name = 'b'")); return types == "CZ" })
	if held := g.session(t, "second", listener.StatePinned); held.Pinned != "names of settings" {
		t.Errorf("pinned for %q", held.Pinned)
	}
}

// TestPinAlsoCached has two clients draw from a sequence with a cache: each gets values of its own.
func TestPinAlsoCached(t *testing.T) {
	g := startAlso(t, 3, nil)
	a, b := g.connect(t, ""), g.connect(t, "")
	for i := range 3 {
		for n, c := range []string{sees(t, a, "select nextval('pin.cached')::text"), sees(t, b, "select nextval('pin.cached')::text")} {
			if want := fmt.Sprint(1 + i + 10*n); c != want {
				t.Errorf("client %d draws %s, want %s", n, c, want)
			}
		}
	}
}

// TestJudgedAlso tells what PinAlso finds in texts.
func TestJudgedAlso(t *testing.T) {
	const names, temps = "names of settings", "temp_buffers"
	for sql, want := range map[string]string{
		"set work_mem = 1": "", "set app.a = 1": names, "SET LOCAL App.a = 1": names, "set session app.a to 1": names, `set "app"."a" = 1`: names, "/* c */ set app . a = 1": names,
		"select 1; set app.a = 1": names, "set local work_mem = 1; select 1": "", "update t set a = b.c from b": "", "reset app.a": names, "alter role a set app.b = 1": names, "alter table t alter c set default 1": "", "create table t (a int references u on delete set null)": "", `set U&"\0061.b" = 1`: names, "select set_config('a'::text, '1', true)": "", "select set_config('a'::text || '.b', '1', true)": names, "set " + strings.Repeat("/* c */", 100) + "app.a = 1": names, "do $$ begin execute 'x'; end $$": names + ", temp_buffers", "do $$ begin create temp table t (n int); end $$": temps, "set search_path = pg_temp": temps, "set app.a = 1; select '" + strings.Repeat("x", 300<<10) + "'": names,
		"select set_config('work_mem', '1', true)": "", "select set_config('app.a', '1', true)": names, "select set_config($1, $2, true)": names,
		"select set_config('app' || '.a', '1', false)": names, "select current_setting('app.a')": "", "do $$ begin set local app.a = 1; end $$": names,
		"do $$ begin perform set_config('app.a', 'b', true); end $$": names, "do $$ begin set local work_mem = 1; end $$": "", "select 'set app.a = 1'": "",
		"create temp table t (n int)": temps, "create temp table t (n int) on commit drop": temps, "create table pg_temp.t (n int)": temps, "select 1 into temp t": temps,
		"create table t (n int)": "", "select 1 into t": "",
	} {
		if got := pgproxy.JudgedAlso(sql); got != want {
			t.Errorf("%q: %q, want %q", sql, got, want)
		}
	}
}

// TestPinAlsoBehindViews has a view draw from a sequence: its client is pinned for that, and one that reads a table with a default is not.
func TestPinAlsoBehindViews(t *testing.T) {
	db, name := ownDatabase(t, hidesBehind)
	g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.DBName, pc.ReadCatalogs, pc.Limits.MaxSize, c.PinAlso, c.MaxPinned = name, pgproxy.CatalogsHidden, 2, pinAll, 1
	})
	settle(t, g)
	for _, view := range []string{"next_number", "set_number", "next_view"} {
		c := g.connect(t, "application_name=maker")
		simple(t, c, "select n from numbered")
		g.session(t, "maker", listener.StateIdle)
		simple(t, c, "select n from "+view)
		if held := g.session(t, "maker", listener.StatePinned); held.Pinned != "values of sequences" {
			t.Errorf("%s: pinned for %q", view, held.Pinned)
		}
		simple(t, c, "discard sequences")
		g.session(t, "maker", listener.StateIdle)
		_ = c.Close(t.Context())
	}
}

// TestPinAlsoWhateverIsSet has clients set what might mislead the look at sequences, or have it fail.
func TestPinAlsoWhateverIsSet(t *testing.T) {
	g := startAlso(t, 2, nil)
	pgtest.Shared(t).Exec(t, `drop schema if exists also cascade; create schema also;
create function also.lastval() returns bigint language plpgsql as $$ begin raise sqlstate '55000'; end $$;
create function also.current_setting(text) returns text language sql as 'select ''base64''';
do $$ begin create role also_poor; exception when duplicate_object then null; end $$;
grant usage on schema pin to also_poor; grant insert on pin.serial, pin.none to also_poor; grant usage on all sequences in schema pin to also_poor`)
	for _, set := range []string{
		"set search_path = also, pg_catalog", "set standard_conforming_strings = off", "set xmlbinary = hex", "set session characteristics as transaction isolation level serializable",
		"set role also_poor", "set client_min_messages = error", "set statement_timeout = '30s'", "set client_encoding = sjis", "set plpgsql.extra_errors = 'all'",
	} {
		w := g.dial(t, pgwire.Param{Name: "application_name", Value: "maker"})
		w.ask(query(set))
		w.ask(query("insert into pin.none values (1)"))
		if strings.Contains(set, "plpgsql.") { // it is a setting with a dot
			g.session(t, "maker", listener.StatePinned)
		} else {
			g.session(t, "maker", listener.StateIdle)
		}
		w.ask(query("insert into pin.serial (n) values (1)"))
		conntest.Eventually(t, set+": pinned for values of sequences", func() bool {
			return strings.Contains(g.session(t, "maker", listener.StatePinned).Pinned, "values of sequences")
		})
		if types, bodies := w.ask(query("show xmlbinary")); types != "TDCZ" || has(bodies, "\x03hex") != strings.Contains(set, "xmlbinary") {
			t.Errorf("%s: xmlbinary is %q", set, bodies)
		}
		w.send(&pgwire.Terminate{})
		conntest.Eventually(t, "nothing is pinned", func() bool { return g.Stats().Pinned == 0 })
	}
}

// TestPinAlsoAndListen has a client listen and use a sequence in one transaction, where it may be pinned and where not.
func TestPinAlsoAndListen(t *testing.T) {
	for _, pinned := range []bool{true, false} {
		g := startAlso(t, 3, func(c *pgproxy.Config) { c.MaxPinned = 1 })
		first := g.connect(t, "application_name=first")
		if !pinned {
			simple(t, first, "select pg_advisory_lock(1)")
			g.session(t, "first", listener.StatePinned)
		}
		w := g.dial(t, pgwire.Param{Name: "application_name", Value: "maker"})
		if types, bodies := w.ask(query("begin; listen also; insert into pin.serial (n) values (1); commit")); types != "CCCCZ" {
			t.Fatalf("%s %q", types, bodies)
		}
		state := listener.StateIdle
		if pinned {
			state = listener.StatePinned
		}
		g.session(t, "maker", state)
		if types, bodies := w.ask(query("select lastval()")); pinned && strings.Contains(types, "E") {
			t.Errorf("%s %q", types, bodies)
		}
		simple(t, first, "notify also")
		w.until(pgwire.TypeNotificationResponse)
		_ = first.Close(t.Context())
		w.send(&pgwire.Terminate{})
	}
}
