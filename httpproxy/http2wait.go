package httpproxy

import (
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
)

// h2Sides is how the fiber that reads a stream waits, and the one that writes it.
type h2Sides struct {
	mu             *sync.Mutex // the connection's, which guards the rest
	reader, writer h2Waiter
}

// wake wakes both. mu is held.
func (s *h2Sides) wake() {
	s.reader.wake()
	s.writer.wake()
}

// stop forgets the timers.
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

// h2Waiter is how one side of a stream of HTTP/2 waits. It is guarded by the mutex of the connection.
type h2Waiter struct {
	by    time.Time   // the deadline
	waits bool        // somebody does
	group fiber.Group // it is waited for
	timer *time.Timer // nil = none was needed yet
	armed time.Time   // when the timer fires; zero = it has, or is stopped
}

// wait waits until somebody wakes it, perhaps for nothing; false = the deadline has passed. mu is held, and given up meanwhile.
func (w *h2Waiter) wait(mu *sync.Mutex) bool {
	// Deadlines nearly always move later: a timer that fires too early wakes for nothing, which costs less than to set it for each wait.
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

// wake is called with mu held.
func (w *h2Waiter) wake() {
	if w.waits {
		w.waits = false
		w.group.Done()
	}
}

// fired is called when the timer has fired.
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
