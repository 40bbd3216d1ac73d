package pgproxy_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestSameStateAsDirect makes clients send statements that leave or show state of their session, in every way, through the gateway and
// directly. Every message is the same, whatever other clients do on the same server connections.
func TestSameStateAsDirect(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "drop role if exists differs", "create role differs", "create schema if not exists differential_schema",
		"create table if not exists differential (a int)", "create table if not exists differential_schema.other (a int)")
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.MaxSize, pc.StatementCache, pc.User, pc.DBName = 6, 4, "postgres", "postgres"
	})
	makeTemporarySchemas(t, db)
	var all sync.WaitGroup
	for client := range uint64(3) {
		all.Go(func() {
			for script := range uint64(scripts) {
				compareState(t, g.addr, db.Addr(), client, script)
			}
		})
	}
	all.Wait()
}

// makeTemporarySchemas makes the schemas of temporary tables of the first sessions of a server. PostgreSQL makes one when a session with its number
// first has a temporary table, and then every session reads literals again, as after CREATE SCHEMA: on one of two ways, perhaps. Sessions have
// higher numbers if the earlier ones are slow to end.
func makeTemporarySchemas(t *testing.T, db *pgtest.Cluster) {
	t.Helper()
	var conns []*pgx.Conn
	for range 50 {
		conns = append(conns, db.Connect(t))
	}
	for _, c := range conns {
		do(t, c, "create temp table first ()")
		_ = c.Close(t.Context())
	}
}

// compareState runs a script both ways.
func compareState(t *testing.T, gateway, direct string, client, script uint64) {
	var transcripts [2][]string
	for i, addr := range []string{gateway, direct} {
		r := rand.New(rand.NewPCG(client, script))
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Error(err)
			return
		}
		w := newWire(t, conn)
		params := []pgwire.Param{{Name: "user", Value: "postgres"}, {Name: "database", Value: "postgres"}}
		started := r.IntN(2) == 0
		if started {
			params = append(params, pgwire.Param{Name: "TimeZone", Value: "Asia/Tokyo"}, pgwire.Param{Name: "application_name", Value: "differs"},
				pgwire.Param{Name: "options", Value: "-c app.x=started"})
		}
		if _, err := w.Write((&pgwire.StartupMessage{Params: params}).Append(nil)); err != nil {
			t.Error(err)
			return
		}
		s := &stateScript{w: w, r: r, started: started, values: map[string]string{}, channel: fmt.Sprintf("differs_%d_%d_%d", client, script, i)}
		if _, err := w.Write((&pgwire.Query{}).Append(nil)); err != nil {
			t.Error(err)
			return
		}
		if _, err := s.answer(2); err != nil { // to the login, too
			t.Error(err)
			return
		}
		transcripts[i] = s.play()
		_ = w.Close()
	}
	for i, got := range transcripts[0] {
		if want := transcripts[1][min(i, len(transcripts[1])-1)]; got != want {
			t.Errorf("client %d, script %d: through the gateway and directly\n%s\n%s\nafter\n%s", client, script, got, want, strings.Join(transcripts[0][:i], "\n"))
			return
		}
	}
}

// stateScript is a random script.
type stateScript struct {
	w       *wire
	r       *rand.Rand
	channel string            // its own
	started bool              // it has settings from its startup packet
	values  map[string]string // that were reported
}

