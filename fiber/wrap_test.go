package fiber_test

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// A pipe has no descriptor for a loop to wait for: its other end is read by a fiber of the same
// loop, which the first must not hold up.
func TestWrapWaitsElsewhere(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		near, far := net.Pipe()
		a, b := fiber.Wrap(near), fiber.Wrap(far)
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

func TestWrapLeavesTheEnginesOwn(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		if e.Kind() != fiber.Goroutine && fiber.Wrap(c) != c {
			t.Error("an engine's connection was wrapped")
		}
		if w := fiber.Wrap(c); fiber.Wrap(w) != w {
			t.Error("a wrapped connection was wrapped again")
		}
	})
}
