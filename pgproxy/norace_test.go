//go:build !race

package pgproxy_test

import "testing"

// TestNoAllocations makes requests and counts what the proxy allocates for them. The race
// detector lets pools forget, so that it cannot be counted there.
func TestNoAllocations(t *testing.T) {
	for kind := range steady {
		round := startSteady(t, kind)
		for range 100 {
			round()
		}
		if n := testing.AllocsPerRun(1000, round); n > 0 {
			t.Errorf("%s: %v allocations for each transaction", kind, n)
		}
	}
}
