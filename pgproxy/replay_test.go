package pgproxy_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// Clients of tests that differ in a setting that servers report, in one that they do not, or in both.
var (
	zoneUTC   = pgwire.Param{Name: "TimeZone", Value: "UTC"}
	zoneTokyo = pgwire.Param{Name: "TimeZone", Value: "Asia/Tokyo"}
)

// The server's answers to a replay, and to "select 1" behind it.
var (
	replayed = bytesOf(&pgwire.BindComplete{}, &pgwire.CommandComplete{Tag: "BEGIN"}, &pgwire.BindComplete{}, &pgwire.NoticeResponse{},
		&pgwire.DataRow{Values: [][]byte{[]byte("UTC")}}, &pgwire.CommandComplete{Tag: "SELECT 1"}, &pgwire.BindComplete{}, &pgwire.CommandComplete{Tag: "COMMIT"})
	firstReplayed = slices.Concat(bytesOf(&pgwire.ParseComplete{}, &pgwire.BindComplete{}, &pgwire.CommandComplete{Tag: "BEGIN"}, &pgwire.ParseComplete{}, &pgwire.ParseComplete{}),
		replayed[len(bytesOf(&pgwire.BindComplete{}, &pgwire.CommandComplete{Tag: "BEGIN"})):])
	selected = bytesOf(columns, row, done)
	refusal  = bytesOf(&pgwire.BindComplete{}, &pgwire.CommandComplete{Tag: "BEGIN"}, &pgwire.BindComplete{}, errorOf("42501"))
)

// The messages of a replay, and of the first one on a server connection, which prepares its statements.
const (
	replayTypes      = "BEBEBE"
	firstReplayTypes = "PBEPPBEBE"
)

// startReplays runs a proxy before a fake server, with a client in UTC and one in Tokyo, which has used the server connection last.
func startReplays(t testing.TB) (utc, tokyo, srv *wire, f *fakeServer) {
	t.Helper()
	g, f := startFake(t, nil, &pgwire.ParameterStatus{Name: "TimeZone", Value: "GMT"})
	logged := make(chan *wire, 2)
	go func() {
		logged <- g.dial(t, zoneUTC)
		logged <- g.dial(t, zoneTokyo)
	}()
	srv = <-f.conns
	utc = srv.logsIn(logged, zoneUTC)
	tokyo = srv.logsIn(logged, zoneTokyo)
	return utc, tokyo, srv, f
}

// logsIn answers the Query that gives the server connection the settings of a client that logs in.
func (w *wire) logsIn(logged <-chan *wire, zone pgwire.Param) *wire {
	w.t.Helper()
	if types, bodies := w.requested(); types != "Q" {
		w.t.Fatalf("%s %q", types, bodies)
	}
	w.send((*pgwire.ParameterStatus)(&zone), done, idle)
	return <-logged
}

// requested reads a client's request up to Query or Sync, and returns the types of its messages, and all bodies.
func (w *wire) requested() (types, bodies string) {
	w.t.Helper()
	for {
		typ, body := w.read()
		types, bodies = types+string(typ), bodies+body
		if typ == pgwire.TypeQuery || typ == pgwire.TypeSync {
			return types, bodies
		}
	}
}

// TestReplay: a server connection gets the client's settings before its statement without an answer in between, and the client sees the
// answer to its statement only, whenever the server reports settings, and however the answer comes.
func TestReplay(t *testing.T) {
	request := map[string][]byte{
		"Q":    bytesOf(query("select 1")),
		"PBES": bytesOf(&pgwire.Parse{Query: "select 1"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}),
	}
	answers := map[string]struct {
		said   []byte
		client string
	}{"Q": {selected, "TDCZ"}, "PBES": {bytesOf(&pgwire.ParseComplete{}, &pgwire.BindComplete{}, row, done), "12DCZ"}}
	utc, tokyo, srv, _ := startReplays(t)
	messages, answer := firstReplayTypes, firstReplayed
	for i, early := range []bool{false, true, false, true} {
		for kind, req := range request {
			for _, c := range []struct {
				w    *wire
				zone pgwire.Param
			}{{utc, zoneUTC}, {tokyo, zoneTokyo}} {
				if _, err := c.w.Write(req); err != nil {
					t.Fatal(err)
				}
				if types, bodies := srv.requested(); types != messages+kind || !has(bodies, "TimeZone\x00\x00\x00"+string(byte(len(c.zone.Value)))+c.zone.Value) {
					t.Fatalf("%s %q", types, bodies)
				}
				report, end := bytesOf((*pgwire.ParameterStatus)(&c.zone)), bytesOf(idle)
				said := [][]byte{answer, answers[kind].said, report, end}
				if early {
					said = [][]byte{answer[:5], report, answer[5:], answers[kind].said, end}
				}
				messages, answer = replayTypes, replayed
				if i < 2 {
					said = [][]byte{bytes.Join(said, nil)}
				}
				for _, b := range said {
					if _, err := srv.Write(b); err != nil {
						t.Fatal(err)
					}
				}
				if types, bodies := c.w.until(pgwire.TypeReadyForQuery); types != answers[kind].client {
					t.Errorf("%s, early %v, in %d pieces: the client gets %s %q", kind, early, len(said), types, bodies)
				}
			}
		}
	}
}

