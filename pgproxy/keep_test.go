package pgproxy_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestSettingsFollow makes settings in ways that a text or tag shows, on one server connection that another client uses
// in between, and compares both clients' settings with those on direct connections.
func TestSettingsFollow(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, small)
	db.Exec(t, "drop role if exists follow_role; create role follow_role superuser")
	straight, err := pgx.Connect(t.Context(), db.DSN(db.Superuser(), db.Password(), "postgres")+"&work_mem=7MB&application_name=mine")
	if err != nil {
		t.Fatal(err)
	}
	defer straight.Close(context.Background())
	conn, other := g.connect(t, "work_mem=7MB application_name=mine"), g.connect(t, "")
	see := func(c *pgx.Conn, mode pgx.QueryExecMode) string {
		return one[string](t, c, "select concat_ws(' ', current_setting('work_mem'), current_setting('statement_timeout'), current_setting('search_path'), "+
			"current_setting('app.follow', true), current_setting('timezone'), current_setting('application_name'), current_setting('default_transaction_isolation'), "+
			"current_user = 'follow_role', session_user = 'follow_role')", mode)
	}
	untouched := see(other, pgx.QueryExecModeSimpleProtocol)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheDescribe} {
		for _, sql := range []string{
			"set work_mem='9MB'", "set statement_timeout='50s'", "begin", "set work_mem='8MB'", "select 1", "commit", "begin", "set work_mem='6MB'", "rollback",
			"begin", "set local work_mem='5MB'", "commit", "reset work_mem", "set search_path=pg_catalog, public", "set session characteristics as transaction isolation level serializable",
			"select set_config('statement_timeout', '51s', false)", "select set_config('work_mem', '4MB', true)", "set timezone='Asia/Tokyo'", "set application_name='other'",
			"set role follow_role", "reset role", "set session authorization follow_role", "set role none", "reset session authorization",
			"update pg_settings set setting = '5000' where name = 'work_mem'", "do $$ begin set work_mem = '3MB'; end $$", "set search_path to default", "reset all",
			"set app.follow = 'x y'", "select set_config('app.follow', 'it''s', false)", "begin", "set work_mem='9MB'", "savepoint a", "set work_mem='8MB'", "rollback to a", "commit",
			"discard all",
		} {
			if mode != pgx.QueryExecModeSimpleProtocol && sql == "discard all" {
				continue // the cached descriptions of pgx stay
			}
			do(t, straight, sql, mode)
			do(t, conn, sql, mode)
			if conn.PgConn().TxStatus() == 'I' {
				if got := see(other, pgx.QueryExecModeSimpleProtocol); strings.ReplaceAll(got, "  ", " ") != strings.ReplaceAll(untouched, "  ", " ") {
					t.Errorf("after %s, %v: another client sees %s, want %s", sql, mode, got, untouched)
				}
			}
			if want, got := see(straight, mode), see(conn, mode); got != want {
				t.Errorf("after %s, %v: %s, straight on the server %s", sql, mode, got, want)
			}
		}
	}
}

// TestDefaultsAreThoseOfTheStartup has a client return settings to those of its startup in every way. It is told of no other values in the end, and
// has its own.
func TestDefaultsAreThoseOfTheStartup(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	other := g.connect(t, "")
	w := g.dial(t, pgwire.Param{Name: "TimeZone", Value: "Asia/Tokyo"}, pgwire.Param{Name: "options", Value: "-c app.x=started"})
	for _, set := range []string{"", "set timezone = 'Asia/Seoul'; set app.x = 'set'"} {
		for _, back := range []string{"reset all", "reset timezone; reset app.x", "set time zone default; set app.x to default", "set time zone local; set app.x = default", "set session timezone to default; reset app.x", "discard all"} {
			for _, extended := range []bool{false, true} {
				w.ask(query(set))
				do(t, other, "select 1")
				zone := ""
				for part := range strings.SplitSeq(back, "; ") {
					messages := []pgwire.Message{query(part)}
					if extended {
						messages = []pgwire.Message{&pgwire.Parse{Query: part}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}}
					}
					_, bodies := w.ask(messages...)
					if i := strings.LastIndex(bodies, "TimeZone\x00"); i >= 0 {
						zone, _, _ = strings.Cut(bodies[i+len("TimeZone\x00"):], "\x00")
					}
				}
				if set == "" && zone != "" && zone != "Asia/Tokyo" || set != "" && zone != "Asia/Tokyo" {
					t.Errorf("%q, %q, extended %t: told that the time zone is %q", set, back, extended, zone)
				}
				if _, bodies := w.ask(query("select current_setting('timezone') || ' ' || current_setting('app.x')")); !has(bodies, "Asia/Tokyo started") {
					t.Errorf("%q, %q, extended %t: the settings are %q", set, back, extended, bodies)
				}
			}
		}
	}
}

