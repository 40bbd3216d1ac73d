package upstream_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/upstream"
)

// TestWeightedTurns compares RoundRobin with its definition: in as many choices as the sum of the weights each endpoint
// is chosen as often as its weight, and an endpoint that has more than half is never left out twice in a row.
func TestWeightedTurns(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		weights := make([]int, 2+random.IntN(6))
		total := 0
		for i := range weights {
			weights[i] = 1 + random.IntN(40)
			total += weights[i]
		}
		weights[0]++ // or all might be alike
		total++
		w := upstream.NewWeighted(weights...)
		var turn atomic.Uint64
		counts := make([]int, len(weights))
		for range total {
			counts[w.InTurn(&turn)]++
		}
		if !slices.Equal(counts, weights) {
			t.Fatalf("weights %v: turns %v", weights, counts)
		}
	}
	var turn atomic.Uint64
	w, last := upstream.NewWeighted(5, 1, 1), -1
	for range 70 {
		i := w.InTurn(&turn)
		if i != 0 && last > 0 {
			t.Fatal("the endpoint with 5 of 7 turns was left out twice in a row")
		}
		last = i
	}
}

// TestWeightedP2C: idle endpoints get their shares, and loads that stay grow in proportion to the weights.
func TestWeightedP2C(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	weights := []int{1, 2, 3, 14}
	w := upstream.NewWeighted(weights...)
	const n = 20_000
	idle, loads := make([]int64, 4), make([]int64, 4)
	for range n {
		idle[w.P2C(random.IntN, func(int) int64 { return 0 })]++
		loads[w.P2C(random.IntN, func(i int) int64 { return loads[i] })]++
	}
	for i, weight := range weights {
		want := int64(n * weight / 20)
		if idle[i] < want*9/10 || idle[i] > want*11/10 {
			t.Errorf("idle endpoint %d of weight %d has %d leases of %d, want about %d", i, weight, idle[i], n, want)
		}
		if loads[i] < want-50 || loads[i] > want+50 {
			t.Errorf("endpoint %d of weight %d has %d of %d leases that stay, want about %d", i, weight, loads[i], n, want)
		}
	}
}

func TestWeightedRing(t *testing.T) {
	addrs := addresses(4)
	const keys = 20_000
	shares := func(r upstream.Ring) []int {
		counts := make([]int, len(addrs))
		for k := range keys {
			counts[r.Lookup(fmt.Sprintf("client-%d", k), none)]++
		}
		return counts
	}
	even, same := upstream.NewRing(addrs), upstream.NewRing(addrs, 7, 7, 7, 7)
	if !slices.Equal(shares(even), shares(same)) {
		t.Error("weights that are all alike are no ring without weights")
	}
	got := shares(upstream.NewRing(addrs, 1, 1, 2, 6))
	for i, weight := range []int{1, 1, 2, 6} {
		if want := keys * weight / 10; got[i] < want*7/10 || got[i] > want*13/10 {
			t.Errorf("endpoint %d of weight %d has %d keys of %d, want about %d", i, weight, got[i], keys, want)
		}
	}
	heavier := upstream.NewRing(addrs, 1, 1, 1, 2) // weights with nothing in common before and after
	for k := range keys {
		key := fmt.Sprintf("client-%d", k)
		if was, now := even.Lookup(key, none), heavier.Lookup(key, none); was != now && now != 3 {
			t.Fatalf("%s moved from endpoint %d to %d, although only 3 became heavier", key, was, now)
		}
	}
	huge := upstream.NewRing(addrs, 65535, 65534, 1, 1)
	if len(huge) > 1<<19+len(addrs) {
		t.Errorf("a ring of %d points", len(huge))
	}
}

