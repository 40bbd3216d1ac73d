package freeport

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// reserve reports whether this call has reserved the port: an abstract Unix socket with its number can exist only once,
// and ends with the process.
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
