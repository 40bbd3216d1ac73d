//go:build !race

package httpproxy_test

import (
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/enginetest"
)

// TestNoAllocations counts the proxy's allocations for requests. Under the race detector pools drop items, so it cannot be
// counted there.
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

// TestHTTP2Allocations: a stream between an HTTP/2 client and an HTTP/2 server allocates nothing but its goroutine, if it
// has one, and what that makes of trailers.
func TestHTTP2Allocations(t *testing.T) {
	most := 2.0 // of 0 on loops
	if enginetest.Kind() == fiber.Goroutine {
		most = 7
	}
	for name, logs := range logsOff {
		for _, calls := range []bool{false, true} {
			once := startH2Exchange(t, logs, 1, calls)
			for range 100 {
				once()
			}
			if n := testing.AllocsPerRun(200, once); n > most {
				t.Errorf("%s, calls: %v: %v allocations for each request, want %v at most", name, calls, n, most)
			}
		}
	}
}

// TestServerThatClosesAfterManyAnswers is TestServerThatClosesAfterEachAnswer with 10,000 requests.
func TestServerThatClosesAfterManyAnswers(t *testing.T) { closesAfterEachAnswer(t, 1250) }
