//go:build !linux

package freeport

import (
	"net"
	"strconv"
	"sync"
)

var given sync.Map

func reserve(port int) bool {
	_, before := given.LoadOrStore(port, true)
	return !before
}

// unused reports whether nothing listens on the port.
func unused(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && l.Close() == nil
}
