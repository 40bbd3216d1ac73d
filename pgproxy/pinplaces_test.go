package pgproxy_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// startPlaces has three server connections, of which one may be pinned, and clients that wait for that. holder has it.
func startPlaces(t *testing.T) (g *gateway, holder *wire) {
	t.Helper()
	g = startPins(t, 3, func(c *pgproxy.Config) { c.MaxPinned = 1 })
	g.backend.SetPinPatience(conntest.Patience)
	holder = g.named(t, "holder")
	holder.wants("TDCZ", "select pg_advisory_lock(90)")
	g.session(t, "holder", listener.StatePinned)
	return g, holder
}

// wants has a client run a Query, and wants messages of these types.
func (w *wire) wants(types, sql string) {
	w.t.Helper()
	if got, bodies := w.ask(query(sql)); got != types {
		w.t.Errorf("%s: answered with %s %q, want %s", sql, got, bodies, types)
	}
}

// awaitWaitersAhead waits until so many clients wait for a place among the pinned, or for a role.
func (g *gateway) awaitWaitersAhead(t *testing.T, n int) {
	t.Helper()
	conntest.Eventually(t, fmt.Sprintf("%d clients wait before they acquire", n), func() bool { return g.backend.Status().Waiting == n })
}

// TestPinnedTakeTurns has more clients than places take a lock at once, as migrators do, by each form of the protocol. All of them get it, one
// after the other, and meanwhile others are served.
func TestPinnedTakeTurns(t *testing.T) {
	g, holder := startPlaces(t)
	direct := pgtest.Shared(t).Connect(t)
	simple(t, direct, "drop table if exists turns; create table turns (n int); insert into turns values (0)")
	const lock = "select pg_advisory_lock(91)"
	ask := []func(w *wire) (types, bodies string){
		func(w *wire) (types, bodies string) { return w.ask(query(lock)) },
		func(w *wire) (types, bodies string) {
			w.send(&pgwire.Parse{Query: lock}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{})
			return w.until(pgwire.TypeReadyForQuery)
		},
		func(w *wire) (types, bodies string) {
			w.send(&pgwire.Parse{Name: "l", Query: lock}, &pgwire.Bind{Statement: "l"}, &pgwire.Execute{}, &pgwire.Sync{})
			return w.until(pgwire.TypeReadyForQuery)
		},
		func(w *wire) (types, bodies string) { // with settings of its own, and more than a Reader shows
			w.ask(query("set application_name = waits"))
			return w.ask(query(lock + " /*" + strings.Repeat("x", 20<<10) + "*/"))
		},
	}
	const clients = 8
	var waits sync.WaitGroup
	for i := range clients {
		waits.Go(func() {
			w := g.dial(t)
			if types, bodies := ask[i%len(ask)](w); !strings.HasSuffix(types, "DCZ") {
				t.Errorf("form %d: %s %q", i%len(ask), types, bodies)
			}
			_, bodies := w.ask(query("select 'n=' || n from turns"))
			_, n, _ := strings.Cut(bodies, "n=")
			n = n[:len(n)-len(strings.TrimLeft(n, "0123456789"))]
			w.wants("CZ", "update turns set n = "+n+" + 1")
			w.wants("TDCZ", "select pg_advisory_unlock(91)")
		})
	}
	g.awaitWaitersAhead(t, clients)
	g.dial(t).wants("TDCZ", "select 1")
	holder.wants("TDCZ", "select pg_advisory_unlock(90)")
	waits.Wait()
	if got := sees(t, direct, "select n::text from turns"); got != strconv.Itoa(clients) {
		t.Errorf("%s of %d took their turns alone", got, clients)
	}
}

// TestPinWaitEnds ends the wait for a place in every other way. The place is free afterwards.
func TestPinWaitEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, g *gateway, w *wire){
		"canceled": func(t *testing.T, g *gateway, w *wire) {
			g.cancel(t, w)
			if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "EZ" || !has(bodies, "57014") {
				t.Errorf("%s %q", types, bodies)
			}
			w.wants("TDCZ", "select 1")
		},
		"killed": func(t *testing.T, g *gateway, w *wire) {
			g.kill(t, g.session(t, "waits", listener.StateWaiting))
			w.toTheEnd()
		},
		"gone": func(t *testing.T, _ *gateway, w *wire) { _ = w.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			g, holder := startPlaces(t)
			w, next := g.named(t, "waits"), g.named(t, "next")
			w.send(query("select pg_advisory_lock(92)"))
			g.awaitWaitersAhead(t, 1)
			next.send(query("select pg_advisory_lock(92)"))
			g.awaitWaitersAhead(t, 2)
			end(t, g, w)
			holder.wants("TDCZ", "select pg_advisory_unlock(90)")
			if types, bodies := next.until(pgwire.TypeReadyForQuery); types != "TDCZ" {
				t.Errorf("the next client: %s %q", types, bodies)
			}
			next.wants("TDCZ", "select pg_advisory_unlock(92)")
			conntest.Eventually(t, "nothing is pinned", func() bool { return g.Stats().Pinned == 0 })
			g.dial(t).wants("TDCZ", "select pg_advisory_lock(92)")
		})
	}
}

