package pgproxy_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestFailedCopyKeepsState has COPYs fail that a client begins as tokio-postgres and libpq's PQexecParams do, with a Sync in front of the data.
// The server ignores that Sync, unless the COPY has failed before the server reads it. The client gets all answers of the server, and keeps
// its temporary table. Without one, it gets the same server connection again, and it still listens.
func TestFailedCopyKeepsState(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists copy_works (a int)", "create table if not exists copy_fails (a int)",
		"create or replace function copy_fails() returns trigger language plpgsql as $$ begin raise 'no'; end $$",
		"create or replace trigger copy_fails before insert on copy_fails for each statement execute function copy_fails()")
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 2 })
	other := g.connect(t, "")
	good, bad := &pgwire.CopyData{Data: []byte("1\n")}, &pgwire.CopyData{Data: []byte("x\n")}
	for name, c := range map[string]struct {
		table string
		rest  []pgwire.Message
	}{
		"ended by the client":         {"copy_works", []pgwire.Message{good, &pgwire.CopyFail{}, &pgwire.Sync{}}},
		"bad data":                    {"copy_works", []pgwire.Message{bad, good, &pgwire.CopyDone{}, &pgwire.Sync{}}},
		"fails before it reads":       {"copy_fails", []pgwire.Message{good, &pgwire.CopyFail{}, &pgwire.Sync{}}},
		"done, fails before it reads": {"copy_fails", []pgwire.Message{good, &pgwire.CopyDone{}, &pgwire.Sync{}}},
	} {
		t.Run(name, func(t *testing.T) {
			play := func(w *wire, then string) (seen, server string) {
				note := func(types, body string) { seen, server = seen+types+" ", body }
				note(w.ask(&pgwire.Parse{Name: "c", Query: "copy " + c.table + " from stdin"}, &pgwire.Sync{}))
				w.send(&pgwire.Bind{Statement: "c"}, &pgwire.Execute{}, &pgwire.Sync{})
				note(w.until(pgwire.TypeCopyInResponse))
				note(w.ask(c.rest...))
				one[int](t, other, "select 1")
				for range 3 { // the answer to a Sync may come before that to the first of these
					note(w.ask(query(then)))
				}
				return seen, server
			}
			together := func(w *wire) (seen string) { // in one write, with later requests behind it
				all := []pgwire.Message{&pgwire.Bind{Statement: "c"}, &pgwire.Execute{}, &pgwire.Sync{}}
				w.send(append(append(all, c.rest...), query("select * from kept"), query("select 'last'"))...)
				for body := ""; !strings.Contains(body, "last"); {
					var types string
					types, body = w.until(pgwire.TypeReadyForQuery)
					seen += types + " "
				}
				return seen
			}
			straight, pinned, free := direct(t, db), g.dial(t), g.dial(t)
			for _, w := range []*wire{straight, pinned} {
				w.ask(query("create temp table kept (a int); insert into kept values (7)"))
			}
			want, _ := play(straight, "select * from kept")
			if got, _ := play(pinned, "select * from kept"); got != want {
				t.Errorf("straight on the server\n%s\nthrough the gateway\n%s", want, got)
			}
			if want, got := together(straight), together(pinned); got != want {
				t.Errorf("in one write: straight on the server\n%s\nthrough the gateway\n%s", want, got)
			}
			free.ask(query("listen copy_fails"))
			_, before := free.ask(query("select pg_backend_pid()"))
			if _, after := play(free, "select pg_backend_pid()"); after != before {
				t.Errorf("the server connection was %q, is %q", before, after)
			}
			do(t, other, "notify copy_fails", pgx.QueryExecModeSimpleProtocol)
			free.until(pgwire.TypeNotificationResponse)
		})
	}
}
