//go:build unix

package tcppool

import (
	"net"
	"syscall"
)

// look peeks at one byte of c's socket, without blocking and without taking it.
func look(c net.Conn) state {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return unknown
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return dead
	}
	var n int
	var perr error
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		for perr = syscall.EINTR; perr == syscall.EINTR; {
			n, _, perr = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		}
	})
	switch {
	case err != nil:
		return dead
	case perr == syscall.EAGAIN || perr == syscall.EWOULDBLOCK:
		return silent
	case perr != nil || n == 0:
		return dead
	}
	return pending
}
