package fiber

import (
	"net"
	"syscall"
	"time"
)

// Attend makes the loop run step in place of the calling fiber, for c and other connections of the loop. The loop calls
// step on its own stack, each time that the event that step waits for has happened, until step returns true; then Attend
// returns true. This is cheaper because resuming a fiber that was parked for a while costs more than a short request: the
// fiber's stack is in none of the processor's caches.
//
// A step waits for one event at a time, by TryRead, TryReadEither or Parker.TryPark. It must not call anything else that
// may wait, such as Read, Write, or Close of connections that do not belong to an engine. The fiber itself makes the first
// call.
// A panic of step is raised in the fiber; step must not end its goroutine (runtime.Goexit). Attend is for the fiber
// that is the one user of c, on c's loop; elsewhere it returns false without calling step.
func (c *Conn) Attend(step func() (over bool)) bool {
	l := c.loop.Load()
	if !l.isCaller() || l.current == nil {
		return false
	}
	f := l.current
	defer func() { f.giveUpAt = 0 }()
	f.parkUntil(step)
	return true
}

// AttendThen is Attend without a fiber, whose stack would be most of the memory of a session that waits: it returns at
// once. When step has returned true, then runs once, as a fiber of the loop, perhaps before AttendThen has returned;
// panicked is what step has panicked with, or nil. It returns false, and calls nothing, unless Attendable(c, other) is true
// and the caller is a fiber of their loop. A step may also write to a TLSConn, by TryWrite; other is the connection below it.
func (c *Conn) AttendThen(other net.Conn, step func() (over bool), then func(panicked any)) bool {
	l := c.loop.Load()
	if !Attendable(c, other) || !l.isCaller() || l.current == nil {
		return false
	}
	a := &attendance{tries: step, then: then}
	a.own.loop, a.own.alone = l, a
	caller := l.current
	l.current = &a.own
	over := a.own.callStep()
	l.current = caller
	if over {
		l.ready(l.fiberFor(a))
	}
	return true
}

// Attendable reports whether a and b live on one loop, which can wait for both and read and write them by itself: they are
// connections of an engine, or TLSConns directly over such ones.
func Attendable(a, b net.Conn) bool {
	c, d := socketBelow(a), socketBelow(b)
	return c != nil && d != nil && c.loop.Load() == d.loop.Load()
}

// socketBelow returns the engine's connection that c is, or is TLS over; nil = none, or bytes are to be read before it.
func socketBelow(c net.Conn) *Conn {
	if t, ok := c.(*TLSConn); ok {
		c = t.NetConn()
	}
	s, _ := unwrapAhead(c).(*Conn)
	return s
}

// attendance is the state of an AttendThen.
type attendance struct {
	tries func() (over bool)
	then  func(panicked any)
	own   coroutine // without a stack
}

func (a *attendance) step() (over bool) { return a.tries() }
func (a *attendance) runFiber()         { a.then(a.own.fault) }

// maxTry bounds the bytes that TryRead returns.
const maxTry = 16 << 10

// TryRead is for a step of Attend. It returns the data that has arrived on c, at most 16 KiB. If there is none, b is
// empty, and the step is called again when data or the end has arrived. over means that there is nothing to wait for: c
// has ended or is closed, a deadline has passed, or nothing has arrived for the time patience (0 = no bound). In all
// cases but the last Read returns the error. b belongs to the loop, and is valid until the step returns or calls
// TryRead again.
func (c *Conn) TryRead(patience time.Duration) (b []byte, over bool) {
	l := c.loop.Load()
	f := l.current
	if c.closed || c.reading || c.late(l, &c.rd) {
		return nil, true
	}
	if l.scratch == nil {
		l.scratch = new([maxTry]byte)
	}
	n, err, done := l.poller.read(c, l.scratch[:])
	switch {
	case done:
		f.giveUpAt = 0
		if errno, ok := err.(syscall.Errno); ok { //nolint:errorlint // made by the poller
			c.inErr = errno // Read returns it
		}
		return l.scratch[:n], n == 0
	case patience == 0:
	case f.giveUpAt == 0:
		f.giveUpAt = after(l.now, patience)
		l.timers.arm(c, f.giveUpAt)
	case l.now >= f.giveUpAt:
		f.giveUpAt = 0
		return nil, true
	default:
		l.timers.arm(c, f.giveUpAt)
	}
	return nil, c.await(l, &c.rd, f) != nil // the deadline, in a tick that has read what came before it
}

// TryReadEither is TryRead for a step that also watches another connection of the loop, of which it is the one reader:
// otherReady means that a Read of other would not wait. Then, and if other lives elsewhere, b is empty.
func (c *Conn) TryReadEither(other net.Conn, patience time.Duration) (b []byte, otherReady, over bool) {
	l := c.loop.Load()
	f := l.current
	o, ok := unwrapAhead(other).(*Conn)
	if !ok || o.loop.Load() != l || o.closed || o.reading || l.poller.readable(o) {
		return nil, true, false
	}
	if b, over = c.TryRead(patience); len(b) > 0 || over {
		return b, false, over
	}
	if o.await(l, &o.rd, f) != nil {
		c.rd.waiter = nil
		return nil, true, false
	}
	f.either = [2]*side{&c.rd, &o.rd}
	return nil, false, false
}

// TryWrite is for a step of Attend. It accepts as much of p as there is room for now, and returns how many bytes. Use
// Write for the remaining bytes, and to get errors.
func (c *Conn) TryWrite(p []byte) (n int) {
	l := c.loop.Load()
	if c.closed || c.writing || c.wr.deadline != 0 && l.now >= c.wr.deadline {
		return 0
	}
	for n < len(p) {
		m, err, done := l.poller.write(c, p[n:])
		n += m
		if err != nil || !done {
			break
		}
	}
	return n
}
