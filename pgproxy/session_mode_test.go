package pgproxy_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// smallSession is a gateway in session mode with one server connection.
func smallSession(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
	session(c, pc)
	small(c, pc)
}

// TestSessionResetGoesBackToStartup resets settings in session mode in the ways there are, and compares the client's
// settings and reports with those of a direct connection.
func TestSessionResetGoesBackToStartup(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, smallSession)
	const startup = " timezone=Asia/Tokyo application_name=mine work_mem=7MB datestyle=SQL options='-c statement_timeout=55s -c app.tenant=one'"
	straight, err := pgx.Connect(t.Context(), db.DSN(db.Superuser(), db.Password(), "postgres")+
		"&timezone=Asia/Tokyo&application_name=mine&work_mem=7MB&datestyle=SQL&options=-c%20statement_timeout%3D55s%20-c%20app.tenant%3Done")
	if err != nil {
		t.Fatal(err)
	}
	defer straight.Close(context.Background())
	conn := g.connect(t, startup)
	const look = "select string_agg(current_setting(n), ' ' order by n) from unnest(array['timezone','application_name','work_mem','datestyle','statement_timeout','app.tenant','default_transaction_isolation']) n"
	see := func(c *pgx.Conn, mode pgx.QueryExecMode) string {
		seen, err := "", error(nil)
		if c.PgConn().TxStatus() != 'E' {
			err = c.QueryRow(t.Context(), look, mode).Scan(&seen)
		}
		if err != nil {
			t.Errorf("%v", err)
		}
		return seen + ", told " + c.PgConn().ParameterStatus("TimeZone") + " " + c.PgConn().ParameterStatus("application_name") + " " + c.PgConn().ParameterStatus("DateStyle")
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec} {
		for _, sql := range []string{
			"set work_mem='9MB'", "reset work_mem", "set timezone='Europe/Madrid'", "set application_name='other'", "reset timezone", "reset all",
			"set work_mem to default", "set statement_timeout='300s'", "set session statement_timeout = default", "set app.tenant='two'", "reset app.tenant",
			"set work_mem='9MB'", "begin", "set local work_mem to default", "commit", "begin", "reset work_mem", "rollback", "begin", "reset work_mem", "commit",
			"set default_transaction_isolation='serializable'", "discard all", "set application_name='other'", "discard all", "/* a */ ReSeT /* b */ all",
			"begin", "set work_mem='8MB'", "select 1/0", "reset all", "rollback", "select 1", "discard all",
		} {
			_, wantErr := straight.Exec(t.Context(), sql, mode)
			_, gotErr := conn.Exec(t.Context(), sql, mode)
			if sqlstate(gotErr) != sqlstate(wantErr) {
				t.Fatalf("%s, %v: %v, straight on the server %v", sql, mode, gotErr, wantErr)
			}
			if conn.PgConn().TxStatus() == 'T' {
				continue // up to its end RESET restores the settings of the login
			}
			if want, got := see(straight, mode), see(conn, mode); got != want {
				t.Errorf("after %s, %v: %s, straight on the server %s", sql, mode, got, want)
			}
		}
	}
	for _, sql := range []string{"select 1; reset all; select 2", "set work_mem='9MB'; reset timezone", "set work_mem='6MB'; select 1/0; reset all", "reset all", "select 1"} {
		_, wantErr := straight.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		_, gotErr := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		want, got := see(straight, pgx.QueryExecModeSimpleProtocol), see(conn, pgx.QueryExecModeSimpleProtocol)
		if sqlstate(gotErr) != sqlstate(wantErr) || got != want {
			t.Errorf("after %s: %s %v, straight on the server %s %v", sql, got, gotErr, want, wantErr)
		}
	}
	if _, err := conn.Prepare(t.Context(), "back", "reset all"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // without its text
		do(t, conn, "set work_mem='9MB'")
		do(t, conn, "back")
		if got := one[string](t, conn, "show work_mem"); got != "7MB" {
			t.Errorf("after a prepared RESET ALL work_mem is %s, want 7MB", got)
		}
	}
}

