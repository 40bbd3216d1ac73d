package pgproxy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// pinned is one kind of session state, for the tests of pins.
type pinned struct {
	name string   // as the register of sessions has it
	make []string // statements that make it
	see  string   // a query that tells of it
	want string   // what that returns to its client
	gone string   // a statement that takes it away; "" = only the end of the client does
}

const pinFixture = `create schema if not exists pin; create sequence if not exists pin.q;
create or replace function pin.run(sql text) returns void language plpgsql as 'begin execute sql; end';
create or replace function pin.number(sql text) returns int language plpgsql as 'begin execute sql; return 1; end';
create or replace procedure pin.call(sql text) language plpgsql as 'begin execute sql; end'`

// pinKinds are the kinds of state, made in plain sight and unseen.
var pinKinds = []pinned{
	{name: "temporary objects", make: []string{"create temp table pinned as select 1 as n"}, see: "select n::text from pinned", want: "1", gone: "drop table pinned"},
	{name: "temporary objects", make: []string{"begin", "select 1 as n into temporary pinned", "commit"}, see: "select n::text from pinned", want: "1", gone: "discard all"},
	{name: "temporary objects", make: []string{"create function pg_temp.pinned() returns text language sql as 'select ''1'''"}, see: "select pg_temp.pinned()", want: "1", gone: "discard temp"},
	{name: "temporary objects", make: []string{"select pin.run('create temp table pinned as select 1 as n')"}, see: "select n::text from pinned", want: "1", gone: "drop table pinned"},
	{name: "advisory locks", make: []string{"select pg_advisory_lock(4711)"}, see: locksSeen, want: "1", gone: "select pg_advisory_unlock(4711)"},
	{name: "advisory locks", make: []string{"begin", "select pg_try_advisory_lock(4711)", "rollback"}, see: locksSeen, want: "1", gone: "select pg_advisory_unlock_all()"},
	{name: "advisory locks", make: []string{"do $$ begin perform pg_advisory_lock(4711); end $$"}, see: locksSeen, want: "1", gone: "discard all"},
	{name: "cursors WITH HOLD", make: []string{"declare pinned scroll cursor with hold for select '1'"}, see: "fetch first from pinned", want: "1", gone: "close pinned"},
	{name: "cursors WITH HOLD", make: []string{"select pin.run('declare pinned scroll cursor with hold for select ''1''')"}, see: "fetch first from pinned", want: "1", gone: "close all"},
	{name: "PREPARE", make: []string{"prepare pinned as select '1'"}, see: "execute pinned", want: "1", gone: "deallocate pinned"},
	{name: "PREPARE", make: []string{"call pin.call('prepare pinned as select ''1''')"}, see: "execute pinned", want: "1", gone: "deallocate all"},
	{name: "setseed", make: []string{"select setseed(0.5)"}, see: "select (random() in (0.9851677175347999, 0.2499104186659835))::text", want: "true"},
	{name: "setseed", make: []string{"set seed to 0.5"}, see: "select (random() in (0.9851677175347999, 0.2499104186659835))::text", want: "true"},
	{name: "LOAD", make: []string{"load 'auto_explain'"}, see: "select count(*)::text from pg_settings where name = 'auto_explain.log_timing'", want: "1"},
}

const (
	locksSeen    = "select count(*)::text from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
	channelsSeen = "select string_agg(c, ' ') from pg_listening_channels() c"
)

// sees returns what a client is told by a query, and "" for NULL, no row and errors of the server.
func sees(t *testing.T, c *pgx.Conn, sql string) string {
	t.Helper()
	var s *string
	err := c.QueryRow(t.Context(), sql, pgx.QueryExecModeSimpleProtocol).Scan(&s)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		if _, ok := errors.AsType[*pgconn.PgError](err); !ok {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	if s == nil {
		return ""
	}
	return *s
}

// simple runs a statement by a Query.
func simple(t *testing.T, c *pgx.Conn, sql string) {
	t.Helper()
	do(t, c, sql, pgx.QueryExecModeSimpleProtocol)
}

// startPins has pinFixture, and a pool of some server connections of which all but one may be pinned.
func startPins(t *testing.T, size int, change func(*pgproxy.Config)) *gateway {
	db := pgtest.Shared(t)
	g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.MaxSize, c.MaxPinned = size, max(size-1, 1)
		if change != nil {
			change(c)
		}
	})
	db.Exec(t, pinFixture)
	return g
}

