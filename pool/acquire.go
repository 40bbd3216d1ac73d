package pool

import (
	"context"
	"errors"
	"time"
)

// Acquire leases a resource: the idle one used last, or else, first come first
// served, whichever comes first of one released and one newly opened. An error
// is an *Error that wraps ErrClosed, ErrTimeout, ErrTooManyWaiters, ErrOpen or
// the context's error.
//
// A resource granted in the very moment ctx ends is returned, not lost.
func (p *Pool[T]) Acquire(ctx context.Context) (Lease[T], error) {
	place := 0
	if p.config.Place != nil {
		_, place = parkerOf(ctx)
	}
	if ctx.Err() == nil {
		p.mu.Lock()
		if l, ok := p.core.instant(place); ok {
			p.mu.Unlock()
			return l, nil
		}
		p.mu.Unlock()
	}
	return p.acquireSlow(ctx, place)
}

// instant leases an idle resource if that takes no more than the idle stack.
func (c *core[T]) instant(place int) (l Lease[T], ok bool) {
	i := c.nearest(place)
	if i < 0 || !c.hot {
		return l, false
	}
	s := c.idle[i]
	if c.clock-s.idleSince > int64(c.limits.CheckAfter) || len(c.idle) <= c.limits.MinIdle && c.total < c.limits.MaxSize {
		return l, false
	}
	c.takeIdle(i)
	s.gen++
	c.acquired++
	if s.gen == 1 {
		c.fresh++
	}
	return Lease[T]{s, s.gen}, true
}

// acquireSlow is Acquire whenever more than the idle stack is involved.
func (p *Pool[T]) acquireSlow(ctx context.Context, place int) (Lease[T], error) {
	start := p.now()
	handed := false
	var l Lease[T]
	var err error
	for again := true; again; {
		l, handed, again, err = p.try(ctx, start, place)
	}
	if h := p.hooks.Acquired; h != nil {
		event := AcquireEvent{
			Took: time.Duration(p.now() - start), Waited: handed, Reused: err == nil && l.Reused(),
			Direct: err == nil && l.s.direct, Err: err,
		}
		_ = p.guard("Hooks.Acquired", func() error { h(ctx, event); return nil }, func() {
			if err == nil {
				l.Release()
			}
		})
	}
	return l, err
}

// try takes an idle resource, opens one directly, or waits. again means that
// the resource it found did not pass its check.
func (p *Pool[T]) try(ctx context.Context, start int64, place int) (l Lease[T], handed, again bool, err error) {
	var e effects[T]
	c := &p.core
	p.mu.Lock()
	p.touch(start)
	switch {
	case c.closed:
		err = c.newError(ErrClosed, nil, 0)
	case ctx.Err() != nil:
		err = p.ctxError(ctx, start)
	case c.timeLeft(start) <= 0: // spent on checks
		c.timedOut++
		err = c.newError(ErrTimeout, nil, c.clock-start)
	case len(c.idle) > 0:
		s := c.takeIdle(c.nearest(place))
		if c.clock >= s.expires {
			c.retire(s, ReasonLifetime, &e)
			p.unlock(&e)
			return l, false, true, nil
		}
		stale := p.config.Check != nil && c.clock-s.idleSince > int64(c.limits.CheckAfter)
		l = c.lease(s)
		p.hold(s)
		c.settle(&e)
		until := p.start.Add(time.Duration(c.clock) + min(c.timeLeft(start), c.limits.OpenTimeout))
		p.unlock(&e)
		if stale && !p.passes(ctx, l, start, until) {
			return Lease[T]{}, false, true, nil
		}
		return l, false, false, nil
	case c.limits.Overflow == OverflowDirect && c.total >= c.limits.MaxSize:
		c.direct++
		p.mu.Unlock()
		l, err = p.openDirect(ctx, start)
		return l, false, false, err
	case c.full():
		c.rejected++
		err = c.newError(ErrTooManyWaiters, nil, 0)
	default:
		l, err = p.wait(ctx, start)
		return l, true, false, err
	}
	p.unlock(&e)
	return l, false, false, err
}

