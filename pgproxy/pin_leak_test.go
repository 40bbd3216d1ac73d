package pgproxy_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestUnseenStatePins has a client leave state by texts that do not look like it, and finds it pinned for the right reason.
func TestUnseenStatePins(t *testing.T) {
	g := startPins(t, 2, nil)
	for _, k := range []struct{ make, name string }{
		{"select distinct on (a) pin.run('create temp table unseen (n int)') from generate_series(1, 1) a", "temporary objects"},
		{"select 1 operator(pg_catalog.+) pin.number('select pg_advisory_lock(1)')", "advisory locks"},
		{"set search_path = pg_temp, public; create table unseen (n int)", "temporary objects"},
		{"set search_path = pg_temp, public; select 1 as n into unseen", "temporary objects"},
		{`create table "pg_temp"."unseen" (n int)`, "temporary objects"},
		{"prepare unseen as select pg_advisory_lock(1); explain analyze execute unseen; deallocate unseen", "advisory locks"},
		{"prepare unseen as select pg_try_advisory_lock(1); create table pg_temp.made as execute unseen; drop table made; deallocate unseen", "advisory locks"},
		{"select pin.run(''), setseed(0.5)", "setseed"},
		{"do $$ begin perform setseed(0.5); end $$", "setseed"},
		{"do $$ begin load 'auto_explain'; end $$", "LOAD"},
		{"begin; set local seed = 0.5; commit", "setseed"},
		{"select set_config('seed', '0.5', true)", "setseed"},
	} {
		w := g.dial(t, pgwire.Param{Name: "application_name", Value: "maker"})
		if types, bodies := w.ask(query(k.make)); strings.Contains(types, "E") {
			t.Fatalf("%s: %s %q", k.make, types, bodies)
		}
		if held := g.session(t, "maker", listener.StatePinned); held.Pinned != k.name {
			t.Errorf("%s: pinned for %q, want %q", k.make, held.Pinned, k.name)
		}
		w.send(&pgwire.Terminate{})
		w.toTheEnd()
	}
}

// TestSeedByFunctionCall has the fast path set the seed: the client is pinned for it.
func TestSeedByFunctionCall(t *testing.T) {
	g := startPins(t, 1, nil)
	w := g.dial(t, pgwire.Param{Name: "application_name", Value: "maker"})
	half := []byte{0x3f, 0xe0, 0, 0, 0, 0, 0, 0}
	w.send(&pgwire.FunctionCall{Function: 1599, ArgFormats: []int16{1}, Args: [][]byte{half}, ResultFormat: 1})
	if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "VZ" {
		t.Fatalf("%s %q", types, bodies)
	}
	if held := g.session(t, "maker", listener.StatePinned); held.Pinned != "setseed" {
		t.Errorf("pinned for %q", held.Pinned)
	}
}

// TestCustomSettingsOfFunctions has functions make custom settings, which the server does not list: they are nobody else's.
func TestCustomSettingsOfFunctions(t *testing.T) {
	g := startPins(t, 1, nil)
	c, other := g.connect(t, "application_name=first"), g.connect(t, "")
	for _, sql := range []string{
		"select pin.run('set app.tenant = 7')", "select pin.run($$select set_config('app.' || 'tenant', '7', false)$$)", "call pin.call('set app.tenant = 7')",
		"create temp table own (n int); select pin.run('set app.tenant = 7'); drop table own",
	} {
		simple(t, c, sql)
		g.session(t, "first", listener.StateIdle)
		if got := sees(t, other, "select current_setting('app.tenant', true)"); got != "" {
			t.Errorf("%s: another client sees %q", sql, got)
		}
	}
	simple(t, c, "create temp table own (n int)")
	simple(t, c, "select pin.run('set app.tenant = 8')")
	if got := sees(t, c, "select current_setting('app.tenant', true)"); got != "8" {
		t.Errorf("while it is pinned the client sees %q", got)
	}
	simple(t, c, "drop table own")
	if got := sees(t, other, "select current_setting('app.tenant', true)"); got != "" {
		t.Errorf("another client sees %q", got)
	}
}

