package pgproxy_test

import (
	"fmt"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// changing is a client and a table that changes while the client's server connections go and come.
type changing struct {
	*wire
	db *pgtest.Cluster
	g  *gateway
}

func startChanging(t *testing.T) *changing {
	db := pgtest.Start(t)
	db.Exec(t, "create table shape (a int, b int)", "insert into shape values (1, 2)")
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	return &changing{g.dial(t), db, g}
}

// change runs SQL beside the gateway, and ends the server connections there are: those to come know no statement yet.
func (c *changing) change(t *testing.T, sql string) {
	c.db.Exec(t, sql)
	c.db.Exec(t, "select pg_terminate_backend(pid, 10000) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()")
}

// ask sends messages and Sync and returns the types of the answers, and of an error SQLSTATE and routine.
func (c *changing) ask(messages ...pgwire.Message) string {
	c.t.Helper()
	c.send(append(messages, &pgwire.Sync{})...)
	said := ""
	for {
		typ, body := c.read()
		said += string(typ)
		switch typ {
		case pgwire.TypeErrorResponse:
			var m pgwire.ErrorResponse
			if err := m.Decode([]byte(body)); err != nil {
				c.t.Fatal(err)
			}
			said += fmt.Sprintf("(%s %s)", m.Code, m.Routine)
		case pgwire.TypeReadyForQuery:
			return said
		}
	}
}

// The messages of a driver that prepares a statement under a name, and uses it.
func preparing(name, sql string) []pgwire.Message {
	return []pgwire.Message{&pgwire.Parse{Name: name, Query: sql}, &pgwire.Describe{Object: pgwire.ObjectStatement, Name: name}}
}

func using(name string, params ...[]byte) []pgwire.Message {
	return []pgwire.Message{&pgwire.Bind{Statement: name, Params: params}, &pgwire.Execute{}}
}

const outdated = "E(0A000 RevalidateCachedQuery)Z"

// TestStatementWithOtherFingerprint changes a table that a statement reads. A driver decodes rows by the description
// that it got when it prepared the statement: it must not get others, on whatever server connection, until it has
// prepared it again.
func TestStatementWithOtherFingerprint(t *testing.T) {
	c := startChanging(t)
	other := &changing{c.g.dial(t), c.db, c.g}
	for _, w := range []*changing{c, other} {
		if said := w.ask(append(preparing("s", "select * from shape"), using("s")...)...); said != "1tT2DCZ" {
			t.Fatal(said)
		}
	}
	c.change(t, "comment on table shape is 'the same'")
	if said := c.ask(using("s")...); said != "2DCZ" {
		t.Errorf("nothing has changed: %s", said)
	}
	c.change(t, "alter table shape drop column a, add column a int")
	for range 2 {
		if said := c.ask(using("s")...); said != "2"+outdated {
			t.Errorf("the columns have changed places: %s", said)
		}
	}
	if said := c.ask(append(append([]pgwire.Message{&pgwire.Close{Object: pgwire.ObjectStatement, Name: "s"}},
		preparing("s", "select * from shape")...), using("s")...)...); said != "31tT2DCZ" {
		t.Errorf("prepared again: %s", said)
	}
	if said := other.ask(using("s")...); said != "2"+outdated {
		t.Errorf("one client has prepared it again, this one not: %s", said)
	}
	other.change(t, "alter table shape add column c int")
	each := &pgwire.Bind{Statement: "s", ResultFormats: []int16{0, 1}}
	if said := c.ask(each, &pgwire.Execute{}); said != outdated {
		t.Errorf("with a format for each column there was: %s", said)
	}
	c.change(t, "alter table shape drop column c")
	for range 2 {
		if said := c.ask(using("s")...); said != "2DCZ" {
			t.Errorf("prepared again, and on another server connection: %s", said)
		}
	}
}

// TestStatementWithOtherFingerprintDoesNothing has a statement that was prepared again change the table.
func TestStatementWithOtherFingerprintDoesNothing(t *testing.T) {
	c := startChanging(t)
	const sql = "insert into shape (a) values ($1) returning *"
	if said := c.ask(append(preparing("s", sql), using("s", []byte("3"))...)...); said != "1tT2DCZ" {
		t.Fatal(said)
	}
	c.change(t, "alter table shape alter column a type real")
	if said := c.ask(using("s", []byte("4"))...); said != "2"+outdated {
		t.Errorf("after the change: %s", said)
	}
	c.send(query("select count(*) from shape"))
	if types, bodies := c.until(pgwire.TypeReadyForQuery); types != "TDCZ" || !has(bodies, "\x00\x00\x00\x012") {
		t.Errorf("%s %q", types, bodies)
	}
	c.send(query("begin"))
	c.until(pgwire.TypeReadyForQuery)
	if said := c.ask(using("s", []byte("4"))...); said != "2"+outdated {
		t.Errorf("in a transaction: %s", said)
	}
}

// TestStatementWithOtherFingerprintIsDescribed is about drivers that ask for the columns each time: for them nothing is wrong.
func TestStatementWithOtherFingerprintIsDescribed(t *testing.T) {
	c := startChanging(t)
	portal := func(name string) []pgwire.Message {
		return []pgwire.Message{&pgwire.Bind{Statement: name}, &pgwire.Describe{Object: pgwire.ObjectPortal}, &pgwire.Execute{}}
	}
	if said := c.ask(append([]pgwire.Message{&pgwire.Parse{Name: "s", Query: "select * from shape"}}, portal("s")...)...); said != "12TDCZ" {
		t.Fatal(said)
	}
	c.change(t, "alter table shape add column d int")
	for range 2 {
		if said := c.ask(portal("s")...); said != "2TDCZ" {
			t.Errorf("asking: %s", said)
		}
	}
	if said := c.ask(using("s")...); said != "2DCZ" {
		t.Errorf("as described last: %s", said)
	}
	c.change(t, "alter table shape add column e int")
	if said := c.ask(using("s")...); said != "2"+outdated {
		t.Errorf("without asking: %s", said)
	}
}

// TestStatementWithTheSameFingerprint replaces the table by another one with other type OIDs, as another server may
// have: no client sees it.
func TestStatementWithTheSameFingerprint(t *testing.T) {
	c := startChanging(t)
	const again = "drop table shape; drop type if exists mood; create type mood as enum ('fine'); create table shape (a mood, b int); insert into shape values ('fine')"
	c.change(t, again)
	if said := c.ask(append(preparing("s", "select * from shape where a = $1"), using("s", []byte("fine"))...)...); said != "1tT2DCZ" {
		t.Fatal(said)
	}
	c.change(t, again)
	if said := c.ask(using("s", []byte("fine"))...); said != "2DCZ" {
		t.Error(said)
	}
}

// TestFetchPreparedBeforeItsCursor prepares FETCH while there is no cursor, and runs it on another server connection:
// straight on a server that is no change of a statement either.
func TestFetchPreparedBeforeItsCursor(t *testing.T) {
	c := startChanging(t)
	fetch := preparing("f", " /* all */ Fetch all in curs")
	run := func(sql string) []pgwire.Message {
		return []pgwire.Message{&pgwire.Parse{Query: sql}, &pgwire.Bind{}, &pgwire.Execute{}}
	}
	portal := []pgwire.Message{&pgwire.Bind{Statement: "f"}, &pgwire.Describe{Object: pgwire.ObjectPortal}, &pgwire.Execute{}}
	if said := c.ask(fetch...); said != "1tnZ" {
		t.Fatal(said)
	}
	for _, columns := range []string{"a", "a, b::text"} {
		c.change(t, "comment on table shape is 'the same'")
		if said := c.ask(run("begin")...); said != "12CZ" {
			t.Fatal(said)
		}
		if said := c.ask(append(run("declare curs cursor for select "+columns+" from shape"), portal...)...); said != "12C2TDCZ" {
			t.Errorf("%s: %s", columns, said)
		}
		if said := c.ask(append(using("f"), run("rollback")...)...); said != "2C12CZ" {
			t.Errorf("%s, again: %s", columns, said)
		}
	}
}
