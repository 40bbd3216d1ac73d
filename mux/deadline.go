package mux

import "time"

// deadline is one direction's of a stream. The session's lock guards it.
type deadline struct {
	expired bool
	timer   *time.Timer
	set     uint64 // number of changes: a timer compares it to detect that it is outdated
	waiting waiters
}

// setDeadline sets d to t; zero means none. mu is held.
func (s *Session) setDeadline(d *deadline, t time.Time) {
	d.set++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.expired = false
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.expired = true
		d.waiting.wakeAll()
		return
	}
	set := d.set
	d.timer = time.AfterFunc(left, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if d.set == set {
			d.expired = true
			d.waiting.wakeAll()
		}
	})
}

// stop forgets the deadline and its timer. mu is held.
func (d *deadline) stop() {
	d.set++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
