//go:build unix

package listener

import "golang.org/x/sys/unix"

// WasReset reports whether the client has reset the connection, even if data that arrived before is
// unread. The error stays on the socket. On systems that do not show resets it returns false.
func (c *Conn) WasReset() bool {
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