// TestSessionResetInPipelines sends RESET with requests before and behind it in the same write.
func TestSessionResetInPipelines(t *testing.T) {
	g := start(t, pgtest.Shared(t), smallSession)
	conn := g.connect(t, "work_mem=7MB")
	front := conn.PgConn().Frontend()
	show := func(want string) func() {
		return func() {
			for {
				switch m := next(t, front).(type) {
				case *pgproto3.DataRow:
					if got := string(m.Values[0]); got != want {
						t.Errorf("work_mem is %s, want %s", got, want)
					}
				case *pgproto3.ErrorResponse:
					t.Errorf("%s", m.Message)
				case *pgproto3.ReadyForQuery:
					return
				}
			}
		}
	}
	extended := func(sql string) {
		front.Send(&pgproto3.Parse{Query: sql})
		front.Send(&pgproto3.Bind{})
		front.Send(&pgproto3.Execute{})
		front.Send(&pgproto3.Sync{})
	}
	var answers []func()
	for range 3 {
		for _, sql := range []string{"set work_mem='9MB'", "show work_mem", "reset all", "show work_mem", "set work_mem='5MB'; reset work_mem", "show work_mem"} {
			front.Send(&pgproto3.Query{String: sql})
		}
		answers = append(answers, show(""), show("9MB"), show(""), show("7MB"), show(""), show("7MB"))
		for _, sql := range []string{"set work_mem='9MB'", "show work_mem", "reset all", "show work_mem", "discard all", "show work_mem"} {
			extended(sql)
		}
		answers = append(answers, show(""), show("9MB"), show(""), show("7MB"), show(""), show("7MB"))
	}
	if err := front.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, see := range answers {
		see()
	}
}