// wait queues the caller and parks it. The lock is held on entry, not on return.
func (p *Pool[T]) wait(ctx context.Context, start int64) (Lease[T], error) {
	parker, place := parkerOf(ctx)
	w := p.queue(parker, place, start)
	return p.await(ctx, w, w.park(ctx))
}

// queue makes the caller a waiter. The lock is held on entry, not on return.
func (p *Pool[T]) queue(parker Parker, place int, start int64) *waiter[T] {
	var e effects[T]
	c := &p.core
	w := p.waiters.Get().(*waiter[T])
	w.since, w.parker, w.place = start, parker, place
	p.parkers = p.parkers || parker != nil
	c.waited++
	c.waiters.push(w)
	c.settle(&e)
	p.unlock(&e)
	return w
}

// await returns what w got, once it has been parked with this result.
func (p *Pool[T]) await(ctx context.Context, w *waiter[T], parked error) (Lease[T], error) {
	start := w.since
	if parked != nil {
		p.mu.Lock()
		if w.queued {
			c := &p.core
			c.clock = max(c.clock, p.now())
			c.waiters.remove(w)
			err := p.ctxError(ctx, start)
			p.mu.Unlock()
			p.recycle(w)
			return Lease[T]{}, err
		}
		p.mu.Unlock()
		_ = w.park(context.WithoutCancel(ctx)) // it has been or is being woken
	}
	l, err := w.lease, w.err
	p.recycle(w)
	if err == nil {
		p.waits.observe(time.Duration(p.now() - start))
		if p.core.leakAfter > 0 {
			p.mu.Lock()
			p.hold(l.s)
			p.mu.Unlock()
		}
	}
	return l, err
}

// recycle keeps w for the next caller that waits.
func (p *Pool[T]) recycle(w *waiter[T]) {
	w.parker, w.lease, w.err = nil, Lease[T]{}, nil
	p.waiters.Put(w)
}

// ctxError counts and describes the end of a caller's context. Under mu.
func (p *Pool[T]) ctxError(ctx context.Context, start int64) error {
	c := &p.core
	kind, cause := context.Canceled, context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = ErrTimeout
		c.timedOut++
		if cause != ctx.Err() {
			cause = errors.Join(ctx.Err(), cause)
		}
	} else {
		c.canceled++
	}
	return c.newError(kind, cause, c.clock-start)
}

// timeLeft is what AcquireTimeout leaves of an acquire that began at start.
func (c *core[T]) timeLeft(start int64) time.Duration {
	if c.limits.AcquireTimeout == 0 {
		return longest
	}
	return c.limits.AcquireTimeout - time.Duration(c.clock-start)
}

// passes runs Check, until then at the longest, on a lease just taken; a
// resource that fails is closed, and not in the goroutine of a caller whose time
// is over.
func (p *Pool[T]) passes(ctx context.Context, l Lease[T], start int64, until time.Time) bool {
	failed := func() {
		var e effects[T]
		p.mu.Lock()
		p.touch(p.now())
		c := &p.core
		c.acquired-- // it never was a lease anybody saw
		if l.gen == 1 {
			c.fresh--
		}
		l.s.gen++
		c.retire(l.s, ReasonCheck, &e)
		if ctx.Err() != nil || !time.Now().Before(until) {
			p.unlockAsync(&e)
		} else {
			p.unlock(&e)
		}
	}
	if err := p.guard("Check", func() error {
		b := &bounded{Context: ctx, at: until}
		defer b.end()
		return p.config.Check(b, l.s.value)
	}, failed); err != nil {
		failed()
		return false
	}
	p.mu.Lock()
	p.core.timed++
	p.mu.Unlock()
	p.waits.observe(time.Duration(p.now() - start))
	return true
}