// stateTexts leave or show state. CHANNEL is the script's own.
var stateTexts = [][]string{
	{"begin", "begin", "begin isolation level serializable", "begin read only", "start transaction isolation level repeatable read"},
	{"commit", "commit", "rollback", "commit and chain", "rollback and chain"},
	{"savepoint a", "savepoint b", "rollback to a", "rollback to b", "release a", "release b"},
	{"set timezone = 'UTC'", "set timezone = 'Europe/Berlin'", "set local timezone = 'Asia/Tokyo'", "reset timezone", "set time zone default", "set time zone 'PST8PDT'"},
	{"set datestyle = 'German'", "set datestyle = 'SQL'", "set datestyle = 'ISO, DMY'", "set local datestyle = 'Postgres'", "set datestyle to default"},
	{"set search_path = differential_schema", "set local search_path = differential_schema, public", "reset search_path", "set search_path to default"},
	{"set client_encoding = 'LATIN1'", "set names 'UTF8'", "reset client_encoding", "set local client_encoding = 'LATIN1'"},
	{"set application_name = 'one'", "set local application_name = 'two'", "reset application_name"},
	{"set bytea_output = 'escape'", "reset bytea_output", "set intervalstyle = 'iso_8601'", "set extra_float_digits = 0", "set standard_conforming_strings = off", "reset standard_conforming_strings"},
	{"set app.x = 'set'", "set local app.x = 'local'", "reset app.x", "select set_config('app.x', 'function', false)", "select set_config('app.x', 'local function', true)", "show app.x"},
	{"reset all", "discard all", "discard plans", "discard temp", "discard sequences"},
	{"set role differs", "reset role", "set session authorization differs", "reset session authorization", "set local role differs", "set role none"},
	{"set session characteristics as transaction isolation level repeatable read", "set session characteristics as transaction read only", "set default_transaction_read_only = off", "set transaction isolation level serializable", "set transaction read only", "show transaction_isolation", "show default_transaction_isolation", "show transaction_read_only"},
	{"show timezone", "show datestyle", "show search_path", "show client_encoding", "show application_name", "show bytea_output", "show role", "select current_user, session_user", "select current_schemas(false)"},
	{"select timestamptz '2020-01-01 12:00Z'", "select '\\x00ff'::bytea", "select 1::float8/3", "select interval '1 day 02:03'", "select 'a\\\\b'", "select 'ä'", "select chr(228)"},
	{"select date '01/02/2020'", "select '2020-01-01 12:00'::timestamptz", "select interval '-1 2:03'", "select $$01/02/03$$::date", "select 'a\\\\', length('ä'), date '01/02/2020'"},
	{"prepare p as select 1", "prepare p as select current_setting('app.x', true)", "prepare q(int) as select $1 + 1", "execute p", "execute p", "execute q(1)", "execute q('x')", "deallocate p", "deallocate q", "deallocate all", "deallocate prepare p"},
	{"select name, statement, from_sql from pg_prepared_statements order by 1", "select count(*) from pg_prepared_statements", "select name, is_holdable from pg_cursors order by 1"},
	{"declare c cursor for select generate_series(1, 9)", "declare h cursor with hold for select generate_series(1, 9)", "fetch 2 from c", "fetch 2 from h", "move 1 in h", "close c", "close h", "close all"},
	{"create temp table kept (a int)", "insert into kept values (1) returning a", "select count(*) from kept", "drop table kept", "create temp table gone (a int) on commit drop", "select * from gone", "create temp sequence s", "select nextval('s')", "select currval('s')", "select lastval()", "drop sequence s", "truncate kept"},
	{"select 1/0", "selec", "select * from no_such_table", "do $$ begin raise notice 'told'; end $$", "do $$ begin perform set_config('app.x', 'done', false); end $$", "do $$ begin raise 'failed'; end $$", "do $$ begin execute 'set timezone = ''America/Lima'''; end $$"},
	{"select 1; set timezone = 'Asia/Seoul'; select 2", "set app.x = 'undone'; select 1/0", "begin; set app.x = 'kept'; commit; select 1/0", "begin; set timezone = 'Asia/Kabul'; rollback", "set timezone = 'nowhere'", "select 1; commit; select 2", "set datestyle = 'nothing'"},
	{"listen CHANNEL", "unlisten CHANNEL", "unlisten *", "select count(*) from pg_listening_channels()", "listen other_CHANNEL"},
	{"select pg_advisory_xact_lock(hashtext('CHANNEL'))", "select pg_advisory_lock(hashtext('CHANNEL'))", "select pg_advisory_unlock(hashtext('CHANNEL'))", "select pg_advisory_unlock_all()"},
	{"set statement_timeout = '1h'", "select pg_sleep(0.01)", "reset statement_timeout", "set local statement_timeout = 0", "set lock_timeout = '1h'", "show statement_timeout"},
	{"load 'plpgsql'", "set constraints all deferred", "lock table differential in access share mode", "explain (costs off) select 1", "values (1), (2)", "table public.differential", "--", ""},
	{"copy differential to stdout", "copy (select current_setting('app.x', true)) to stdout"},
}

// text returns a random text. What differs as docs/session-state.md says is left out: RESET in a transaction or pipeline, and names of settings that
// other clients have made.
func (s *stateScript) text() string {
	for {
		group := stateTexts[s.r.IntN(len(stateTexts))]
		text := group[s.r.IntN(len(group))]
		if s.started && (has(text, "reset") || has(text, "default") || has(text, "discard all")) || !s.started && has(text, "app.x") {
			continue
		}
		return strings.ReplaceAll(text, "CHANNEL", s.channel)
	}
}

