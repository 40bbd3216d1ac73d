package fiber

import "time"

// pastDeadline stands for every deadline before the loop's clock began.
const pastDeadline = 1

// SetDeadline implements net.Conn. It changes no timer as long as deadlines only move later.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadline(t, true, true)
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(t, true, false)
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(t, false, true)
}

func (c *Conn) setDeadline(t time.Time, read, write bool) error {
	var at int64
	if !t.IsZero() {
		at = max(clockAt(t), pastDeadline)
	}
	l := c.loop.Load()
	switch {
	case c.shut.Load():
		return errSetClosed
	case l.isCaller():
		c.moveDeadline(l, at, read, write, 2*c.moves()+1)
		return nil
	}
	nth := 2 * c.rareState().moves.Add(1)
	if !c.send(l, func(l *loop) { c.moveDeadline(l, at, read, write, nth) }) {
		return errSetClosed
	}
	return nil
}

// moveDeadline sets deadlines unless a later call has; see rareConn.overtaken.
func (c *Conn) moveDeadline(l *loop, at int64, read, write bool, nth uint64) {
	if c.closed { // the deadlines are used otherwise: see linger
		return
	}
	r := c.rare.Load()
	if read && !r.overtaken(nth, 0) {
		c.rd.deadline = at
		c.deadlineMoved(l, &c.rd)
	}
	if write && !r.overtaken(nth, 1) {
		c.wr.deadline = at
		c.deadlineMoved(l, &c.wr)
	}
}

// deadlineMoved applies a side's deadline to its waiter.
func (c *Conn) deadlineMoved(l *loop, s *side) {
	switch {
	case c.closed || !c.waits(s) || s.deadline == 0:
	case s.deadline <= l.now:
		c.wake(l, s)
	default:
		l.timers.arm(c, s.deadline)
	}
}

// overtaken reports whether a later call than nth has set the deadline of Reads, or of Writes. It records nth otherwise.
// Another thread's calls reach the loop later than calls on the loop, which may have been made after them. The nth call
// of other threads has the number 2*nth, a call on the loop the last of these plus 1.
func (r *rareConn) overtaken(nth uint64, side int) bool {
	switch {
	case r == nil:
		return false
	case nth < r.moved[side]:
		return true
	}
	r.moved[side] = nth
	return false
}

// moves counts the deadlines set by other threads.
func (c *Conn) moves() uint64 {
	if r := c.rare.Load(); r != nil {
		return r.moves.Load()
	}
	return 0
}
