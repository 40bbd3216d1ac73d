//go:build unix

package listener

import "golang.org/x/sys/unix"

// WasReset reports whether the client has reset the connection, whatever it sent before. It leaves
// the error on the socket. It returns false where the system does not show it.
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
