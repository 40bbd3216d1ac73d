package httpproxy

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
)

// h2Sides holds the two waiters of a stream: of the fiber that reads it and of the one that writes it.
type h2Sides struct {
	mu             *sync.Mutex // the connection's, which guards the other fields
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
	waits bool        // a fiber or a function waits
	group fiber.Group // what the fiber waits for
	then  func()      // the function, run at the end of the wait; nil = a fiber waits
	timer *time.Timer // nil = never needed
	armed time.Time   // when the timer fires; zero = it is stopped
}

// wait waits for wake, which may be spurious; false = the deadline has passed. mu is held, and released meanwhile.
func (w *h2Waiter) wait(mu *sync.Mutex) bool {
	if !w.arm(mu) {
		return false
	}
	w.waits = true
	w.group.Add(1)
	mu.Unlock()
	defer mu.Lock()
	w.group.Wait()
	return true
}

// arm sets the timer for the deadline; false = the deadline has passed. mu is held.
func (w *h2Waiter) arm(mu *sync.Mutex) bool {
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
	return true
}

// within calls await, which waits for the reader's side, and reports whether that ended before patience had. mu is held.
func (w *h2Waiter) within(patience time.Duration, await func() error) (ended bool, err error) {
	deadline, by := w.by, time.Now().Add(patience)
	if !deadline.IsZero() && deadline.Before(by) {
		return true, await()
	}
	w.by = by
	err = await()
	if w.by.Equal(by) { // nobody has set another deadline
		w.by = deadline
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && !time.Now().Before(by) {
		return false, nil
	}
	return true, err
}

// call has then called as soon as await, which calls wait, would not wait, by start; a nil then cancels this. mu is held.
func (w *h2Waiter) call(ready bool, mu *sync.Mutex, start func(func()), then func()) bool {
	switch {
	case then == nil:
		if w.then != nil {
			w.waits, w.then = false, nil
		}
	case w.waits:
		return false
	case ready || !w.arm(mu):
		start(then)
	default:
		w.waits, w.then = true, func() { start(then) }
	}
	return true
}

// wake wakes the waiter, if any. mu is held.
func (w *h2Waiter) wake() {
	if !w.waits {
		return
	}
	w.waits = false
	if then := w.then; then != nil {
		w.then = nil
		then()
		return
	}
	w.group.Done()
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