// judgeTurns returns a function that has two clients with different settings make a request each on one server connection, as far as the
// machine is concerned.
func judgeTurns(t testing.TB) (round func()) {
	zones := [2]pgwire.Param{zoneUTC, zoneTokyo}
	var answers [2][]byte
	for i, zone := range zones {
		answers[i] = bytes.Join([][]byte{replayed, selected, bytesOf((*pgwire.ParameterStatus)(&zone), idle)}, nil)
	}
	turn := pgproxy.JudgeTurns(zones, bytesOf(query("select 1")), answers, len(selected)+len(bytesOf(idle)))
	return func() {
		if !turn() {
			t.Fatal("it is not over")
		}
	}
}

// TestReplayOfChangedSetting: a statement gives a setting the value that the server connection had before the replay. The server has nothing to
// report then, and the client hears of it.
func TestReplayOfChangedSetting(t *testing.T) {
	utc, _, srv, _ := startReplays(t)
	utc.send(query("set timezone = 'Asia/Tokyo'"))
	srv.requested()
	if _, err := srv.Write(append(bytes.Clone(replayed), bytesOf(&pgwire.CommandComplete{Tag: "SET"}, idle)...)); err != nil {
		t.Fatal(err)
	}
	if types, bodies := utc.until(pgwire.TypeReadyForQuery); types != "CSZ" || !has(bodies, "TimeZone\x00Asia/Tokyo") {
		t.Errorf("the client gets %s %q", types, bodies)
	}
	if _, body := srv.read(); !has(body, "pg_settings") {
		t.Errorf("%q", body)
	}
	srv.send(&pgwire.CommandComplete{Tag: "BEGIN"}, &pgwire.DataRow{Values: [][]byte{[]byte("TimeZone"), []byte("Asia/Tokyo")}}, &pgwire.CommandComplete{Tag: "COMMIT"}, idle)
	utc.send(query("select 1"))
	if types, bodies := srv.requested(); types != "Q" {
		t.Errorf("the server connection has the settings, and gets %s %q", types, bodies)
	}
	srv.send(done, idle)
	utc.until(pgwire.TypeReadyForQuery)
}