// TestSettingsFollowUnderShortTimeout has a client set a timeout that is shorter than the look at its settings takes.
func TestSettingsFollowUnderShortTimeout(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	w, other := g.dial(t), g.connect(t, "")
	if types, _ := w.ask(&pgwire.Query{SQL: "set work_mem='9MB'; set statement_timeout='1ms'"}); types != "CCZ" {
		t.Fatal(types)
	}
	do(t, other, "select 1")
	for { // a statement may take longer than that, too
		types, bodies := w.ask(&pgwire.Query{SQL: "select current_setting('work_mem')||' '||current_setting('statement_timeout')"})
		if has(bodies, "C57014\x00") {
			continue
		}
		if !has(bodies, "9MB 1ms") {
			t.Errorf("%s %q, want 9MB 1ms", types, bodies)
		}
		return
	}
}

// TestSettingsThatAreTooMuch sets more than can follow a client.
func TestSettingsThatAreTooMuch(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	w := g.dial(t)
	w.send(&pgwire.Query{SQL: "set app.much = '" + strings.Repeat("x", 70<<10) + "'"})
	types, bodies := w.until(pgwire.TypeErrorResponse)
	if types != "CZE" || !has(bodies, "54000") || !has(bodies, "FATAL") {
		t.Errorf("%s %.300q", types, bodies)
	}
	if got := one[string](t, g.connect(t, ""), "select coalesce(current_setting('app.much', true), '')"); got != "" {
		t.Errorf("the next client has %d bytes of it", len(got))
	}
}

// TestSettingsIn lists texts with the settings that they show.
func TestSettingsIn(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "select 1": "", "set work_mem = 1": "", "select a_b from t_c": "", "set app.x = 1": "app.x", "SET SESSION app . x TO 1": "app.x", `set "app.X" = 1`: "app.X",
		"select 1; set local a.b.c = 1; select 2": "a.b.c", "select set_config('work_mem', '1', false)": "!", "select set_config('work_mem', '1', true)": "",
		"select SET_CONFIG ( 'app.x', 'a,(b', $1)": "!app.x", "select set_config('app.x', ')', 't')": "app.x", "select set_config($1, $2, $3)": "!?", "select set_config('a.b', f(1, true), false)": "!a.b",
		"update pg_settings set setting = 1": "!", "select * from pg_settings": "", "do $$ begin set app.x = 1; end $$": "!app.x", "select set_config": "!?", "set": "", "set_config": "!?",
		"select set_config('app.'||k, $1, false)": "!?", "select set_config(setting_name => 'app.x', $1)": "!?", "select set_config(E'app.x', $1)": "!?",
		`select "set_config"('app.x', $1)`: "!?", "select set_config('app.x'::text, $1)": "!app.x", "select set_config('a''b.c', $1)": "!?",
		"begin; do $$ begin set role x; end $$; commit": "!", "select 1; update pg_settings set setting = 1": "!", "with a as (update pg_settings set setting = 1 returning 1) select 1": "!",
		`select set_config('app.x', E'it\'s, true)', $1)`: "!app.x", "select set_config('app.x', $1 -- , true)\n)": "!app.x", "select 1 as do": "", "_config": "", ";": "",
	} {
		if got := pgproxy.SettingsIn(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]bool{
		"set local x = 1": true, "SET /* a */ TRANSACTION isolation level serializable ;": true, "set local x = 1; set y = 2": false, "set x = 1": false, "": false, "begin": false, "set local": true,
		`set local x = 'a\'' ; set y=2; --'`: false,
	} {
		if got := pgproxy.OnlyForTransaction(text); got != want {
			t.Errorf("%q is for the transaction only: %t", text, got)
		}
	}
}

