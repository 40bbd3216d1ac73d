//go:build unix

package gateway

import (
	"net"
	"syscall"
)

// open reports whether a connection that waited in a pool still is: its peer has not ended it. Bytes that have arrived stay.
func open(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		alive = n > 0 || err == syscall.EAGAIN || err == syscall.EINTR
	})
	return err == nil && alive
}
