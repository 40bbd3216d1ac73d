package pgproxy_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestSameAsDirect makes clients send random messages to the server, through the gateway and
// directly: the answers must be the same, whatever other clients do on the same server connections.
func TestSameAsDirect(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists differential (a int)")
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize, pc.StatementCache = 2, 3 })
	var all sync.WaitGroup
	for client := range uint64(4) {
		all.Go(func() {
			for script := range uint64(scripts) {
				compare(t, g.addr, db.Addr(), client, script)
			}
		})
	}
	all.Wait()
}

// scripts is how many each client runs.
const scripts = 25

// compare runs a script both ways.
func compare(t *testing.T, gateway, direct string, client, script uint64) {
	var transcripts [2][]string
	for i, addr := range []string{gateway, direct} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Error(err)
			return
		}
		w := newWire(t, conn)
		user := pgwire.Param{Name: "user", Value: "postgres"}
		if _, err := w.Write((&pgwire.StartupMessage{Params: []pgwire.Param{user, {Name: "database", Value: "postgres"}}}).Append(nil)); err != nil {
			t.Error(err)
			return
		}
		if _, err := w.answers(func(typ byte) bool { return typ == pgwire.TypeReadyForQuery }); err != nil {
			t.Error(err)
			return
		}
		transcripts[i] = playScript(w, rand.New(rand.NewPCG(client, script)))
		_ = w.Close()
	}
	for i, got := range transcripts[0] {
		if want := transcripts[1][min(i, len(transcripts[1])-1)]; got != want {
			t.Errorf("client %d, script %d: through the gateway and directly\n%s\n%s\nafter\n%s", client, script, got, want, strings.Join(transcripts[0][max(0, i-4):i], "\n"))
			return
		}
	}
}

// playScript sends random steps and returns the messages and answers of each.
func playScript(w *wire, r *rand.Rand) (transcript []string) {
	for range 12 {
		sent, request := "", []byte(nil)
		for range 1 + r.IntN(14) {
			m := chance(r)
			for _, m := range m {
				sent += fmt.Sprintf("%T%+v ", m, m)
				request = m.Append(request)
			}
		}
		request = (&pgwire.Sync{}).Append(request)
		request = query("select 1").Append(request) // PostgreSQL 18 may answer it with XX000 after a pipeline without Sync
		request = query("").Append(request)
		for len(request) > 0 { // in pieces
			n := len(request)
			if r.IntN(2) == 0 {
				n = 1 + r.IntN(n)
			}
			if _, err := w.Write(request[:n]); err != nil {
				return append(transcript, err.Error())
			}
			request = request[n:]
		}
		last := byte(0)
		got, err := w.answers(func(typ byte) bool {
			over := last == pgwire.TypeEmptyQueryResponse && typ == pgwire.TypeReadyForQuery
			last = typ
			return over
		})
		got, _, failed := strings.Cut(got, `Z"E"`) // the answer to Parse then differs for statements that the server has
		transcript = append(transcript, sent+" → "+got)
		if err != nil {
			return append(transcript, "the end")
		}
		if failed {
			return transcript
		}
	}
	return transcript
}

// answers reads up to the last message, and records the parts that do not differ between servers.
func (w *wire) answers(last func(typ byte) bool) (string, error) {
	var b strings.Builder
	for {
		typ, body, err := w.try()
		switch {
		case err != nil:
			return b.String(), err
		case typ == pgwire.TypeParameterStatus || typ == pgwire.TypeNoticeResponse:
			continue
		case typ == pgwire.TypeErrorResponse:
			var m pgwire.ErrorResponse
			_ = m.Decode([]byte(body))
			body = m.Severity + strings.ReplaceAll(m.Code, pgwire.StateDuplicatePrepared, pgwire.StateSyntaxError) // which is found first differs
		case typ == pgwire.TypeRowDescription || typ == pgwire.TypeParameterDescription || typ == pgwire.TypeFunctionCallResponse:
			body = ""
		}
		fmt.Fprintf(&b, "%c%q ", typ, body)
		if last(typ) {
			return b.String(), nil
		}
	}
}

