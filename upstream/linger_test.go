package upstream_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// TestLinger has a connection linger: its holder gets it again, as long as acquires would choose its endpoint.
func TestLinger(t *testing.T) {
	b := newBackends()
	cfg := b.config("a:1", "b:1")
	cfg.Balance, cfg.Limits, cfg.Ejection = upstream.First, pool.Limits{MaxSize: 2}, upstream.Ejection{Failures: 1}
	u := start(t, cfg)
	l, other := acquire(t, u), acquire(t, u)
	lingers := func() upstream.Lingering[*conn] {
		t.Helper()
		w, ok := l.Linger(time.Hour)
		if !ok || w.None() {
			t.Fatal("it does not linger")
		}
		return w
	}
	first, w := l.Value(), lingers()
	l, ok := u.Own().AcquireLingering(w, false)
	if !ok || l.Value() != first || l.Endpoint() != "a:1" {
		t.Fatal("its holder does not get it")
	}
	if _, ok := u.Own().AcquireLingering(w, false); ok {
		t.Error("it is leased twice")
	}
	w = lingers()
	other.Fail(errors.New("broken"))
	if _, ok := u.Own().AcquireLingering(w, false); ok {
		t.Error("its endpoint is out")
	}
	l = acquire(t, u)
	if l.Endpoint() != "b:1" {
		t.Errorf("a lease of %s", l.Endpoint())
	}
	w = lingers()
	w.End()
	again := acquire(t, u)
	if again.Value() != l.Value() {
		t.Error("it still lingers")
	}
	if _, ok := u.Own().AcquireLingering(w, false); ok {
		t.Error("it is leased twice")
	}
	again.Release()
	if n, _ := u.Load(); n != 0 {
		t.Errorf("%d leases", n)
	}
	if (upstream.Lingering[*conn]{}).None() == false {
		t.Error("the zero Lingering is one")
	}
}
