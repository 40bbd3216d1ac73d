package pgproxy_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// withStartup connects with settings at startup, the values of which may be any bytes.
func withStartup(t *testing.T, dsn string, startup map[string]string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range startup {
		cfg.RuntimeParams[name] = value
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// TestSessionResetLosesNoWrite resets in the same implicit transaction as a write, where not every startup value can be
// set again: the write stays, and the other values are restored.
func TestSessionResetLosesNoWrite(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "do $$ begin create role unprivileged; exception when duplicate_object then null; end $$; create table if not exists kept (a int); grant all on kept to unprivileged")
	g := start(t, db, smallSession)
	conn := withStartup(t, g.dsn(""), map[string]string{"work_mem": "7MB", "log_statement": "ddl"})
	do(t, conn, "delete from kept")
	do(t, conn, "set role unprivileged", pgx.QueryExecModeSimpleProtocol)
	b := &pgconn.Batch{}
	b.ExecParams("insert into kept values (1)", nil, nil, nil, nil)
	b.ExecParams("reset all", nil, nil, nil, nil)
	if _, err := conn.PgConn().ExecBatch(t.Context(), b).ReadAll(); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, conn, "select count(*) from kept", pgx.QueryExecModeExec); n != 1 {
		t.Errorf("%d rows after an insert that was acknowledged, want 1", n)
	}
	if got := one[string](t, conn, "show work_mem", pgx.QueryExecModeExec); got != "7MB" {
		t.Errorf("work_mem is %s behind a value that cannot be set, want 7MB", got)
	}
}

// TestSessionResetInBlock resets within a transaction block: nothing comes between the client's statements, and the values are back after it.
func TestSessionResetInBlock(t *testing.T) {
	g := start(t, pgtest.Shared(t), smallSession)
	conn := g.connect(t, "work_mem=7MB")
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec} {
		for _, sql := range []string{
			"begin", "set local work_mem to default", "set transaction isolation level serializable", "commit",
			"begin", "reset all", "set transaction isolation level serializable", "select 1", "commit",
		} {
			do(t, conn, sql, mode)
		}
		if got := one[string](t, conn, "show work_mem", mode); got != "7MB" {
			t.Errorf("%v: work_mem is %s after the block, want 7MB", mode, got)
		}
	}
}

// TestSessionResetBeforeCopy begins a COPY behind a RESET, in one Query and in one pipeline.
func TestSessionResetBeforeCopy(t *testing.T) {
	g := start(t, pgtest.Shared(t), smallSession)
	conn := g.connect(t, "work_mem=7MB")
	do(t, conn, "create temp table copied_in (a int)", pgx.QueryExecModeSimpleProtocol)
	if tag, err := conn.PgConn().CopyFrom(t.Context(), strings.NewReader("1\n2\n"), "reset work_mem; copy copied_in from stdin"); err != nil || tag.String() != "COPY 2" {
		t.Fatalf("%s %v", tag, err)
	}
	if got := one[string](t, conn, "show work_mem", pgx.QueryExecModeSimpleProtocol); got != "7MB" {
		t.Errorf("work_mem is %s, want 7MB", got)
	}
	front := conn.PgConn().Frontend()
	for _, sql := range []string{"reset work_mem", "copy copied_in from stdin"} {
		front.Send(&pgproto3.Parse{Query: sql})
		front.Send(&pgproto3.Bind{})
		front.Send(&pgproto3.Execute{})
	}
	front.Send(&pgproto3.Sync{}) // ignored, as libpq's is: the server is in the COPY by then
	if err := front.Flush(); err != nil {
		t.Fatal(err)
	}
	for begun := false; !begun; {
		_, begun = next(t, front).(*pgproto3.CopyInResponse)
	}
	front.Send(&pgproto3.CopyData{Data: []byte("3\n")})
	front.Send(&pgproto3.CopyDone{})
	front.Send(&pgproto3.Sync{})
	if err := front.Flush(); err != nil {
		t.Fatal(err)
	}
	for done := false; !done; {
		switch m := next(t, front).(type) {
		case *pgproto3.ErrorResponse:
			t.Fatalf("%s", m.Message)
		case *pgproto3.ReadyForQuery:
			done = true
		}
	}
	if got := one[string](t, conn, "select current_setting('work_mem')||' '||count(*) from copied_in", pgx.QueryExecModeSimpleProtocol); got != "7MB 3" {
		t.Errorf("work_mem and rows are %s, want 7MB 3", got)
	}
}

// TestSessionResetInOtherEncoding resets a value outside ASCII while another encoding is in force, and gets the report
// of its first encoding at once.
func TestSessionResetInOtherEncoding(t *testing.T) {
	g := start(t, pgtest.Shared(t), smallSession)
	conn := withStartup(t, g.dsn(""), map[string]string{"client_encoding": "LATIN1", "search_path": "caf\xe9,public", "work_mem": "7MB"})
	const look = "select (current_setting('search_path') = 'caf'||chr(233)||',public')||' '||current_setting('work_mem')||' '||current_setting('client_encoding')"
	for _, c := range []struct{ set, reset, want, told string }{
		{"set client_encoding='UTF8'", "reset search_path", "true 7MB UTF8", "UTF8"},
		{"set client_encoding='LATIN1'", "reset all", "true 7MB LATIN1", "LATIN1"},
		{"set work_mem='9MB'", "discard all", "true 7MB LATIN1", "LATIN1"},
	} {
		do(t, conn, c.set, pgx.QueryExecModeExec)
		do(t, conn, c.reset, pgx.QueryExecModeExec)
		if got := conn.PgConn().ParameterStatus("client_encoding"); got != c.told {
			t.Errorf("%s: told client_encoding %s, want %s", c.reset, got, c.told)
		}
		if got := one[string](t, conn, look, pgx.QueryExecModeExec); got != c.want {
			t.Errorf("%s: %s, want %s", c.reset, got, c.want)
		}
	}
}