// TestRefusedReplay: the statement behind settings that the server refuses is not run, the client gets the server's error, and the server
// connection is not used again. What a client has sent behind that statement gets another server connection, with the settings first.
func TestRefusedReplay(t *testing.T) {
	extended := []pgwire.Message{&pgwire.Parse{Query: "select 1"}, &pgwire.Bind{}, &pgwire.Execute{}}
	for name, c := range map[string]struct {
		request, later []pgwire.Message
		types          string // of what goes to the server
	}{
		"Query":             {request: []pgwire.Message{query("select 1")}, types: "Q"},
		"extended":          {request: append(extended[:3:3], &pgwire.Sync{}), types: "PBES"},
		"Queries":           {request: []pgwire.Message{query("select 1")}, later: []pgwire.Message{query("select 2")}, types: "Q"},
		"extended, Queries": {request: append(extended[:3:3], &pgwire.Sync{}), later: []pgwire.Message{query("select 2")}, types: "PBES"},
	} {
		t.Run(name, func(t *testing.T) {
			utc, tokyo, srv, f := startReplays(t)
			utc.send(append(c.request, c.later...)...)
			if types, bodies := srv.requested(); types != firstReplayTypes+c.types {
				t.Fatalf("%s %q", types, bodies)
			}
			said := refusal
			if c.types != "Q" {
				said = append(bytes.Clone(refusal), bytesOf(&pgwire.ReadyForQuery{Status: pgwire.TxFailed})...)
			}
			if _, err := srv.Write(said); err != nil {
				t.Fatal(err)
			}
			if types, bodies := utc.until(pgwire.TypeReadyForQuery); types != "EZ" || !has(bodies, "42501") || !strings.HasSuffix(bodies, "I") {
				t.Errorf("the client gets %s %q", types, bodies)
			}
			if c.later == nil {
				utc.send(query("select 2"))
			}
			second := <-f.conns
			for { // a Flush may have come before
				if typ, body, err := srv.try(); err != nil {
					break
				} else if typ != pgwire.TypeFlush && typ != pgwire.TypeTerminate {
					t.Errorf("the server gets %c %q behind its refusal", typ, body)
				}
			}
			if types, bodies := second.requested(); types != "Q" || !has(bodies, "set_config") {
				t.Errorf("%s %q", types, bodies)
			}
			second.send((*pgwire.ParameterStatus)(&zoneUTC), done, idle)
			if types, bodies := second.requested(); types != "Q" || !has(bodies, "select 2") {
				t.Errorf("%s %q", types, bodies)
			}
			second.send(done, idle)
			if types, bodies := utc.until(pgwire.TypeReadyForQuery); types != "CZ" {
				t.Errorf("the client gets %s %q", types, bodies)
			}
			tokyo.send(query("select 3"))
			if types, bodies := second.requested(); types != firstReplayTypes+"Q" {
				t.Errorf("%s %q", types, bodies)
			}
			second.send(&pgwire.CommandComplete{Tag: "COMMIT"}, done, idle)
			tokyo.until(pgwire.TypeReadyForQuery)
		})
	}
}

// TestReplayBehindClose: a request that the gateway answers itself, and its Sync, come before a statement in one write. The Sync has the
// replay, so that a refusal is the answer to it, and the statement runs with the client's settings or not at all.
func TestReplayBehindClose(t *testing.T) {
	for _, sql := range []string{"select 1", "select f()"} { // before the second the gateway may have requests of its own
		for _, refuse := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, refused %v", sql, refuse), func(t *testing.T) {
				utc, tokyo, srv, f := startReplays(t)
				utc.send(&pgwire.Parse{Name: "p", Query: "select 1"}, &pgwire.Sync{})
				srv.requested()
				srv.says(replayed, bytesOf(&pgwire.ParseComplete{}, (*pgwire.ParameterStatus)(&zoneUTC), idle))
				utc.until(pgwire.TypeReadyForQuery)
				tokyo.send(query("select 1"))
				srv.requested()
				srv.says(replayed, bytesOf(done, (*pgwire.ParameterStatus)(&zoneTokyo), idle))
				tokyo.until(pgwire.TypeReadyForQuery)

				utc.send(&pgwire.Close{Object: 'S', Name: "p"}, &pgwire.Sync{}, query(sql))
				if types, bodies := srv.requested(); types != replayTypes+"S" || has(bodies, sql) {
					t.Fatalf("the server gets %s %q", types, bodies)
				}
				first := "3Z" // Close is answered at once
				if refuse {
					first = "3EZ"
					srv.says(refusal, bytesOf(&pgwire.ReadyForQuery{Status: pgwire.TxFailed}))
					srv = <-f.conns
					if types, bodies := srv.requested(); types != "Q" || !has(bodies, "set_config") {
						t.Fatalf("another server gets %s %q", types, bodies)
					}
					srv.send((*pgwire.ParameterStatus)(&zoneUTC), done, idle)
				} else {
					srv.says(replayed, bytesOf((*pgwire.ParameterStatus)(&zoneUTC), idle))
				}
				if types, bodies := srv.requested(); strings.TrimPrefix(types, "H") != "Q" || !has(bodies, sql) {
					t.Fatalf("the server gets %s %q", types, bodies)
				}
				srv.send(done, idle)
				for _, want := range []string{first, "CZ"} {
					if types, bodies := utc.until(pgwire.TypeReadyForQuery); types != want || !strings.HasSuffix(bodies, "I") {
						t.Errorf("the client gets %s %q, want %s", types, bodies, want)
					}
				}
			})
		}
	}
}

// says writes what a server says.
func (w *wire) says(said ...[]byte) {
	w.t.Helper()
	if _, err := w.Write(bytes.Join(said, nil)); err != nil {
		w.t.Fatal(err)
	}
}

