package pool

import "slices"

// Renew replaces the pool's resources. It is for callers whose Open makes better ones from now on, for example with a
// new password. Idle resources are closed now, leased ones when they are released, and those that are being opened when
// they are open. It also forgets that opens have failed, as Retry does.
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

// Expire closes the resources for which of returns true: idle ones now, leased ones when they are released. It returns
// their number and that of all other resources; resources that are being opened count as neither. of is called with the
// pool's lock held: it must neither wait nor call the pool.
func (p *Pool[T]) Expire(of func(T) bool) (expired, others int) {
	var e effects[T]
	p.mu.Lock()
	if c := &p.core; !c.closed {
		p.touch(p.now())
		expired, others = c.expire(of, &e)
	}
	p.unlockAsync(&e)
	return expired, others
}

// expire ends the life of the resources for which of returns true.
func (c *core[T]) expire(of func(T) bool, e *effects[T]) (expired, others int) {
	for s := c.all; s != nil; s = s.nxt {
		if !of(s.value) {
			others++
			continue
		}
		expired++
		s.outdated = true
		s.expires = c.expiry(s)
	}
	isExpired := func(s *slot[T]) bool { return s.outdated }
	for _, s := range c.lingering {
		if s.outdated {
			c.give(s, e)
		}
	}
	c.lingering = slices.DeleteFunc(c.lingering, isExpired)
	for _, s := range c.idle {
		if s.outdated {
			c.retire(s, ReasonLifetime, e)
		}
	}
	c.idle = slices.DeleteFunc(c.idle, isExpired)
	c.dispatch(e)
	return expired, others
}
