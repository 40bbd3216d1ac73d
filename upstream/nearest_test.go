package upstream_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/upstream"
)

// TestNearest changes the times of the checks of three endpoints, and looks which ones get leases.
func TestNearest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		var mu sync.Mutex
		takes := map[string]time.Duration{"a:1": time.Millisecond, "b:1": 2 * time.Millisecond, "c:1": 40 * time.Millisecond}
		take := func(addr string, d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			takes[addr] = d
		}
		cfg := b.config("a:1", "b:1", "c:1")
		cfg.Balance = upstream.Nearest
		cfg.Health = upstream.Health{Interval: time.Second, Timeout: time.Second, Fall: 1, Rise: 1, Probe: func(ctx context.Context, addr string) error {
			mu.Lock()
			d := takes[addr]
			mu.Unlock()
			time.Sleep(d)
			return b.probe(ctx, addr)
		}}
		u := start(t, cfg)
		want := func(what string, addrs ...string) {
			t.Helper()
			time.Sleep(20 * time.Second)
			synctest.Wait()
			got := used(t, u, 100)
			for _, addr := range addrs {
				if got[addr] == 0 {
					t.Errorf("%s: %v, want some for %s", what, got, addr)
				}
				delete(got, addr)
			}
			if len(got) > 0 {
				t.Errorf("%s: %v are far", what, got)
			}
		}
		want("two are near", "a:1", "b:1")
		b.set(b.sick, "a:1", true)
		want("the nearest is out", "b:1")
		b.set(b.sick, "b:1", true)
		want("both are out", "c:1")
		b.set(b.sick, "a:1", false)
		b.set(b.sick, "b:1", false)
		want("both are back", "a:1", "b:1")
		take("b:1", 4*time.Millisecond)
		want("a bit farther than the near ones at first", "a:1", "b:1")
		take("b:1", 6*time.Millisecond)
		want("too far", "a:1")
		take("b:1", 4*time.Millisecond)
		want("not near enough again", "a:1")
		take("b:1", 2500*time.Microsecond)
		want("near again", "a:1", "b:1")
		take("a:1", 200*time.Millisecond)
		take("b:1", 200*time.Millisecond)
		want("another is the nearest", "c:1")
		cfg.Balance = upstream.P2C
		if err := u.Update(cfg.Settings); err != nil {
			t.Fatal(err)
		}
		want("distance does not matter", "a:1", "b:1", "c:1")
	})
}

// TestNearestFails goes to a far one when the near ones cannot be opened.
func TestNearestFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.config("a:1", "b:1")
		cfg.Balance = upstream.Nearest
		cfg.Health = upstream.Health{Interval: time.Second, Timeout: time.Second, Probe: func(_ context.Context, addr string) error {
			if addr == "b:1" {
				time.Sleep(500 * time.Millisecond)
			}
			return nil
		}}
		u := start(t, cfg)
		time.Sleep(10 * time.Second)
		b.set(b.down, "a:1", true)
		l := acquire(t, u)
		defer l.Release()
		if l.Endpoint() != "b:1" {
			t.Errorf("got %s", l.Endpoint())
		}
	})
}
