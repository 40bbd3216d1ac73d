package fiber

import (
	"errors"
	"net"
	"time"
)

// WaitEither is [Conn.WaitReadableFor] for two connections: it returns as soon as a Read of c or of other would not
// wait, and reports which. Both results are false when patience has passed; a patience of 0 is unlimited. An error is
// c's, of its deadline or Close. Errors of other make it ready, and its Read returns them. Waiting for the second
// connection costs no further operation, so a session can watch its server for free while it waits for its client.
//
// Only the fiber that is the one reader of both connections may call it, on the loop of both. Elsewhere it returns
// [errors.ErrUnsupported] at once.
func (c *Conn) WaitEither(other net.Conn, patience time.Duration) (ready, otherReady bool, err error) {
	l := c.loop.Load()
	o, ok := unwrapAhead(other).(*Conn)
	if !ok || o.loop.Load() != l || !l.isCaller() || l.current == nil || c.reading || o.reading || o.then != nil {
		return false, false, errors.ErrUnsupported
	}
	if err := c.begin(l, &c.rd); err != nil {
		return false, false, c.opError("read", err)
	}
	defer c.end(l, &c.rd)
	if o.begin(l, &o.rd) != nil {
		return false, true, nil
	}
	defer o.end(l, &o.rd)
	f := l.current
	if patience > 0 {
		f.giveUpAt = after(l.now, patience)
		defer func() { f.giveUpAt = 0 }()
	}
	for {
		if o.closed { // its descriptor may belong to another connection
			return false, true, nil
		}
		ready, otherReady = l.poller.readable(c), l.poller.readable(o)
		if ready || otherReady || f.giveUpAt != 0 && l.now >= f.giveUpAt {
			return ready, otherReady, nil
		}
		if f.giveUpAt != 0 {
			l.timers.arm(c, f.giveUpAt)
		}
		if o.await(l, &o.rd, f) != nil {
			return false, true, nil
		}
		f.either = [2]*side{&c.rd, &o.rd}
		err := c.wait(l, &c.rd)
		f.stopEither()
		if err != nil {
			return false, false, c.opError("read", err)
		}
	}
}

// stopEither ends the wait for two sides when one of them has woken the fiber, so that the other does not wake it, too.
func (f *coroutine) stopEither() {
	for i, s := range f.either {
		if s != nil {
			s.waiter, f.either[i] = nil, nil
		}
	}
}
