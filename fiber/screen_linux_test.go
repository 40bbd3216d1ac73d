package fiber_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// arrivals are what clients may do before they are accepted, with what shows of it, and whether they are still there.
var arrivals = []struct {
	name    string
	does    func(*net.TCPConn)
	want    fiber.Arrival
	reaches bool
}{
	{"silent", func(*net.TCPConn) {}, fiber.Present, true},
	{"bytes", func(c *net.TCPConn) { io.WriteString(c, "bytes") }, fiber.Present, true},
	{"bytes and an end", func(c *net.TCPConn) { io.WriteString(c, "bytes"); c.CloseWrite() }, fiber.Present, false},
	{"bytes and closed", func(c *net.TCPConn) { io.WriteString(c, "bytes"); c.Close() }, fiber.Present, false},
	{"an end", func(c *net.TCPConn) { c.CloseWrite() }, fiber.EndedEmpty, false},
	{"closed", func(c *net.TCPConn) { c.Close() }, fiber.EndedEmpty, false},
	{"reset", func(c *net.TCPConn) { c.SetLinger(0); c.Close() }, fiber.Broken, false},
	{"bytes and reset", func(c *net.TCPConn) { io.WriteString(c, "bytes"); c.SetLinger(0); c.Close() }, fiber.Broken, false},
	{"an end and reset", func(c *net.TCPConn) { c.CloseWrite(); c.SetLinger(0); c.Close() }, fiber.Broken, false},
}

// TestArrivals: a Screen gets every client's address, and what the client has done before it was accepted.
func TestArrivals(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for _, a := range arrivals {
			l, err := e.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			client := conntest.Dial(t, l.Addr().String())
			a.does(client)
			if !a.reaches {
				conntest.Eventually(t, "its end has arrived", func() bool { return conntest.Established(t, l.Addr().String()) == 0 })
			}
			calls := 0
			c, err := fiber.AcceptScreened(l, func(from netip.AddrPort, got fiber.Arrival) bool {
				if calls++; from.String() != client.LocalAddr().String() || got != a.want {
					t.Errorf("%s: from %v comes %d, want %d of %v", a.name, from, got, a.want, client.LocalAddr())
				}
				return false
			})
			if err != nil {
				t.Fatal(err)
			}
			if calls != 1 {
				t.Errorf("%s: screened %d times", a.name, calls)
			}
			_ = c.Close()
			_ = l.Close()
		}
	})
}

// TestArrivalsOfUnixSockets have no address. A client that has closed such a socket cannot receive.
func TestArrivalsOfUnixSockets(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		l, err := e.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for _, does := range []func(*net.UnixConn){
			func(*net.UnixConn) {},
			func(c *net.UnixConn) { io.WriteString(c, "bytes"); c.Close() },
			func(c *net.UnixConn) { c.CloseWrite() },
			func(c *net.UnixConn) { c.Close() },
		} {
			client, err := net.Dial("unix", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			does(client.(*net.UnixConn))
		}
		var got []fiber.Arrival
		for len(got) < 4 {
			c, err := fiber.AcceptScreened(l, func(from netip.AddrPort, a fiber.Arrival) bool {
				got = append(got, a)
				if from.IsValid() {
					t.Errorf("a client of a Unix socket comes from %v", from)
				}
				return a == fiber.EndedEmpty
			})
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
		}
		if want := []fiber.Arrival{fiber.Present, fiber.Present, fiber.EndedEmpty, fiber.Broken}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// TestRefusedConnections are reset, more of them than a tick's worth, also after a panic of the Screen, and leave no descriptor behind.
func TestRefusedConnections(t *testing.T) {
	const refused = 600
	engines(t, func(t *testing.T, e *fiber.Engine) {
		l, err := e.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var clients []*net.TCPConn
		for range refused + 1 {
			clients = append(clients, conntest.Dial(t, l.Addr().String()))
		}
		n := 0
		var c net.Conn
		accept := func() {
			defer func() {
				if p := recover(); p != nil && p != "at the third" {
					panic(p)
				}
			}()
			c, err = fiber.AcceptScreened(l, func(netip.AddrPort, fiber.Arrival) bool {
				if n++; n == 3 {
					panic("at the third")
				}
				return n <= refused
			})
		}
		fiber.RunOn(l, func() {
			accept()
			accept()
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, client := range clients[:refused] {
			if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("a refused client gets %v, want a reset", err)
			}
		}
		fiber.RunOn(c, func() { io.WriteString(c, "last") })
		conntest.Want(t, clients[refused], "last")
		if s := e.Stats(); e.Kind() != fiber.Goroutine && s.Conns != 1 {
			t.Errorf("the engine has %d connections, want the last one", s.Conns)
		}
		_ = c.Close()
	})
}