// TestReplayOnServer has clients with different settings take turns on one server connection, with statements that must not run in the replay's
// transaction, and compares what they see with what they have set.
func TestReplayOnServer(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, small)
	db.Exec(t, "drop table if exists replays; create table replays (n int)")
	const login = `"$user", public`
	type client struct {
		conn     *pgx.Conn
		settings string
		want     string
	}
	clients := []*client{
		{settings: "timezone=UTC", want: "UTC 4MB - " + login}, {settings: "timezone=Asia/Tokyo work_mem=5MB search_path=pg_temp,public", want: "Asia/Tokyo 5MB - pg_temp,public"},
		{settings: "timezone=UTC work_mem=6MB", want: "UTC 6MB - " + login}, {settings: "timezone=Europe/Berlin", want: "Europe/Berlin 4MB it's \\ x " + login},
	}
	for _, c := range clients {
		c.conn = g.connect(t, c.settings)
	}
	do(t, clients[3].conn, `set app.replay = E'it\'s \\ x'`)
	const see = "select concat_ws(' ', current_setting('timezone'), current_setting('work_mem'), coalesce(nullif(current_setting('app.replay', true), ''), '-'), current_setting('search_path'))"
	modes := []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeCacheStatement}
	for i := range 200 {
		c, mode := clients[i*7%len(clients)], modes[i/3%len(modes)]
		switch i / 12 % 6 {
		case 0:
			do(t, c.conn, "vacuum replays", mode)
		case 1:
			do(t, c.conn, "begin isolation level serializable, deferrable, read only", mode)
			do(t, c.conn, "rollback", mode)
		case 2:
			if _, err := c.conn.Exec(t.Context(), "select 1/0", mode); err == nil {
				t.Error("no error")
			}
		case 3:
			if _, err := c.conn.PgConn().CopyFrom(t.Context(), strings.NewReader("1\n2\n"), "copy replays from stdin"); err != nil {
				t.Fatal(err)
			}
		case 4:
			do(t, c.conn, "begin", mode)
			do(t, c.conn, "set local work_mem = '9MB'", mode)
			do(t, c.conn, "commit", mode)
		}
		if got := one[string](t, c.conn, see, mode); got != c.want {
			t.Fatalf("round %d, %v: a client with %s sees %s", i, mode, c.settings, got)
		}
	}
	if n := one[int](t, clients[0].conn, "select count(*) from replays"); n%2 != 0 || n == 0 {
		t.Errorf("%d rows", n)
	}
}

// TestReplayStatementsGone: the statements of the replay are gone from the server connection, by a client's statement that shows it or hides it.
// Clients get their settings all the same, and do not see these statements.
func TestReplayStatementsGone(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create or replace function replay_gone() returns void language plpgsql as $$ begin execute 'deallocate ' || 'all'; end $$")
	g := start(t, db, small)
	five, six, plain := g.connect(t, "work_mem=5MB"), g.connect(t, "work_mem=6MB"), g.connect(t, "")
	modes := []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec}
	for _, sql := range []string{
		"select 1", "deallocate all", "discard all", "do $$ begin execute 'deallocate all'; end $$", "select replay_gone()", "prepare p as select 1; deallocate p",
		"begin; deallocate all; rollback", "select 1; deallocate all", "discard plans",
	} {
		for _, mode := range modes {
			if strings.Contains(sql, "; ") && !strings.HasPrefix(sql, "do") && mode != pgx.QueryExecModeSimpleProtocol {
				continue // several statements
			}
			for range 2 {
				for want, conn := range map[string]*pgx.Conn{"5MB": five, "6MB": six} {
					if got := one[string](t, conn, "show work_mem", mode); got != want {
						t.Errorf("around %s: %s instead of %s", sql, got, want)
					}
				}
				do(t, plain, sql, mode)
			}
			if n := one[int](t, plain, "select count(*)::int from pg_prepared_statements", pgx.QueryExecModeSimpleProtocol); n != 0 {
				t.Errorf("behind %s a client sees %d statements", sql, n)
			}
		}
	}
	db.Exec(t, "create or replace view replay_statements as select name from pg_prepared_statements") // the gateway does not see what it lists
	for range 10 {
		do(t, plain, "do $$ begin perform 1; end $$", modes[0]) // it might have deallocated all
		for _, conn := range []*pgx.Conn{five, six} {
			one[string](t, conn, "show work_mem", modes[0])
		}
	}
	if n := one[int](t, plain, "select count(*)::int from replay_statements", modes[0]); n != 3 {
		t.Errorf("the server has %d statements instead of the replay's", n)
	}
}

