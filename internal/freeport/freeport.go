// Package freeport finds ports for servers in tests and benchmarks.
package freeport

import (
	"errors"
	"math/rand/v2"
	"slices"
)

// The range lies below the ports of outgoing connections, so that none of those takes a port while its server is not
// listening.
const first, last = 15000, 31999

// Get returns a free port of 127.0.0.1 that no other call in this process returns and, on Linux, no other process
// either: tests of several packages run concurrently, and some time passes before a server listens on the port. The
// ports at the given higher distances are free, too. It may be called concurrently.
func Get(higher ...int) (int, error) {
	span := last - first + 1 - slices.Max(append(higher, 0))
	for range 1000 {
		port := first + rand.IntN(span)
		if free(port) && !slices.ContainsFunc(higher, func(by int) bool { return !free(port + by) }) {
			return port, nil
		}
	}
	return 0, errors.New("freeport: no free port from 15000 to 31999")
}

// free reports whether this call has reserved the port and nothing listens on it.
func free(port int) bool { return reserve(port) && unused(port) }
