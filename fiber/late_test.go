package fiber_test

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// TestDataBeforeALateDeadline: a loop that stands still until after a deadline finds data and the deadline at the same time.
// The data may have come in time, so it is read. Nothing is read after that.
func TestDataBeforeALateDeadline(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		peer, c := pairOf(t, e, false)
		var (
			holds, done   = make(chan struct{}), make(chan struct{})
			wrote         atomic.Bool
			first, second error
		)
		fiber.Spawn(c, func() {
			defer close(done)
			s := c.(fiber.Stream)
			_, _ = s.WaitReadableFor(time.Millisecond) // the loop watches the connection from now on
			limit := time.Now().Add(10 * time.Millisecond)
			_ = s.SetReadDeadline(limit)
			close(holds)
			for time.Now().Before(limit) || !wrote.Load() { // holds the loop
			}
			if first = s.WaitReadable(); first == nil {
				_, first = s.Read(make([]byte, 1))
			}
			fiber.Sleep(time.Millisecond)
			_, second = s.Read(make([]byte, 1))
		})
		<-holds
		if _, err := peer.Write([]byte("xy")); err != nil {
			t.Fatal(err)
		}
		wrote.Store(true)
		<-done
		if first != nil {
			t.Errorf("what came before the deadline: %v", first)
		}
		if !errors.Is(second, os.ErrDeadlineExceeded) {
			t.Errorf("afterwards: %v", second)
		}
	})
}
