package pgproxy_test

import (
	"net"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// direct returns a client of the server itself.
func direct(t *testing.T, db *pgtest.Cluster) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", db.Addr())
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, conn)
	w.send(&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: db.Superuser()}, {Name: "database", Value: "postgres"}}})
	if types, body := w.until(pgwire.TypeReadyForQuery); has(types, "E") {
		t.Fatal(body)
	}
	return w
}

// changes are events between two clients that prepare the same text, by name.
var changes = map[string]struct {
	setup, text string
	param       string // "" = the text has none
	change      string // beside the gateway
	within      string // the transaction that the client begins before it prepares; "" = none
}{
	"type and table recreated": {
		"create type kind as enum ('a', 'b'); create table typed (e kind); insert into typed values ('a')",
		"select e::text from typed where e = any($1::kind[])", "{a}",
		"drop table typed; drop type kind; create type kind as enum ('b', 'a'); create table typed (e kind); insert into typed values ('a')", "",
	},
	"type recreated": {
		"create type alone as enum ('a')", "select 'a'::alone::text, $1::alone", "a",
		"drop type alone; create type alone as enum ('a', 'b')", "",
	},
	"table recreated": {
		"create table shaped (a int); insert into shaped values (1)", "select * from shaped", "",
		"drop table shaped; create table shaped (b text, c text); insert into shaped values ('x', 'y')", "",
	},
	"type of a parameter": {
		"create table compared (a int); insert into compared values (1)", "select count(*) from compared where a = $1", "1",
		"alter table compared alter a type text", "",
	},
	"function replaced": {
		"create function made() returns int language sql as 'select 1'", "select made()", "",
		"drop function made(); create function made() returns text language sql as $$select 'x'$$", "",
	},
	"better function": {
		"create function chosen(bigint) returns text language sql as $$select 'bigint'$$", "select chosen(1)", "",
		"create function chosen(int) returns text language sql as $$select 'int'$$", "",
	},
	"search_path": {
		"create table found (a int); insert into found values (1); create schema other; create table other.found (b text, c text); insert into other.found values ('x', 'y')",
		"select * from found", "", "", "begin; select set_config('search_path', 'other', true)",
	},
	"temporary table": {
		"create table shadowed (a int); insert into shadowed values (1)", "select to_json(shadowed)::text from shadowed", "", "",
		"begin; create temporary table shadowed (b text) on commit drop; insert into shadowed values ('temporary')",
	},
	"setting of the parser": {
		"", "select ($1::text = null)::text", "x", "", "begin; set local transform_null_equals = on",
	},
	"dropped": {"create table dropped (a int)", "select * from dropped", "", "drop table dropped", ""},
}

// TestParseMeansWhatItMeansNow makes a client prepare a text and keep it, then something changes, and another client
// prepares the same text: it must get the description and the rows of a direct client.
func TestParseMeansWhatItMeansNow(t *testing.T) {
	db := pgtest.Start(t)
	for what, c := range changes {
		t.Run(what, func(t *testing.T) {
			if c.setup != "" {
				db.Exec(t, c.setup)
			}
			g := start(t, db, small)
			var params [][]byte
			if c.param != "" {
				params = [][]byte{[]byte(c.param)}
			}
			messages := append(append(preparing("s", c.text), using("s", params...)...), &pgwire.Sync{})
			holder, fresh, same := g.dial(t), g.dial(t), direct(t, db)
			before, was := holder.ask(messages...)
			if has(before, "E") {
				t.Fatalf("at first: %s %q", before, was)
			}
			if c.change != "" {
				db.Exec(t, c.change)
			}
			if c.within != "" {
				fresh.ask(query(c.within))
				same.ask(query(c.within))
			}
			want, wantBodies := same.ask(messages...)
			if got, bodies := fresh.ask(messages...); got != want || bodies != wantBodies {
				t.Errorf("a client that prepares it now gets %s %q, one of the server itself %s %q", got, bodies, want, wantBodies)
			}
			if c.within == "" {
				return
			}
			same.ask(query("commit"))
			fresh.ask(query("commit"))
			if got, bodies := holder.ask(append(using("s", params...), &pgwire.Sync{})...); got != "2DCZ" || !strings.HasSuffix(was, bodies[1:]) {
				t.Errorf("after that the client that prepared it before gets %s %q, and had %q", got, bodies, was)
			}
		})
	}
}

// TestLiteralIsReadWhenItIsParsed is about literals that stand for a time: they are read by Parse.
func TestLiteralIsReadWhenItIsParsed(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, small)
	holder, fresh := g.connect(t, ""), g.connect(t, "")
	const text = "select extract(epoch from timestamptz 'now')::text"
	_ = one[string](t, holder, text)
	between := one[string](t, db.Connect(t), "select extract(epoch from clock_timestamp())::text")
	if now := one[string](t, fresh, text); now <= between {
		t.Errorf("a client that prepares it now gets %s, and it was %s before that", now, between)
	}
}