// TestLookWithHostileOperators has a client replace the operators that a look would use.
func TestLookWithHostileOperators(t *testing.T) {
	g := startPins(t, 2, nil)
	db := pgtest.Shared(t)
	db.Exec(t, `drop schema if exists hostile cascade; create schema hostile;
		create function hostile.never(text, text) returns bool language sql as 'select false';
		create function hostile.never(oid, oid) returns bool language sql as 'select false';
		create function hostile.never(int, int) returns bool language sql as 'select false';
		create operator hostile.= (leftarg = text, rightarg = text, function = hostile.never);
		create operator hostile.= (leftarg = oid, rightarg = oid, function = hostile.never);
		create operator hostile.= (leftarg = int, rightarg = int, function = hostile.never)`)
	for _, sql := range []string{"select pg_advisory_lock(1)", "create temp table planted (n int)"} {
		w := g.dial(t, pgwire.Param{Name: "application_name", Value: "maker"})
		if types, bodies := w.ask(query("set search_path = hostile, public, pg_catalog; " + sql)); strings.Contains(types, "E") {
			t.Fatalf("%s: %s %q", sql, types, bodies)
		}
		g.session(t, "maker", listener.StatePinned)
		w.send(&pgwire.Terminate{})
		w.toTheEnd()
	}
	db.Exec(t, "drop schema hostile cascade")
}

// TestSequencesOfOthers has a client use a sequence on the only server connection: no other one is told its values, whatever it sends, and
// whether it is the first to ask since the gateway was started or not.
func TestSequencesOfOthers(t *testing.T) {
	g := startPins(t, 1, nil)
	db := pgtest.Shared(t)
	db.Exec(t, "drop table if exists pin.plain, pin.numbered; create table pin.plain (n int); create table pin.numbered (n int); insert into pin.numbered values (1), (2)")
	extended := func(sqls ...string) (messages []pgwire.Message) {
		for _, sql := range sqls {
			messages = append(messages, &pgwire.Parse{Query: sql}, &pgwire.Bind{}, &pgwire.Execute{})
		}
		return append(messages, &pgwire.Sync{})
	}
	draws, inserts := "select nextval('pin.q')", "insert into pin.plain values (1)"
	for _, c := range []struct {
		later bool // not the first to ask
		draws string
		asks  []pgwire.Message
	}{
		{false, draws, extended("select lastval()")}, {false, draws, extended("begin", "select lastval()", "rollback")}, {false, draws, []pgwire.Message{query("select lastval()")}},
		{false, draws, []pgwire.Message{query(inserts + "; select lastval()")}}, {false, draws, []pgwire.Message{query("begin"), query("select currval('pin.q')"), query("rollback")}},
		{false, draws, append([]pgwire.Message{&pgwire.Parse{Name: "l", Query: "select lastval()"}, &pgwire.Sync{}}, &pgwire.Bind{Statement: "l"}, &pgwire.Execute{}, &pgwire.Sync{})},
		{false, draws, []pgwire.Message{query("select pin.run('select lastval()')")}},
		{true, draws, []pgwire.Message{query("select lastval()")}}, {true, draws, []pgwire.Message{query("begin; " + inserts + "; select currval('pin.q')"), query("rollback")}},
		{true, draws, extended(inserts, "select lastval()")}, {true, draws, []pgwire.Message{query("begin"), query(inserts), query("select lastval()"), query("rollback")}},
		{true, "alter table pin.numbered add column id bigserial", []pgwire.Message{query("select lastval()")}},
	} {
		g := g
		if !c.later {
			g = startPins(t, 1, nil)
		}
		w := g.dial(t)
		if c.later {
			w.ask(query("select lastval()"))
		}
		simple(t, g.connect(t, ""), c.draws)
		w.send(c.asks...)
		said := ""
		for _, m := range c.asks {
			switch m.(type) {
			case *pgwire.Query, *pgwire.Sync:
				_, bodies := w.until(pgwire.TypeReadyForQuery)
				said += bodies
			}
		}
		if !has(said, "55000") {
			t.Errorf("%s, later %t: told %q", fmt.Sprintf("%+v", c.asks), c.later, said)
		}
	}
	w := g.dial(t)
	simple(t, g.connect(t, ""), draws)
	w.ask(query("create temp table own (n int)")) // it is pinned, and then inserts without a sequence
	w.ask(query(inserts))
	if types, bodies := w.ask(query("select lastval()")); !strings.Contains(types, "E") || !has(bodies, "55000") {
		t.Errorf("pinned: %s %q", types, bodies)
	}
	w.ask(query("drop table own"))
	simple(t, g.connect(t, ""), draws)
	if types, bodies := w.ask(query("begin; insert into pin.numbered (n) values (1); select lastval() = max(id) from pin.numbered; commit")); strings.Contains(types, "E") || !has(bodies, "t") {
		t.Errorf("its own value: %s %q", types, bodies)
	}
}

