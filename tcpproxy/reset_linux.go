package tcpproxy

import (
	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
)

// resetTaken reports whether the TCP connection c, of which this side has not ended its stream, was reset before it sent a FIN, and the
// error that says so was taken from the socket. Where loops copy both directions it is false: there the direction that takes the error says so first.
func resetTaken(c fiber.Stream) bool {
	if c.Loop() != 0 || c.RemoteAddr().Network() != "tcp" {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	taken := false
	_ = raw.Control(func(fd uintptr) {
		state := []unix.PollFd{{Fd: int32(fd)}} //nolint:gosec // a descriptor
		n, err := unix.Poll(state, 0)
		taken = err == nil && n > 0 && state[0].Revents&(unix.POLLHUP|unix.POLLERR) == unix.POLLHUP && !fiber.FinReceived(int(fd)) //nolint:gosec // a descriptor
	})
	return taken
}
