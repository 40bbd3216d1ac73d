//go:build amd64 || arm64

package fiber_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// deaf returns the address of a socket on ip that neither accepts nor refuses connections: its
// queue is full.
func deaf(t *testing.T, ip [4]byte, port int) *net.TCPAddr {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: ip, Port: port}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := &net.TCPAddr{IP: ip[:], Port: sa.(*syscall.SockaddrInet4).Port}
	c, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	for queue := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}; ; { // until c is in the queue, and that full
		if _, err := unix.Poll(queue, -1); err == nil {
			return addr
		} else if err != unix.EINTR { //nolint:errorlint // made by the system call
			t.Fatal(err)
		}
	}
}

// Dial errors are the same as those of package net.
func TestDialErrors(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		to := deaf(t, [4]byte{127, 0, 0, 1}, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := e.DialContext(ctx, "tcp", to.String())
		if ne, ok := errors.AsType[net.Error](err); !ok || !ne.Timeout() {
			t.Errorf("time-out: %#v: want a net.Error whose Timeout is true", err)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		_, err = e.DialContext(cancelled, "tcp", to.String())
		if ne, ok := errors.AsType[net.Error](err); !ok || ne.Timeout() || !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %#v: want a net.Error whose Timeout is false, and context.Canceled", err)
		}
		closed := conntest.Listen(t)
		_ = closed.Close()
		_, err = e.DialContext(t.Context(), "tcp", closed.Addr().String())
		if _, ok := errors.AsType[*net.OpError](err); !ok || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("refused: %#v, want a *net.OpError", err)
		}
		_, err = e.DialContext(t.Context(), "tcp6", closed.Addr().String())
		if _, ok := errors.AsType[*net.AddrError](err); !ok {
			t.Errorf("an IPv4 address by tcp6: %v, want a *net.AddrError", err)
		}
	})
}

// No host is this one, as for package net.
func TestDialWithoutHost(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		c, err := e.DialContext(t.Context(), "tcp4", ":"+port)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	})
}

// An address that does not answer leaves time for the next.
func TestDialTriesTheNextAddress(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		l := conntest.Listen(t)
		defer l.Close()
		good := l.Addr().(*net.TCPAddr)
		mute := deaf(t, [4]byte{127, 0, 0, 2}, good.Port)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		c, err := e.DialAny(ctx, mute.AddrPort(), good.AddrPort())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	})
}

// A socket that has connected to itself has reached no server, and would occupy the server's port. By chance that takes
// some ten thousand attempts.
func TestDialToItself(t *testing.T) {
	for _, own := range []bool{true, false} {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
		if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Fatal(err)
		}
		sa, err := syscall.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		port := sa.(*syscall.SockaddrInet4).Port
		if !own {
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			port = l.Addr().(*net.TCPAddr).Port
		}
		if err := syscall.Connect(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port}); err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{"127.0.0.1", "0.0.0.0"} {
			if got := fiber.ToItself(fd, netip.AddrPortFrom(netip.MustParseAddr(to), uint16(port))); got != own {
				t.Errorf("%s: ToItself = %v, want %v", to, got, own)
			}
		}
	}
}

// Only a socket with an ephemeral port can have connected to itself. Where the system does not report the range, all
// ports are checked.
func TestEphemeralPorts(t *testing.T) {
	narrow, broken := filepath.Join(t.TempDir(), "narrow"), filepath.Join(t.TempDir(), "broken")
	for path, text := range map[string]string{narrow: "32768\t60999\n", broken: "32768"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for port, within := range map[int]bool{443: false, 32767: false, 32768: true, 60999: true, 61000: false} {
		if got := fiber.Ephemeral(narrow, port); got != within {
			t.Errorf("port %d is in the range: %v, want %v", port, got, within)
		}
		if !fiber.Ephemeral(broken, port) || !fiber.Ephemeral(narrow+".gone", port) {
			t.Errorf("port %d is left out where the range is not known", port)
		}
	}
}

// Close ends whatever waits, on fibers and on goroutines, and waits for code that does not notice.
func TestCloseEndsWhatWaits(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		nobody := deaf(t, [4]byte{127, 0, 0, 1}, 0)
		l, err := e.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		waits := map[string]func(c net.Conn) error{
			"dial": func(net.Conn) error {
				_, err := e.DialContext(t.Context(), "tcp", nobody.String())
				return err
			},
			"accept": func(net.Conn) error { _, err := l.Accept(); return err },
			"read":   func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err },
			"write":  func(c net.Conn) error { _, err := c.Write(make([]byte, 64<<20)); return err },
			"copy":   func(c net.Conn) error { err, _ := c.(fiber.Stream).CopyTo(c, func(int) {}, nil); return err },
		}
		type result struct {
			name string
			err  error
		}
		results, started := make(chan result, 2*len(waits)), make(chan struct{}, 2*len(waits)+1)
		var home net.Conn
		var peers []net.Conn
		for name, wait := range waits {
			for _, onFiber := range []bool{true, false} {
				c, s := plainPair(t, e)
				home, peers = s, append(peers, c)
				run := func() {
					started <- struct{}{}
					results <- result{name, wait(s)}
				}
				if onFiber {
					fiber.Spawn(s, run)
				} else {
					go run()
				}
			}
		}
		goOn, blocked := make(chan struct{}), false
		fiber.Spawn(home, func() {
			fiber.Block(func() {
				started <- struct{}{}
				<-goOn
			})
			blocked = true
		})
		for range cap(started) {
			<-started
		}
		gone(home)
		closed := make(chan struct{})
		go func() {
			_ = e.Close()
			close(closed)
		}()
		for range cap(results) {
			if r := <-results; !errors.Is(r.err, net.ErrClosed) {
				t.Errorf("%s: %v, want net.ErrClosed", r.name, r.err)
			}
		}
		for _, c := range peers {
			_ = c.Close() // or Close would wait for the data written to it
		}
		close(goOn)
		if <-closed; !blocked {
			t.Error("Close did not wait for a fiber")
		}
	})
}

// A link-local address means nothing without its zone.
func TestDialWithAZone(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]int{"[fe80::1%lo]:1": lo.Index, "[fe80::1%77]:1": 77, "[fe80::1]:1": 0} {
		if zone, err := fiber.Zone(t.Context(), address); err != nil || int(zone) != want {
			t.Errorf("%s: zone %d, want %d; %v", address, zone, want, err)
		}
	}
	if _, err := fiber.Zone(t.Context(), "[fe80::1%nosuch]:1"); err == nil || !strings.Contains(err.Error(), "no interface nosuch") {
		t.Errorf("an interface that does not exist: %v", err)
	}
	if !hasIPv6() {
		return
	}
	engines(t, func(t *testing.T, e *fiber.Engine) {
		l, err := net.Listen("tcp", "[::1]:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		c, err := e.DialContext(t.Context(), "tcp", "[::1%lo]:"+port)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	})
}

// hasIPv6 reports whether this machine has IPv6, which containers often have not.
func hasIPv6() bool {
	l, err := net.Listen("tcp", "[::1]:0")
	return err == nil && l.Close() == nil
}

// What is written directly after connecting is sent without a wait for the system to report that there is room.
func TestFirstWriteNeedsNoReport(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		l, err := e.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, s := pair(t, e, "tcp")
		defer s.Close()
		defer c.Close()
		on(c, func() {
			d, err := e.DialContext(t.Context(), "tcp", l.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer d.Close()
			began := e.Stats().Ticks
			if _, err := d.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			if now := e.Stats().Ticks; now != began {
				t.Errorf("writing took %d ticks", now-began)
			}
		})
	})
}
