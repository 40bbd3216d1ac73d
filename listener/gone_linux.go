package listener

import "golang.org/x/sys/unix"

// clientGone reports whether the client has reset the connection, or ended its stream without
// sending anything. Nothing of the connection may have been read.
func (c *Conn) clientGone() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return c.Ended()
	}
	gone := false
	_ = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if n, err := unix.Poll(fds, 0); err != nil || n == 0 {
			return
		}
		unread, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		gone = fds[0].Revents&unix.POLLERR != 0 || unread == 0 && err == nil
	})
	return gone
}
