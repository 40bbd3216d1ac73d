//go:build unix

package httpproxy

import "syscall"

// peerEnded reports whether a socket has nothing to read but its end, or an error.
func peerEnded(fd uintptr) bool {
	var b [1]byte
	for {
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN || err == syscall.EWOULDBLOCK:
			return false
		}
		return err != nil || n == 0
	}
}