// chance returns messages that belong together.
func chance(r *rand.Rand) []pgwire.Message {
	of := func(s ...string) string { return s[r.IntN(len(s))] }
	sql := of("select 1", "select generate_series(1,5)", "select 1/0", "selec", "begin", "commit", "rollback", "select $1::int",
		"declare c cursor for select generate_series(1,9)", "fetch 2 from c", "copy differential from stdin", "copy (select 1) to stdout",
		"select repeat('x',99)", "savepoint a", "rollback to a", "deallocate all", "deallocate s1", "/* one */ deallocate prepare s2; --")
	name, portal := of("", "", "s1", "s2", "s3", "s4"), of("", "", "", "p1")
	object := of("S", "P")[0]
	target := of("", "s1", "s2", "s3")
	if object == 'P' {
		target = portal
	}
	var params [][]byte
	if r.IntN(3) == 0 {
		params = [][]byte{[]byte("7")}
	}
	data := &pgwire.CopyData{Data: []byte(of("1\n", "2\n3\n", "bad\n", ""))}
	var end pgwire.Message = &pgwire.CopyDone{}
	if r.IntN(3) == 0 {
		end = &pgwire.CopyFail{Message: "no"}
	}
	switch r.IntN(12) {
	case 0, 1:
		return []pgwire.Message{&pgwire.Parse{Name: name, Query: of(sql, fmt.Sprint("select ", r.IntN(1000)), of("deallocate all", "deallocate s1", "discard plans"))}}
	case 2:
		return []pgwire.Message{&pgwire.Bind{Statement: of("", "", "s1", "s2", "s3"), Portal: portal, Params: params}, &pgwire.Execute{Portal: portal}, data, end}
	case 3:
		return []pgwire.Message{&pgwire.Describe{Object: object, Name: target}}
	case 4:
		return []pgwire.Message{&pgwire.Close{Object: object, Name: target}}
	case 5:
		return []pgwire.Message{&pgwire.Flush{}}
	case 6, 7:
		return []pgwire.Message{&pgwire.Sync{}}
	case 8:
		return []pgwire.Message{query(of(sql, "select 1; select 2", "begin; select 1/0", "deallocate all", "deallocate s1", "deallocate s2", "select 1; commit; select 1/0",
			"select 1; deallocate s1", "deallocate s2; select 1/0; deallocate s1", "begin; deallocate s1; deallocate s3; select ';deallocate s2'")), data, end}
	case 9:
		return []pgwire.Message{&pgwire.FunctionCall{Function: 1598}} // random()
	}
	return []pgwire.Message{&pgwire.Parse{Name: name, Query: sql}, &pgwire.Bind{Statement: name, Portal: portal, Params: params},
		&pgwire.Describe{Object: 'P', Name: portal}, &pgwire.Execute{Portal: portal, MaxRows: uint32(r.IntN(3))}, data, end}
}

// TestLeaveAnywhere makes clients disconnect in the middle of random messages. The next client of the server connection
// finds no trace.
func TestLeaveAnywhere(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists differential (a int)")
	for mode, change := range map[uint64]func(*pgproxy.Config, *pgproxy.PostgresConfig){0: transaction, 1: session} {
		g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
			change(c, pc)
			pc.Limits.MaxSize = 1
		})
		for round := range uint64(scripts) {
			r := rand.New(rand.NewPCG(mode, round))
			w := g.dial(t)
			var request []byte
			for range 1 + r.IntN(12) {
				for _, m := range chance(r) {
					request = m.Append(request)
				}
			}
			go func() { _, _ = io.Copy(io.Discard, w.Conn) }()
			request = request[:r.IntN(len(request))]
			for len(request) > 0 {
				n := 1 + r.IntN(len(request))
				if _, err := w.Write(request[:n]); err != nil {
					break // after a FATAL error
				}
				request = request[n:]
			}
			_ = w.Close()
			next := g.dial(t)
			next.send(query("select 'next'; select count(*) from pg_cursors; select count(*) from pg_prepared_statements where name not like 'headpond_%'; show transaction_isolation"),
				&pgwire.Parse{Query: "select 'extended'"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{})
			got := ""
			for range 2 {
				answer, err := next.answers(func(typ byte) bool { return typ == pgwire.TypeReadyForQuery })
				if err != nil {
					t.Fatalf("mode %d, round %d: %s, %v", mode, round, got+answer, err)
				}
				got += answer
			}
			if want := strings.Join([]string{`T""`, row1("next"), `C"SELECT 1\x00"`, `T""`, row1("0"), `C"SELECT 1\x00"`, `T""`, row1("0"), `C"SELECT 1\x00"`,
				`T""`, row1("read committed"), `C"SHOW\x00"`, `Z"I"`, `1""`, `2""`, row1("extended"), `C"SELECT 1\x00"`, `Z"I"`, ""}, " "); got != want {
				t.Fatalf("mode %d, round %d: the next client got\n%s\nwant\n%s", mode, round, got, want)
			}
			_ = next.Close()
		}
	}
}

// row1 is a DataRow of one value as answers notes it.
func row1(value string) string {
	return fmt.Sprintf("D%q", "\x00\x01\x00\x00\x00"+string(rune(len(value)))+value)
}
