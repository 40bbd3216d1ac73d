package fiber_test

import (
	"io"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// A connection is closed, or gets deadlines, from elsewhere while it moves to another loop.
func TestAdoptWhileClosed(t *testing.T) {
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue
		}
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 2})
		keep, peer := pair(t, e, "tcp") // each on its own loop
		for i := range 300 {
			c, s := pair(t, e, "tcp")
			on(c, func() { _, _ = c.Write([]byte("x")) })
			on(s, func() { _, _ = s.Read(make([]byte, 1)) })
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = c.SetDeadline(time.Now().Add(time.Hour))
				if i%2 == 0 {
					_ = c.SetDeadline(time.Unix(1, 0))
				} else {
					_ = c.Close()
				}
			}()
			for _, k := range []interface{ Go(func()) }{keep.(interface{ Go(func()) }), peer.(interface{ Go(func()) })} {
				done := make(chan struct{})
				k.Go(func() { // one of them lives elsewhere
					defer close(done)
					c.(fiber.Stream).Adopt()
				})
				<-done
			}
			<-ended
			_ = c.Close()
			on(s, func() {
				if _, err := s.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("%s: %v, want EOF", kind, err)
				}
			})
			_ = s.Close()
		}
		_, _ = keep.Close(), peer.Close()
		for e.Stats().Conns > 0 {
			fiber.Sleep(time.Millisecond)
		}
	}
}

// A fiber of the new loop closes a connection that has not quite arrived there.
func TestCloseOnArrival(t *testing.T) {
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue
		}
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 2})
		c, s := pair(t, e, "tcp") // each on its own loop
		other := s.(interface{ Go(func()) })
		closed := make(chan struct{})
		other.Go(func() {
			other.Go(func() { // runs when Adopt waits, and the loop does nothing else meanwhile
				defer close(closed)
				for begun := time.Now(); fiber.LoopOf(c) != fiber.LoopOf(s) && time.Since(begun) < time.Minute; {
				}
				_ = c.Close()
			})
			c.(fiber.Stream).Adopt()
		})
		<-closed
		on(s, func() {
			if _, err := s.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("%s: %v, want EOF", kind, err)
			}
		})
		_ = s.Close()
		for e.Stats().Conns > 0 {
			fiber.Sleep(time.Millisecond)
		}
	}
}
