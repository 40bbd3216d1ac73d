//go:build unix

package pgproxy

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// silent reports whether there is nothing to read from an idle connection: neither data nor its
// end. It does not block.
func silent(conn net.Conn) (bool, error) {
	if q, ok := conn.(interface{ Quiet() bool }); ok {
		return q.Quiet(), nil
	}
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return true, nil
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false, err
	}
	var n int
	var peekErr error
	err = rc.Control(func(fd uintptr) {
		var b [1]byte
		n, _, peekErr = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	switch {
	case err != nil:
		return false, err
	case peekErr == unix.EAGAIN || peekErr == unix.EINTR:
		return true, nil
	case peekErr != nil:
		return false, peekErr
	}
	_ = n // data, or 0: the end; reading tells
	return false, nil
}