// TestPins has a client leave each kind of state, while another one works. The client finds it again, the other one never sees it, and the
// server connection is everybody's again once it is gone.
func TestPins(t *testing.T) {
	g := startPins(t, 2, nil)
	other := g.connect(t, "application_name=other")
	for _, k := range pinKinds {
		t.Run(k.name, func(t *testing.T) {
			c := g.connect(t, "application_name=maker")
			for _, sql := range k.make {
				simple(t, c, sql)
			}
			held := g.session(t, "maker", listener.StatePinned)
			if held.Pinned != k.name || held.Held.IsZero() || held.ServerPID == 0 {
				t.Errorf("%+v", held)
			}
			if n := g.Stats().Pinned; n != 1 {
				t.Errorf("%d are pinned", n)
			}
			for range 3 {
				if got := sees(t, other, k.see); got == k.want {
					t.Errorf("another client sees %q by %s", got, k.see)
				}
			}
			if got := sees(t, c, k.see); got != k.want {
				t.Errorf("%s: %q, want %q", k.see, got, k.want)
			}
			if k.gone != "" {
				simple(t, c, k.gone)
				if idle := g.session(t, "maker", listener.StateIdle); !idle.Held.IsZero() || idle.Pinned != "" {
					t.Errorf("%s: %+v", k.gone, idle)
				}
			}
			_ = c.Close(t.Context())
			conntest.Eventually(t, "nothing is pinned", func() bool { return g.Stats().Pinned == 0 })
		})
	}
}

// TestPinEndsWithClient has clients leave state in the only server connection, and go: the next one finds nothing.
func TestPinEndsWithClient(t *testing.T) {
	g := startPins(t, 1, nil)
	for _, k := range pinKinds {
		for _, end := range []string{"terminate", "close", "kill"} {
			w := g.dial(t, pgwire.Param{Name: "application_name", Value: "leaver"})
			for _, sql := range k.make {
				if types, bodies := w.ask(query(sql)); strings.Contains(types, "E") {
					t.Fatalf("%s: %s %q", sql, types, bodies)
				}
			}
			switch end {
			case "terminate":
				w.send(&pgwire.Terminate{})
			case "close":
				_ = w.Close()
			case "kill":
				g.kill(t, g.session(t, "leaver", listener.StatePinned))
			}
			next := g.connect(t, "")
			if got := sees(t, next, k.see); got == k.want {
				t.Errorf("%v, then %s: the next client sees %q", k.make, end, got)
			}
			_ = next.Close(context.Background())
			_ = w.Close()
		}
	}
	if n := g.Stats().Pinned; n != 0 {
		t.Errorf("%d are pinned", n)
	}
}

// TestNotificationsReachPinned while they are idle, also when LISTEN was a function's: clients that are pinned for something else.
func TestNotificationsReachPinned(t *testing.T) {
	g := startPins(t, 2, nil)
	for _, listen := range []string{"create temp table pinned (n int); listen told", "select pg_advisory_lock(1); select pin.run('listen told')"} {
		w := g.dial(t, pgwire.Param{Name: "application_name", Value: "listener"})
		w.ask(query(listen))
		g.session(t, "listener", listener.StatePinned)
		simple(t, g.connect(t, ""), "notify told, 'hello'")
		if typ, body := w.read(); typ != pgwire.TypeNotificationResponse || !has(body, "hello") {
			t.Errorf("%s: %c %q", listen, typ, body)
		}
		_ = w.Close()
		conntest.Eventually(t, "nothing is pinned", func() bool { return g.Stats().Pinned == 0 }) // there is one place
	}
}

// TestServerLostWhilePinned kills the server connection of a pinned client, which is idle: it is told at once, and the place is free.
func TestServerLostWhilePinned(t *testing.T) {
	g := startPins(t, 1, nil)
	w := g.dial(t, pgwire.Param{Name: "application_name", Value: "owner"})
	w.ask(query("create temp table pinned (n int)"))
	s := g.session(t, "owner", listener.StatePinned)
	direct := pgtest.Shared(t).Connect(t)
	do(t, direct, "select pg_terminate_backend($1)", int32(s.ServerPID))
	if said := w.toTheEnd(); !has(said, "57P01") {
		t.Errorf("told %q", said)
	}
	if n := one[int](t, g.connect(t, ""), "select 1"); n != 1 {
		t.Error(n)
	}
	conntest.Eventually(t, "nothing is pinned", func() bool { return g.Stats().Pinned == 0 })
}

