package fiber_test

import (
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
)

// The FIN goes in one packet with the data that is written just before Close or CloseWrite.
func TestFINWithTheLastData(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		l, err := e.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for name, end := range map[string]func(fiber.Stream) error{"Close": fiber.Stream.Close, "CloseWrite": fiber.Stream.CloseWrite} {
			client, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			s, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			on(s, func() {
				_, _ = s.Write([]byte("pong"))
				_ = end(fiber.StreamOf(s))
			})
			if got, err := io.ReadAll(client); string(got) != "pong" || err != nil {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			if n := packets(t, client, func(i *unix.TCPInfo) uint32 { return i.Segs_in }); n != 2 {
				t.Errorf("%s: %d packets, want that of the handshake and one with data and the end", name, n)
			}
			_ = client.Close()
			_ = s.Close()
		}
	})
}
