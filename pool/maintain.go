package pool

import (
	"context"
	"time"
)

const (
	// maxTick bounds how far the coarse clock lags behind.
	maxTick = int64(250 * time.Millisecond)
	// minTick bounds the cost of very short limits.
	minTick = int64(5 * time.Millisecond)
	// maxLead bounds how long before expiry a replacement is opened.
	maxLead = int64(10 * time.Second)
)

// tickEvery is the period of the coarse clock while the pool is in use: a
// quarter of the shortest time that is measured with it.
func (c *core[T]) tickEvery() int64 {
	d := min(maxTick*4, int64(c.limits.CheckAfter), int64(c.limits.IdleTimeout))
	if c.limits.MaxLifetime > 0 {
		d = min(d, int64(c.limits.MaxLifetime))
	}
	if c.limits.CheckInterval > 0 {
		d = min(d, int64(c.limits.CheckInterval))
	}
	return max(d/4, minTick)
}

// lead is how long before its expiry a warm resource is replaced.
func (c *core[T]) lead() int64 {
	return min(max(int64(c.limits.MaxLifetime)/20, 2*c.tickEvery()), maxLead)
}

// touch sets the coarse clock and makes it tick. Under mu.
func (p *Pool[T]) touch(now int64) {
	c := &p.core
	c.clock = max(c.clock, now)
	if !c.ticking && !c.closed {
		c.ticking = true
		c.hot = c.calm && !c.paused
		c.resumeSample()
	}
}

// touchLazily is touch unless the coarse clock ticks, which is accurate enough then. Under mu.
func (p *Pool[T]) touchLazily() {
	if !p.core.ticking {
		p.touch(p.now())
	}
}

// schedule sets the timer for the next event, if that is earlier than the timer. Under mu.
func (p *Pool[T]) schedule() {
	c := &p.core
	if c.closed {
		return
	}
	at := int64(never)
	if c.ticking {
		if !p.armed {
			p.armed = true
			at = c.clock + c.tickEvery()
		} else if c.limits.AcquireTimeout == 0 && c.backoff.failures == 0 {
			return // the usual case, on every hand-over
		}
	}
	if w := c.waiters.head; w != nil && c.limits.AcquireTimeout > 0 {
		at = min(at, c.deadline(w))
	}
	if c.backoff.failures > 0 && !c.paused && !c.denied && c.opening == 0 && c.wanted() > 0 && c.total < c.limits.MaxSize {
		at = min(at, c.backoff.retryAt) // an attempt under way calls schedule when it ends
	}
	if !c.ticking {
		at = min(at, c.due(p.config.Check != nil), c.nextLeak())
	}
	if at < p.timerAt {
		p.timerAt = at
		p.set(time.Duration(at - p.now()))
	}
}

func (p *Pool[T]) set(d time.Duration) {
	if p.timer == nil {
		p.timer = time.AfterFunc(max(d, 0), p.tick)
		return
	}
	p.timer.Reset(max(d, 0))
}

// due is the next time an idle resource needs something.
func (c *core[T]) due(checks bool) int64 {
	at := int64(never)
	if len(c.idle) > c.limits.MinIdle && c.limits.IdleTimeout < never {
		at = c.idle[0].idleSince + int64(c.limits.IdleTimeout)
	}
	if c.limits.MaxLifetime > 0 {
		lead := int64(0)
		if c.replaces() && c.total < c.limits.MaxSize {
			lead = c.lead()
		}
		for _, s := range c.idle {
			if s.expires-lead > c.clock {
				at = min(at, s.expires-lead)
			} else {
				at = min(at, s.expires)
			}
		}
	}
	if checks && c.limits.CheckInterval > 0 && c.checking == 0 {
		for _, s := range c.idle {
			at = min(at, max(s.checkedAt, s.idleSince)+int64(c.limits.CheckInterval))
		}
	}
	return at
}

