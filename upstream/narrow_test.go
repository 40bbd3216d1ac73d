package upstream_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/upstream"
)

// TestAvoidedEndpoints are chosen only where no other one is in: not instead of one that is in, but rather than one that is out.
func TestAvoidedEndpoints(t *testing.T) {
	for _, balance := range []upstream.Balance{upstream.P2C, upstream.RoundRobin, upstream.RingHash, upstream.First} {
		b := newBackends()
		cfg := b.config("a:1", "b:1", "c:1")
		cfg.Balance = balance
		cfg.Endpoints[2].Priority = 1
		cfg.Ejection = upstream.Ejection{Failures: 1, Base: time.Hour, Max: time.Hour}
		u := start(t, cfg)
		take := func(avoid ...string) upstream.Lease[*conn] {
			t.Helper()
			l, err := u.AcquireNarrow(t.Context(), "key", upstream.Narrow{Avoid: avoid})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		for range 20 {
			for avoid, want := range map[string]string{"a:1": "b:1", "b:1": "a:1", "a:1 b:1": "c:1"} {
				l := take(strings.Fields(avoid)...)
				if l.Endpoint() != want {
					t.Fatalf("%v: %s although %s are to be avoided", balance, l.Endpoint(), avoid)
				}
				l.Release()
			}
			if !u.Others([]string{"a:1", "b:1"}) || u.Others([]string{"a:1", "b:1", "c:1"}) {
				t.Fatal("the error does not say whether there are other endpoints")
			}
			l := take("a:1", "b:1", "c:1")
			if l.Endpoint() == "c:1" {
				t.Fatalf("%v: the spare, although all are to be avoided", balance)
			}
			l.Release()
		}
		take("b:1").Fail(errors.New("broken"))
		l := take("b:1", "c:1") // a is out
		if l.Endpoint() != "b:1" {
			t.Errorf("%v: %s instead of the one that is in", balance, l.Endpoint())
		}
		l.Release()
		take("a:1", "c:1").Fail(errors.New("broken"))
		take("a:1", "b:1").Fail(errors.New("broken"))
		if u.Others(nil) {
			t.Error("an endpoint that is out is another one")
		}
		l = take("a:1") // all are out
		if l.Endpoint() == "a:1" {
			t.Errorf("%v: the one to be avoided, although all are out", balance)
		}
		l.Release()
	}
}

// TestOneEndpoint is all that is tried, if that is asked for.
func TestOneEndpoint(t *testing.T) {
	b := newBackends()
	b.set(b.down, "a:1", true)
	cfg := b.config("a:1", "b:1")
	cfg.Balance = upstream.First
	u := start(t, cfg)
	_, err := u.AcquireNarrow(t.Context(), "", upstream.Narrow{One: true})
	failed, ok := errors.AsType[*upstream.Error](err)
	if !ok || len(failed.Causes) != 1 || failed.Causes[0].Endpoint != "a:1" || !errors.Is(err, errRefused) {
		t.Errorf("got %v", err)
	}
	l, err := u.AcquireNarrow(t.Context(), "", upstream.Narrow{})
	if err != nil || l.Endpoint() != "b:1" {
		t.Fatalf("got %v, %v", l, err)
	}
	l.Release()
	none := start(t, b.config())
	if _, err := none.AcquireNarrow(t.Context(), "", upstream.Narrow{Avoid: []string{"a:1"}, One: true}); !errors.Is(err, upstream.ErrUnavailable) {
		t.Errorf("without endpoints: %v", err)
	}
}

// TestMaxLoad: a key whose endpoint has its share of leases moves to the next one on the ring, and back when there is
// room. Other keys stay.
func TestMaxLoad(t *testing.T) {
	weights := map[string]int{"a:1": 1, "b:1": 2, "c:1": 3}
	cfg := newBackends().config("a:1", "b:1", "c:1")
	cfg.Balance, cfg.Limits.MaxSize = upstream.RingHash, 100
	for i := range cfg.Endpoints {
		cfg.Endpoints[i].Weight = weights[cfg.Endpoints[i].Address]
	}
	u := start(t, cfg)
	take := func(maxLoad int) upstream.Lease[*conn] {
		t.Helper()
		l, err := u.AcquireNarrow(t.Context(), "hot", upstream.Narrow{MaxLoad: maxLoad})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := take(150)
	home := first.Endpoint()
	first.Release()
	for _, maxLoad := range []int{100, 150} {
		var leases []upstream.Lease[*conn]
		held, spilled := map[string]int{}, 0
		for all := 1; all <= 60; all++ {
			l := take(maxLoad)
			leases = append(leases, l)
			held[l.Endpoint()]++
			if most := (all*weights[l.Endpoint()]*maxLoad + 599) / 600; held[l.Endpoint()] > most {
				t.Fatalf("%d %%: %d of %d leases at %s, which may have %d", maxLoad, held[l.Endpoint()], all, l.Endpoint(), most)
			}
			if l.Endpoint() != home {
				spilled++
			}
		}
		if held[home] == 0 || spilled == 0 {
			t.Errorf("%d %%: %v, and home is %s", maxLoad, held, home)
		}
		for _, l := range leases {
			l.Release()
		}
		l := take(maxLoad)
		if l.Endpoint() != home {
			t.Errorf("%d %%: it has moved from %s to %s", maxLoad, home, l.Endpoint())
		}
		l.Release()
	}
	for range 20 {
		l := take(0)
		defer l.Release()
		if l.Endpoint() != home {
			t.Errorf("without a limit it went to %s, not %s", l.Endpoint(), home)
		}
	}
}

// TestAvoidedAfterAFailure: if the endpoint that is chosen instead of those to be avoided cannot open a connection, they still come last.
func TestAvoidedAfterAFailure(t *testing.T) {
	for _, balance := range []upstream.Balance{upstream.P2C, upstream.RoundRobin, upstream.RingHash, upstream.First} {
		b := newBackends()
		cfg := b.config("a:1", "b:1", "c:1")
		cfg.Balance = balance
		u := start(t, cfg)
		b.set(b.down, "b:1", true)
		for range 20 {
			l, err := u.AcquireNarrow(t.Context(), "key", upstream.Narrow{Avoid: []string{"a:1"}})
			if err != nil {
				t.Fatal(err)
			}
			if l.Endpoint() != "c:1" {
				t.Fatalf("%v: %s although it is to be avoided, and another one is there", balance, l.Endpoint())
			}
			l.Release()
		}
	}
}
