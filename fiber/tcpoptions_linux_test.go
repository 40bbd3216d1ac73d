//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// TestTCPOptions sets those of connections of every engine, and leaves others alone.
func TestTCPOptions(t *testing.T) {
	options := fiber.TCPOptions{KeepAliveIdle: 1500 * time.Millisecond, UserTimeout: 2500 * time.Millisecond}
	l := conntest.Listen(t)
	defer l.Close()
	check := func(t *testing.T, c net.Conn) {
		t.Helper()
		if err := options.Apply(c); err != nil {
			t.Fatal(err)
		}
		if err := (fiber.TCPOptions{}).Apply(c); err != nil {
			t.Fatal(err)
		}
		raw, err := fiber.StreamOf(c).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		err = raw.Control(func(fd uintptr) {
			for option, want := range map[int]int{unix.TCP_KEEPIDLE: 2, unix.TCP_KEEPINTVL: 15, unix.TCP_KEEPCNT: 9, unix.TCP_USER_TIMEOUT: 2500} {
				if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); got != want || err != nil {
					t.Errorf("option %d is %d, %v; want %d", option, got, err, want)
				}
			}
			if on, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE); on != 1 || err != nil {
				t.Errorf("keep-alive is %d, %v", on, err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, err := e.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		check(t, c)
		_ = c.Close()
	})
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if err := options.Apply(a); err != nil {
		t.Errorf("a pipe: %v", err)
	}
	client, server := conntest.Pair(t, "unix", t.TempDir()+"/s")
	for _, c := range []net.Conn{client, server} {
		if err := options.Apply(c); err != nil {
			t.Errorf("a unix socket: %v", err)
		}
	}
}