// next receives a message of the server.
func next(t testing.TB, front *pgproto3.Frontend) pgproto3.BackendMessage {
	t.Helper()
	m, err := front.Receive()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestStartupParametersBeatOptions gives a setting twice in the startup packet.
func TestStartupParametersBeatOptions(t *testing.T) {
	for name, change := range map[string]func(*pgproxy.Config, *pgproxy.PostgresConfig){"transaction": small, "session": smallSession} {
		g := start(t, pgtest.Shared(t), change)
		w := g.dial(t, pgwire.Param{Name: "work_mem", Value: "3MB"}, pgwire.Param{Name: "options", Value: "-c work_mem=5MB -c application_name=b"},
			pgwire.Param{Name: "application_name", Value: "a"})
		_, got := w.ask(&pgwire.Query{SQL: "select current_setting('work_mem')||'/'||current_setting('application_name')"})
		if !has(got, "3MB/a") {
			t.Errorf("%s mode: the settings are %q, want 3MB/a", name, got)
		}
	}
}

// TestSessionHasTheServersPID compares the process ID that a client gets with that of its server, and cancels by it.
// Clients that had the server before cannot.
func TestSessionHasTheServersPID(t *testing.T) {
	g := start(t, pgtest.Shared(t), smallSession)
	first, err := pgx.Connect(t.Context(), g.dsn(""))
	if err != nil {
		t.Fatal(err)
	}
	pid, key := first.PgConn().PID(), first.PgConn().SecretKey()
	if got := one[uint32](t, first, "select pg_backend_pid()"); got != pid {
		t.Errorf("the client got process ID %d, the server's is %d", pid, got)
	}
	_ = first.Close(context.Background())
	second := g.connect(t, "")
	if got := second.PgConn().PID(); got != pid {
		t.Fatalf("the second client has the server %d, want %d", got, pid)
	}
	if string(second.PgConn().SecretKey()) == string(key) {
		t.Error("both clients have the same secret")
	}
	if g.Reaches(pid, key) || !g.Reaches(pid, second.PgConn().SecretKey()) {
		t.Error("the secret of the client before reaches the server's client, or its own does not")
	}
	done := make(chan error, 1)
	go func() {
		_, err := second.Exec(context.Background(), "select pg_sleep(6061)")
		done <- err
	}()
	waitFor(t, g, "pg_sleep(6061)")
	if err := second.PgConn().CancelRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; sqlstate(err) != "57014" {
		t.Errorf("canceled by the server's process ID: %v", err)
	}
	_ = second.Close(context.Background())
	third := g.connect(t, "")
	do(t, third, "select 1")
	if n := g.Aliases(); n != 1 {
		t.Errorf("%d clients are known by the process ID of their server, want 1", n)
	}
}

// TestSessionLeavesNothing makes clients leave state that DISCARD ALL does not undo: their server connections are
// closed. Others are used again.
func TestSessionLeavesNothing(t *testing.T) {
	g := start(t, pgtest.Shared(t), smallSession)
	for _, c := range []struct {
		startup, sql string
		mode         pgx.QueryExecMode
		closed       bool
	}{
		{"", "set work_mem='9MB'", pgx.QueryExecModeSimpleProtocol, false},
		{"", "set app.tenant='x'", pgx.QueryExecModeSimpleProtocol, true},
		{"", "select set_config('app.tenant', 'x', false)", pgx.QueryExecModeExec, true},
		{"", "select set_config('work_mem', '9MB', false)", pgx.QueryExecModeExec, false},
		{"", "load 'auto_explain'", pgx.QueryExecModeSimpleProtocol, true},
		{"", "begin; select setseed(0.5)", pgx.QueryExecModeSimpleProtocol, true},
		{"", "create temp table remains as select 1", pgx.QueryExecModeExec, true},
		{"", "select 1 as temp", pgx.QueryExecModeSimpleProtocol, false},
		{"options='-c app.tenant=x'", "select 1", pgx.QueryExecModeSimpleProtocol, true},
	} {
		conn := g.connect(t, c.startup)
		pid := conn.PgConn().PID()
		do(t, conn, c.sql, c.mode)
		_ = conn.Close(context.Background())
		after := g.connect(t, "")
		if closed := after.PgConn().PID() != pid; closed != c.closed {
			t.Errorf("%s %s: the server connection is closed: %t, want %t", c.startup, c.sql, closed, c.closed)
		}
		if got := one[string](t, after, "select coalesce(current_setting('app.tenant', true), 'nothing')", pgx.QueryExecModeSimpleProtocol); got != "nothing" {
			t.Errorf("%s %s: the next client sees the setting %q", c.startup, c.sql, got)
		}
		_ = after.Close(context.Background())
	}
}

// TestRemains lists texts by whether their effects may remain after DISCARD ALL.
func TestRemains(t *testing.T) {
	for _, text := range []string{
		"LOAD 'x'", "select 1; load/**/'x'", "SELECT setseed ( 1 )", "set seed to 0.5", "SET SESSION SEED 0.5", "SET app.x = 1", "set/* c */session app . x to 1",
		`set "app.x" = 1`, "set local app.x = 1", "select set_config($1, $2, false)", "select set_config('app.x', '', true)", "select pg_catalog.set_config ( 'a.b', 'c', false)",
		"select dblink_connect('c')", "select DBLINK_CONNECT_U('c')", "select pg_replication_origin_session_setup('o')", "create temp table t ()", "CREATE OR REPLACE TEMPORARY VIEW v as select 1",
		"create local temp table t ()", "select 1 into temp t", "create table pg_temp.t ()", "do $$ begin set app.x = 1; end $$", "set app.", "select set_config", "select set_config('",
	} {
		if !pgproxy.Remains(text) {
			t.Errorf("%q leaves nothing", text)
		}
	}
	for _, text := range []string{
		"", "set", "set ", "load", "select load from trucks", "set work_mem = 1", "select 1 as temp", "select temp from readings", "update t set a = b.c", "select set_config('work_mem', 'a.b', false)",
		"set search_path = app, public", "select seed from plants", "select offsets", "insert into settings values ('set')",
	} {
		if pgproxy.Remains(text) {
			t.Errorf("%q leaves something", text)
		}
	}
}

// TestResets lists texts by whether they go back to the values that the session began with.
func TestResets(t *testing.T) {
	for _, text := range []string{
		"reset all", "RESET work_mem", "select 1; /* c */ reset x;", "discard all", "set x to default", "set session x = DEFAULT", "select ';'; reset all", "select $a$;$a$; discard all",
	} {
		if back, byDefault := pgproxy.Resets(text); !back || byDefault != strings.HasPrefix(text, "set") {
			t.Errorf("%q resets: %t, by default: %t", text, back, byDefault)
		}
	}
	for _, text := range []string{
		"", ";", "select 'reset all'", "select reset from t", "set local x to 'a'", "set local x to default", "set local x to default; set y = 1", "update t set a = default", "insert into t values (default)", "set x = 1", "set x = 'defaults'", "-- reset all",
	} {
		if back, _ := pgproxy.Resets(text); back {
			t.Errorf("%q resets", text)
		}
	}
}
