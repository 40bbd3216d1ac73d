package upstream_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/headpond/headpond/upstream"
)

func TestP2CPrefersTheLessLoaded(t *testing.T) {
	loads := []int64{5, 0, 9}
	load := func(i int) int64 { return loads[i] }
	for a := range 3 {
		for b := range 2 {
			draws := []int{a, b}
			got := upstream.PickP2C(3, func(int) int { d := draws[0]; draws = draws[1:]; return d }, load)
			other := b
			if b >= a {
				other++
			}
			if loads[got] != min(loads[a], loads[other]) {
				t.Errorf("of %d and %d it took %d", a, other, got)
			}
		}
	}
	if got := upstream.PickP2C(1, nil, load); got != 0 {
		t.Errorf("of one it took %d", got)
	}
}

// TestP2CSpreads keeps every lease: loads stay close together.
func TestP2CSpreads(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	loads := make([]int64, 10)
	for range 10_000 {
		loads[upstream.PickP2C(len(loads), random.IntN, func(i int) int64 { return loads[i] })]++
	}
	for i, n := range loads {
		if n < 990 || n > 1010 {
			t.Errorf("endpoint %d has %d of 10000 leases, want about 1000", i, n)
		}
	}
}

func addresses(n int) []string {
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("10.0.0.%d:6443", i+1)
	}
	return addrs
}

func none(int) bool { return false }

func TestRingSharesAndChurn(t *testing.T) {
	const keys, n = 20_000, 10
	addrs := addresses(n)
	all, fewer := upstream.NewRing(addrs), upstream.NewRing(addrs[:n-1])
	counts := make([]int, n)
	for k := range keys {
		key := fmt.Sprintf("client-%d", k)
		was, now := all.Lookup(key, none), fewer.Lookup(key, none)
		counts[was]++
		if was != n-1 && now != was {
			t.Fatalf("%s moved from endpoint %d to %d although neither left", key, was, now)
		}
		skipped := all.Lookup(key, func(i int) bool { return i == n-1 })
		if skipped != now {
			t.Fatalf("%s goes to %d when endpoint %d is out, and to %d when it is removed", key, skipped, n-1, now)
		}
	}
	for i, c := range counts {
		if c < keys/n*6/10 || c > keys/n*14/10 {
			t.Errorf("endpoint %d has %d keys, want %d ± 40 %%", i, c, keys/n)
		}
	}
}

func TestRingIgnoresOrder(t *testing.T) {
	addrs := addresses(5)
	turned := append(append([]string{}, addrs[2:]...), addrs[:2]...)
	a, b := upstream.NewRing(addrs), upstream.NewRing(turned)
	for k := range 1000 {
		key := fmt.Sprint(k)
		if x, y := addrs[a.Lookup(key, none)], turned[b.Lookup(key, none)]; x != y {
			t.Fatalf("key %s: %s or %s, by the order of the endpoints", key, x, y)
		}
	}
	if got := a.Lookup("x", func(int) bool { return true }); got != -1 {
		t.Errorf("with everything skipped: %d, want -1", got)
	}
}

// balances returns every Balance that has a name.
func balances(t *testing.T) (all []upstream.Balance) {
	t.Helper()
	for _, name := range upstream.Balances() {
		b, err := upstream.ParseBalance(name)
		if err != nil || b.String() != name {
			t.Fatalf("%s: %v, %v", name, b, err)
		}
		all = append(all, b)
	}
	return all
}

// TestBalancesAreDocumented: the user's guide describes every name that the key "balance" takes.
func TestBalancesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n### Balance\n")
	table, _, _ := strings.Cut(section, "\n### ")
	for _, b := range balances(t) {
		if !strings.Contains(table, fmt.Sprintf("\n| `%v` | ", b)) {
			t.Errorf("docs/configuration.md does not describe balance: %v", b)
		}
	}
}

func TestParseBalance(t *testing.T) {
	balances(t)
	if got, err := upstream.ParseBalance(""); got != upstream.P2C || err != nil {
		t.Errorf("empty: %v, %v, want p2c", got, err)
	}
	if _, err := upstream.ParseBalance("best"); !errors.Is(err, upstream.ErrConfig) {
		t.Errorf("best: %v, want ErrConfig", err)
	}
}

// TestRoundRobinSpreadsWhatFails: the leases of an endpoint that refuses go to the others in equal parts, and do not
// disturb their order.
func TestRoundRobinSpreadsWhatFails(t *testing.T) {
	b := newBackends()
	b.down["b:1"] = true
	cfg := b.config("a:1", "b:1", "c:1", "d:1")
	cfg.Balance = upstream.RoundRobin
	cfg.Ejection.Failures = -1
	u := start(t, cfg)
	if got := used(t, u, 120); got["a:1"] != 40 || got["c:1"] != 40 || got["d:1"] != 40 {
		t.Errorf("got %v, want 40 each of a:1, c:1 and d:1", got)
	}
}
