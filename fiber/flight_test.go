package fiber_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// stuff writes to c, on its loop, until nothing has room any more, and returns the stream's state.
func stuff(t *testing.T, c net.Conn, out stream) stream {
	t.Helper()
	on(c, func() {
		for silence := 0; silence < 3; {
			buf := make([]byte, 64<<10)
			next := out
			next.fill(buf)
			_ = c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			n, err := c.Write(buf)
			out.at += uint64(n)
			if silence++; n > 0 {
				silence = 0
			}
			if ne, ok := errors.AsType[net.Error](err); err != nil && (!ok || !ne.Timeout()) {
				t.Error(err)
				return
			}
		}
		_ = c.SetWriteDeadline(time.Time{})
	})
	return out
}

// check reads the received data up to the end, which must be a part of the stream, and returns its length.
func (s *stream) check(t *testing.T, c net.Conn) (n uint64, err error) {
	t.Helper()
	got, want := make([]byte, 50_000), make([]byte, 50_000)
	for {
		n, err := c.Read(got)
		s.fill(want[:n])
		if !bytes.Equal(got[:n], want[:n]) {
			t.Errorf("other bytes than were sent, up to %d", s.at)
			return s.at, err
		}
		if err != nil {
			return s.at, err
		}
	}
}

// awaitNoBuffers waits until no buffers are in use.
func awaitNoBuffers(t *testing.T, e *fiber.Engine) {
	t.Helper()
	for until := time.Now().Add(time.Minute); ; runtime.Gosched() {
		receiving, sending := e.Buffers()
		if receiving == 0 && sending == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d buffers for receiving and %d for sending are in use", receiving, sending)
		}
	}
}

// A connection with something in flight does not move to another loop; it works on, and moves later.
func TestAdoptWithSomethingInFlight(t *testing.T) {
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue
		}
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 2})
		c, s := pair(t, e, "tcp") // each on its own loop
		if fiber.SameLoop(c, s) {
			t.Fatal("both live on one loop")
		}
		out := stuff(t, c, stream{seed: 1})
		on(s, c.(fiber.Stream).Adopt)
		read := make(chan struct{})
		fiber.Spawn(s, func() {
			defer close(read)
			in := stream{seed: 1}
			if n, err := in.check(t, s); err != io.EOF || n != out.at+1000 {
				t.Errorf("%s: %d bytes came, %v; want %d and EOF", kind, n, err, out.at+1000)
			}
		})
		on(s, func() { // from elsewhere, or not
			b := make([]byte, 1000)
			next := out
			next.fill(b)
			if _, err := c.Write(b); err != nil {
				t.Error(err)
			}
			if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		<-read
		awaitNoBuffers(t, e)
		on(s, c.(fiber.Stream).Adopt)
		if !fiber.SameLoop(c, s) {
			t.Errorf("%s: with nothing in flight it did not move", kind)
		}
		_, _ = c.Close(), s.Close()
	}
}

// A closed connection whose peer does not read frees its buffers when its time is over, and the peer learns that data
// is missing: it must not take the part it got for everything.
func TestCloseGivesUp(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, s := plainPair(t, e)
		open := openFiles(t)
		out := stuff(t, s, stream{seed: 1})
		_ = s.Close()
		_, holds := e.Buffers()
		if kept := e.Kind() == fiber.Uring; kept != (holds > 0) || kept != (e.Timers() > 0) {
			t.Fatalf("%d buffers and %d timers after Close", holds, e.Timers())
		}
		fiber.Expire(s)
		awaitNoBuffers(t, e)
		for until := time.Now().Add(time.Minute); openFiles(t) >= open; runtime.Gosched() {
			if time.Now().After(until) {
				t.Fatal("the descriptor is still open")
			}
		}
		in := stream{seed: 1}
		n, err := in.check(t, c)
		if whole := n == out.at && err == io.EOF; !whole && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%d of %d bytes came, and then %v; want all and EOF, or ECONNRESET", n, out.at, err)
		}
	})
}