// TestReplayStatementsGoneUnseen: a trigger, which the gateway does not see, deallocates the statements of the replay. At most one statement
// of another client fails.
func TestReplayStatementsGoneUnseen(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, `drop table if exists replay_unseen; create table replay_unseen (n int);
		create or replace function replay_unseen() returns trigger language plpgsql as $$ begin execute 'deallocate ' || 'all'; return new; end $$;
		create trigger unseen before insert on replay_unseen for each row execute function replay_unseen()`)
	g := start(t, db, small)
	five, six, plain := g.connect(t, "work_mem=5MB"), g.connect(t, "work_mem=6MB"), g.connect(t, "")
	failed := 0
	for range 5 {
		for want, conn := range map[string]*pgx.Conn{"5MB": five, "6MB": six} {
			var got string
			err := conn.QueryRow(t.Context(), "show work_mem", pgx.QueryExecModeSimpleProtocol).Scan(&got)
			switch {
			case sqlstate(err) == "26000":
				failed++
			case err != nil || got != want:
				t.Errorf("%q instead of %s (%v)", got, want, err)
			}
			do(t, plain, "insert into replay_unseen values (1)", pgx.QueryExecModeSimpleProtocol)
		}
	}
	if failed > 1 {
		t.Errorf("%d statements of other clients failed", failed)
	}
}

// TestReplayBehindIsolation: the replay's statements are prepared on a server connection whose transactions are not READ COMMITTED, or wait for others,
// by default.
func TestReplayBehindIsolation(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, small)
	strict := g.connect(t, "default_transaction_isolation=serializable")
	waits := g.connect(t, "default_transaction_isolation=serializable default_transaction_deferrable=on default_transaction_read_only=on")
	repeats, plain := g.connect(t, "default_transaction_isolation='repeatable read'"), g.connect(t, "work_mem=5MB")
	const see = "select concat_ws(' ', current_setting('default_transaction_isolation'), current_setting('transaction_isolation'), current_setting('work_mem'))"
	for i, c := range []struct {
		conn *pgx.Conn
		want string
	}{
		{strict, "serializable serializable 4MB"}, {plain, "read committed read committed 5MB"}, {waits, "serializable serializable 4MB"},
		{plain, "read committed read committed 5MB"}, {repeats, "repeatable read repeatable read 4MB"}, {plain, "read committed read committed 5MB"},
	} {
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec} {
			if got := one[string](t, c.conn, see, mode); got != c.want {
				t.Errorf("client %d sees %s instead of %s", i, got, c.want)
			}
			do(t, c.conn, "select count(*) from pg_prepared_statements", mode) // does without the replay's statements
		}
	}
}

