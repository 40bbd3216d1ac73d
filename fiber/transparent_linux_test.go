package fiber_test

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// TestDialFrom: the server sees the chosen address, with IPv4 and IPv6, if this process may choose one. Without the capability every dial
// says so.
func TestDialFrom(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		if err := fiber.CanDialFrom(); err != nil {
			_, dialErr := e.DialFrom(t.Context(), netip.MustParseAddr("127.0.0.77"), "tcp", "127.0.0.1:9")
			if !errors.Is(err, syscall.EPERM) || !errors.Is(dialErr, syscall.EPERM) {
				t.Errorf("%v, and the dial: %v; want EPERM", err, dialErr)
			}
			return
		}
		for listen, from := range map[string]string{"127.0.0.1:0": "127.0.0.77", "[::1]:0": "::1"} {
			l, err := net.Listen("tcp", listen)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			for _, from := range []netip.Addr{netip.MustParseAddr(from), netip.AddrFrom16(netip.MustParseAddr(from).As16())} {
				c, err := e.DialFrom(t.Context(), from, "tcp", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				s, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				if got := s.RemoteAddr().(*net.TCPAddr).AddrPort(); got.Addr() != from.Unmap() || got.String() != c.LocalAddr().String() {
					t.Errorf("the server sees %v, this side is %v, want %v", got, c.LocalAddr(), from)
				}
				go func() { _, _ = s.Write([]byte("hello")) }()
				conntest.Want(t, c, "hello")
				_ = s.Close()
				_ = c.Close()
			}
		}
	})
}

// TestDialFromErrors: an address that cannot be connected from, and one of the other family, are errors of the dial.
func TestDialFromErrors(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		refuses := conntest.Listen(t)
		to := refuses.Addr().String()
		_ = refuses.Close()
		for _, c := range []struct {
			from    netip.Addr
			network string
		}{
			{netip.Addr{}, "tcp"}, {netip.MustParseAddr("::1"), "tcp"}, {netip.MustParseAddr("127.0.0.1"), "tcp"}, {netip.MustParseAddr("127.0.0.1"), "unix"},
		} {
			conn, err := e.DialFrom(t.Context(), c.from, c.network, to)
			if _, ok := errors.AsType[*net.OpError](err); !ok {
				t.Errorf("%v, %s: %v, %v", c.from, c.network, conn, err)
			}
		}
		if fiber.CanDialFrom() == nil {
			if _, err := e.DialFrom(t.Context(), netip.MustParseAddr("127.0.0.1"), "tcp", to); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%v, want ECONNREFUSED", err)
			}
		}
	})
}