// TestSessionResetOfRole goes back to the role that the client gave at startup. Another session user cannot be given.
func TestSessionResetOfRole(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "do $$ begin create role unprivileged; exception when duplicate_object then null; end $$")
	g := start(t, db, smallSession)
	conn := withStartup(t, g.dsn(""), map[string]string{"options": "-c role=unprivileged"})
	for _, sql := range []string{"select 1", "reset all", "reset role", "discard all"} {
		do(t, conn, sql, pgx.QueryExecModeSimpleProtocol)
		if got := one[string](t, conn, "select current_user", pgx.QueryExecModeSimpleProtocol); got != "unprivileged" {
			t.Errorf("after %s the user is %s, want unprivileged", sql, got)
		}
	}
	if c, err := pgx.Connect(t.Context(), g.dsn("")+" session_authorization=unprivileged"); sqlstate(err) != "0A000" || !strings.Contains(err.Error(), "session_authorization") {
		t.Errorf("session_authorization at startup: %v", err)
		if err == nil {
			_ = c.Close(context.Background())
		}
	}
}

// TestSessionResetIsNotCounted counts the client's own queries only, and no error that it does not hear of.
func TestSessionResetIsNotCounted(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "do $$ begin create role unprivileged; exception when duplicate_object then null; end $$")
	g := start(t, db, smallSession)
	conn := withStartup(t, g.dsn(""), map[string]string{"work_mem": "7MB", "log_statement": "ddl"})
	for _, sql := range []string{"set role unprivileged", "reset all", "select 1"} {
		do(t, conn, sql, pgx.QueryExecModeSimpleProtocol)
	}
	g.wantTraffic(t, of(3, 3, 3, nil))
}

// TestSessionResetPrepared executes a SET … TO DEFAULT that was prepared long before.
func TestSessionResetPrepared(t *testing.T) {
	g := start(t, pgtest.Shared(t), smallSession)
	conn := g.connect(t, "work_mem=7MB")
	if _, err := conn.Prepare(t.Context(), "back", "set work_mem to default"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		do(t, conn, "set work_mem='9MB'")
		do(t, conn, "back")
		if got := one[string](t, conn, "show work_mem"); got != "7MB" {
			t.Errorf("work_mem is %s, want 7MB", got)
		}
	}
}

// TestRestoreIsCanceled has the server cancel what restores startup settings, by the client's statement_timeout and by its cancel
// requests: no statement of the client's runs before they are restored.
func TestRestoreIsCanceled(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Mode = pgproxy.Session })
	w := g.dial(t, pgwire.Param{Name: "work_mem", Value: "1234kB"})
	until := func(sql string) (answer string) {
		conntest.Eventually(t, sql, func() bool {
			types, got := w.ask(query(sql))
			answer = got
			return !strings.Contains(types, "E")
		})
		return answer
	}
	resetAndShow := func() {
		t.Helper()
		until("reset work_mem")
		if got := until("show work_mem"); !has(got, "1234kB") {
			t.Fatalf("work_mem is %q", got)
		}
	}
	for range 50 {
		w.ask(query("set statement_timeout = '1ms'"))
		resetAndShow()
		until("set statement_timeout = 0")
	}
	ended, end := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
				g.Cancel(t.Context(), w.key.ProcessID, w.key.Key)
			}
		}
	}()
	defer func() { close(end); <-ended }()
	for range 200 {
		resetAndShow()
	}
}

// TestRestoreBeforePipeline begins a pipeline behind a RESET with messages that prepare and bind nothing.
func TestRestoreBeforePipeline(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Mode = pgproxy.Session })
	w := g.dial(t, pgwire.Param{Name: "work_mem", Value: "1234kB"})
	show := []pgwire.Message{&pgwire.Parse{Name: "show", Query: "show work_mem"}, &pgwire.Bind{Statement: "show"}, &pgwire.Execute{}, &pgwire.Sync{}}
	for name, first := range map[string]pgwire.Message{
		"Close":    &pgwire.Close{Object: pgwire.ObjectStatement, Name: "show"},
		"Describe": &pgwire.Describe{Object: pgwire.ObjectStatement, Name: "show"},
	} {
		w.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: "show"}, show[0], &pgwire.Sync{})
		w.ask(query("reset work_mem"))
		pipeline := append([]pgwire.Message{first}, show...)
		if name == "Describe" {
			pipeline = append(pipeline[:1], pipeline[2:]...)
		}
		if types, got := w.ask(pipeline...); strings.Contains(types, "E") || !has(got, "1234kB") {
			t.Errorf("%s: work_mem is %q (%s)", name, got, types)
		}
	}
}

// TestTimeLimitOfReset has clients leave with a statement_timeout that is too short for what resets their sessions: the next one gets the
// server connection all the same.
func TestTimeLimitOfReset(t *testing.T) {
	g := start(t, pgtest.Shared(t), smallSession)
	var last string
	for i := range 3 {
		w := g.dial(t)
		if _, pid := w.ask(query("select pg_backend_pid(), current_setting('statement_timeout')")); i == 0 {
			last = pid
		} else if pid != last {
			t.Errorf("%q behind %q", pid, last)
		}
		if types, bodies := w.ask(query("do $$ begin for i in 1..20000 loop execute format('prepare s%s as select 1', i); end loop; end $$"), query("set statement_timeout = '1ms'")); strings.Contains(types, "E") {
			t.Fatal(bodies)
		}
		w.send(&pgwire.Terminate{})
		_ = w.Close()
	}
}
