package pgproxy_test

import (
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// otherReadings are settings under which literals are read when a statement is parsed, each with another value and a statement that
// this value would change.
var otherReadings = []struct{ setting, value, sql string }{
	{"DateStyle", "German, DMY", "select date '01/02/2020' - date '2020-01-01'"},
	{"TimeZone", "Asia/Seoul", "select extract(epoch from '2020-01-01 12:00'::timestamptz)"},
	{"IntervalStyle", "sql_standard", "select extract(epoch from interval '-1 2:03')"},
	{"array_nulls", "off", "select '{NULL}'::text[]"},
	{"timezone_abbreviations", "India", "select extract(epoch from '2020-01-01 12:00 IST'::timestamptz)"},
	{"transform_null_equals", "on", "select (select null::int) = null"},
}

// TestReadingsOfAnotherClient has two clients prepare the same text, the server plan all statements again, and one client use its
// statement under another value of a setting, of which the gateway cannot know yet. The other client's statement stays as it was.
func TestReadingsOfAnotherClient(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, `create or replace function reads_otherwise(name text, value text) returns text language plpgsql as $$ begin return set_config(name, value, true); end $$`)
	bind := func(name string, params ...string) []pgwire.Message {
		b := &pgwire.Bind{Statement: name}
		for _, p := range params {
			b.Params = append(b.Params, []byte(p))
		}
		return []pgwire.Message{b, &pgwire.Execute{}}
	}
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	for _, r := range otherReadings {
		set := "set " + r.setting + " = '" + r.value + "'"
		if r.setting == "DateStyle" {
			set = "set datestyle = German, DMY"
		}
		local := "set local" + set[len("set"):]
		s := bind("s")
		for way, requests := range map[string][][]pgwire.Message{
			"in a pipeline":                {parse("set", set), concat(bind("set"), s, synced)},
			"local in a pipeline":          {parse("set", local), concat(bind("set"), s, synced)},
			"set_config":                   {concat(unnamedSet(r.setting, r.value), s, synced)},
			"set_config of a name":         {parse("set", "select set_config($1,$2,true)"), concat(bind("set", r.setting, r.value), s, synced)},
			"a function":                   {parse("set", "select reads_otherwise($1,$2)"), concat(bind("set", r.setting, r.value), s, synced)},
			"behind a Query":               {concat(ask(set), s, synced)},
			"in a block":                   {ask("begin"), ask(local), concat(s, synced), ask("rollback")},
			"in a block, at once":          {concat(ask("begin", local), s, synced), ask("rollback")},
			"in a block, for good":         {ask("begin"), ask(set), concat(s, synced), ask("rollback")},
			"set_config in a block":        {ask("begin"), ask("select set_config('" + r.setting + "','" + r.value + "',true)"), concat(s, synced), ask("rollback")},
			"function in a block":          {ask("begin"), ask("select reads_otherwise('" + r.setting + "','" + r.value + "')"), concat(s, synced), ask("rollback")},
			"before a rollback":            {ask("begin"), ask(local), concat(parse("rollback", "rollback")[:1], bind("rollback"), s, synced)},
			"two in a pipeline":            {parse("set", set), parse("reset", "reset "+r.setting), concat(bind("set"), s, bind("reset"), synced)},
			"described":                    {parse("set", set), concat(bind("set"), []pgwire.Message{&pgwire.Describe{Object: 'S', Name: "s"}}, synced)},
			"a Parse":                      {parse("set", set), concat(bind("set"), parse("n", r.sql))},
			"a Parse behind both":          {parse("set", set), parse("reset", "reset "+r.setting), concat(bind("set"), parse("n", r.sql)[:1], bind("reset"), synced)},
			"a Parse, function":            {parse("set", "select reads_otherwise($1,$2)"), concat(bind("set", r.setting, r.value), parse("n", r.sql))},
			"a Parse in a block":           {ask("begin"), ask(local), parse("n", r.sql), ask("rollback")},
			"a Parse, function in a block": {ask("begin"), ask("select reads_otherwise('" + r.setting + "','" + r.value + "')"), parse("n", r.sql), ask("rollback")},
		} {
			t.Run(r.setting+" "+way, func(t *testing.T) {
				w, other := g.dial(t), g.dial(t)
				for _, c := range []*wire{w, other} {
					c.ask(parse("s", r.sql)...)
				}
				_, want := w.ask(run("s")...)
				db.Exec(t, "create schema invalidates; drop schema invalidates")
				for _, request := range requests {
					other.send(request...)
					n := 0
					for _, m := range request {
						n += answersTo(m)
					}
					for range n {
						other.until(pgwire.TypeReadyForQuery)
					}
				}
				if _, got := w.ask(run("s")...); got != want {
					t.Errorf("the statement returns %q, before %q", got, want)
				}
			})
		}
	}
}

func concat(parts ...[]pgwire.Message) (ms []pgwire.Message) {
	for _, p := range parts {
		ms = append(ms, p...)
	}
	return ms
}

var synced = []pgwire.Message{&pgwire.Sync{}}

// unnamedSet is the messages of set_config for the transaction.
func unnamedSet(name, value string) []pgwire.Message {
	return []pgwire.Message{&pgwire.Parse{Query: "select set_config('" + name + "','" + value + "',true)"}, &pgwire.Bind{}, &pgwire.Execute{}}
}
