package pgproxy_test

import (
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestNamesOfOthersSettings has a client make custom settings on the only server connection: to others there is none of that name, whatever they
// ask by, and the client has its own.
func TestNamesOfOthersSettings(t *testing.T) {
	g := startPins(t, 1, nil)
	db := pgtest.Shared(t)
	db.Exec(t, "create or replace procedure pin.nothing() language sql as 'select 1'")
	makers := []string{
		"set renew.tenant = 7", "begin; set local Renew.Tenant = 7; commit", "select set_config('renew.tenant', '7', false)", "begin; set renew.tenant = 7; rollback",
		"select set_config('renew.tenant', '7', true)", "set session renew . \"tenant\" to 7", "set renew.other = 1; set renew.tenant = 7",
	}
	askers := map[string]func(w *wire) (string, string){
		"Query": func(w *wire) (string, string) {
			return w.ask(query("select current_setting('renew.tenant', true) is null"))
		},
		"in a list": func(w *wire) (string, string) {
			return w.ask(query("select 1; /* */ select current_setting ( 'Renew.tenant' , true) is null"))
		},
		"parameter": func(w *wire) (string, string) {
			return w.ask(&pgwire.Parse{Query: "select current_setting($1, true) is null"}, &pgwire.Bind{Params: [][]byte{[]byte("renew.tenant")}}, &pgwire.Execute{}, &pgwire.Sync{})
		},
		"unnamed": func(w *wire) (string, string) {
			return w.ask(&pgwire.Parse{Query: "select current_setting('renew.tenant', true) is null"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{})
		},
		"transaction": func(w *wire) (string, string) {
			return w.ask(query("begin; select current_setting('renew.tenant', true) is null; commit"))
		},
	}
	for _, make := range makers {
		for name, ask := range askers {
			c, other := g.dial(t), g.dial(t)
			if types, bodies := c.ask(query(make)); strings.Contains(types, "E") {
				t.Fatalf("%s: %q", make, bodies)
			}
			if types, bodies := ask(other); strings.Contains(types, "E") || !has(bodies, "\x00\x00\x00\x01t") {
				t.Errorf("%s, %s: %s %q", make, name, types, bodies)
			}
			c.send(&pgwire.Terminate{})
			other.send(&pgwire.Terminate{})
		}
		c, other := g.dial(t), g.dial(t)
		c.ask(query(make))
		if types, bodies := other.ask(query("show renew.tenant")); types != "EZ" || !has(bodies, "42704") {
			t.Errorf("%s: SHOW: %s %q", make, types, bodies)
		}
		if types, bodies := c.ask(query("select current_setting('renew.tenant', true) is null")); !strings.Contains(types, "D") || !strings.Contains(make, "local") &&
			!strings.Contains(make, "true") && !strings.Contains(make, "rollback") && !has(bodies, "\x00\x00\x00\x01f") {
			t.Errorf("%s: the client itself: %s %q", make, types, bodies)
		}
		c.send(&pgwire.Terminate{})
		other.send(&pgwire.Terminate{})
	}
}

// TestNamesByNamedStatement has a client use a statement that it has prepared before another client made the setting.
func TestNamesByNamedStatement(t *testing.T) {
	g := startPins(t, 1, nil)
	c, other := g.connect(t, ""), g.connect(t, "")
	prepareNamed(t, other, "asks", "select current_setting('renew.named', true) is null")
	for range 2 {
		simple(t, c, "set renew.named = 1")
		if got := other.PgConn().ExecPrepared(t.Context(), "asks", nil, nil, nil).Read(); got.Err != nil || string(got.Rows[0][0]) != "t" {
			t.Errorf("%v %q", got.Err, got.Rows)
		}
	}
}

// TestRenewedForStrangersOnly counts server connections: only what a client asks for, and has not made itself, costs one.
func TestRenewedForStrangersOnly(t *testing.T) {
	g := startPins(t, 1, nil)
	c, other := g.connect(t, ""), g.connect(t, "")
	simple(t, c, "set renew.mine = 1")
	simple(t, c, "create temp table renewed (n int); drop table renewed")
	pid := func() string { return sees(t, other, "select pg_backend_pid()::text") }
	was := pid()
	for _, sql := range []string{
		"select current_setting('renew.another', true)", "select current_setting('work_mem')", "show work_mem", "set renew.mine = 2", "select coalesce(current_setting('renew.mine', true), '')",
		"set work_mem = '5MB'", "select 'renew.mine'", "begin; set local renew.third = 1; commit", "select current_setting('renew.third', true)",
	} {
		simple(t, other, sql)
		if is := pid(); is != was {
			t.Errorf("%s: another server connection", sql)
			was = is
		}
	}
	if got := sees(t, c, "select current_setting('renew.mine')"); got != "1" {
		t.Errorf("%q", got)
	}
	for sql, want := range map[string]string{"reset renew.mine": "", "set renew.mine = 3": "3", "discard all": ""} {
		simple(t, c, sql)
		simple(t, other, "select 1")
		if got := sees(t, c, "select current_setting('renew.mine')"); got != want {
			t.Errorf("%s: %q", sql, got)
		}
	}
	if is := pid(); is != was {
		t.Error("the client's own settings cost a server connection")
	}
	stranger := g.connect(t, "")
	simple(t, stranger, "select current_setting('renew.mine', true)")
	if is := pid(); is == was {
		t.Error("a stranger has got the same server connection")
	}
}

// TestTempBuffersOfOthers has a client use a temporary table: others can change temp_buffers, and pg_my_temp_schema tells them of none.
func TestTempBuffersOfOthers(t *testing.T) {
	g := startPins(t, 1, nil)
	db := pgtest.Shared(t)
	db.Exec(t, "create or replace function pin.temps() returns void language plpgsql as 'begin create temp table renewed (n int) on commit drop; insert into renewed values (1); end'")
	for _, make := range []string{
		"create temp table renewed (n int); insert into renewed values (1); drop table renewed", "begin; create temp table renewed (n int) on commit drop; insert into renewed values (1); commit",
		"select pin.temps()", "do $$ begin perform pin.temps(); end $$",
	} {
		for sql, want := range map[string]string{"set temp_buffers = '9MB'": "CZ", "select 1 where pg_my_temp_schema() = 0": "TDCZ"} {
			c, other := g.dial(t, pgwire.Param{Name: "application_name", Value: "first"}), g.dial(t)
			if types, bodies := c.ask(query(make)); strings.Contains(types, "E") {
				t.Fatalf("%s: %q", make, bodies)
			}
			if types, bodies := other.ask(query(sql)); types != want {
				t.Errorf("%s, %s: %s %q", make, sql, types, bodies)
			}
			if types, bodies := c.ask(query("set temp_buffers = '8MB'")); !strings.Contains(types, "Z") {
				t.Errorf("%s %q", types, bodies)
			}
			c.send(&pgwire.Terminate{})
			other.send(&pgwire.Terminate{})
			c.toTheEnd()
			other.toTheEnd()
		}
	}
}

// TestRenewedInABusyPool has more server connections with a custom setting than are closed for a transaction.
func TestRenewedInABusyPool(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 12 })
	var holders []*wire
	for range 12 {
		w := g.dial(t)
		if types, bodies := w.ask(query("begin; set local renew.busy = 1")); strings.Contains(types, "E") {
			t.Fatalf("%s %q", types, bodies)
		}
		holders = append(holders, w)
	}
	for _, w := range holders {
		w.ask(query("commit"))
	}
	c := g.connect(t, "")
	for range 2 { // for the first time a setting of others may be seen
		simple(t, c, "select current_setting('renew.busy', true)")
	}
	if got := sees(t, c, "select (current_setting('renew.busy', true) is null)::text"); got != "true" {
		t.Errorf("%s", got)
	}
}

// TestSeeks reads texts for what depends on what others have left.
func TestSeeks(t *testing.T) {
	for text, want := range map[string]string{
		"select current_setting('a.b')":                                    "a.b",
		"select Current_Setting ( /* x */ 'A.b' , true), 1":                "a.b",
		"select current_setting('a.b'::text, true)":                        "a.b",
		"select current_setting('work_mem')":                               "",
		"select current_setting($1), current_setting('a.' || x)":           "?",
		`select current_setting(E'a.b'), current_setting('a\.b')`:          "?",
		"show a.b; show work_mem;show session;SHOW \"A\".b -- x":           "a.b,a.b",
		"select show a.b, my_current_setting('a.b')":                       "",
		"select pg_settings_get_flags('a.b')":                              "?",
		"SET temp_buffers = 1":                                             "temps",
		"select set_config('temp_buffers', '1MB', false)":                  "temps",
		"select pg_my_temp_schema(), current_schemas(true)":                "temps",
		"select current_setting(":                                          "?",
		"select current_setting('a.b":                                      "?",
		"current_setting":                                                  "?",
		"set a.b = 1; insert into t values (1) on conflict (a) do nothing": "",
	} {
		if got := pgproxy.Seeks([]byte(text)); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
