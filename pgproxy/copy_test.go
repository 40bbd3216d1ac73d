package pgproxy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
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
			for _, w := range []*wire{straight, pinned} { // until the client of the test before has left, no other may be pinned
				conntest.Eventually(t, "the client has a temporary table", func() bool {
					types, _ := w.ask(query("create temp table kept (a int); insert into kept values (7)"))
					return types == "CCZ"
				})
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

// TestPipelinedBehindFailedCopy has COPYs fail, with Syncs in front of the data and requests behind it in the same write, or in that of the data, the last of
// which waits for a lock. The client gets the messages of a direct connection, in their order: the gateway does not mistake an answer
// to one of those Syncs for that to a later request, nor the later requests' rows and errors for those of its own.
func TestPipelinedBehindFailedCopy(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists copy_works (a int)", "create table if not exists copy_fails (a int)",
		"create or replace function copy_fails() returns trigger language plpgsql as $$ begin raise 'no'; end $$",
		"create or replace trigger copy_fails before insert on copy_fails for each statement execute function copy_fails()")
	sync, holder := &pgwire.Sync{}, direct(t, db)
	watcher := direct(t, db)
	together := func(t *testing.T, w *wire, begin, messages []pgwire.Message) (seen string) {
		holder.ask(query("begin; " + lastWaits))
		if len(begin) > 0 {
			w.send(begin...)
			seen, _ = w.until(pgwire.TypeCopyInResponse)
		}
		w.send(messages...)
		conntest.Eventually(t, "the last request waits", func() bool {
			_, n := watcher.ask(query("select 'waiting: ' || count(*) from pg_locks where locktype = 'advisory' and not granted"))
			return strings.Contains(n, "waiting: 1")
		})
		holder.ask(query("rollback"))
		for last := false; !last; {
			types, bodies := w.until(pgwire.TypeReadyForQuery)
			seen, last = seen+types+" ", strings.Contains(bodies, "last")
		}
		types, _ := w.ask(query("select 'after'"))
		return seen + types
	}
	for mode, change := range map[string]func(*pgproxy.Config, *pgproxy.PostgresConfig){"transaction": transaction, "session": session} {
		g := start(t, db, change)
		for name, first := range map[string][]pgwire.Message{
			"fails before it reads": copies("copy_fails", "1\n"), "bad data": copies("copy_works", "x\n"),
			"a Query":                        {query("copy copy_works from stdin"), &pgwire.CopyData{Data: []byte("x\n")}, sync, &pgwire.CopyDone{}},
			"a Query, fails before it reads": {query("copy copy_fails from stdin"), sync, &pgwire.CopyDone{}},
			"two Syncs":                      {&pgwire.Parse{Query: "copy copy_fails from stdin"}, &pgwire.Bind{}, &pgwire.Execute{}, sync, sync, &pgwire.CopyDone{}, sync},
		} {
			for behind, requests := range pipelined() {
				t.Run(mode+"/"+name+"/"+behind, func(t *testing.T) {
					messages := append(slices.Clone(first), requests...)
					data := slices.IndexFunc(messages, func(m pgwire.Message) bool { _, ok := m.(*pgwire.Sync); return ok }) + 1
					if _, simple := messages[0].(*pgwire.Query); simple {
						data = 1
					}
					for _, n := range []int{0, data} {
						want, got := together(t, direct(t, db), messages[:n], messages[n:]), together(t, g.dial(t), messages[:n], messages[n:])
						if got != want {
							t.Errorf("straight on the server\n%s\nthrough the gateway, %d messages first\n%s", want, n, got)
						}
					}
				})
			}
		}
	}
}