// TestPinWaitOfListener has a client that listens wait for a place: it hears what is sent before and after.
func TestPinWaitOfListener(t *testing.T) {
	g, holder := startPlaces(t)
	w := g.named(t, "listens")
	w.wants("CZ", "listen places")
	g.awaitParked(t, "listens")
	w.send(query("select pg_advisory_lock(93)"))
	g.awaitWaitersAhead(t, 1)
	told := pgtest.Shared(t).Connect(t)
	simple(t, told, "notify places, 'before'")
	holder.wants("TDCZ", "select pg_advisory_unlock(90)")
	types, bodies := w.until(pgwire.TypeReadyForQuery)
	if !has(types, "D") || has(types, "E") {
		t.Errorf("%s %q", types, bodies)
	}
	simple(t, told, "notify places, 'after'")
	for _, want := range []string{"before", "after"} {
		for !has(bodies, want) {
			_, body := w.read()
			bodies += body
		}
	}
	w.wants("TDCZ", "select pg_advisory_unlock(93)")
}

// TestPinWaitAndReload has reloads raise the limits of clients that wait: of places, the given and the default one, and of the
// time.
func TestPinWaitAndReload(t *testing.T) {
	for name, raise := range map[string]func(t *testing.T, c *pgproxy.Config, s *upstream.Settings){
		"max_pinned": func(_ *testing.T, c *pgproxy.Config, _ *upstream.Settings) { c.MaxPinned = 2 },
		"max_size":   func(_ *testing.T, _ *pgproxy.Config, s *upstream.Settings) { s.Limits.MaxSize = 4 },
		"acquire_timeout": func(_ *testing.T, c *pgproxy.Config, s *upstream.Settings) {
			s.Limits.AcquireTimeout = time.Millisecond
		},
	} {
		t.Run(name, func(t *testing.T) {
			var cfg pgproxy.Config
			var settings upstream.Settings
			g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
				if name != "max_size" {
					c.MaxPinned = 1
				}
				cfg, settings = *c, pc.Settings
			})
			cfg.Databases = map[string]pgproxy.Backend{"*": g.backend}
			g.backend.SetPinPatience(conntest.Patience)
			g.dial(t).wants("TDCZ", "select pg_advisory_lock(95)")
			w := g.dial(t)
			w.send(query("select pg_advisory_lock(96)"))
			g.awaitWaitersAhead(t, 1)
			raise(t, &cfg, &settings)
			if err := errors.Join(g.Update(cfg), g.backend.Update(settings)); err != nil {
				t.Fatal(err)
			}
			want := "TDCZ"
			if name == "acquire_timeout" {
				want = "EZ"
			}
			if types, bodies := w.until(pgwire.TypeReadyForQuery); types != want {
				t.Errorf("%s %q, want %s", types, bodies, want)
			}
		})
	}
}

// TestPinWaitersAreWaiters has as many clients wait for a place as may wait: another one is refused at once.
func TestPinWaitersAreWaiters(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) { c.MaxPinned, pc.Limits.MaxWaiters = 1, 1 })
	g.backend.SetPinPatience(conntest.Patience)
	holder, w, more := g.dial(t), g.dial(t), g.dial(t)
	holder.wants("TDCZ", "select pg_advisory_lock(97)")
	w.send(query("select pg_advisory_lock(97)"))
	g.awaitWaitersAhead(t, 1)
	if types, bodies := more.ask(query("select pg_advisory_lock(98)")); types != "EZ" || !has(bodies, "53400") {
		t.Errorf("%s %q", types, bodies)
	}
	holder.wants("TDCZ", "select pg_advisory_unlock(97)")
	if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "TDCZ" {
		t.Errorf("%s %q", types, bodies)
	}
	g.awaitWaitersAhead(t, 0)
}

// TestPinWaitInVain waits for as long as the pool lets clients wait, and leaves nothing behind.
func TestPinWaitInVain(t *testing.T) {
	g, holder := startPlaces(t)
	g.backend.SetPinPatience(10 * time.Millisecond)
	w := g.named(t, "in vain")
	for range 3 {
		if types, bodies := w.ask(query("select pg_advisory_lock(94)")); types != "EZ" || !has(bodies, "53400") {
			t.Errorf("%s %q", types, bodies)
		}
	}
	w.wants("TDCZ", "select 1")
	holder.wants("TDCZ", "select pg_advisory_unlock(90)")
	g.session(t, "holder", listener.StateIdle)
	w.wants("TDCZ", "select pg_advisory_lock(94)")
}