// TestSettingsThatHide sets something for the session in hidden ways, and lets another client look.
func TestSettingsThatHide(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "drop role if exists hide_role; create role hide_role superuser")
	const see = "select concat_ws(' ', nullif(current_setting('role'), 'none'), nullif(current_setting('app.hidden', true), ''))"
	for name, sql := range map[string]string{
		"behind a long SET LOCAL":       "set local app.long = '" + strings.Repeat("x", 70<<10) + "'; set role hide_role",
		"behind a long comment":         "set local work_mem = '5MB' /*" + strings.Repeat("x", 17<<10) + "*/; set role hide_role",
		"behind a longer comment":       "set local work_mem = '5MB' /*" + strings.Repeat("x", 70<<10) + "*/; set role hide_role",
		"by a parameter's name":         "select set_config('app.' || 'hidden', 'x', false)",
		"in a block within transaction": "begin; do $$ begin set role hide_role; end $$; commit",
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, db, small)
			conn, other := g.connect(t, ""), g.connect(t, "")
			do(t, conn, sql, pgx.QueryExecModeSimpleProtocol)
			if got := one[string](t, other, see); got != "" {
				t.Errorf("another client sees %s", got)
			}
			if strings.Contains(sql, "hide_role") {
				if got := one[string](t, conn, see); got != "hide_role" {
					t.Errorf("the client itself sees %q", got)
				}
			}
		})
	}
}

// TestSettingsThatCannotFollow: a setting that a server refuses ends the session, for it cannot be reset either.
func TestSettingsThatCannotFollow(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "drop role if exists gone_role; create role gone_role")
	g := start(t, db, small)
	w, other := g.dial(t), g.connect(t, "")
	if types, _ := w.ask(&pgwire.Query{SQL: "set role gone_role"}); types[0] != pgwire.TypeCommandComplete {
		t.Fatal(types)
	}
	do(t, other, "drop role gone_role")
	w.send(&pgwire.Query{SQL: "reset role"})
	types, bodies := w.until(pgwire.TypeErrorResponse)
	if !has(bodies, "FATAL") || !has(bodies, "gone_role") {
		t.Errorf("%s %q", types, bodies)
	}
	if got := one[string](t, g.connect(t, ""), "select current_setting('role')"); got != "none" {
		t.Errorf("the next client has the role %s", got)
	}
}

// TestSettingsOfRefusedName: the name of a custom setting in a text that failed says nothing; here it is one that an extension has.
func TestSettingsOfRefusedName(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.OnState, pc.Limits.MaxSize = pgproxy.ResetState, 1
	})
	conn, other := g.connect(t, ""), g.connect(t, "")
	for _, sql := range []string{"begin", "load 'auto_explain'", "savepoint a"} {
		do(t, conn, sql)
	}
	if _, err := conn.Exec(t.Context(), "set auto_explain.log_format = 'nothing'"); err == nil {
		t.Fatal("the value is taken")
	}
	for _, sql := range []string{"rollback to a", "set work_mem = '9MB'", "commit"} {
		do(t, conn, sql)
	}
	do(t, other, "select 1")
	if got := one[string](t, conn, "select current_setting('work_mem')"); got != "9MB" {
		t.Error(got)
	}
}

// TestStartupSettingSetToDefault: a client has set a setting of its startup to the value that the gateway's login has. It keeps that.
func TestStartupSettingSetToDefault(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	other := g.connect(t, "")
	login := one[string](t, other, "select current_setting('timezone')")
	for _, first := range []string{"select 1", "reset all", "discard all"} {
		conn := g.connect(t, "timezone=Asia/Tokyo default_query_exec_mode=simple_protocol")
		do(t, conn, "set timezone = '"+login+"'")
		do(t, other, first)
		for _, sql := range []string{"set work_mem = '9MB'", "select 1", "set lock_timeout = '9s'"} {
			do(t, conn, sql)
			do(t, other, "select 2")
			if got := one[string](t, conn, "select current_setting('timezone')"); got != login {
				t.Errorf("%s, %s: %s", first, sql, got)
			}
		}
		do(t, conn, "reset timezone")
		do(t, other, first)
		if got := one[string](t, conn, "select current_setting('timezone')"); got != "Asia/Tokyo" {
			t.Errorf("%s: after RESET %s", first, got)
		}
	}
}
