//go:build !linux

package freeport

import "sync"

var given sync.Map

func reserve(port int) bool {
	_, before := given.LoadOrStore(port, true)
	return !before
}