// TestMaxPinnedInPipelines reaches the limit with statements that were prepared before, and inside transactions.
func TestMaxPinnedInPipelines(t *testing.T) {
	g := startPins(t, 3, func(c *pgproxy.Config) { c.MaxPinned = 1 })
	w := g.dial(t)
	w.send(&pgwire.Parse{Name: "l", Query: "select pg_advisory_lock(2)"}, &pgwire.Sync{})
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "1Z" {
		t.Fatal(types)
	}
	first := g.connect(t, "application_name=first")
	simple(t, first, "select pg_advisory_lock(1)")
	g.session(t, "first", listener.StatePinned)
	w.send(&pgwire.Bind{Statement: "l"}, &pgwire.Execute{}, &pgwire.Sync{})
	if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "EZ" || !has(bodies, "53400") {
		t.Errorf("prepared: %s %q", types, bodies)
	}
	w.ask(query("begin"))
	if types, bodies := w.ask(query("prepare x as select 1")); types != "EZ" || !has(bodies, "53400") {
		t.Errorf("in a transaction: %s %q", types, bodies)
	}
	w.ask(query("rollback"))
	// What is found afterwards is undone at once, not when the server connection is used again.
	if types, bodies := w.ask(query("do $$ begin perform pg_advisory_lock(77); end $$")); types != "CZ" {
		t.Errorf("%s %q", types, bodies)
	}
	direct := pgtest.Shared(t).Connect(t)
	do(t, direct, "select pg_advisory_lock(77)", pgx.QueryExecModeSimpleProtocol) // or it waits for ever
	do(t, direct, "select pg_advisory_unlock(77)", pgx.QueryExecModeSimpleProtocol)
	simple(t, first, "select pg_advisory_unlock(1)")
	g.session(t, "first", listener.StateIdle)
	w.ask(query("select 1")) // 53400, for what was undone
	w.send(&pgwire.Bind{Statement: "l"}, &pgwire.Execute{}, &pgwire.Sync{})
	if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "2DCZ" {
		t.Errorf("once there is room: %s %q", types, bodies)
	}
}

// TestRefusedDeallocate leaves nothing of the client's statement to the next one.
func TestRefusedDeallocate(t *testing.T) {
	g := startPins(t, 1, func(c *pgproxy.Config) { c.OnState = pgproxy.RefuseState })
	w, next := g.dial(t), g.dial(t)
	w.send(&pgwire.Parse{Name: "a", Query: "select 1"}, &pgwire.Sync{})
	w.until(pgwire.TypeReadyForQuery)
	if types, bodies := w.ask(query("deallocate a; prepare x as select 1")); types != "EZ" || !has(bodies, "0A000") {
		t.Errorf("%s %q", types, bodies)
	}
	next.send(&pgwire.Bind{Statement: "a"}, &pgwire.Execute{}, &pgwire.Sync{})
	if types, bodies := next.until(pgwire.TypeReadyForQuery); types != "EZ" || !has(bodies, "26000") {
		t.Errorf("another client: %s %q", types, bodies)
	}
	w.send(&pgwire.Bind{Statement: "a"}, &pgwire.Execute{}, &pgwire.Sync{})
	if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "2DCZ" {
		t.Errorf("the client itself: %s %q", types, bodies)
	}
}

