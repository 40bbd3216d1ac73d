package upstream

import (
	"errors"
	"syscall"
)

// shortage reports whether err means that this machine is out of file descriptors or memory. Such an error says nothing
// about the endpoint; counting it would take all endpoints out at once.
func shortage(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
