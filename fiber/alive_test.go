package fiber_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// TestAliveNoticesALoopThatIsHeld: nothing else asks the loop for anything.
func TestAliveNoticesALoopThatIsHeld(t *testing.T) {
	for _, kind := range kinds(t) {
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 2})
		if err := e.Alive(t.Context()); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		held, release, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
		e.Go(func() {
			defer close(over)
			close(held)
			<-release // without Block
		})
		<-held
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := e.Alive(ctx)
		cancel()
		if stuck := errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "1 of 2"); stuck != (kind != fiber.Goroutine) {
			t.Errorf("%s: with one held: %v", kind, err)
		}
		close(release)
		<-over
		if err := e.Alive(t.Context()); err != nil {
			t.Errorf("%s: afterwards: %v", kind, err)
		}
		if err := errors.Join(e.Close(), e.Alive(t.Context())); err != nil {
			t.Errorf("%s: closed: %v", kind, err)
		}
	}
}
