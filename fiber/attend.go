package fiber

import (
	"syscall"
	"time"
)

// Attend has the loop do what the calling fiber would do with c and other connections of its loop: it
// calls step, on its own stack, now and each time that what step waits for has come, until step reports
// that it is over; then Attend returns true. To resume a fiber that has been parked for a while costs more
// than a short request does, for nothing of its stack is in the processor's caches.
//
// A step waits for one thing at a time, with TryRead or Parker.TryPark, and for nothing in another way:
// it must not call what may wait, such as Read, Write or Close of connections that are no engine's. It is
// called by the fiber at first. A panic of it is the fiber's; it must not end its goroutine
// (runtime.Goexit). Attend is for the fiber that is the one user of c, on c's loop; elsewhere it returns
// false and has not called step.
func (c *Conn) Attend(step func() (over bool)) bool {
	l := c.loop.Load()
	if !l.here() || l.current == nil {
		return false
	}
	f := l.current
	defer func() { f.tired = 0 }()
	f.parkUntil(step)
	return true
}

// maxTry bounds what TryRead returns.
const maxTry = 16 << 10

// TryRead is for a step of Attend: it returns what has arrived on c, at most 16 KiB. If nothing has, b is
// empty, and the step is called again when something has, be it the end. over means that there is nothing
// to wait for: c has ended or is closed, a deadline has passed, or nothing has come for as long as
// patience lasts, 0 = for ever; Read tells which of these, but for the last. b is the loop's, and valid
// until the step returns or calls TryRead again.
func (c *Conn) TryRead(patience time.Duration) (b []byte, over bool) {
	l := c.loop.Load()
	f := l.current
	if c.closed || c.reading || c.rd.deadline != 0 && l.now >= c.rd.deadline {
		return nil, true
	}
	if l.scratch == nil {
		l.scratch = new([maxTry]byte)
	}
	n, err, done := l.poller.read(c, l.scratch[:])
	switch {
	case done:
		f.tired = 0
		if errno, ok := err.(syscall.Errno); ok { //nolint:errorlint // made by the poller
			c.inErr = errno // Read's
		}
		return l.scratch[:n], n == 0
	case patience == 0:
	case f.tired == 0:
		f.tired = after(l.now, patience)
		l.timers.arm(c, f.tired)
	case l.now >= f.tired:
		f.tired = 0
		return nil, true
	default:
		l.timers.arm(c, f.tired)
	}
	_ = c.await(l, &c.rd, f) // it is not closed, nor its deadline over
	return nil, false
}

// TryWrite is for a step of Attend: it takes as much of p as there is room for now, and returns how much.
// Write is for the rest, and tells of errors.
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
