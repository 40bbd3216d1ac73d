package pgproxy_test

import (
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

type otherReading struct{ setting, value, sql string }

// otherReadings are settings under which literals are read when a statement is parsed, each with another value and a statement that
// this value would change. Servers report the first three.
var otherReadings = []otherReading{
	{"DateStyle", "German", "select date '01/02/2020' - date '2020-01-01'"},
	{"TimeZone", "'Asia/Seoul'", "select extract(epoch from '2020-01-01 12:00'::timestamptz)"},
	{"IntervalStyle", "sql_standard", "select extract(epoch from interval '-1 2:03')"},
	{"array_nulls", "off", "select '{NULL}'::text[]"},
	{"timezone_abbreviations", "India", "select extract(epoch from '2020-01-01 12:00 IST'::timestamptz)"},
	{"transform_null_equals", "on", "select (select null::int) = null"},
}

// TestReadingsOfAnotherClient has two clients prepare the same text, the server plan all statements again, and one client use its
// statement, or prepare the text, under another value of a setting, of which the gateway cannot know yet. The other client's statement
// stays as it was.
func TestReadingsOfAnotherClient(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, `create or replace function reads_otherwise(name text, value text) returns text language plpgsql as $$ begin return set_config(name, value, true); end $$`)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	for i, r := range otherReadings {
		for way, requests := range waysToRead(r, i < 3) {
			t.Run(r.setting+" "+way, func(t *testing.T) {
				w, other := g.dial(t), g.dial(t)
				for _, c := range []*wire{w, other} {
					c.ask(parse("s", r.sql)...)
				}
				_, want := w.ask(run("s")...)
				db.Exec(t, "create schema invalidates; drop schema invalidates")
				for _, request := range requests {
					other.send(request...)
					for _, m := range request {
						for range answersTo(m) {
							other.until(pgwire.TypeReadyForQuery)
						}
					}
				}
				if _, got := w.ask(run("s")...); got != want {
					t.Errorf("the statement returns %q, before %q", got, want)
				}
			})
		}
	}
}

// waysToRead are the requests with which a client reads r.sql under r.value. reported means that servers report the setting: of others the
// gateway learns by their names only.
func waysToRead(r otherReading, reported bool) map[string][][]pgwire.Message {
	s, call := run("s")[:2], &pgwire.Bind{Statement: "set", Params: [][]byte{[]byte(r.setting), []byte(strings.Trim(r.value, "'"))}}
	set, local := "set "+r.setting+" = "+r.value, "set local "+r.setting+" = "+r.value
	config := "set_config('" + r.setting + "','" + strings.Trim(r.value, "'") + "',true)"
	ways := map[string][][]pgwire.Message{
		"in a pipeline":         {parse("set", set), append(run("set")[:2], run("s")...)},
		"local in a pipeline":   {parse("set", local), append(run("set")[:2], run("s")...)},
		"set_config":            {append(append(parse("", "select "+config)[:1], run("")[:2]...), run("s")...)},
		"behind a Query":        {append(ask(set), run("s")...)},
		"in a block":            {ask("begin"), ask(local), run("s"), ask("rollback")},
		"in a block, at once":   {append(ask("begin", local), run("s")...), ask("rollback")},
		"in a block, for good":  {ask("begin"), ask(set), run("s"), ask("rollback")},
		"set_config in a block": {ask("begin"), ask("select " + config), run("s"), ask("rollback")},
		"before a rollback":     {ask("begin"), ask(local), parse("rollback", "rollback"), ask("begin"), ask(local), run("rollback", "s")},
		"and back":              {parse("set", set), parse("reset", "reset "+r.setting), run("set", "s", "reset")},
		"described":             {parse("set", set), append(run("set")[:2], &pgwire.Describe{Object: 'S', Name: "s"}, &pgwire.Sync{})},
		"a portal of before":    {parse("one", "select 1"), ask("begin"), append(parse("", "select "+config)[:1], &pgwire.Bind{Portal: "p"}, &pgwire.Sync{}), run("one"), append([]pgwire.Message{&pgwire.Execute{Portal: "p"}}, run("s")...), ask("rollback")},
		"another portal":        {parse("one", "select 1"), ask("begin"), append(parse("", "select "+config)[:1], &pgwire.Bind{Portal: "p"}, &pgwire.Sync{}), append(append(run("one")[:2], &pgwire.Execute{Portal: "p"}), run("s")...), ask("rollback")},
		"a Parse":               {parse("set", set), append(run("set")[:2], parse("n", r.sql)...)},
		"a Parse, and back":     {parse("set", set), parse("reset", "reset "+r.setting), append(append(run("set")[:2], parse("n", r.sql)[0]), run("reset")...)},
		"a Parse in a block":    {ask("begin"), ask(local), parse("n", r.sql), ask("rollback")},
	}
	if reported {
		called := []pgwire.Message{call, &pgwire.Execute{}}
		ways["a function"] = [][]pgwire.Message{parse("set", "select reads_otherwise($1,$2)"), append(append(called, s...), &pgwire.Sync{})}
		ways["a name unknown"] = [][]pgwire.Message{parse("set", "select set_config($1,$2,true)"), append(append(called, s...), &pgwire.Sync{})}
		ways["a function before a Parse"] = [][]pgwire.Message{parse("set", "select reads_otherwise($1,$2)"), append(called, parse("n", r.sql)...)}
		ways["a function in a block"] = [][]pgwire.Message{ask("begin"), ask("select reads_otherwise" + strings.TrimSuffix(config[len("set_config"):], ",true)") + ")"), run("s"), ask("rollback")}
	}
	return ways
}

