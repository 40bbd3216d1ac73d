//go:build unix

package idleconn

import "syscall"

const canPeek = true

// peek looks for one byte on the non-blocking socket fd.
func peek(fd uintptr) State {
	var b [1]byte
	for {
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN || err == syscall.EWOULDBLOCK:
			return Silent
		case err != nil || n == 0:
			return Dead
		}
		return Pending
	}
}
