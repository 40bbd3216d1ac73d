package httpproxy

import (
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
)

// h2Sides holds the two waiters of a stream: of the fiber that reads it and of the one that writes it.
type h2Sides struct {
	mu             *sync.Mutex // the connection's, which guards the rest
	reader, writer h2Waiter
}

// wake wakes both. mu is held.
func (s *h2Sides) wake() {
	s.reader.wake()
	s.writer.wake()
}

// stop stops the timers.
func (s *h2Sides) stop() {
	s.reader.stop()
	s.writer.stop()
}

// SetDeadline implements net.Conn.
func (s *h2Sides) SetDeadline(t time.Time) error { return s.setDeadline(t, &s.reader, &s.writer) }

// SetReadDeadline implements net.Conn.
func (s *h2Sides) SetReadDeadline(t time.Time) error { return s.setDeadline(t, &s.reader) }

// SetWriteDeadline implements net.Conn.
func (s *h2Sides) SetWriteDeadline(t time.Time) error { return s.setDeadline(t, &s.writer) }

func (s *h2Sides) setDeadline(t time.Time, of ...*h2Waiter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range of {
		w.by = t
		w.wake()
	}
	return nil
}

// h2Waiter is how one side of a stream waits. The connection's mutex guards it.
type h2Waiter struct {
	by    time.Time   // the deadline
	waits bool        // a fiber waits
	group fiber.Group // what it waits for
	timer *time.Timer // nil = never needed
	armed time.Time   // when the timer fires; zero = it is stopped
}

// wait waits for wake, which may be spurious; false = the deadline has passed. mu is held, and released meanwhile.
func (w *h2Waiter) wait(mu *sync.Mutex) bool {
	// Deadlines nearly always move later. A timer that fires early costs a spurious wake-up, less than setting it for each
	// wait.
	if !w.by.IsZero() && (w.armed.IsZero() || w.by.Before(w.armed)) {
		left := time.Until(w.by)
		switch {
		case left <= 0:
			return false
		case w.timer == nil:
			w.timer = time.AfterFunc(left, func() { w.fired(mu) })
		default:
			w.timer.Reset(left)
		}
		w.armed = w.by
	}
	w.waits = true
	w.group.Add(1)
	mu.Unlock()
	defer mu.Lock()
	w.group.Wait()
	return true
}

// wake wakes the waiter, if any. mu is held.
func (w *h2Waiter) wake() {
	if w.waits {
		w.waits = false
		w.group.Done()
	}
}

// fired is the timer's function.
func (w *h2Waiter) fired(mu *sync.Mutex) {
	mu.Lock()
	defer mu.Unlock()
	w.armed = time.Time{}
	w.wake()
}

// stop stops the timer.
func (w *h2Waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
		w.armed = time.Time{}
	}
}
