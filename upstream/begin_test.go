package upstream_test

import (
	"context"
	"testing"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// loopParker is woken by a call.
type loopParker chan struct{}

func (p loopParker) Unpark() { p <- struct{}{} }

func (p loopParker) Park(ctx context.Context) error {
	select {
	case <-p:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p loopParker) TryPark() bool {
	select {
	case <-p:
		return true
	default:
		return false
	}
}

// A Begin counts like an Acquire: for the balance, and for the endpoints tried after a failure.
func TestBegin(t *testing.T) {
	b := newBackends()
	cfg := b.config("a:1", "b:1")
	cfg.Balance, cfg.Limits = upstream.RoundRobin, pool.Limits{MaxSize: 1}
	u := start(t, cfg)
	begin := func() upstream.Lease[*conn] {
		t.Helper()
		l, w, leased := u.Begin(make(loopParker, 1))
		if leased {
			return l
		}
		l, err := w.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first, second := begin(), begin()
	if first.Endpoint() != "a:1" || second.Endpoint() != "b:1" {
		t.Errorf("the first two leases are of %s and %s", first.Endpoint(), second.Endpoint())
	}
	_, queued, _ := u.Begin(make(loopParker, 1))
	if !queued.Begun() || !queued.Queued() {
		t.Error("the third does not wait")
	}
	if !first.TryRelease() {
		t.Error("not released at once")
	}
	if ready, granted := queued.Ready(); !ready || !granted {
		t.Error("the third has not got its turn")
	}
	third, err := queued.Wait(t.Context())
	if err != nil || third.Value() != first.Value() {
		t.Errorf("the third got %v, %v", third.Value(), err)
	}

	b.set(b.down, "b:1", true)
	second.Discard()
	third.Release()
	for range 2 { // whosever turn it is
		l := begin()
		if l.Endpoint() != "a:1" {
			t.Errorf("a lease of %s, which is down", l.Endpoint())
		}
		l.Release()
	}
	for _, e := range u.Status().Endpoints {
		if e.Pool.InUse != 0 || e.Leases != 0 {
			t.Errorf("%s: at the end %d in use, %d leases", e.Address, e.Pool.InUse, e.Leases)
		}
	}
	u.Close()
	_, ended, leased := u.Begin(make(loopParker, 1))
	if leased {
		t.Error("a lease of a closed upstream")
	} else if _, err := ended.Wait(t.Context()); err == nil {
		t.Error("no error after Close")
	}
}

// TryAcquireKey leases an idle connection of the endpoint that AcquireKey would choose, and does nothing else.
func TestTryAcquireKey(t *testing.T) {
	b := newBackends()
	cfg := b.config("a:1", "b:1")
	cfg.Balance, cfg.Limits = upstream.RingHash, pool.Limits{MaxSize: 1}
	u := start(t, cfg)
	if _, ok := u.TryAcquireKey("x", 0); ok {
		t.Error("leased before anything is open")
	}
	first, err := u.AcquireKey(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := u.TryAcquireKey("x", 0); ok {
		t.Error("leased twice")
	}
	endpoint, value := first.Endpoint(), first.Value()
	first.Release()
	again, ok := u.TryAcquireKey("x", 0)
	if !ok || again.Endpoint() != endpoint || again.Value() != value {
		t.Fatal("the idle connection is not leased")
	}
	again.Release()
}
