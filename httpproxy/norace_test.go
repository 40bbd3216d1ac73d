//go:build !race

package httpproxy_test

import "testing"

// TestNoAllocations makes requests and counts what the proxy allocates for them. The race detector lets pools forget, so that
// it cannot be counted there.
func TestNoAllocations(t *testing.T) {
	for kind := range exchanges {
		once := startExchange(t, kind)
		for range 100 {
			once()
		}
		if n := testing.AllocsPerRun(1000, once); n > 0 {
			t.Errorf("%s: %v allocations for each request", kind, n)
		}
	}
}
