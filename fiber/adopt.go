package fiber

import "math"

// moving is the slot of a connection that has left one loop and not arrived at the other; see Adopt.
const moving = math.MaxUint32

// Adopt moves the connection to the loop of the calling fiber, which must be its only user. It does nothing if an
// operation is under way, or if the caller is not a fiber. A connection of another loop also works, but each operation
// is a trip to that loop.
func (c *Conn) Adopt() {
	l := c.loop.Load()
	if l.isCaller() {
		return
	}
	f := currentFiber()
	if f == nil {
		return
	}
	to := f.loop
	l.call(func() {
		if c.loop.Load() != l || c.closed || c.reading || c.writing || c.then != nil {
			return
		}
		for !l.poller.stop(c) {
			if c.wait(l, &c.rd) != nil {
				return
			}
		}
		if !l.poller.remove(c) {
			return
		}
		l.table.drop(c.slot)
		l.timers.disarm(c)
		l.conns.Add(-1)
		l.open--
		// Later requests, such as Close, reach the new loop after attach.
		c.slot = moving
		to.conns.Add(1)
		to.post(func() { c.attach(to) })
		c.loop.Store(to)
	})
}

// Loop implements Stream.
func (c *Conn) Loop() int { return c.loop.Load().id }

// Go runs fn as a fiber of the connection's loop.
func (c *Conn) Go(fn func()) {
	l := c.loop.Load()
	if l.isCaller() {
		l.spawn(fn)
		return
	}
	l.launch(fn)
}
