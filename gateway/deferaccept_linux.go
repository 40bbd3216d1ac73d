package gateway

import (
	"net"

	"golang.org/x/sys/unix"
)

// deferAccept says whether Linux hands over a connection of a TCP socket only when its client has sent something, or after about a second
// (TCP_DEFER_ACCEPT in tcp(7)). A session then begins with its request, and does not have to wait for that first.
func (s *socket) deferAccept(defers bool) {
	if _, ok := s.Addr().(*net.TCPAddr); !ok {
		return
	}
	f, err := fileOf(s.Listener)
	if err != nil {
		return // sessions wait for their requests themselves
	}
	defer func() { _ = f.Close() }()
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	seconds := 0
	if defers {
		seconds = 1
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, seconds) })
}
