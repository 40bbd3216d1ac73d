package fiber_test

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// Whatever would end a Read starts the fiber that was left behind.
func TestOnReadable(t *testing.T) {
	causes := map[string]struct {
		do   func(c, peer net.Conn)
		want error
	}{
		"data":        {func(_, peer net.Conn) { _, _ = peer.Write([]byte("x")) }, nil},
		"end":         {func(_, peer net.Conn) { _ = peer.Close() }, io.EOF},
		"deadline":    {func(c, _ net.Conn) { _ = c.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
		"a later one": {func(c, _ net.Conn) { _ = c.SetReadDeadline(time.Now().Add(time.Millisecond)) }, os.ErrDeadlineExceeded},
		"close":       {func(c, _ net.Conn) { _ = c.Close() }, net.ErrClosed},
	}
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for name, cause := range causes {
			for _, first := range []bool{false, true} {
				c, peer := pair(t, e, "tcp")
				idle, ok := c.(fiber.Stream)
				if !ok {
					return // the goroutine engine's
				}
				if first {
					cause.do(c, peer)
				}
				if idle.OnReadable(func() {}) {
					t.Error("a goroutine may call it")
				}
				got := make(chan error, 1)
				on(c, func() {
					if !idle.OnReadable(func() { _, err := c.Read(make([]byte, 1)); got <- err }) {
						t.Error("refused")
					}
				})
				if !first {
					cause.do(c, peer)
				}
				if err := <-got; !errors.Is(err, cause.want) {
					t.Errorf("%s: %v, want %v", name, err, cause.want)
				}
				_ = c.Close()
				_ = peer.Close()
			}
		}
	})
}

// A deadline set before counts too, and an awaited event does not come twice.
func TestOnReadableOnce(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, peer := pair(t, e, "tcp")
		defer peer.Close()
		idle, ok := c.(fiber.Stream)
		if !ok {
			return
		}
		got := make(chan error, 2)
		on(c, func() {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			idle.OnReadable(func() { _, err := c.Read(make([]byte, 1)); got <- err })
			if idle.OnReadable(func() {}) {
				t.Error("a second one was taken")
			}
		})
		if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v, want the deadline", err)
		}
		on(c, func() {
			_ = c.SetReadDeadline(time.Time{})
			_, _ = peer.Write([]byte("xy"))
			if n, err := io.ReadFull(c, make([]byte, 2)); n != 2 {
				t.Errorf("%d bytes, %v", n, err)
			}
			_ = c.Close()
		})
		if len(got) > 0 {
			t.Error("it ran again")
		}
	})
}

func TestWaitReadableFor(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, peer := pair(t, e, "tcp")
		idle, ok := c.(fiber.Stream)
		if !ok {
			return
		}
		on(c, func() {
			for range 3 { // its timer is used again
				if ready, err := idle.WaitReadableFor(time.Millisecond); ready || err != nil {
					t.Errorf("in silence: %v, %v", ready, err)
				}
			}
		})
		_, _ = peer.Write([]byte("x"))
		on(c, func() {
			if ready, err := idle.WaitReadableFor(time.Hour); !ready || err != nil {
				t.Errorf("with something to read: %v, %v", ready, err)
			}
			_, _ = c.Read(make([]byte, 1))
			go func() { _, _ = peer.Write([]byte("y")) }()
			if ready, err := idle.WaitReadableFor(math.MaxInt64); !ready || err != nil {
				t.Errorf("for ever: %v, %v", ready, err)
			}
			_, _ = c.Read(make([]byte, 1))
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			if ready, err := idle.WaitReadableFor(time.Hour); ready || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("with a deadline: %v, %v", ready, err)
			}
			_ = c.SetReadDeadline(time.Time{})
		})
		_ = peer.Close()
		if ready, err := idle.WaitReadableFor(0); !ready || err != nil { // a goroutine's patience is endless
			t.Errorf("at the end: %v, %v", ready, err)
		}
		_ = c.Close()
	})
}

// A connection left to OnReadable keeps the deadline of a Write that waits.
func TestOnReadableLeavesTheWriter(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer s.Close()
		stuff(t, c, stream{})
		wrote := make(chan error, 1)
		on(c, func() {
			_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			fiber.Go(func() {
				_, err := c.Write(make([]byte, 10<<20))
				wrote <- err
			})
			fiber.Sleep(time.Millisecond) // it waits
			if !c.(fiber.Stream).OnReadable(func() {}) {
				t.Error("refused")
			}
		})
		if err := <-wrote; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Write: %v, want the deadline", err)
		}
		_ = c.(interface{ SetLinger(int) error }).SetLinger(0)
		_ = c.Close()
	})
}
