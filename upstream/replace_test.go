package upstream_test

import (
	"errors"
	"testing"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// Replace stays at its endpoint, and leaves the counts of leases as they are.
func TestReplace(t *testing.T) {
	b := newBackends()
	cfg := b.config("a:1", "b:1")
	cfg.Balance, cfg.Limits = upstream.RoundRobin, pool.Limits{MaxSize: 1}
	u := start(t, cfg)
	l := acquire(t, u)
	endpoint, first := l.Endpoint(), l.Value()
	l, err := l.Replace(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if l.Endpoint() != endpoint || l.Value() == first {
		t.Errorf("%s was replaced by a connection to %s, another one: %v", endpoint, l.Endpoint(), l.Value() != first)
	}
	leases := func(n int64) {
		t.Helper()
		for _, e := range u.Status().Endpoints {
			if want := n; e.Address == endpoint && (e.Leases != want || e.Pool.InUse != int(want)) {
				t.Errorf("%d leases and %d in use, want %d", e.Leases, e.Pool.InUse, want)
			}
		}
	}
	leases(1)
	b.set(b.down, endpoint, true)
	if _, err := l.Replace(t.Context()); !errors.Is(err, pool.ErrOpen) {
		t.Errorf("replaced while the endpoint is down: %v", err)
	}
	leases(0)
	for _, e := range u.Status().Endpoints {
		if e.Address == endpoint && e.Failures == 0 {
			t.Error("the failure does not count for the endpoint")
		}
	}
}
