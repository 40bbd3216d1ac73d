//go:build unix && !linux

package fiber

import (
	"syscall"

	"golang.org/x/sys/unix"
)

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
		if hungUp(fd) {
			return Closing
		}
		return Pending
	}
}

// arrival looks at a socket that has just been accepted.
func arrival(fd uintptr) Arrival {
	var b [1]byte
	for {
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN || err == syscall.EWOULDBLOCK || n > 0:
			return Present
		case err != nil:
			return Broken
		}
		return EndedEmpty
	}
}

// hungUp reports whether the peer has closed the connection, as far as the system shows it: Darwin does when the peer
// has ended its half, others only when both halves have ended.
func hungUp(fd uintptr) bool {
	socket := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(socket[:], 0)
	return err == nil && n == 1 && socket[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}
