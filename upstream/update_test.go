package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

func TestUpdateKeepsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.config("a:1", "b:1")
		cfg.Limits.MinIdle = 2
		u := start(t, cfg)
		synctest.Wait()
		cfg.Balance = upstream.First
		held := acquire(t, u)
		for held.Endpoint() != "b:1" {
			held.Release()
			held = acquire(t, u)
		}
		synctest.Wait()
		before := b.opened["a:1"]
		err := u.Update(upstream.Settings{Endpoints: upstream.Endpoints("c:1", "a:1"), Balance: upstream.First, Limits: pool.Limits{MinIdle: 2}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := b.opened["a:1"]; n != before {
			t.Errorf("a:1 was kept, but opened %d more connections", n-before)
		}
		if n := b.opened["c:1"]; n != 2 {
			t.Errorf("c:1 is new and has %d warm connections, want 2", n)
		}
		if got := used(t, u, 4); got["c:1"] != 4 {
			t.Errorf("got %v, want c:1, the first", got)
		}
		drained := make(chan error, 1)
		go func() { drained <- u.Drain(t.Context()) }()
		synctest.Wait()
		select {
		case <-drained:
			t.Error("Drain did not wait for the lease of the removed endpoint")
		default:
		}
		held.Release()
		if err := <-drained; err != nil {
			t.Error(err)
		}
		if total := b.opened["a:1"] + b.opened["b:1"] + b.opened["c:1"]; int(b.closed.Load()) != total {
			t.Errorf("%d opened, %d closed", total, b.closed.Load())
		}
	})
}

func TestUpdateErrorsChangeNothing(t *testing.T) {
	b := newBackends()
	u := start(t, b.config("a:1"))
	err := u.Update(upstream.Settings{Endpoints: upstream.Endpoints("b:1", "nonsense"), Balance: upstream.P2C})
	if !errors.Is(err, upstream.ErrConfig) {
		t.Errorf("got %v, want ErrConfig", err)
	}
	if got := used(t, u, 2); got["a:1"] != 2 {
		t.Errorf("got %v, want a:1 as before", got)
	}
	u.Close()
	u.Close()
	err = u.Update(upstream.Settings{Endpoints: upstream.Endpoints("a:1"), Balance: upstream.P2C})
	if !errors.Is(err, pool.ErrClosed) {
		t.Errorf("Update after Close: %v, want pool.ErrClosed", err)
	}
	if _, err := u.Acquire(t.Context()); !errors.Is(err, pool.ErrClosed) || !errors.Is(err, upstream.ErrUnavailable) {
		t.Errorf("Acquire after Close: %v", err)
	}
}

func TestDrainEnds(t *testing.T) {
	u := start(t, newBackends().config("a:1"))
	l := acquire(t, u)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := u.Drain(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	l.Release()
}

// TestUpdateUnderLoad changes the endpoints while they are used and probed; no
// caller may notice.
func TestUpdateUnderLoad(t *testing.T) {
	b := newBackends()
	cfg := b.config("a:1", "b:1", "c:1")
	cfg.Health.Probe = b.probe
	u := start(t, cfg)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				l, err := u.AcquireKey(context.Background(), "key")
				if err != nil {
					t.Error(err)
					return
				}
				l.Release()
			}
		})
	}
	sets := [][]string{{"a:1", "b:1"}, {"c:1"}, {"b:1", "c:1", "d:1"}, {"a:1"}}
	for i := range 60 {
		err := u.Update(upstream.Settings{
			Endpoints: upstream.Endpoints(sets[i%len(sets)]...), Balance: upstream.Balance(i % 4),
			Limits: pool.Limits{MaxSize: 8 + i%3, MinIdle: i % 3}, Health: cfg.Health,
		})
		if err != nil {
			t.Error(err)
		}
		u.Status()
	}
	close(stop)
	wg.Wait()
	if err := u.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	b.allClosed(t)
}

// TestStatusShowsWhatIsRemoved: an endpoint that was removed is shown until its leases are released, also when it was
// added again.
func TestStatusShowsWhatIsRemoved(t *testing.T) {
	cfg := newBackends().config("a:1", "b:1")
	cfg.Balance = upstream.First
	u := start(t, cfg)
	held := acquire(t, u)
	show := func() (shown []string) {
		for _, e := range u.Status().Endpoints {
			state := ""
			if e.Removed {
				state = " removed"
			}
			shown = append(shown, fmt.Sprintf("%s%s %d", e.Address, state, e.Pool.InUse))
		}
		return shown
	}
	update := func(endpoints ...string) {
		t.Helper()
		if err := u.Update(upstream.Settings{Endpoints: upstream.Endpoints(endpoints...), Balance: upstream.First}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, endpoints ...string) {
		t.Helper()
		if got := show(); !slices.Equal(got, endpoints) {
			t.Errorf("%s: %q, want %q", what, got, endpoints)
		}
	}
	update("b:1")
	want("removed", "b:1 0", "a:1 removed 1")
	update("a:1", "b:1")
	want("added again", "a:1 0", "b:1 0", "a:1 removed 1")
	held.Release()
	want("released", "a:1 0", "b:1 0")
}
