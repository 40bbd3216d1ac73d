package fiber

import (
	"errors"
	"io"
	"net"
	"os"
)

// scratchSize is the size of a loop's buffer for copying, and so the largest piece that is copied.
const scratchSize = 64 << 10

// CopyTo copies data that c receives to dst until one of the connections ends. readErr is the error of c, io.EOF at the
// end of its stream; otherwise writeErr is the error of dst. CopyTo calls moved with the size of every piece, in bytes.
// Between connections of one loop no buffer is held while nothing arrives, and bulk is moved within the kernel if the
// system allows it; spliced, unless nil, is also called with the size of those pieces. The loop calls moved and
// spliced: they must neither wait nor end their goroutine (runtime.Goexit). Their panics are raised in the caller.
func (c *Conn) CopyTo(dst net.Conn, moved, spliced func(n int)) (readErr, writeErr error) {
	l := c.loop.Load()
	d, ok := written(dst).(*Conn)
	if !ok || !l.isCaller() || d.loop.Load() != l {
		return Copy(c, dst, moved)
	}
	if err := c.begin(l, &c.rd); err != nil {
		return c.opError("read", err), nil
	}
	defer c.end(l, &c.rd)
	if err := d.begin(l, &d.wr); err != nil {
		return nil, d.opError("write", err)
	}
	defer d.end(l, &d.wr)
	readErr, writeErr = c.copyTo(l, d, moved, spliced)
	if readErr != io.EOF {
		readErr = c.opError("read", readErr)
	}
	return readErr, d.opError("write", writeErr)
}

// copyTo is CopyTo between connections of l whose sides are reserved.
func (c *Conn) copyTo(l *loop, d *Conn, moved, spliced func(int)) (readErr, writeErr error) {
	k := newCopying(l, c, d, moved, spliced)
	k.fiber = l.current
	step := k.step
	defer k.window.free()
	for {
		k.fiber.parkUntil(step)
		if k.ended() || k.splice() {
			return k.readErr, k.writeErr
		}
	}
}

// copying is the state of a CopyTo or CopyThen. The loop calls step, which copies, in place of the fiber.
type copying struct {
	loop           *loop
	fiber          *coroutine
	c, d           *Conn
	moved, spliced func(int)
	window         window
	canSplice      bool

	readErr, writeErr error
}

func newCopying(l *loop, c, d *Conn, moved, spliced func(int)) copying {
	return copying{loop: l, c: c, d: d, moved: moved, spliced: spliced, window: window{conn: c}, canSplice: splices && !c.unix && !d.unix}
}

// ended reports whether one of the connections has ended.
func (k *copying) ended() bool { return k.readErr != nil || k.writeErr != nil }

// splice moves bulk within the kernel, on a fiber, until data no longer comes in bulk. It returns the result of
// over.
func (k *copying) splice() bool {
	if !k.c.closed { // while the fiber waited to start; its descriptor may belong to another connection already
		k.window.take()
	}
	k.readErr, k.writeErr = k.c.spliceTo(k.loop, k.d, k.moved, k.spliced)
	if errors.Is(k.readErr, errors.ErrUnsupported) {
		k.readErr, k.canSplice = nil, false
	}
	return k.ended()
}

// step copies until it would wait. It returns true at an error, or when there is bulk to splice.
func (k *copying) step() (over bool) {
	for l, c, d := k.loop, k.c, k.d; ; {
		if k.readErr, k.writeErr = closedMeanwhile(l, c, d); k.readErr != nil || k.writeErr != nil {
			return true
		}
		n, full, readErr, writeErr := l.poller.move(c, d)
		if n > 0 {
			k.moved(n)
		}
		switch {
		case readErr != nil || writeErr != nil:
			k.readErr, k.writeErr = readErr, writeErr
			return true
		case full && k.canSplice:
			return true
		case n > 0:
			if c.streak++; c.streak >= maxStreak {
				c.streak = 0
				l.ready(k.fiber)
				return false
			}
		case l.poller.readable(c): // there is data, so d has no room
			k.writeErr = d.await(l, &d.wr, k.fiber)
			return k.writeErr != nil
		default:
			k.readErr = c.await(l, &c.rd, k.fiber)
			return k.readErr != nil
		}
	}
}

// closedMeanwhile returns the error of a connection that was closed while a fiber waited for the other one; its
// descriptor may belong to another connection already. It also returns the error of a passed deadline, for bulk that
// arrives so fast that the fiber never waits.
func closedMeanwhile(l *loop, c, d *Conn) (readErr, writeErr error) {
	late := func(s *side) bool { return s.deadline != 0 && l.now >= s.deadline }
	switch {
	case c.closed:
		return net.ErrClosed, nil
	case d.closed:
		return nil, net.ErrClosed
	case late(&c.rd):
		return os.ErrDeadlineExceeded, nil
	case late(&d.wr):
		return nil, os.ErrDeadlineExceeded
	}
	return nil, nil
}