// TestRefusedReplayOnServer: a setting of a client is refused, because what it names has been dropped.
func TestRefusedReplayOnServer(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "drop table if exists refused; create table refused (n int)")
	for _, extended := range []bool{false, true} {
		t.Run(fmt.Sprint("extended ", extended), func(t *testing.T) {
			db.Exec(t, "drop text search configuration if exists gone; create text search configuration gone (copy = simple)")
			g := start(t, db, small)
			w, other := g.dial(t), g.connect(t, "")
			if types, bodies := w.ask(query("set default_text_search_config = 'public.gone'")); types != "CZ" {
				t.Fatal(types, bodies)
			}
			do(t, other, "drop text search configuration gone")
			request := []pgwire.Message{query("insert into refused values (1)")}
			if extended {
				request = []pgwire.Message{&pgwire.Parse{Query: "insert into refused values (1)"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}}
			}
			if types, bodies := w.ask(request...); types != "EZ" || !has(bodies, "22023") || !strings.HasSuffix(bodies, "I") {
				t.Errorf("%s %q", types, bodies)
			}
			if n := one[int](t, other, "select count(*) from refused"); n != 0 {
				t.Errorf("%d rows", n)
			}
			w.send(query("select 1"))
			if types, bodies := w.until(pgwire.TypeErrorResponse); !has(bodies, "FATAL") {
				t.Errorf("%s %q", types, bodies)
			}
			if err := other.Ping(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRefusedWhileSuspended: a client whose setting was refused in a replay is idle until its session is suspended. The refusal is not forgotten.
func TestRefusedWhileSuspended(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "drop text search configuration if exists absent; create text search configuration absent (copy = simple)")
	g, suspended := startWatched(t, small)
	w := g.dial(t)
	if types, bodies := w.ask(query("set default_text_search_config = 'public.absent'")); types != "CZ" {
		t.Fatal(types, bodies)
	}
	<-suspended
	db.Exec(t, "drop text search configuration absent")
	other := g.connect(t, "work_mem=5MB")
	do(t, other, "select 1") // the server connection has other settings now
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "the other client has left", func() bool { return g.Stats().Active == 1 })
	for len(suspended) > 0 {
		<-suspended // the other client's
	}
	if types, bodies := w.ask(query("select 1")); types != "EZ" || !has(bodies, "22023") {
		t.Fatal(types, bodies)
	}
	<-suspended
	w.send(query("select 1"))
	if types, bodies := w.until(pgwire.TypeErrorResponse); !has(bodies, "FATAL") {
		t.Errorf("%s %q", types, bodies)
	}
}

// TestRefusedSettingsAreTheirClients: a client that has made a setting itself is disconnected once the setting is refused, one that has it from
// its start-up gets the server's error each time. Other clients do not matter, whose sessions use each other's memory.
func TestRefusedSettingsAreTheirClients(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "drop text search configuration if exists lost; create text search configuration lost (copy = simple)")
	const others = 16
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = others + 2 })
	started, set := g.dial(t, pgwire.Param{Name: "default_text_search_config", Value: "public.lost"}), g.dial(t)
	for w, sql := range map[*wire]string{started: "select 1", set: "set default_text_search_config = 'public.lost'"} {
		if types, bodies := w.ask(query(sql)); strings.Contains(types, "E") {
			t.Fatal(types, bodies)
		}
	}
	db.Exec(t, "drop text search configuration lost")
	var busy [others]*wire
	for i := range busy {
		busy[i] = g.dial(t)
		busy[i].ask(query("set work_mem = '5MB'"))
	}
	refused := func(w *wire) {
		t.Helper()
		if types, bodies := w.ask(query("select 1")); types != "EZ" || !has(bodies, "22023") || has(bodies, "FATAL") {
			t.Errorf("%s %q", types, bodies)
		}
	}
	for _, w := range busy {
		w.ask(query("begin"))
	}
	refused(set)
	set.send(query("select 1"))
	if types, bodies := set.until(pgwire.TypeErrorResponse); !has(bodies, "FATAL") || !has(bodies, "22023") {
		t.Errorf("%s %q", types, bodies)
	}
	for _, w := range busy {
		w.ask(query("commit"))
	}
	for range 3 {
		refused(started)
	}
}

// TestFirstBehindReplay has statements come first behind a replay, and without one, and wants the same answers.
func TestFirstBehindReplay(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "drop table if exists first; create table first (n int)")
	replaying, plain := start(t, db, small), start(t, db, small)
	param := pgwire.Param{Name: "work_mem", Value: "5MB"}
	other, w, control := replaying.connect(t, "work_mem=6MB"), replaying.dial(t, param), plain.dial(t, param)
	for _, sql := range []string{
		"vacuum first", "create index concurrently on first (n)", "drop database if exists first_replay", "create database first_replay", "drop database first_replay",
		"copy first to stdout", "copy first from stdin", "lock table first", "declare c cursor for select 1", "savepoint a", "set local work_mem = '1MB'",
		"set transaction isolation level serializable", "begin isolation level serializable, read only, deferrable", "begin; set transaction isolation level serializable; select 1",
		"select 1; insert into first values (1); select 1/0", "insert into first values (2); select 3", "select count(*) from first", "commit", "rollback and chain",
		"prepare transaction 'first'", "discard temp", "", "select", "no sql", "show work_mem", "set constraints all deferred", "checkpoint", "select current_setting('work_mem')",
		"begin; select 1; commit; select 2", "fetch 1 from nothing", "execute nothing", "deallocate nothing", "notify first", "do $$ begin perform 1; end $$", "alter table first add m int",
	} {
		for name, request := range map[string][]pgwire.Message{
			"Query":            {query(sql)},
			"extended":         {&pgwire.Parse{Query: sql}, &pgwire.Bind{}, &pgwire.Describe{Object: 'P'}, &pgwire.Execute{}, &pgwire.Sync{}},
			"with Flush":       {&pgwire.Parse{Query: sql}, &pgwire.Flush{}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Flush{}, &pgwire.Sync{}},
			"Query in between": {&pgwire.Parse{Query: "select 7"}, query(sql)},
		} {
			do(t, other, "select 1", pgx.QueryExecModeSimpleProtocol)
			prepare(t, db, sql)
			want := control.answerTo(request)
			prepare(t, db, sql)
			if got := w.answerTo(request); got != want {
				t.Errorf("%s, %s: %s, without a replay %s", sql, name, got, want)
			}
		}
	}
}

