package fiber_test

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// Whatever would end a Read of one of the two connections ends the wait, before or while it lasts.
func TestWaitEither(t *testing.T) {
	type outcome struct {
		ready, other bool
		err          error
	}
	past := time.Unix(1, 0)
	cases := map[string]struct {
		do   func(a, b, peerA, peerB net.Conn)
		want outcome
		read error // of the connection that is ready
	}{
		"data":              {func(_, _, peer, _ net.Conn) { _, _ = peer.Write([]byte("x")) }, outcome{ready: true}, nil},
		"end":               {func(_, _, peer, _ net.Conn) { _ = peer.Close() }, outcome{ready: true}, io.EOF},
		"close":             {func(a, _, _, _ net.Conn) { _ = a.Close() }, outcome{err: net.ErrClosed}, nil},
		"deadline":          {func(a, _, _, _ net.Conn) { _ = a.SetReadDeadline(past) }, outcome{err: os.ErrDeadlineExceeded}, nil},
		"data of the other": {func(_, _, _, peer net.Conn) { _, _ = peer.Write([]byte("x")) }, outcome{other: true}, nil},
		"end of the other":  {func(_, _, _, peer net.Conn) { _ = peer.Close() }, outcome{other: true}, io.EOF},
		"reset of the other": {func(_, _, _, peer net.Conn) {
			_ = peer.(interface{ SetLinger(int) error }).SetLinger(0)
			_ = peer.Close()
		}, outcome{other: true}, syscall.ECONNRESET},
		"close of the other":    {func(_, b, _, _ net.Conn) { _ = b.Close() }, outcome{other: true}, net.ErrClosed},
		"deadline of the other": {func(_, b, _, _ net.Conn) { _ = b.SetReadDeadline(past) }, outcome{other: true}, os.ErrDeadlineExceeded},
		"a later one":           {func(_, b, _, _ net.Conn) { _ = b.SetReadDeadline(time.Now().Add(time.Millisecond)) }, outcome{other: true}, os.ErrDeadlineExceeded},
	}
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for name, c := range cases {
			for _, first := range []bool{false, true} {
				peerA, a, b, peerB := chain(t, e, "tcp")
				started, got, read := make(chan struct{}), make(chan outcome, 1), make(chan error, 1)
				if first {
					c.do(a, b, peerA, peerB)
				}
				fiber.Spawn(a, func() {
					close(started)
					ready, other, err := a.(fiber.Stream).WaitEither(b, 0)
					got <- outcome{ready, other, err}
					failed := error(nil)
					if ready {
						_, failed = a.Read(make([]byte, 1))
					} else if other {
						_, failed = b.Read(make([]byte, 1))
					}
					read <- failed
				})
				<-started
				if !first {
					c.do(a, b, peerA, peerB)
				}
				if o := <-got; o.ready != c.want.ready || o.other != c.want.other || !errors.Is(o.err, c.want.err) {
					t.Errorf("%s, first=%v: got %+v, want %+v", name, first, o, c.want)
				}
				if err := <-read; !errors.Is(err, c.read) {
					t.Errorf("%s, first=%v: Read says %v, want %v", name, first, err, c.read)
				}
			}
		}
	})
}

// Patience ends a wait for two silent connections, and leaves both as they were.
func TestWaitEitherPatience(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		_, a, b, peerB := chain(t, e, "tcp")
		on(a, func() {
			for range 3 {
				if ready, other, err := a.(fiber.Stream).WaitEither(b, time.Millisecond); ready || other || err != nil {
					t.Error(ready, other, err)
				}
			}
			_, _ = peerB.Write([]byte("x"))
			if ready, other, err := a.(fiber.Stream).WaitEither(b, time.Hour); ready || !other || err != nil {
				t.Error(ready, other, err)
			}
		})
	})
}

// Two connections that become ready together wake a fiber once: its next wait is not disturbed.
func TestWaitEitherWakesOnce(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		peerA, a, b, peerB := chain(t, e, "tcp")
		on(a, func() {
			for range 200 {
				_, _ = peerA.Write([]byte("x")) // both are sent at the end of this tick
				_, _ = peerB.Write([]byte("x"))
				if ready, other, err := a.(fiber.Stream).WaitEither(b, 0); !ready && !other || err != nil {
					t.Error(ready, other, err)
				}
				done := false
				fiber.Block(func() { // for more than a tick
					ran := make(chan struct{})
					e.Go(func() { close(ran) })
					<-ran
					done = true
				})
				if !done {
					t.Error("a wait ended before its time")
					return
				}
				for _, c := range []net.Conn{a, b} {
					if _, err := c.Read(make([]byte, 1)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	})
}

// Two connections that WaitEither does not support are not waited for.
func TestWaitEitherUnsupported(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		_, a, b, _ := chain(t, e, "tcp")
		w := a.(fiber.Stream)
		if _, _, err := w.WaitEither(b, 0); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("on a goroutine: %v", err)
		}
		foreign, _ := net.Pipe()
		defer foreign.Close()
		on(a, func() {
			if _, _, err := w.WaitEither(foreign, 0); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("with another connection: %v", err)
			}
		})
	})
}

// OnReadable(nil) cancels the function set before.
func TestOnReadableTakenBack(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		_, a, b, peerB := chain(t, e, "tcp")
		w := b.(fiber.Stream)
		on(a, func() {
			if !w.OnReadable(func() { t.Error("it was run") }) || !w.OnReadable(nil) {
				t.Error("refused")
			}
			_, _ = peerB.Write([]byte("x"))
			if _, err := b.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
		})
	})
}
