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

// unused reports whether nothing listens on the port. It binds a socket and does not listen: a process that another
// goroutine starts at this moment holds a copy of the socket until its exec, and a copy that listens would accept
// connections when this process already waits for its server, which may not even have begun. A bound copy neither accepts
// nor keeps a server with SO_REUSEADDR from listening.
func unused(port int) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) == nil &&
		unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}) == nil
}
