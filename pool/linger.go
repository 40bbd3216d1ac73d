package pool

import (
	"slices"
	"time"
)

// A resource lingers for the caller that has released it if that caller will probably acquire again soon, and is served
// better by the same resource. For a while no other caller gets it. Afterwards it is like any other idle resource,
// except that acquires prefer those that nobody comes back for.
//
// Nothing has to be given back: the pool takes a lingering resource from its last holder by giving it to another.

// sparedFor bounds how long acquires prefer other idle resources. Most clients that come back do so within milliseconds.
// After that the pool must lease the same resources again and again, so that those it does not need reach IdleTimeout.
const sparedFor = int64(10 * time.Second)

// Lingering is a released resource that its last holder may acquire again. It is a small value, and copies stand for the
// same resource; of the zero Lingering, only None may be called. Methods may be called at any time, from any goroutine:
// nothing has to be given back.
type Lingering[T any] struct {
	s   *slot[T]
	gen uint64 // the slot's generation as long as nobody else has leased it
}

// Linger is TryRelease for a holder that will probably acquire again: no other caller gets the resource for a time,
// even if it waits, unless the pool is closed or paused meanwhile. Until then the resource counts as in use. If d is 0 or
// less, waiting callers get it at once. Where TryRelease would return false, and in a pool with Hooks.Acquired or
// LeakAfter, Linger does nothing and ok is false: then call Release.
func (l Lease[T]) Linger(d time.Duration) (w Lingering[T], ok bool) {
	s := l.s
	if s == nil {
		panic("pool: Linger of a zero Lease")
	}
	p := s.pool
	p.mu.Lock()
	c := &p.core
	if s.gen != l.gen {
		l.misuse("Linger")
	}
	p.touchLazily()
	if _, unwanted := c.unwanted(s); unwanted || !c.calm || p.config.Reset != nil || c.share.isPressed() {
		p.mu.Unlock()
		return w, false
	}
	var e effects[T]
	s.gen++
	c.released++
	w = Lingering[T]{s, s.gen}
	if d > 0 {
		s.lingersTo = p.now() + int64(d)
		c.lingering = append(c.lingering, s)
		p.expectLingering(s.lingersTo)
	} else {
		c.keep(s, &e)
		c.spare(s)
		c.dispatch(&e)
	}
	p.unlock(&e)
	return w, true
}

// None reports whether w is the zero Lingering.
func (w Lingering[T]) None() bool { return w.s == nil }

// Acquire leases the resource again, if it lingers or is idle and nobody else has had it. Otherwise ok is false, and the
// resource does not linger any more. With yield, a waiting caller gets the resource instead, and ok is false. Acquire
// neither waits nor closes anything in the caller.
func (w Lingering[T]) Acquire(yield bool) (l Lease[T], ok bool) {
	p := w.s.pool
	c := &p.core
	var e effects[T]
	p.mu.Lock()
	p.touchLazily()
	if ok = w.s.gen == w.gen && !(yield && c.waiters.head != nil) && c.clock < w.s.expires && c.takeFree(w.s); ok {
		l = c.lease(w.s)
		c.notePeak()
	} else {
		c.endLingering(w, &e)
	}
	c.dispatch(&e)
	p.unlockAsync(&e)
	return l, ok
}

// CheckDue reports whether the resource has been idle for so long that Acquire of the Pool would check it. Acquire of a
// Lingering does not.
func (w Lingering[T]) CheckDue() bool {
	p := w.s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.core
	return p.config.Check != nil && w.s.gen == w.gen && !slices.Contains(c.lingering, w.s) && p.now()-w.s.idleSince > int64(c.limits.CheckAfter)
}

// End gives the resource to others: its last holder will not acquire it again.
func (w Lingering[T]) End() {
	p := w.s.pool
	var e effects[T]
	p.mu.Lock()
	p.touchLazily()
	p.core.endLingering(w, &e)
	p.core.dispatch(&e)
	p.unlockAsync(&e)
}

// endLingering makes the resource one like any other, if nobody has leased it since.
func (c *core[T]) endLingering(w Lingering[T], e *effects[T]) {
	switch s := w.s; {
	case s.gen != w.gen:
	case c.stopLingering(s):
		c.give(s, e)
	default:
		c.unspare(s)
	}
}

// stopLingering removes s from the lingering resources, and reports whether it was among them.
func (c *core[T]) stopLingering(s *slot[T]) bool {
	i := slices.Index(c.lingering, s)
	if i < 0 {
		return false
	}
	c.lingering = slices.Delete(c.lingering, i, i+1)
	return true
}

// takeFree removes s from the lingering or the idle resources, and reports whether it was among them.
func (c *core[T]) takeFree(s *slot[T]) bool {
	if c.stopLingering(s) {
		return true
	}
	for i := len(c.idle) - 1; i >= 0; i-- {
		if c.idle[i] == s {
			c.takeIdle(i)
			return true
		}
	}
	return false
}

// stopAllLingering ends all lingering, before the pool closes, pauses or renews its resources.
func (c *core[T]) stopAllLingering(e *effects[T]) {
	for _, s := range c.lingering {
		c.give(s, e)
	}
	clear(c.lingering)
	c.lingering = c.lingering[:0]
}

// spare makes acquires prefer other idle resources to s. It does nothing if s is not idle.
func (c *core[T]) spare(s *slot[T]) {
	if n := len(c.idle); n > 0 && c.idle[n-1] == s {
		s.spared = true
		c.spared++
	}
}

// unspare undoes spare. It is called for each resource that ceases to be idle.
func (c *core[T]) unspare(s *slot[T]) {
	if s.spared {
		s.spared = false
		c.spared--
	}
}

// nearestUnspared is nearest while there are spared resources. If nothing else is idle it returns the one that was
// spared first.
func (c *core[T]) nearestUnspared(affinity int) int {
	near, best, seen := -1, -1, 0
	for i := len(c.idle) - 1; i >= 0 && seen < affinitySearch && best < matches; i-- {
		s := c.idle[i]
		if s.spared && c.clock-s.idleSince < sparedFor {
			continue
		}
		seen++
		is := matches
		if affinity != 0 {
			is = closeness(s.affinity, affinity)
		}
		if is > best {
			near, best = i, is
		}
	}
	if near < 0 {
		return min(len(c.idle)-1, 0)
	}
	return near
}

// expectLingering makes the timer of lingering resources fire at a time, or earlier. Under mu.
func (p *Pool[T]) expectLingering(at int64) {
	if p.lingerAt != 0 && p.lingerAt <= at {
		return
	}
	p.lingerAt = at
	d := time.Duration(max(at-p.now(), 0))
	if p.lingerTimer == nil {
		p.lingerTimer = time.AfterFunc(d, p.lingered)
		return
	}
	p.lingerTimer.Reset(d)
}

// lingered is run by the timer: it gives resources that have lingered for long enough to others.
func (p *Pool[T]) lingered() {
	var e effects[T]
	c := &p.core
	p.mu.Lock()
	p.touch(p.now())
	p.lingerAt = 0
	next, kept := int64(never), c.lingering[:0]
	for _, s := range c.lingering {
		if s.lingersTo > c.clock {
			next, kept = min(next, s.lingersTo), append(kept, s)
			continue
		}
		c.give(s, &e)
		c.spare(s)
	}
	clear(c.lingering[len(kept):])
	if c.lingering = kept; len(kept) > 0 {
		p.expectLingering(next)
	}
	c.dispatch(&e)
	p.unlockAsync(&e)
}
