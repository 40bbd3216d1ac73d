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
		if n := testing.AllocsPerRun(200, once); n > 0 {
			t.Errorf("%s: %v allocations for each request", kind, n)
		}
	}
}

// TestHTTP2Allocations: a stream between a client and a server of HTTP/2 allocates nothing but its goroutine, where it has one.
func TestHTTP2Allocations(t *testing.T) {
	const most = 2 // of 0 on loops, and 1 on goroutines
	once := startH2Exchange(t)
	for range 100 {
		once()
	}
	if n := testing.AllocsPerRun(200, once); n > most {
		t.Errorf("%v allocations for each request, want %d at most", n, most)
	}
}
