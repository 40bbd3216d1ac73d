//go:build unix

package tcpproxy

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// reset reports whether the peer has reset the connection. It leaves the error
// on the socket.
func reset(c syscall.Conn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	broken := false
	_ = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(fds, 0)
		broken = err == nil && n > 0 && fds[0].Revents&unix.POLLERR != 0
	})
	return broken
}
