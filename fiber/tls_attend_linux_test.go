//go:build amd64 || arm64

package fiber_test

import (
	"bytes"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
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
