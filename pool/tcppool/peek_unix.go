//go:build unix

package tcppool

import (
	"net"
	"syscall"

	"github.com/headpond/headpond/internal/idleconn"
)

// peek peeks at one byte of c's socket, without blocking and without taking it.
func peek(c net.Conn) idleconn.State {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return idleconn.Unknown
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return idleconn.Dead
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
		return idleconn.Dead
	case perr == syscall.EAGAIN || perr == syscall.EWOULDBLOCK:
		return idleconn.Silent
	case perr != nil || n == 0:
		return idleconn.Dead
	}
	return idleconn.Pending
}