// TestRequestsInCopyData: whether a server answers requests in the data of a COPY depends on how far it has read when the COPY fails. No other
// client gets the answers.
func TestRequestsInCopyData(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists copy_fails (a int)",
		"create or replace function copy_fails() returns trigger language plpgsql as $$ begin raise 'no'; end $$",
		"create or replace trigger copy_fails before insert on copy_fails for each statement execute function copy_fails()")
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize, pc.Ejection.Failures = 1, 1 })
	other := g.dial(t)
	parts := map[string][]pgwire.Message{
		"copy":     {query("copy copy_fails from stdin")},
		"extended": {&pgwire.Parse{Query: "copy copy_fails from stdin"}, &pgwire.Bind{}, &pgwire.Execute{}},
		"data":     {&pgwire.CopyData{Data: []byte("1\n")}}, "done": {&pgwire.CopyDone{}}, "sync": {&pgwire.Sync{}},
		"mine": {query("select 'mine'")}, "set": {query("set timezone = 'Asia/Tokyo'")}, "flush": {&pgwire.Flush{}},
		"prepared": {&pgwire.Bind{Statement: "mine"}, &pgwire.Execute{}}, "parsed": {&pgwire.Parse{Query: "select 'mine'"}, &pgwire.Bind{}, &pgwire.Execute{}},
	}
	for script, stays := range map[string]bool{
		"extended sync mine done sync": false, "extended sync data sync set": false, "extended sync set mine done": false,
		"extended sync done done set prepared": false, "extended sync parsed done": false, "extended sync parsed sync done sync": false,
		"copy mine sync": false, "copy sync set done": false, "copy parsed done sync": false,
		"extended mine sync": true, "extended parsed sync sync": true, "extended flush data done sync": true, "copy sync data done mine": true,
	} {
		t.Run(script, func(t *testing.T) {
			w := g.dial(t)
			w.ask(&pgwire.Parse{Name: "mine", Query: "select 'mine'"}, &pgwire.Sync{})
			var messages []pgwire.Message
			for part := range strings.FieldsSeq(script) {
				messages = append(messages, parts[part]...)
			}
			w.send(messages...)
			told, _ := w.answers(func(typ byte) bool { return typ == pgwire.TypeReadyForQuery })
			if strings.Contains(told, "08006") == stays {
				t.Errorf("told %q", told)
			}
			for range 3 {
				if types, body := other.ask(query("select 'other', current_setting('timezone')")); types != "TDCZ" || !strings.Contains(body, "other") || strings.Contains(body, "Tokyo") {
					t.Fatalf("another client gets %s %q", types, body)
				}
			}
		})
	}
	if strings.Contains(g.log.String(), "endpoint ejected") {
		t.Error("what a client sends ejects an endpoint")
	}
}

// copies is a COPY as tokio-postgres and libpq's PQexecParams send it.
func copies(table, data string) []pgwire.Message {
	return []pgwire.Message{&pgwire.Parse{Query: "copy " + table + " from stdin"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{},
		&pgwire.CopyData{Data: []byte(data)}, &pgwire.CopyDone{}, &pgwire.Sync{}}
}

// lastWaits is what the last one of pipelined waits for.
const lastWaits = "select pg_advisory_xact_lock(1812)"

// pipelined are requests behind a COPY. The answer to the last one has the word "last".
func pipelined() map[string][]pgwire.Message {
	wait := lastWaits
	row, fail := query(wait+"; select 'last'"), query(wait+"; select 'last'::int")
	sync := &pgwire.Sync{}
	ext := func(texts ...string) (all []pgwire.Message) {
		for _, text := range texts {
			all = append(all, &pgwire.Parse{Query: text}, &pgwire.Bind{}, &pgwire.Execute{}, sync)
		}
		return all
	}
	return map[string][]pgwire.Message{
		"queries":              {query("select 1"), row},
		"the last one fails":   {query("select 1"), fail},
		"one":                  {fail},
		"a failed transaction": {query("begin"), query("select 1/0"), query("select 2"), query("rollback"), row},
		"isolation":            {query("begin"), query("set transaction isolation level serializable"), query("commit"), row},
		"empty":                {query(""), query("--"), row},
		"extended":             ext("select 1", wait, "select 'last'"),
		"extended, fails":      ext("select 1", "select 1/0", "select 2", wait, "select 'last'::int"),
		"syncs":                append([]pgwire.Message{sync, sync, query("select 1"), sync}, row),
		"a block":              append(ext("begin"), append(ext("select 1/0"), append(ext("rollback"), row)...)...),
		"named, and closed":    {&pgwire.Parse{Name: "n", Query: "select 1"}, sync, &pgwire.Bind{Statement: "n"}, &pgwire.Execute{}, sync, &pgwire.Close{Object: 'S', Name: "n"}, sync, row},
		"copied":               append(copies("copy_fails", "1\n"), append(copies("copy_works", "x\n"), append(copies("copy_works", "1\n"), row)...)...),
	}
}
