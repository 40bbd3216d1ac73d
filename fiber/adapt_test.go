package fiber_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// A pipe has no descriptor for a loop to wait for: its other end is read by a fiber of the same
// loop, which the first must not hold up.
func TestStreamOfWaitsElsewhere(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		near, far := net.Pipe()
		a, b := fiber.StreamOf(near), fiber.StreamOf(far)
		fiber.Spawn(c, func() {
			_, _ = io.Copy(a, a)
			_ = a.Close()
		})
		on(c, func() {
			if _, err := b.Write([]byte("over there")); err != nil {
				t.Error(err)
			}
			got := make([]byte, 10)
			if _, err := io.ReadFull(b, got); err != nil || string(got) != "over there" {
				t.Errorf("read %q, %v", got, err)
			}
			if err := b.(interface{ CloseWrite() error }).CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("half close of a pipe: %v", err)
			}
			_ = b.Close()
		})
	})
}

func TestStreamOfLeavesTheEnginesOwn(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		if e.Kind() != fiber.Goroutine && fiber.StreamOf(c) != c {
			t.Error("an engine's connection was wrapped")
		}
		if w := fiber.StreamOf(c); fiber.StreamOf(w) != w {
			t.Error("a wrapped connection was wrapped again")
		}
	})
}

// parkable is a pipe that lets its callers park.
type parkable struct{ net.Conn }

type parks = interface {
	Park(ctx context.Context) error
	Unpark()
}

func (p parkable) ReadParked(b []byte, by parks) (n int, err error) {
	p.elsewhere(by, func() { n, err = p.Read(b) })
	return n, err
}

func (p parkable) WriteParked(b []byte, by parks) (n int, err error) {
	p.elsewhere(by, func() { n, err = p.Write(b) })
	return n, err
}

func (parkable) elsewhere(by parks, fn func()) {
	done := make(chan struct{})
	go func() {
		fn()
		close(done)
		by.Unpark()
	}()
	for {
		select {
		case <-done:
			return
		default:
			_ = by.Park(context.Background())
		}
	}
}

// A connection that lets its callers park is given each fiber's own Parker, also when several
// use it at a time, and none on goroutines.
func TestStreamOfParks(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		near, far := net.Pipe()
		a, b := fiber.StreamOf(parkable{near}), fiber.StreamOf(parkable{far})
		if fiber.StreamOf(a) != a {
			t.Error("a wrapped connection was wrapped again")
		}
		var all fiber.Group
		for range 4 {
			fiber.Spawn(c, func() { _, _ = io.Copy(a, struct{ io.Reader }{a}) })
			all.Add(1)
			fiber.Spawn(s, func() {
				defer all.Done()
				for range 50 {
					if _, err := b.Write([]byte("x")); err != nil {
						t.Error(err)
					}
					if _, err := b.Read(make([]byte, 1)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if _, err := b.Write([]byte("y")); err != nil { // here no fiber
			t.Error(err)
		}
		if _, err := b.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		if err := b.(interface{ CloseWrite() error }).CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("half close of a pipe: %v", err)
		}
		_, _ = a.Close(), b.Close()
	})
}
