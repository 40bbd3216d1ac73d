package fiber_test

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// eitherOutcome is the result of a wait for two connections.
type eitherOutcome struct {
	ready, other bool
	err          error
}

// eitherCases are all ways in which a wait for two connections ends.
var eitherCases = map[string]struct {
	do   func(a, b, peerA, peerB net.Conn)
	want eitherOutcome
	read error // of the connection that is ready
}{
	"data":              {func(_, _, peer, _ net.Conn) { _, _ = peer.Write([]byte("x")) }, eitherOutcome{ready: true}, nil},
	"end":               {func(_, _, peer, _ net.Conn) { _ = peer.Close() }, eitherOutcome{ready: true}, io.EOF},
	"close":             {func(a, _, _, _ net.Conn) { _ = a.Close() }, eitherOutcome{err: net.ErrClosed}, nil},
	"deadline":          {func(a, _, _, _ net.Conn) { _ = a.SetReadDeadline(time.Unix(1, 0)) }, eitherOutcome{err: os.ErrDeadlineExceeded}, nil},
	"data of the other": {func(_, _, _, peer net.Conn) { _, _ = peer.Write([]byte("x")) }, eitherOutcome{other: true}, nil},
	"end of the other":  {func(_, _, _, peer net.Conn) { _ = peer.Close() }, eitherOutcome{other: true}, io.EOF},
	"reset of the other": {func(_, _, _, peer net.Conn) {
		_ = peer.(interface{ SetLinger(int) error }).SetLinger(0)
		_ = peer.Close()
	}, eitherOutcome{other: true}, syscall.ECONNRESET},
	"close of the other":    {func(_, b, _, _ net.Conn) { _ = b.Close() }, eitherOutcome{other: true}, net.ErrClosed},
	"deadline of the other": {func(_, b, _, _ net.Conn) { _ = b.SetReadDeadline(time.Unix(1, 0)) }, eitherOutcome{other: true}, os.ErrDeadlineExceeded},
	"a later one":           {func(_, b, _, _ net.Conn) { _ = b.SetReadDeadline(time.Now().Add(time.Millisecond)) }, eitherOutcome{other: true}, os.ErrDeadlineExceeded},
}

// Whatever would end a Read of one of the two connections ends the wait, before or while it lasts.
func TestWaitEither(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for name, c := range eitherCases {
			for _, first := range []bool{false, true} {
				peerA, a, b, peerB := chain(t, e, "tcp")
				started, got, read := make(chan struct{}), make(chan eitherOutcome, 1), make(chan error, 1)
				if first {
					c.do(a, b, peerA, peerB)
				}
				fiber.Spawn(a, func() {
					close(started)
					ready, other, err := a.(fiber.Stream).WaitEither(b, 0)
					got <- eitherOutcome{ready, other, err}
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

// The same ends the wait of a step.
func TestTryReadEither(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for name, c := range eitherCases {
			for _, first := range []bool{false, true} {
				peerA, a, b, peerB := chain(t, e, "tcp")
				started, done := make(chan struct{}), make(chan error, 1)
				if first {
					c.do(a, b, peerA, peerB)
				}
				fiber.Spawn(a, func() {
					close(started)
					n, other, over := 0, false, false
					a.(fiber.Stream).Attend(func() bool {
						var data []byte
						data, other, over = a.(fiber.Stream).TryReadEither(b, 0)
						n = len(data)
						return n > 0 || other || over
					})
					ready, err := a, error(nil)
					if other {
						ready = b
					}
					if n == 0 {
						_, err = ready.Read(make([]byte, 1))
					}
					if other != c.want.other {
						err = fmt.Errorf("other = %v (%w)", other, err)
					}
					done <- err
				})
				<-started
				if !first {
					c.do(a, b, peerA, peerB)
				}
				if got, want := <-done, cmp.Or(c.want.err, c.read); !errors.Is(got, want) {
					t.Errorf("%s, first=%v: %v, want %v", name, first, got, want)
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