// play sends random requests and returns each with its answer.
func (s *stateScript) play() (transcript []string) {
	failed := false
	for range 30 {
		sent, request, answers := "", []byte(nil), 2
		for range 1 + s.r.IntN(3) {
			for _, m := range s.request(failed) {
				switch m.(type) {
				case *pgwire.Query, *pgwire.Sync:
					answers++
				}
				sent += strings.ReplaceAll(fmt.Sprintf("%T%+v ", m, m), s.channel, "CHANNEL")
				request = m.Append(request)
			}
		}
		request = (&pgwire.Sync{}).Append(request)
		request = query("").Append(request)
		if _, err := s.w.Write(request); err != nil {
			return append(transcript, err.Error())
		}
		got, err := s.answer(answers)
		transcript = append(transcript, sent+"\n      → "+got)
		if err != nil {
			return append(transcript, "the end")
		}
		failed = strings.HasSuffix(got, "Z E ")
	}
	return transcript
}

// request returns a random text.
func (s *stateScript) request(failed bool) []pgwire.Message {
	text, name := s.text(), s.name()
	if failed && s.r.IntN(2) == 0 {
		text = "rollback"
	}
	return s.ways(text, name, failed)
}

// name returns the name of a statement.
func (s *stateScript) name() string { return []string{"", "a", "b"}[s.r.IntN(3)] }

// ways returns a text in one of the ways in which drivers send it.
func (s *stateScript) ways(text, name string, failed bool) []pgwire.Message {
	sync := &pgwire.Sync{}
	switch s.r.IntN(6) {
	case 0, 1, 2:
		return []pgwire.Message{query(text)}
	case 3:
		return []pgwire.Message{&pgwire.Parse{Query: text}, &pgwire.Bind{}, &pgwire.Describe{Object: 'P'}, &pgwire.Execute{}, sync}
	case 4:
		if failed || strings.HasPrefix(text, "execute") { // the description of EXECUTE depends on what is prepared
			name = ""
		}
		return []pgwire.Message{&pgwire.Close{Object: 'S', Name: name}, &pgwire.Parse{Name: name, Query: text}, &pgwire.Describe{Object: 'S', Name: name}, sync, &pgwire.Bind{Statement: name}, &pgwire.Execute{}, sync}
	}
	return []pgwire.Message{&pgwire.Bind{Statement: name}, &pgwire.Execute{}, sync}
}

// answer reads a number of answers, each with ReadyForQuery at its end, and records every message but for what differs between servers.
func (s *stateScript) answer(n int) (string, error) {
	var b strings.Builder
	reports := map[string]string{}
	for {
		typ, body, err := s.w.try()
		if err != nil {
			return b.String(), err
		}
		switch typ {
		case pgwire.TypeParameterStatus: // of several about a parameter the last one counts
			var m pgwire.ParameterStatus
			_ = m.Decode([]byte(body))
			reports[m.Name] = m.Value
			continue
		case pgwire.TypeErrorResponse:
			var m pgwire.ErrorResponse
			_ = m.Decode([]byte(body))
			body = m.Severity + " " + m.Code + " " + m.Message
		case pgwire.TypeNoticeResponse:
			body = strings.ReplaceAll(body, "\x00", " ")
		case pgwire.TypeRowDescription:
			var m pgwire.RowDescription
			_ = m.Decode([]byte(body))
			body = ""
			for _, f := range m.Fields {
				body += fmt.Sprintf("%s:%d ", f.Name, f.TypeOID)
			}
		case pgwire.TypeReadyForQuery:
			for _, name := range slices.Sorted(maps.Keys(reports)) {
				if value, known := s.values[name]; !known || value != reports[name] {
					fmt.Fprintf(&b, "S %s=%s ", name, strings.ReplaceAll(reports[name], s.channel, "CHANNEL"))
				}
				s.values[name] = reports[name]
			}
			clear(reports)
		default:
			body = fmt.Sprintf("%q", body)
		}
		fmt.Fprintf(&b, "%c %s ", typ, strings.ReplaceAll(body, s.channel, "CHANNEL"))
		if typ == pgwire.TypeReadyForQuery {
			if n--; n == 0 {
				return b.String(), nil
			}
		}
	}
}
