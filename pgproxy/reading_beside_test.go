package pgproxy_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// readingTexts change the settings under which texts are read, end transactions, fail, or are read under them.
var readingTexts = []string{
	"set datestyle = 'ISO, DMY'", "set datestyle = 'German'", "set datestyle = 'ISO, MDY'", "set local datestyle = 'SQL, DMY'",
	"set timezone = 'Asia/Seoul'", "set timezone = 'UTC'", "set local timezone = 'Asia/Kabul'", "set intervalstyle = 'sql_standard'",
	"set standard_conforming_strings = off", "set standard_conforming_strings = on", "set client_encoding = 'LATIN1'", "set client_encoding = 'UTF8'",
	"begin", "commit", "rollback", "savepoint a", "rollback to a", "select 1/0",
	"select date '01/02/2020'", "select '2020-01-01 12:00'::timestamptz", "select '2020-01-01 12:00'::timestamptz", `select 'a\\b', length('ä')`,
	"select interval '-1 2:03'", "select date '01/02/2020', 1/0", "select date '01/02/2020'",
	"select name, setting from pg_settings where name in ('DateStyle', 'TimeZone', 'IntervalStyle', 'standard_conforming_strings', 'client_encoding') order by name",
}

// readingRequest returns a random pipeline of readingTexts.
func readingRequest(r *rand.Rand) (ms []pgwire.Message) {
	for range 1 + r.IntN(5) {
		text, name := readingTexts[r.IntN(len(readingTexts))], string('a'+rune(r.IntN(4)))
		switch r.IntN(8) {
		case 0, 1:
			ms = append(ms, query(text))
		case 2:
			ms = append(ms, &pgwire.Close{Object: 'S', Name: name}, &pgwire.Parse{Name: name, Query: text}, &pgwire.Sync{})
		default:
			for range r.IntN(3) {
				ms = append(ms, &pgwire.Bind{Statement: string('a' + rune(r.IntN(4)))}, &pgwire.Execute{})
			}
			ms = append(ms, &pgwire.Bind{Statement: name}, &pgwire.Execute{}, &pgwire.Sync{})
		}
	}
	return ms
}

// TestReadingsBesideOthers has clients change the settings under which texts are read, and use statements, on two server connections. Others
// leave in the middle of such requests. Nobody's answers differ from those of a direct connection.
func TestReadingsBesideOthers(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize, pc.StatementCache = 2, 3 })
	var compared, others sync.WaitGroup
	over := make(chan struct{})
	for client := range uint64(2) {
		others.Go(func() {
			for i := uint64(0); ; i++ {
				select {
				case <-over:
					return
				default:
				}
				r := rand.New(rand.NewPCG(client+100, i))
				leaveAmidReadings(t, g, r)
			}
		})
	}
	for client := range uint64(3) {
		compared.Go(func() {
			for script := range uint64(10) {
				compareReadings(t, g, db, rand.New(rand.NewPCG(client, script)), fmt.Sprint("client ", client, ", script ", script))
			}
		})
	}
	compared.Wait()
	close(over)
	others.Wait()
}

// leaveAmidReadings sends requests, and leaves at any point of the answers, or behind some of them.
func leaveAmidReadings(t *testing.T, g *gateway, r *rand.Rand) {
	w := g.dial(t, zoneTokyo)
	for range r.IntN(6) {
		ends := 0
		for _, m := range readingRequest(r) {
			if w.send(m); ends < 2 && r.IntN(3) > 0 {
				ends += answersTo(m)
			}
		}
		for ends > 0 {
			typ, _, err := w.try()
			if err != nil {
				return
			}
			if typ == pgwire.TypeReadyForQuery {
				ends--
			}
		}
	}
	_ = w.Close()
}

func compareReadings(t *testing.T, g *gateway, db *pgtest.Cluster, r *rand.Rand, name string) {
	direct := &stateScript{w: dialDirect(t, db), values: map[string]string{}, channel: "none"}
	through := &stateScript{w: g.dial(t), values: map[string]string{}, channel: "none"}
	defer func() { _, _ = direct.w.Close(), through.w.Close() }()
	before := ""
	for range 20 {
		request, ends := readingRequest(r), 0
		sent := ""
		for _, m := range request {
			sent += fmt.Sprintf("%T%+v ", m, m)
			ends += answersTo(m)
		}
		direct.send(request)
		want, err := direct.answer(ends)
		if err != nil {
			t.Error(err)
			return
		}
		through.send(request)
		got, err := through.answer(ends)
		if before += sent + "\n      → " + want + "\n"; got != want || err != nil {
			t.Errorf("%s: through the gateway and directly\n%s\n%s\n%v after\n%s", name, got, want, err, before)
			return
		}
	}
}

// answersTo returns 1 for a message whose answer ends with ReadyForQuery.
func answersTo(m pgwire.Message) int {
	switch m.(type) {
	case *pgwire.Query, *pgwire.Sync:
		return 1
	}
	return 0
}
