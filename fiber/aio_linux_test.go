//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// What is sent behind a reset fails, and takes the error that reading would have found; the stream must not seem to be complete.
func TestFailedSendIsNoEnd(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, reset := range []bool{true, false} {
			plain, c := plainPair(t, e)
			if _, err := plain.Write([]byte("part")); err != nil {
				t.Fatal(err)
			}
			var got []byte
			var err error
			on(c, func() {
				if reset {
					_ = plain.(*net.TCPConn).SetLinger(0)
				}
				_ = plain.Close() // the loop does not see it yet
				for range 3 {
					if _, err = c.Write([]byte("x")); err != nil {
						break
					}
				}
				got, err = io.ReadAll(c)
			})
			switch {
			case reset && !errors.Is(err, syscall.ECONNRESET):
				t.Errorf("%q and then %v after a reset, want ECONNRESET", got, err)
			case !reset && (string(got) != "part" || err != nil):
				t.Errorf("%q and then %v after a FIN, want all and the end", got, err)
			}
		}
	})
}

// More connections than one call sends for have something to say in one turn, in small pieces and in larger ones, and some of their
// peers do not read.
func TestManySendsInOneTurn(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		const many = 300
		var plain, ours [many]net.Conn
		for i := range many {
			plain[i], ours[i] = plainPair(t, e)
		}
		want := random(t, 20_000)
		on(ours[0], func() {
			for from := 0; from < len(want); {
				n := min(1+from/3, len(want)-from)
				for i, c := range ours {
					if m, err := c.Write(want[from : from+n]); m != n || err != nil {
						t.Errorf("Write %d: %d, %v", i, m, err)
					}
				}
				from += n
			}
			for i, c := range ours {
				if i%2 == 0 {
					_ = c.Close()
				} else if err := c.(*fiber.Conn).CloseWrite(); err != nil {
					t.Error(err)
				}
			}
		})
		for i, c := range plain {
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if got, err := io.ReadAll(c); !bytes.Equal(got, want) || err != nil {
				t.Errorf("connection %d: %d bytes and %v, want %d", i, len(got), err, len(want))
			}
		}
		settled(t, e)
	})
}

// What was taken by Write and finds no room is sent after Close, or after CloseWrite, when there is some.
func TestCloseSendsWhatFoundNoRoom(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, closing := range []func(c net.Conn) error{net.Conn.Close, func(c net.Conn) error { return c.(*fiber.Conn).CloseWrite() }} {
			plain, c := plainPair(t, e)
			var sent []byte
			on(c, func() {
				_ = c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
				for piece := random(t, 700); ; {
					n, err := c.Write(piece)
					if sent = append(sent, piece[:n]...); err != nil {
						break
					}
				}
				if err := closing(c); err != nil {
					t.Error(err)
				}
			})
			if got, err := io.ReadAll(plain); !bytes.Equal(got, sent) || err != nil {
				t.Errorf("%d bytes and %v, want %d", len(got), err, len(sent))
			}
			_ = c.Close()
		}
		settled(t, e)
	})
}
