package freeport

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// reserve reports whether the port is this call's: an abstract Unix socket of its name exists at most
// once, and ends with the process.
func reserve(port int) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	if unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@headpond-port-%d", port)}) != nil {
		_ = unix.Close(fd)
		return false
	}
	return true
}