// TestPriorities: with every balance, a level is used as long as one of it is in, then the next is, and when all are out the first.
func TestPriorities(t *testing.T) {
	spreading := []upstream.Balance{upstream.P2C, upstream.RoundRobin, upstream.RingHash, upstream.Nearest, upstream.PeakEWMA}
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		for _, balance := range balances(t) {
			cfg := b.config()
			cfg.Endpoints = []upstream.Endpoint{{Address: "far:1", Priority: 7}, {Address: "spare:1", Priority: 1}, {Address: "a:1"}, {Address: "b:1"}}
			cfg.Balance, cfg.Health = balance, upstream.Health{Probe: b.probe, Rise: 1, Fall: 1}
			u := start(t, cfg)
			for _, step := range []struct {
				sick []string
				want []string
			}{
				{nil, []string{"a:1", "b:1"}},
				{[]string{"a:1"}, []string{"b:1"}},
				{[]string{"a:1", "b:1"}, []string{"spare:1"}},
				{[]string{"a:1", "b:1", "spare:1"}, []string{"far:1"}},
				{[]string{"a:1", "b:1", "spare:1", "far:1"}, []string{"a:1", "b:1"}},
				{[]string{"b:1"}, []string{"a:1"}},
			} {
				for _, e := range cfg.Endpoints {
					b.set(b.sick, e.Address, slices.Contains(step.sick, e.Address))
				}
				time.Sleep(upstream.DefaultHealthInterval * 2)
				synctest.Wait()
				got := map[string]int{}
				for i := range 40 {
					l, err := u.AcquireKey(t.Context(), fmt.Sprint("key", i))
					if err != nil {
						t.Fatal(err)
					}
					got[l.Endpoint()]++
					l.Release()
				}
				for addr := range got {
					if !slices.Contains(step.want, addr) {
						t.Errorf("%v: with %v out got %v, want %v only", balance, step.sick, got, step.want)
					}
				}
				if slices.Contains(spreading, balance) && len(got) != len(step.want) {
					t.Errorf("%v: with %v out got %v, want all of %v", balance, step.sick, got, step.want)
				}
			}
			u.Close()
		}
	})
}

// TestSpillOver: endpoints that refuse connections, but are not out yet, are passed over in the order of priorities.
func TestSpillOver(t *testing.T) {
	b := newBackends()
	cfg := b.config()
	cfg.Endpoints = []upstream.Endpoint{{Address: "c:1", Priority: 2}, {Address: "b:1", Priority: 1}, {Address: "a:1"}}
	cfg.Ejection.Failures = -1
	for _, want := range []string{"a:1", "b:1", "c:1"} {
		u := start(t, cfg)
		if got := used(t, u, 5); got[want] != 5 {
			t.Errorf("got %v, want %s", got, want)
		}
		b.set(b.down, want, true)
	}
}

// TestSlowStart: an added endpoint gets a share that grows, also after it was out; endpoints that were there from the
// beginning get theirs at once.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.config("a:1")
		cfg.Balance, cfg.SlowStart = upstream.RoundRobin, 10*time.Second
		cfg.Health = upstream.Health{Probe: b.probe, Interval: time.Second, Rise: 1, Fall: 1}
		u := start(t, cfg)
		share := func() int { synctest.Wait(); return used(t, u, 1000)["b:1"] }
		s := cfg.Settings
		s.Endpoints = upstream.Endpoints("a:1", "b:1")
		if err := u.Update(s); err != nil {
			t.Fatal(err)
		}
		grows := func(what string) {
			t.Helper()
			last := 0
			for range 10 {
				n := share()
				if n < last || n > 500 {
					t.Errorf("%s: %d of 1000 leases after %d", what, n, last)
				}
				last = n
				time.Sleep(time.Second)
			}
			time.Sleep(2 * time.Second)
			if n := share(); last < 400 || n != 500 {
				t.Errorf("%s: %d of 1000 leases shortly before the end and %d after it, want 500", what, last, n)
			}
		}
		if n := share(); n < 50 || n > 120 {
			t.Errorf("%d of 1000 leases at the beginning, want about 91", n)
		}
		grows("added")
		b.set(b.sick, "b:1", true)
		time.Sleep(2 * time.Second)
		if n := share(); n != 0 {
			t.Errorf("%d leases while it was out", n)
		}
		b.set(b.sick, "b:1", false)
		time.Sleep(2 * time.Second)
		grows("in again")
	})
}
