// Package freeport finds ports for servers that are told where to listen, in tests and benchmarks.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// The range is below that from which systems take the ports of outgoing connections, so that nothing
// slips onto a port while its server is not up yet, or down for a while.
const first, last = 15000, 31999

// Get returns a port of 127.0.0.1 that nobody listens on, and that no other call returns for as long as
// this process lives, nor, on Linux, in any other process: packages are tested side by side, and between
// finding a port and listening on it there is time. Safe for concurrent use.
func Get() (int, error) {
	for range 1000 {
		port := first + rand.IntN(last-first+1)
		if !reserve(port) {
			continue
		}
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("freeport: no free port from 15000 to 31999")
}