// prepare undoes what a statement of TestFirstBehindReplay has defined, or removed.
func prepare(t *testing.T, db *pgtest.Cluster, sql string) {
	t.Helper()
	switch {
	case strings.HasSuffix(sql, "database first_replay"):
		db.Exec(t, "drop database if exists first_replay")
		if strings.HasPrefix(sql, "drop") {
			db.Exec(t, "create database first_replay")
		}
	case strings.HasPrefix(sql, "alter"):
		db.Exec(t, "alter table first drop if exists m")
	}
}

// answerTo sends a request, and returns its answer: types of messages, and codes of errors. It ends COPY, and transactions afterwards.
func (w *wire) answerTo(request []pgwire.Message) (list string) {
	w.t.Helper()
	w.send(request...)
	for {
		typ, body := w.read()
		list += string(typ)
		switch typ {
		case pgwire.TypeErrorResponse:
			_, code, _ := strings.Cut(body, "\x00C")
			list += "(" + code[:5] + ")"
		case pgwire.TypeDataRow:
			list += fmt.Sprintf("(%q)", body)
		case pgwire.TypeCopyInResponse:
			w.send(&pgwire.CopyData{Data: []byte("3\n")}, &pgwire.CopyDone{})
			if _, ends := request[len(request)-1].(*pgwire.Sync); ends {
				w.send(&pgwire.Sync{}) // the one before was ignored
			}
		case pgwire.TypeReadyForQuery:
			if list += body; body == "I" {
				return list
			}
			w.send(query("rollback"))
		}
	}
}

// TestCancelBehindReplay cancels the first statement behind a replay.
func TestCancelBehindReplay(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	other, w := g.connect(t, "work_mem=6MB"), g.dial(t, pgwire.Param{Name: "work_mem", Value: "5MB"})
	do(t, other, "select 1")
	w.send(query("select pg_sleep(100) /* behind a replay */"))
	watcher, err := pgx.Connect(t.Context(), pgtest.Shared(t).DSN(pgtest.Shared(t).Superuser(), pgtest.Shared(t).Password(), "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close(context.Background())
	conntest.Eventually(t, "the statement runs", func() bool {
		return one[int](t, watcher, "select count(*) from pg_stat_activity where query like 'select pg_sleep(100) /* behind a%' and state = 'active'") == 1
	})
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	newWire(t, conn).send(&pgwire.CancelRequest{ProcessID: w.key.ProcessID, Key: w.key.Key})
	if types, bodies := w.until(pgwire.TypeReadyForQuery); !has(bodies, "57014") {
		t.Errorf("%s %q", types, bodies)
	}
	if _, bodies := w.ask(query("show work_mem")); !has(bodies, "5MB") {
		t.Errorf("%q", bodies)
	}
}

// TestLostBehindReplay: the server connection breaks while a replay and a statement are under way. The statement is not sent again.
func TestLostBehindReplay(t *testing.T) {
	for name, said := range map[string][]byte{"before the replay": nil, "in the replay": replayed[:5], "behind the replay": replayed} {
		t.Run(name, func(t *testing.T) {
			utc, _, srv, f := startReplays(t)
			utc.send(query("select 1"))
			srv.requested()
			if _, err := srv.Write(said); err != nil {
				t.Fatal(err)
			}
			_ = srv.Close()
			if types, bodies := utc.until(pgwire.TypeReadyForQuery); types != "EZ" || !has(bodies, "08006") {
				t.Errorf("%s %q", types, bodies)
			}
			utc.send(query("select 2"))
			second := <-f.conns
			if types, bodies := second.requested(); types != firstReplayTypes+"Q" || !has(bodies, "select 2") {
				t.Errorf("%s %q", types, bodies)
			}
			second.send(&pgwire.CommandComplete{Tag: "COMMIT"}, done, idle)
			utc.until(pgwire.TypeReadyForQuery)
		})
	}
}
