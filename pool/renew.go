package pool

// Renew replaces what the pool has: for callers who can open better resources from now on, for example with a new password.
// Idle resources are closed now, leased ones when they are released, and those that are being opened when they are open.
// That opens have failed is forgotten: the next one does not wait for the back-off, and opens that waiters need start at
// once.
func (p *Pool[T]) Renew() {
	var e effects[T]
	p.mu.Lock()
	if c := &p.core; !c.closed {
		p.touch(p.now())
		c.renew(&e)
	}
	p.unlockAsync(&e)
}

// renew ends the life of all resources.
func (c *core[T]) renew(e *effects[T]) {
	c.renewed = c.clock
	for s := c.all; s != nil; s = s.nxt {
		s.expires = c.expiry(s)
	}
	c.stopAllLingering(e)
	for len(c.idle) > 0 {
		c.retire(c.popIdle(), ReasonLifetime, e)
	}
	c.retry(e)
}
