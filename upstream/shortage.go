package upstream

import (
	"errors"
	"syscall"
)

// shortage reports whether err means that this machine lacks something: file
// descriptors, memory. It says nothing about the endpoint, and would take all
// of them out at once.
func shortage(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