// TestNoNoticesOfLooks has a client ask for every notice there is, of its own statements.
func TestNoNoticesOfLooks(t *testing.T) {
	g := startPins(t, 1, nil)
	w, other := g.dial(t), g.connect(t, "")
	behind := func(sql string) (types string) {
		simple(t, other, "select nextval('pin.q')")
		w.ask(query("set client_min_messages = debug5"))
		w.ask(query(sql))
		simple(t, other, "select 1") // the look is over
		types, _ = w.ask(query("set client_min_messages = error"))
		return types
	}
	want := behind("select 1")
	for _, sql := range []string{"do $$ begin end $$", "select lastval()", "create temp table noticed (n int) on commit drop"} {
		if got := behind(sql); got != want {
			t.Errorf("behind %s the client gets %s, want %s", sql, got, want)
		}
	}
}

// TestPlacesOfPinned has many clients take and leave the few places, by every way out: afterwards all places are free.
func TestPlacesOfPinned(t *testing.T) {
	const places = 2
	g := startPins(t, 4, func(c *pgproxy.Config) { c.MaxPinned = places })
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for round := range 6 {
				w := g.dial(t)
				for _, sql := range []string{
					fmt.Sprintf("select pg_try_advisory_lock(%d)", i), "begin; listen x; rollback", "do $$ begin create temp table if not exists placed (n int); end $$", "select 1",
					"discard all", "create temp table placed (n int)",
				}[:1+(round+i)%6] {
					w.ask(query(sql)) // with 53400 or without
				}
				if w.send(&pgwire.Parse{Name: "l", Query: "prepare x as select 1"}); (round+i)%2 == 0 {
					w.send(&pgwire.Sync{}, &pgwire.Terminate{})
					w.toTheEnd()
				}
				_ = w.Close()
			}
		})
	}
	clients.Wait()
	conntest.Eventually(t, "nothing is pinned", func() bool { return g.Stats().Pinned == 0 })
	for range places {
		w := g.dial(t)
		conntest.Eventually(t, "there is a place", func() bool {
			types, _ := w.ask(query("prepare x as select 1"))
			return types == "CZ"
		})
	}
	if types, bodies := g.dial(t).ask(query("prepare x as select 1")); types != "EZ" || !has(bodies, "53400") {
		t.Errorf("beyond the places: %s %q", types, bodies)
	}
}

// TestNotificationsOfEnded has a client whose session ends while it is looked at, when it listens: the next client on the server connection is
// told of its own channel only.
func TestNotificationsOfEnded(t *testing.T) {
	g := startPins(t, 1, nil)
	told := pgtest.Shared(t).Connect(t)
	w := g.dial(t)
	for range 10 {
		w.send(query("select set_config('zz.big', repeat('x', 70000), false); select pin.run('listen zz')"))
		for range 20 {
			simple(t, told, "notify zz, 'secret'")
		}
		if said := w.toTheEnd(); !has(said, "54000") {
			t.Fatalf("told %.200q", said)
		}
		_ = w.Close()
		next := g.dial(t)
		if types, bodies := next.ask(query("listen other_channel")); has(bodies, "secret") {
			t.Errorf("%s %q", types, bodies)
		}
		simple(t, told, "notify other_channel, 'mine'")
		if typ, body := next.read(); typ != pgwire.TypeNotificationResponse || !has(body, "mine") {
			t.Errorf("told %c %q", typ, body)
		}
		next.send(&pgwire.Terminate{})
		next.toTheEnd()
		w = g.dial(t)
	}
}
