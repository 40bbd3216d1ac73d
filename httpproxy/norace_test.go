//go:build !race

package httpproxy_test

import "testing"

// TestNoAllocations makes requests and counts what the proxy allocates for them. The race detector lets pools forget, so that
// it cannot be counted there.
func TestNoAllocations(t *testing.T) {
	for kind := range exchanges {
		for name, logs := range logsOff {
			once := startExchange(t, kind, logs)
			for range 100 {
				once()
			}
			if n := testing.AllocsPerRun(200, once); n > 0 {
				t.Errorf("%s, %s: %v allocations for each request", kind, name, n)
			}
		}
	}
}

// TestHTTP2Allocations: a stream between a client and a server of HTTP/2 allocates nothing but its goroutine, where it has one.
func TestHTTP2Allocations(t *testing.T) {
	const most = 2 // of 0 on loops, and 1 on goroutines
	for name, logs := range logsOff {
		once := startH2Exchange(t, logs)
		for range 100 {
			once()
		}
		if n := testing.AllocsPerRun(200, once); n > most {
			t.Errorf("%s: %v allocations for each request, want %d at most", name, n, most)
		}
	}
}
