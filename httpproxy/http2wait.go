package httpproxy

import (
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
)

// h2Waiter is how one side of a stream of HTTP/2 waits. It is guarded by the mutex of the connection.
type h2Waiter struct {
	by    time.Time   // the deadline
	waits bool        // somebody does
	group fiber.Group // it is waited for
	timer *time.Timer // nil = none was needed yet
}

// wait waits until somebody wakes it; false = the deadline has passed. mu is held, and given up meanwhile. The owner's look, which takes
// mu, wakes it.
func (w *h2Waiter) wait(mu *sync.Mutex, owner interface{ look() }) bool {
	if !w.by.IsZero() {
		left := time.Until(w.by)
		switch {
		case left <= 0:
			return false
		case w.timer == nil:
			w.timer = time.AfterFunc(left, owner.look)
		default:
			w.timer.Reset(left)
		}
	}
	w.waits = true
	w.group.Add(1)
	mu.Unlock()
	defer mu.Lock()
	w.group.Wait()
	return true
}

// wake is called with mu held.
func (w *h2Waiter) wake() {
	if w.waits {
		w.waits = false
		w.group.Done()
	}
}

// stop forgets the timer.
func (w *h2Waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}
