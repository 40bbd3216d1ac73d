//go:build amd64 || arm64

package fiber_test

import (
	"bytes"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// TestTLSAttendedWithoutRoom: records that a step has accepted, and for which the socket had no room, are sent when it has
// some, also if no further data comes.
func TestTLSAttendedWithoutRoom(t *testing.T) {
	cfg := serverConfig()
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c := newTLSChain(t, e, cfg)
		sendBuffer(t, c.in.NetConn(), 1)
		setBuffer(t, c.far, unix.SO_RCVBUF, 1)
		a := attend(c.out, c.in, c.in.NetConn())
		if !<-a.taken {
			t.Fatal("AttendThen returned false")
		}
		want := random(t, 24<<10)
		_, _ = c.server.Write(want[:12<<10])
		awaitNoFibers(t, e)
		_, _ = c.server.Write(want[12<<10:])
		got := make([]byte, len(want))
		if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("got %d bytes of %d, %v", n, len(want), err)
		}
		awaitNoFibers(t, e)
	})
}

// TestTLSAttended: a loop passes data from and to a TLSConn without a fiber, whatever the pieces are, and nothing is lost
// when the receiver does not read for a while.
func TestTLSAttended(t *testing.T) {
	cfg := serverConfig()
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, down := range []bool{true, false} {
			c := newTLSChain(t, e, cfg)
			a := (*attended)(nil)
			from, to := c.server.(fiber.Stream), net.Conn(c.Conn)
			write := io.Writer(from)
			if down {
				a = attend(c.out, c.in, c.in.NetConn())
			} else {
				a, to, write = attend(c.in, c.out, c.out), from, c.Conn
			}
			if !<-a.taken {
				t.Fatal("AttendThen returned false")
			}
			for _, text := range []string{"one", "two", "three"} {
				_, _ = io.WriteString(write, text)
				if _, err := io.ReadFull(to, make([]byte, len(text))); err != nil {
					t.Fatal(err)
				}
				awaitNoFibers(t, e)
			}
			for _, conn := range []net.Conn{c.far, c.in.NetConn(), c.out, c.server} {
				sendBuffer(t, conn, 64<<10)
				setBuffer(t, conn, unix.SO_RCVBUF, 64<<10)
			}
			want := random(t, 2<<20)            // more than the sockets take
			go sendPieces(t, write.(interface { //nolint:forcetypeassert // both are
				io.Writer
				CloseWrite() error
			}), want)
			conntest.Eventually(t, "a fiber waits for the receiver", func() bool { return !a.takenAgain() && e.Stats().Fibers > 0 })
			got := make([]byte, len(want))
			if n, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("down %v: got %d bytes of %d, equal %v, %v", down, n, len(want), bytes.Equal(got, want), err)
			}
			if err := <-a.ended; err != io.EOF {
				t.Errorf("down %v: at the end %v", down, err)
			}
		}
	})
}
