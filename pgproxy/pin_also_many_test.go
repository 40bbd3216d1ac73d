package pgproxy_test

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// alsoTexts leave what pins on request, or are refused (53400), or fail.
var alsoTexts = []string{
	"set pin.name = 'a'", "begin; set local pin.name = 'a'; commit", "select set_config('pin.name', 'a', true)", "insert into pin.serial (n) values (1)", "select nextval('pin.z')",
	"begin; insert into pin.serial (n) values (1); rollback", "select setval('pin.z', 5)", "create temp table many (n int) on commit drop", "create temp table many (n int)",
	"select pin.run('insert into pin.serial (n) values (1)')", "discard all", "discard sequences", "select 1/0", "begin", "commit", "listen also", "unlisten also", "selekt; set pin.name = 'a'",
	"set work_mem = '1MB'", "update pin.none set n = n", "select pg_try_advisory_lock(99)", "reset all", "select 1",
}

// visit is one client of TestPinAlsoManyClients: it looks for what others have left, leaves something, and goes in some way.
func (g *gateway) visit(t *testing.T, r *rand.Rand) {
	w := g.dial(t)
	for _, look := range []struct{ sql, types, body string }{
		{"set temp_buffers = '9MB'", "CZ", ""}, {namesSeen, "TDCZ", "false"}, {"select lastval()", "TEZ", "55000"}, {"reset temp_buffers", "CZ", ""},
	} {
		if types, bodies := w.ask(query(look.sql)); types != look.types || !has(bodies, look.body) {
			t.Errorf("%s: %s %q", look.sql, types, bodies)
		}
	}
	for range 1 + r.IntN(4) {
		sql := alsoTexts[r.IntN(len(alsoTexts))]
		if r.IntN(2) == 0 || strings.Contains(sql, ";") {
			w.send(query(sql))
		} else {
			w.send(&pgwire.Parse{Query: sql}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{})
		}
		if types, bodies := w.until(pgwire.TypeReadyForQuery); strings.Contains(types, "E") && !has(bodies, "53400") && !has(bodies, "22012") && !has(bodies, "42601") &&
			!has(bodies, "25P02") && !has(bodies, "25001") && !has(bodies, "42P07") {
			t.Errorf("%s: %s %q", sql, types, bodies)
		}
	}
	switch r.IntN(3) {
	case 0:
		w.send(&pgwire.Terminate{})
		w.toTheEnd()
	case 1:
		w.send(query(alsoTexts[r.IntN(len(alsoTexts))]), &pgwire.Terminate{})
	}
	_ = w.Close()
}

// TestPinAlsoManyClients has clients come and go, more than may be pinned. None sees what others have left, and no place among the pinned is lost.
func TestPinAlsoManyClients(t *testing.T) {
	g := startAlso(t, 4, func(c *pgproxy.Config) { c.MaxPinned = 2 })
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(18, uint64(i)))
			for range 24 {
				g.visit(t, r)
			}
		})
	}
	wg.Wait()
	conntest.Eventually(t, "nothing is pinned or in use", func() bool {
		return g.Stats().Pinned == 0 && g.backend.Status().Endpoints[0].Pool.InUse == 0
	})
	for _, name := range []string{"first", "second"} {
		c := g.connect(t, "application_name="+name)
		simple(t, c, "set pin.name = 'a'")
		g.session(t, name, listener.StatePinned)
	}
	w := g.dial(t)
	if types, bodies := w.ask(query("set pin.name = 'a'")); types != "EZ" || !has(bodies, "53400") {
		t.Errorf("a third one: %s %q", types, bodies)
	}
}