// tick is run by the timer: it updates the coarse clock, ends waits that lasted too long, closes
// resources whose lifetime is over, replaces and checks others, and stops the clock when nothing
// happened since the last tick.
func (p *Pool[T]) tick() {
	var e effects[T]
	c := &p.core
	p.mu.Lock()
	if c.closed {
		p.mu.Unlock()
		return
	}
	p.timerAt, p.armed = never, false
	c.clock = max(c.clock, p.now())
	c.follow()
	c.expireWaiters(&e)
	c.reap(&e)
	c.dispatch(&e)
	if c.seen == c.acquired+c.released && c.waiters.n == 0 {
		c.ticking, c.hot = false, false
	}
	c.seen = c.acquired + c.released
	var s *slot[T]
	if p.config.Check != nil && !p.checker {
		if s = c.takeUnchecked(); s != nil {
			p.checker = true
		}
	}
	leaks := c.findLeaks()
	p.unlockAsync(&e)
	if s != nil {
		go p.checkIdle(s)
	}
	for _, l := range leaks {
		_ = p.guard("OnLeak", func() error { p.config.OnLeak(l); return nil }, func() {})
	}
}

// expireWaiters ends the waits longer than AcquireTimeout. The queue is ordered by
// the beginning of the acquires, so the first that has time left ends the search.
func (c *core[T]) expireWaiters(e *effects[T]) {
	if c.limits.AcquireTimeout == 0 {
		return
	}
	for w := c.waiters.head; w != nil && c.clock >= c.deadline(w); w = c.waiters.head {
		c.timedOut++
		c.fail(w, ErrTimeout, nil, e)
	}
}

// reap retires idle resources past their lifetime or idle for too long.
func (c *core[T]) reap(e *effects[T]) {
	surplus := len(c.idle) - c.limits.MinIdle
	kept := c.idle[:0]
	for _, s := range c.idle {
		switch {
		case c.clock >= s.expires:
			c.retire(s, ReasonLifetime, e)
			surplus--
		case surplus > 0 && c.clock-s.idleSince >= int64(c.limits.IdleTimeout):
			c.retire(s, ReasonIdle, e)
			surplus--
		default:
			kept = append(kept, s)
		}
	}
	clear(c.idle[len(kept):])
	c.idle = kept
}

// takeUnchecked removes and returns an idle resource whose background check is due.
func (c *core[T]) takeUnchecked() *slot[T] {
	every := int64(c.limits.CheckInterval)
	if every == 0 || c.closed {
		return nil
	}
	for i, s := range c.idle {
		if c.clock-max(s.checkedAt, s.idleSince) >= every {
			c.checking++
			return c.takeIdle(i)
		}
	}
	return nil
}

// checkIdle checks s, and then every other idle resource that is due, one at a
// time, so that no more than one is withheld from callers.
func (p *Pool[T]) checkIdle(s *slot[T]) {
	for s != nil {
		p.mu.Lock()
		timeout := p.core.limits.OpenTimeout
		p.mu.Unlock()
		err := p.guard("Check", func() error {
			ctx, cancel := context.WithTimeout(p.ctx, timeout)
			defer cancel()
			return p.config.Check(ctx, s.value)
		}, func() {
			if next := p.checked(s, errExited); next != nil {
				go p.checkIdle(next)
			}
		})
		s = p.checked(s, err)
	}
}

// checked puts a resource back after its background check and takes the next.
func (p *Pool[T]) checked(s *slot[T], err error) (next *slot[T]) {
	var e effects[T]
	c := &p.core
	p.mu.Lock()
	c.clock = max(c.clock, p.now())
	c.checking--
	s.checkedAt = c.clock
	switch {
	case c.closed:
		c.retire(s, ReasonShutdown, &e)
	case err != nil:
		c.retire(s, ReasonCheck, &e)
	case c.waiters.head != nil || c.total > c.limits.MaxSize || c.paused || c.clock >= s.expires || c.share.isPressed():
		c.give(s, &e)
	default:
		c.insertIdle(s)
	}
	next = c.takeUnchecked()
	c.dispatch(&e)
	p.checker = next != nil
	p.unlockAsync(&e)
	return next
}