// TestParsedAgainAlone is TestParsedAgain for statements that must not run in a transaction that has begun before them.
func TestParsedAgainAlone(t *testing.T) {
	const committing = "create or replace procedure commits_CHANNEL(d date) language plpgsql as $$ begin raise notice '%', d; commit; end $$"
	for name, requests := range map[string][][]pgwire.Message{
		"prepared transactions":   {parse("r", "rollback prepared 'CHANNEL'"), parse("c", "create database differs_CHANNEL locale 'nowhere'"), parse("v", `vacuum "ä"`), ask("set datestyle = 'ISO, DMY'"), run("r"), run("c"), run("v")},
		"vacuum and backslashes":  {parse("v", `vacuum "a\b"`), ask("set standard_conforming_strings = off"), run("v"), ask("select 1")},
		"CALL that commits":       {ask(committing), parse("c", "call commits_CHANNEL('01/02/2020')"), ask("set datestyle = 'ISO, DMY'"), run("c"), ask("drop procedure commits_CHANNEL")},
		"vacuum, other encoding":  {parse("v", `vacuum "ä"`), parse("", `vacuum "ä"`), ask("set client_encoding = 'LATIN1'"), run("v"), run("")},
		"vacuum behind a Query":   {parse("v", `vacuum "ä"`), append(ask("set datestyle = 'ISO, DMY'"), run("v")...)},
		"vacuum behind a Parse":   {parse("v", `vacuum "ä"`), ask("set client_encoding = 'LATIN1'"), append([]pgwire.Message{&pgwire.Parse{Name: "n", Query: "select 1"}}, run("v")...)},
		"vacuum unnamed at once":  {append(parse("set", "set client_encoding = 'LATIN1'")[:1], parse("", `vacuum "ä"`)...), run("set"), append(run("set"), run("")...)},
		"CALL behind a Parse":     {ask(committing), parse("c", "call commits_CHANNEL('01/02/2020')"), ask("set datestyle = 'ISO, DMY'"), append([]pgwire.Message{&pgwire.Parse{Name: "n", Query: "select 1"}}, run("c")...), ask("drop procedure commits_CHANNEL")},
		"CALL described likewise": {ask(committing), parse("c", "call commits_CHANNEL('01/02/2020')"), ask("set datestyle = 'ISO, DMY'"), append([]pgwire.Message{&pgwire.Parse{Name: "n", Query: "select 1"}, &pgwire.Describe{Object: 'S', Name: "c"}}, run("c")...), ask("drop procedure commits_CHANNEL")},
		"CALL behind a COMMIT":    {ask(committing), parse("c", "call commits_CHANNEL('01/02/2020')"), parse("commit", "commit"), ask("set datestyle = 'ISO, DMY'", "begin"), append(run("commit"), run("c")...), ask("drop procedure commits_CHANNEL")},
		"CALL behind a BEGIN":     {ask(committing), parse("c", "call commits_CHANNEL('01/02/2020')"), parse("begin", "begin"), ask("set datestyle = 'ISO, DMY'"), append(run("begin"), run("c")...), ask("rollback", "drop procedure commits_CHANNEL")},
	} {
		t.Run(name, func(t *testing.T) { sameAsDirect(t, pgtest.Shared(t), requests...) })
	}
}

// TestSkippedReadings has a client try a pipeline again and again that fails before a statement that is read again: the gateway has nothing to close
// for it later.
func TestSkippedReadings(t *testing.T) {
	db := pgtest.Shared(t)
	tape := &tape{to: db.Addr()}
	at := conntest.Serve(t, tape.serve)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Endpoints, pc.Limits.MaxSize = upstream.Endpoints(at), 1
	})
	w := g.dial(t)
	w.ask(parse("s", "select date '01/02/2020'")...)
	w.ask(parse("fails", "select 1/0")...)
	w.ask(query("set datestyle = 'ISO, DMY'"))
	for range 40 {
		w.ask(run("fails", "s")...)
	}
	before := tape.count("client> Close S")
	for i := range 40 {
		w.ask(parse("n"+itoa(i), "select "+itoa(i))...)
	}
	if _, got := w.ask(run("s")...); !has(got, "2020-01-02") {
		t.Errorf("the statement returns %q", got)
	}
	if n := tape.count("client> Close S") - before; n > 3 { // of the reading, and of the statement's setting
		t.Errorf("the server is to close %d statements", n)
	}
}
