// Package freeport finds ports for servers in tests and benchmarks.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
)

// The range is below that from which systems take the ports of outgoing connections, so that nothing
// slips onto a port while its server is not up yet, or down for a while.
const first, last = 15000, 31999

// Get returns a free port of 127.0.0.1 that no other call of this process returns and, on Linux, of no other process:
// packages are tested side by side, and time passes between finding a port and listening on it. The ports at the given
// higher distances, if any, are free, too. Safe for concurrent use.
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

// free reports whether this call has reserved the port and it has no listener.
func free(port int) bool {
	if !reserve(port) {
		return false
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && l.Close() == nil
}
