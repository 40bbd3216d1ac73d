package fiber_test

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
)

// The ACK that ends TCP's handshake goes with the data that is written at once, and by itself if there is none.
func TestDialSendsTheACKWithData(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		first, second := dialled(t, e, l, ""), dialled(t, e, l, "ping")
		if first != 2 || second != 2 {
			t.Errorf("%d packets for a connection, %d with data, want 2 each", first, second)
		}
	})
}

// dialled returns how many packets a connection sends on which text is written, if it is not empty.
func dialled(t *testing.T, e *fiber.Engine, l net.Listener, text string) uint32 {
	t.Helper()
	made := make(chan net.Conn)
	e.Go(func() {
		c, err := e.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Error(err)
		} else if text != "" {
			_, _ = c.Write([]byte(text))
		}
		fiber.Block(func() { made <- c })
	})
	c := <-made
	if c == nil {
		t.FailNow()
	}
	on(c, func() {})
	on(c, func() {}) // so that two ticks are over
	sent := packets(t, c, func(i *unix.TCPInfo) uint32 { return i.Segs_out })
	on(c, func() { _ = c.Close() })
	return sent
}

// packets returns a number of packets of a connection.
func packets(t *testing.T, c net.Conn, which func(*unix.TCPInfo) uint32) (n uint32) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn() //nolint:forcetypeassert // a socket
	if err != nil {
		t.Fatal(err)
	}
	failed := raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = which(info)
		}
	})
	if failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	return n
}
