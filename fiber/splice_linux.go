package fiber

import (
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// splicePiece bounds the bytes that package net moves before moved is called: a receiver that accepts fewer within an
// idle time-out counts as idle.
const splicePiece = 64 << 10

// spliceSockets moves received data from src to dst, as long as it comes in bulk, if both are TCP connections of
// package net, which splices between such connections. It waits for room in dst, but not for more data, so that on
// return it holds no data, and moved has counted everything.
func spliceSockets(src, dst net.Conn, moved, spliced func(int)) (readErr, writeErr error) {
	from, to := socketOf(src), socketOf(dst)
	if from == nil || to == nil {
		return nil, nil
	}
	for {
		arrived := unread(from)
		if arrived < spliceLeast {
			return nil, nil
		}
		n, err := to.ReadFrom(&io.LimitedReader{R: from, N: int64(min(arrived, splicePiece))})
		if spliced != nil {
			spliced(int(n))
		}
		moved(int(n))
		switch {
		case err == nil:
		case !broken(to) && newSocketProbe(from).now() == Dead:
			return err, nil
		default:
			return nil, err
		}
	}
}

// broken reports whether nothing can be sent on c, whose sending half was not closed.
func broken(c *net.TCPConn) bool {
	yes := true
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) {
			socket := [1]unix.PollFd{{Fd: int32(fd)}}
			n, err := unix.Poll(socket[:], 0)
			yes = err != nil || n > 0
		})
	}
	return yes
}

// socketOf returns c if it is a TCP connection of package net, without a layer such as TLS.
func socketOf(c net.Conn) *net.TCPConn {
	c = written(c)
	if w, ok := c.(*adapted); ok {
		c = w.Conn
	}
	tcp, _ := c.(*net.TCPConn)
	return tcp
}

// unread returns how many received bytes wait in c's socket; 0 if that is not known.
func unread(c *net.TCPConn) (n int) {
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return n
}