// drainEnds drains the gateway, which ends the client.
func (g *gateway) drainEnds(t *testing.T, w *wire) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), conntest.Patience)
	defer cancel()
	drained := make(chan error, 1)
	go func() { drained <- g.Drain(ctx) }()
	if said := w.toTheEnd(); !has(said, "57P01") {
		t.Errorf("drained: told %q", said)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// TestDrainWhilePinned ends an idle pinned client.
func TestDrainWhilePinned(t *testing.T) {
	g := startPins(t, 2, nil)
	w := g.dial(t, pgwire.Param{Name: "application_name", Value: "owner"})
	w.ask(query("select pg_advisory_lock(815)"))
	g.session(t, "owner", listener.StatePinned)
	g.drainEnds(t, w)
	if got := sees(t, pgtest.Shared(t).Connect(t), "select count(*)::text from pg_locks where locktype = 'advisory' and objid = 815"); got != "0" {
		t.Error("the lock is still held")
	}
}

// TestMaxPinned reaches the limit, by what is announced and by what is found afterwards.
func TestMaxPinned(t *testing.T) {
	g := startPins(t, 3, func(c *pgproxy.Config) { c.MaxPinned = 1 })
	first := g.connect(t, "application_name=first")
	simple(t, first, "select pg_advisory_lock(1)")
	g.session(t, "first", listener.StatePinned)
	w := g.dial(t)
	if types, bodies := w.ask(query("select pg_advisory_lock(2)")); types != "EZ" || !has(bodies, "53400") || !has(bodies, "max_pinned is 1") {
		t.Errorf("announced: %s %q", types, bodies)
	}
	w.send(&pgwire.Parse{Query: "prepare x as select 1"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{})
	if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "EZ" || !has(bodies, "53400") {
		t.Errorf("announced, extended: %s %q", types, bodies)
	}
	if types, _ := w.ask(query("begin; create temp table over_limit (n int) on commit drop; commit")); types != "CCCZ" {
		t.Errorf("what ends with its transaction: %s", types)
	}
	for _, unseen := range []string{"do $$ begin create temp table over_limit (n int); end $$"} {
		if types, bodies := w.ask(query(unseen)); types != "CZ" {
			t.Errorf("%s: %s %q", unseen, types, bodies)
		}
		if types, bodies := w.ask(query("select 1")); types != "EZ" || !has(bodies, "53400") || !has(bodies, "temporary objects") {
			t.Errorf("the next request: %s %q", types, bodies)
		}
		if types, _ := w.ask(query("select 1")); types != "TDCZ" {
			t.Errorf("afterwards: %s", types)
		}
		if types, bodies := w.ask(query("select * from over_limit")); types != "EZ" || !has(bodies, "42P01") {
			t.Errorf("afterwards: %s %q", types, bodies)
		}
	}
	simple(t, first, "select pg_advisory_unlock(1)")
	g.session(t, "first", listener.StateIdle)
	if types, bodies := w.ask(query("select pg_try_advisory_lock(2)")); types != "TDCZ" {
		t.Errorf("once there is room: %s %q", types, bodies)
	}
}

// TestOnStateRefuse refuses what is announced, and undoes the rest.
func TestOnStateRefuse(t *testing.T) {
	g := startPins(t, 1, func(c *pgproxy.Config) { c.OnState = pgproxy.RefuseState })
	w := g.dial(t)
	for _, sql := range []string{
		"create temp table refused (n int)", "prepare refused as select 1", "select pg_advisory_lock(1)",
		"declare refused cursor with hold for select 1", "load 'auto_explain'",
	} {
		if types, bodies := w.ask(query(sql)); types != "EZ" || !has(bodies, "0A000") || !has(bodies, "on_session_state") {
			t.Errorf("%s: %s %q", sql, types, bodies)
		}
		w.send(&pgwire.Parse{Name: "s", Query: sql}, &pgwire.Sync{})
		if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "EZ" || !has(bodies, "0A000") {
			t.Errorf("Parse of %s: %s %q", sql, types, bodies)
		}
	}
	w.ask(query("begin"))
	if _, bodies := w.ask(query("prepare refused as select 1")); !has(bodies, "ZE") && !strings.HasSuffix(bodies, "E") {
		t.Errorf("in a transaction: %q", bodies)
	}
	w.ask(query("rollback"))
	wantUndone(t, g)
}

// wantUndone wants what clients leave unseen to be undone before another transaction.
func wantUndone(t *testing.T, g *gateway) {
	t.Helper()
	c := g.connect(t, "")
	simple(t, c, "do $$ begin create temp table unseen (n int); perform pg_advisory_lock(99); end $$")
	if got := sees(t, c, "select to_regclass('unseen')::text"); got != "" {
		t.Errorf("there is still %s", got)
	}
	if got := sees(t, c, locksSeen); got != "0" {
		t.Errorf("%s locks", got)
	}
	if n := g.Stats().Pinned; n != 0 {
		t.Errorf("%d are pinned", n)
	}
}

func TestOnStateReset(t *testing.T) {
	g := startPins(t, 1, func(c *pgproxy.Config) { c.OnState = pgproxy.ResetState })
	c := g.connect(t, "")
	simple(t, c, "create temp table undone (n int)")
	if got := sees(t, c, "select to_regclass('undone')::text"); got != "" {
		t.Errorf("there is still %s", got)
	}
	wantUndone(t, g)
}

// TestOwnOlderSequenceValues has a client use a sequence on one server connection, then on another one, and ask for
// currval on the first: it has the older value, which no direct connection would return.
func TestOwnOlderSequenceValues(t *testing.T) {
	t.Run("at once", func(t *testing.T) { ownOlderSequenceValues(t, false) })
	t.Run("suspended", func(t *testing.T) { ownOlderSequenceValues(t, true) })
}

func ownOlderSequenceValues(t *testing.T, suspend bool) {
	pgtest.Shared(t).Exec(t, pinFixture)
	g, suspended := startWatched(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 2 })
	c := g.connect(t, "")
	const draws = "select pg_backend_pid()::text from nextval('pin.q')"
	first := sees(t, c, draws)
	for range 2 { // the first time it may have been suspended before it used the sequence
		if suspend {
			<-suspended
			simple(t, c, "select 1")
		}
	}
	holders := []*pgx.Conn{g.connect(t, ""), g.connect(t, "")}
	for _, h := range holders {
		simple(t, h, "begin")
	}
	if sees(t, holders[0], "select pg_backend_pid()::text") == first {
		slices.Reverse(holders)
	}
	simple(t, holders[0], "commit")
	if second := sees(t, c, draws); second == first {
		t.Fatal("the client got the server connection of an open transaction")
	}
	simple(t, holders[0], "begin")
	simple(t, holders[1], "commit")
	if _, err := c.PgConn().Exec(t.Context(), "select currval('pin.q')").ReadAll(); sqlstate(err) != "55000" {
		t.Errorf("currval on the server connection that the client used before the last one: %v, want 55000", err)
	}
}

// TestSequencesDoNotPin has a client leave values of sequences on the only server connection, which others get, but not the values.
func TestSequencesDoNotPin(t *testing.T) {
	g := startPins(t, 1, nil)
	c, other := g.connect(t, "application_name=first"), g.connect(t, "application_name=second")
	simple(t, c, "select setval('pin.q', 50)")
	g.session(t, "first", listener.StateIdle)
	simple(t, other, "select 1")
	if got := sees(t, c, "select currval('pin.q')::text"); got != "50" {
		t.Errorf("the client itself is told %s", got)
	}
	if got := sees(t, other, "select currval('pin.q')::text"); got != "" {
		t.Errorf("another client is told %s", got)
	}
}

// TestUnseenSettingsFollow has functions make settings, on one server connection that another client uses in between.
func TestUnseenSettingsFollow(t *testing.T) {
	g := startPins(t, 1, nil)
	c, other := g.connect(t, ""), g.connect(t, "")
	for _, sql := range []string{
		"select pin.run('set work_mem = ''%''')", "call pin.call('set work_mem = ''%''')", "do $$ begin execute 'set work_mem = ''%'''; end $$",
		"explain analyze update pg_settings set setting = '%' where name = 'work_mem'",
	} {
		for _, value := range []string{"1234kB", "2345kB"} {
			simple(t, c, strings.ReplaceAll(sql, "%", value))
			if got := sees(t, other, "show work_mem"); got != "4MB" {
				t.Errorf("%s: another client sees %s", sql, got)
			}
			if got := sees(t, c, "show work_mem"); got != value {
				t.Errorf("%s: %s, want %s", sql, got, value)
			}
		}
	}
	simple(t, c, "select pin.run('set role pg_monitor')")
	if got := sees(t, other, "select current_user::text"); got == "pg_monitor" {
		t.Error("another client has the role")
	}
	if got := sees(t, c, "select current_user::text"); got != "pg_monitor" {
		t.Errorf("the role is %s", got)
	}
}

// TestPinnedSettings compares the settings of a pinned client with those of one straight on the server, also once it is pinned no more.
func TestPinnedSettings(t *testing.T) {
	g := startPins(t, 2, nil)
	db := pgtest.Shared(t)
	straight, err := pgx.Connect(t.Context(), db.DSN(db.Superuser(), db.Password(), "postgres")+"&work_mem=7MB&application_name=owner&timezone=Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}
	defer straight.Close(context.Background())
	c := g.connect(t, "work_mem=7MB application_name=owner timezone=Asia/Tokyo")
	for _, sql := range []string{
		"create temp table pinned_settings (n int)", "set work_mem = '9MB'", "set timezone = 'Europe/Berlin'", "reset work_mem", "reset timezone",
		"set application_name = 'owner'", "begin", "set work_mem = '5MB'", "rollback", "set role pg_monitor", "reset role", "reset all",
		"set work_mem = '8MB'", "drop table pinned_settings", "reset all", "discard all",
	} {
		simple(t, straight, sql)
		simple(t, c, sql)
		const see = "select concat_ws(' ', current_setting('work_mem'), current_setting('timezone'), current_setting('application_name'), current_user = 'pg_monitor')"
		if want, got := sees(t, straight, see), sees(t, c, see); got != want {
			t.Errorf("%s: %s, straight on the server %s", sql, got, want)
		}
		for _, name := range []string{"TimeZone", "application_name"} {
			if want, got := straight.PgConn().ParameterStatus(name), c.PgConn().ParameterStatus(name); got != want {
				t.Errorf("%s: the client is told that %s is %s, straight on the server %s", sql, name, got, want)
			}
		}
	}
	g.session(t, "owner", listener.StateIdle)
	for range 100 { // the next request may come before the gateway has done anything
		simple(t, c, "set timezone = 'Europe/Berlin'")
		simple(t, c, "reset timezone")
		if got := sees(t, c, "select current_setting('timezone')"); got != "Asia/Tokyo" {
			t.Fatalf("after RESET the time zone is %s", got)
		}
	}
}

// TestLookWhateverIsSet has clients set what would cancel a look, or have it wait.
func TestLookWhateverIsSet(t *testing.T) {
	g := startPins(t, 1, nil)
	writer := pgtest.Shared(t).Connect(t)
	for _, sql := range []string{"begin isolation level serializable", "create table pin.written (n int)"} {
		do(t, writer, sql)
	}
	for _, sql := range []string{
		"create temp table pinned (n int); set statement_timeout = '1ms'",
		"begin isolation level read committed; create temp table pinned (n int); set session characteristics as transaction isolation level serializable, read only, deferrable; commit",
	} {
		w := g.dial(t, pgwire.Param{Name: "application_name", Value: "owner"})
		if types, bodies := w.ask(query(sql)); strings.Contains(types, "E") {
			t.Fatalf("%s: %s %q", sql, types, bodies)
		}
		held := g.session(t, "owner", listener.StatePinned)
		if held.Pinned != "temporary objects" {
			t.Errorf("%s: %+v", sql, held)
		}
		w.send(&pgwire.Terminate{})
		_ = w.Close()
		conntest.Eventually(t, "nothing is pinned", func() bool { return g.Stats().Pinned == 0 })
		if pid := sees(t, g.connect(t, ""), "select pg_backend_pid()::text"); strings.Contains(sql, "deferrable") && pid != fmt.Sprint(held.ServerPID) {
			t.Errorf("%s: the server connection is not used again: DISCARD ALL has waited for a transaction of others", sql)
		}
	}
	do(t, writer, "rollback")
}

// TestLooks counts what the gateway asks of its own: nothing where nothing can be left.
func TestLooks(t *testing.T) {
	g, f := startFake(t, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {})
	w := g.dial(t)
	var srv *wire
	for _, sql := range []string{
		"select 1", "select count(*), coalesce(max(a), now()) from t where b in (1, 2)", "insert into t (a, b) values (1, lower('X'))",
		"select 'create temp table x; listen y; f(1)' -- do it (now)", "begin", "commit", "insert into t (a, b) values (1, 2) on conflict (a) do update set b = 3",
	} {
		w.send(query(sql))
		if srv == nil {
			srv = <-f.conns
		}
		if got := srv.answerQuery(); got != sql {
			t.Fatalf("%q, want %q", got, sql)
		}
		w.until(pgwire.TypeReadyForQuery)
	}
	w.send(query("select mine(1)"))
	srv.answerQuery()
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "CZ" { // before the looks are answered
		t.Error(types)
	}
	w.send(query("select 2")) // it waits for them
	if got := srv.answerLook("0"); !has(got, "pg_catalog.pg_my_temp_schema()") || !has(got, "pg_catalog.pg_settings") {
		t.Errorf("%q", got)
	}
	if got := srv.answerQuery(); !has(got, "RESET ALL") { // custom settings that the function may have made
		t.Errorf("%q", got)
	}
	if got := srv.answerQuery(); got != "select 2" {
		t.Errorf("%q", got)
	}
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "CZ" {
		t.Error(types)
	}
}

// answerLook answers a look with the number of the kinds of state that there are, and no settings. It returns the look.
func (w *wire) answerLook(kinds string) string {
	w.t.Helper()
	typ, sql := w.read()
	if typ != pgwire.TypeQuery {
		w.t.Fatalf("%c %q", typ, sql)
	}
	w.send(&pgwire.DataRow{Values: [][]byte{{}, []byte(kinds)}}, &pgwire.CommandComplete{Tag: "COMMIT"}, &pgwire.ReadyForQuery{Status: pgwire.TxIdle})
	return sql
}

// TestLookThatFails has everything undone: nobody knows what is left there. One that is canceled is repeated.
func TestLookThatFails(t *testing.T) {
	g, f := startFake(t, nil)
	w := g.dial(t)
	w.send(query("select mine(1)"))
	srv := <-f.conns
	srv.answerQuery()
	w.until(pgwire.TypeReadyForQuery)
	for _, code := range []string{"57014", "42883"} {
		if typ, body := srv.read(); typ != pgwire.TypeQuery || !has(body, "pg_catalog.pg_my_temp_schema()") {
			t.Fatalf("%c %q", typ, body)
		}
		srv.send(&pgwire.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Message: "no"}, &pgwire.ReadyForQuery{Status: pgwire.TxIdle})
	}
	w.send(query("select 2"))
	for _, want := range []string{"ROLLBACK", "pg_catalog.pg_settings", "DISCARD ALL", "select 2"} {
		if got := srv.answerQuery(); !has(got, want) {
			t.Errorf("%q, want %s", got, want)
		}
	}
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "CZ" {
		t.Error(types)
	}
}

// TestLookOfAClientThatLeaves has clients leave while the gateway has a look.
func TestLookOfAClientThatLeaves(t *testing.T) {
	g := startPins(t, 1, nil)
	for i := range 50 {
		w := g.dial(t)
		w.send(query("select pin.run('listen left_behind')"), &pgwire.Terminate{})
		if i%2 == 0 {
			w.until(pgwire.TypeReadyForQuery)
		}
		_ = w.Close()
	}
	if got := sees(t, g.connect(t, ""), channelsSeen); got != "" {
		t.Errorf("the server connection listens to %s", got)
	}
}

// TestPinnedIsSuspended has a pinned client wait for longer than a session keeps its stack.
func TestPinnedIsSuspended(t *testing.T) {
	g := startPins(t, 1, nil)
	c := g.connect(t, "application_name=owner")
	simple(t, c, "create temp table pinned as select 5 as n")
	g.session(t, "owner", listener.StatePinned)
	started := time.Now()
	conntest.Eventually(t, "some time has passed", func() bool { return time.Since(started) > 300*time.Millisecond })
	if n := one[int](t, c, "select n from pinned"); n != 5 {
		t.Error(n)
	}
}

// TestJudge of texts.
func TestJudge(t *testing.T) {
	for sql, want := range map[string]string{
		"": "", "select 1": "", "SELECT lower(a), Count ( * ) FROM t": "", "select a.lower(1)": "?", "select f(1)": "?", `select "f"(1)`: "?", `select "lower"('A')`: "",
		"select f/* a */(1)": "?", "select f -- abs\n (1)": "?", "select pg_catalog.abs(1)": "", "select my.abs(1)": "?",
		"insert into t (a, b) values (f(1))": "?", "insert into s.t (a) values (1)": "", "with x (a) as (select 1) select * from x": "",
		"select * from unnest(array[1]) as u(a)": "", "select * from unnest($1) u(a)": "", "create table if not exists t (a int, b varchar(10))": "temporary objects", // where search_path begins with pg_temp
		"/* c */ DO $$ begin end $$": "?", "call p()": "?", "execute s": "?", "explain select 1": "",
		"select 1; do $$ $$": "?", "select ';do f()'": "", `select 'a\'`: "?", `select E'a\'; f('`: "", `select e'\\', f(1)`: "?", "select $a$ f( $a$": "", "select $1, f($2)": "?",
		"create temp table t as select 1": "temporary objects", "CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1": "temporary objects", "select temp from weather": "",
		"select 1 into temp t": "temporary objects", "create table pg_temp.t (a int)": "temporary objects", `create table "pg_temp".t (a int)`: "temporary objects",
		`create table PG_Temp_3."t" (a int)`: "temporary objects", `create table U&"pg\005ftemp".t (a int)`: "?temporary objects", `select u &'t' from t`: "",
		"listen x": "LISTEN", "select listen from t": "",
		"prepare s as select 1": "PREPARE", "prepare transaction 'x'": "", "declare c cursor with hold for select 1": "cursors WITH HOLD", "declare c cursor without hold for select 1": "",
		"load 'x'": "LOAD", "select pg_advisory_lock(1)": "advisory locks", "select pg_advisory_xact_lock(1)": "", "select nextval('q')": "values of sequences",
		"select set_config('a', 'b', false)": "", "set seed to 0.5": "setseed", "set session seed to 0.5": "setseed", "set work_mem = '1MB'": "",
		"update pg_settings set setting = 1": "", "copy (select set_config('a', 'b', false)) to stdout": "", "copy t (a, b) from stdin": "",
		// on conflict, distinct on, operator
		"insert into t (a, b) values ($1, $2) on conflict (a) do update set b = $2": "", `insert into t values (1) on conflict (a, "b") /* c */ do nothing`: "",
		"insert into t select 1 from a join b on conflict(a.x)": "?", "select 1 from a join b on conflict(x) doing": "?", "insert into t values (1) on conflict (f(a)) do nothing": "?",
		"select distinct on (a) f(b) from t": "?", "select distinct on (a) b from t": "", "select 1 operator(pg_catalog.+) f(1)": "?", "select 1 operator ( pg_catalog.+ ) f(1)": "?",
		// search_path = pg_temp, and names of that
		"set search_path = pg_temp, public": "temporary objects", "set search_path = public": "", "select set_config('search_path', 'pg_temp', false)": "",
		"select 1 as a into x": "temporary objects", "select (1) into x": "temporary objects", "select 1 INTO x from t": "temporary objects", "create operator pg_temp.+ (leftarg = int)": "temporary objects",
		"explain analyze create table x as select 1": "temporary objects", "insert into x select 1": "", "merge into t using u on a = b when matched then do nothing": "",
		// what runs
		"explain analyze execute s": "?", "explain (analyze) execute s": "?", "create table t as execute s": "?temporary objects", "create trigger x before insert on t execute function f": "?temporary objects",
		// to the end, whatever is unknown before
		"select f(), setseed(0.5)": "?setseed", "do $$ begin end $$; load 'x'": "?LOAD", "select ext.dblink_connect('a')": "?dblink", `select "pg_catalog".setseed(0.5)`: "setseed",
		`select "pg_catalog"."setseed"(0.5)`: "setseed", "do $$ begin perform setseed(0.5); end $$": "?setseed", "do $$ begin load 'x'; end $$": "?LOAD", "do 'begin set seed = 0.5; end'": "?setseed", "do $$ begin perform set_config('seed', '0.5', false); end $$": "?setseed",
		"create function f() returns void language sql as $$ select setseed(0.5) $$": "?temporary objects",
		"set local seed to 0.5": "setseed", `set "seed" to 0.5`: "setseed", "select set_config('seed', '0.5', false)": "setseed", "select set_config('Seed', '0.5', true)": "setseed", "set app.seed = 1": "",
		"prepare p as select 1; begin; prepare transaction 'x'": "PREPARE", "prepare  transaction 'x'": "", "prepare transaction_insert as select 1": "PREPARE", "prepare transaction as select 1": "PREPARE",
		"explain execute function": "?", "select E'\\n\x95\\', pg_advisory_lock(4711), E'\\n\x95\\'": "?", "select \x95\\(1)": "?", "select \x83@(1)": "?", "select $\x95\\$ ' $\x95\\$": "?",
		"select 'caf\u00e9|', caf\u00e9 from t": "", "alter table t add column id bigserial": "", "select E'\\n\u00e9'": "", "prepare/**/transaction 'x'": "", "select 1into temp x": "?", "select 1.5e3, .5, 1.": "",
		"(select f(1))": "?", "select (1)f": "", "values (1, 2)": "", "select x'ff', b'01', u&'a', n'f('": "",
		"select " + strings.Repeat("1,", 200000) + "1": "?",
	} {
		if got := pgproxy.Judged(sql); got != want {
			t.Errorf("%.80q: %q, want %q", sql, got, want)
		}
	}
}

// TestJudgePlain has plain texts judged both ways.
func TestJudgePlain(t *testing.T) {
	for sql, want := range map[string]bool{
		"select 1": true, "SELECT a, b FROM t WHERE c = 'x' -- it": true, "begin": true, "BEGIN ISOLATION LEVEL SERIALIZABLE": true, "commit": true, "rollback to a": true,
		"insert into t values": true, "delete from t": true, "select a from member": true, "select m": true, "select 'temporal'": false, "select 1;": true, "select 1;;": false, "select 1; select 2": false, "select 1; ": false, "select f(1)": false, "INSERT INTO t SELECT a FROM s;": true, "select a InTo b": false,
		"select 1 into temp t": false, "select 1 into TEMPorary t": false, "select 1 into Temp t": false, "select * from pg_temp.t": false, "update t set a = 1": false,
		"selects": false, "": false, " select 1": false, "do $$ $$": false, "prepare a as select 1": false, "select.a": true, "begin/**/": true, "listen a": false,
	} {
		if plain, same := pgproxy.JudgedPlain(sql); plain != want || !same {
			t.Errorf("%q: plain %t, want %t; same %t", sql, plain, want, same)
		}
	}
}

// plainTexts are such as leave nothing, and of which everything is known.
var plainTexts = []string{
	"select 1", "begin", "select abalance from pgbench_accounts where aid = 4711",
	"INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 2, 3, 4, CURRENT_TIMESTAMP)",
	`select u."Id", count(*), coalesce(max(o.total), 0) from "Users" u left join orders as o on o."userId" = u."Id" where u.name in ('a', 'b') -- it
	 group by u."Id" having sum(o.total) > 10.5 order by 2 desc limit 10`,
}

// TestJudgingMakesNoGarbage of plain texts, and of those that never come again.
func TestJudgingMakesNoGarbage(t *testing.T) {
	var known pgproxy.Verdicts
	for _, sql := range plainTexts {
		text := []byte(sql)
		if n := testing.AllocsPerRun(100, func() { pgproxy.JudgeText(text) }); n > 0 {
			t.Errorf("%s: %v allocations", sql, n)
		}
		text = append(text, " and a = lower('0000')"...)
		if n := testing.AllocsPerRun(100, func() {
			for i := len(text) - 3; i >= len(text)-6; i-- { // count
				if text[i]++; text[i] <= '9' {
					break
				}
				text[i] = '0'
			}
			known.Judge(text)
		}); n > 0 {
			t.Errorf("%s: %v allocations", text, n)
		}
	}
	if n := known.Kept(); n > 0 {
		t.Errorf("%d texts are kept", n)
	}
}

// TestVerdicts are those of judge, also for texts that share a place, and from several goroutines.
func TestVerdicts(t *testing.T) {
	var known pgproxy.Verdicts
	var judging sync.WaitGroup
	for range 4 {
		judging.Go(func() {
			for range 3 {
				for i := range 2000 {
					text := fmt.Appendf(nil, "select %s(%d)", []string{"abs", "mine", "nextval", "pg_advisory_lock"}[i%4], i)
					if got, want := known.Judge(text), pgproxy.JudgeText(text); got != want {
						t.Errorf("%s: %b, want %b", text, got, want)
					}
				}
			}
		})
	}
	judging.Wait()
	for range 3 {
		known.Judge([]byte("select f(1)\x00"))
	}
	if known.Kept() == 0 {
		t.Error("nothing is kept")
	}
	if got, want := known.Judge([]byte("select f(1)\x00listen x")), pgproxy.JudgeText([]byte("select f(1)")); got != want {
		t.Errorf("%b, want %b", got, want)
	}
}

// TestQuiet has texts that come again judged: those that say nothing of settings and deallocated statements are quiet, and only those.
func TestQuiet(t *testing.T) {
	for sql, want := range map[string]bool{
		"select f(1)": true, "select now();": true, "update t set a = 1": true, "insert into t values (1)": true, "SELECT count(*) FROM t;": true,
		"select set_config('a.b', 'c', false)": false, "set a = 1": false, "set local a = 1": false, " set transaction read only": false,
		"select f(1); set a.b = 1": false, "deallocate s": false, "select f(1); deallocate s": false, "discard all": false, "do $$ begin set a.b = 1; end $$": false,
		"update pg_settings set setting = 'x' where name = 'y'": false, "select f(1); SeT A.B to 1": false, "select f(); deallocate all": false,
	} {
		var known pgproxy.Verdicts
		if quiet, right := known.QuietAgrees(sql); quiet != want || !right {
			t.Errorf("%q: quiet %t, want %t; right: %t", sql, quiet, want, right)
		}
	}
}

func BenchmarkJudge(b *testing.B) {
	for _, sql := range plainTexts {
		b.Run(sql[:min(len(sql), 20)], func(b *testing.B) {
			text := []byte(sql)
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				pgproxy.JudgeText(text)
			}
		})
		b.Run(sql[:min(len(sql), 20)]+" again", func(b *testing.B) {
			text := []byte(sql)
			var known pgproxy.Verdicts
			b.ReportAllocs()
			for b.Loop() {
				known.Judge(text)
			}
		})
	}
}