// TestStatementsHealAfterErrors uses statements that DDL has made useless after they were prepared: from the second try
// on the server has parsed them again.
func TestStatementsHealAfterErrors(t *testing.T) {
	db := pgtest.Start(t)
	db.Exec(t, "create type healed as enum ('a')")
	g := start(t, db, small)
	w := g.dial(t)
	messages := append(using("s", []byte("{a}")), &pgwire.Sync{})
	if types, bodies := w.ask(append(preparing("s", "select 'a' = any($1::healed[])"), messages...)...); types != "1tT2DCZ" {
		t.Fatal(types, bodies)
	}
	db.Exec(t, "drop type healed; create type healed as enum ('a')")
	_, _ = w.ask(messages...) // as straight on the server
	if types, bodies := w.ask(messages...); types != "2DCZ" {
		t.Errorf("%s %q", types, bodies)
	}
}

// TestPrepareWhileAllAreInUse prepares a text that another client has prepared while every server connection is in use:
// programs with one thread for many clients wait for that, and could not end the transactions that they wait for.
func TestPrepareWhileAllAreInUse(t *testing.T) {
	db := pgtest.Start(t)
	db.Exec(t, "create table late (a int)")
	g := start(t, db, small)
	busy, w := g.dial(t), g.dial(t)
	const text = "select * from late"
	if types, _ := busy.ask(append(preparing("s", text), &pgwire.Sync{})...); types != "1tTZ" {
		t.Fatal(types)
	}
	busy.ask(query("begin"))
	if types, _ := w.ask(&pgwire.Parse{Name: "s", Query: text}, &pgwire.Sync{}); types != "1Z" {
		t.Fatal(types)
	}
	busy.ask(query("rollback"))
	db.Exec(t, "alter table late add b int")
	if types, bodies := w.ask(&pgwire.Describe{Object: pgwire.ObjectStatement, Name: "s"}, &pgwire.Sync{}); types != "tTZ" || !has(bodies, "b\x00") {
		t.Errorf("parsed as it was used first: %s %q", types, bodies)
	}
}

// TestLongStatementsAndNames prepares as much as there is room for, under names of all lengths.
func TestLongStatementsAndNames(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 2 })
	for _, name := range []string{"s", strings.Repeat("n", 64), strings.Repeat("n", 2000), strings.Repeat("n", 8000)} {
		for _, size := range []int{10, 300 << 10, 3 << 20} {
			long := "select length('" + strings.Repeat("x", size) + "')"
			script := [][]pgwire.Message{
				append(preparing(name, long), &pgwire.Sync{}),
				append(using(name), &pgwire.Sync{}),
				{&pgwire.Parse{Name: name, Query: "select 1"}, &pgwire.Sync{}},
				{&pgwire.Parse{Name: name + "x", Query: "select 1"}, &pgwire.Sync{}},
				{&pgwire.Bind{Portal: "p" + name[1:], Statement: name}, &pgwire.Execute{Portal: "p" + name[1:]}, &pgwire.Sync{}},
				{&pgwire.Close{Object: pgwire.ObjectStatement, Name: name}, &pgwire.Sync{}},
				append(using(name), &pgwire.Sync{}),
			}
			a, b := g.dial(t), direct(t, db)
			for i, messages := range script {
				got, bodies := a.ask(messages...)
				want, wantBodies := b.ask(messages...)
				if wantBodies, _, _ = strings.Cut(wantBodies, "\x00F"); got != want || !strings.HasPrefix(bodies, wantBodies) { // without the file
					t.Errorf("name of %d bytes, text of %d, %d: %s %.200q, and from the server itself %s %.200q", len(name), size, i, got, bodies, want, wantBodies)
				}
			}
		}
	}
	w := g.dial(t)
	long := strings.Repeat("n", 9000)
	if types, bodies := w.ask(&pgwire.Bind{Portal: long, Statement: long}, &pgwire.Execute{Portal: long}, &pgwire.Sync{}); types != "EZ" || !has(bodies, "C54000\x00") {
		t.Errorf("%s %q", types, bodies)
	}
	for i := range 2 { // more than there is room for
		types, bodies := w.ask(&pgwire.Parse{Name: "s" + itoa(i), Query: "select length('" + strings.Repeat("x", 7<<20) + "')"}, &pgwire.Sync{})
		if i == 0 && types != "1Z" || i == 1 && (types != "EZ" || !has(bodies, "C53400\x00") || !has(bodies, "may take 8388608")) {
			t.Errorf("%d: %s %q", i, types, bodies)
		}
	}
	if types, bodies := w.ask(&pgwire.Parse{Name: "s3", Query: "select length('" + strings.Repeat("x", 9<<20) + "')"}, &pgwire.Sync{}); types != "EZ" || !has(bodies, "C53400\x00") {
		t.Errorf("%s %q", types, bodies)
	}
	if types, _ := w.ask(append(using("s0"), &pgwire.Sync{})...); types != "2DCZ" {
		t.Errorf("after that: %s", types)
	}
}
