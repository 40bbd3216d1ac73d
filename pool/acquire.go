package pool

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Acquire leases a resource: the most recently used idle one, or else, first come
// first served, whichever comes first of one released and one newly opened. An
// error is an *Error that wraps ErrClosed, ErrTimeout, ErrTooManyWaiters, ErrNoTime,
// ErrOpen or the context's error.
//
// Acquires with a FlowParker take turns with those of other flows.
//
// A resource granted just as ctx ends is returned, not lost.
func (p *Pool[T]) Acquire(ctx context.Context) (Lease[T], error) {
	affinity := 0
	if p.config.Affinity != nil {
		_, affinity = parkerOf(ctx)
	}
	if ctx.Err() == nil {
		p.mu.Lock()
		if l, ok := p.core.instant(affinity); ok {
			p.mu.Unlock()
			return l, nil
		}
		p.mu.Unlock()
	}
	return p.acquireSlow(ctx, affinity)
}

// instant is the fast path of Acquire: it leases an idle resource that needs no check and no replacement.
func (c *core[T]) instant(affinity int) (l Lease[T], ok bool) {
	i := c.nearest(affinity)
	if i < 0 || !c.hot {
		return l, false
	}
	s := c.idle[i]
	if c.clock-s.idleSince > int64(c.limits.CheckAfter) || len(c.idle) <= c.warm.target && c.total < c.limits.MaxSize && !c.denied {
		return l, false
	}
	c.takeIdle(i)
	l = c.lease(s)
	c.notePeak()
	return l, true
}

// acquireSlow is Acquire without the fast path.
func (p *Pool[T]) acquireSlow(ctx context.Context, affinity int) (Lease[T], error) {
	start := p.now()
	key, until := p.flowOf(ctx)
	handed := false
	var l Lease[T]
	var err error
	for again := true; again; {
		if l, handed, again, err = p.try(ctx, arrival{start, key, until, affinity}); handed && again {
			start = p.now() // the wait was a pause
		}
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

// errAgain is the kind of error of a wait in a pause, after which the acquire begins again.
var errAgain = errors.New("the pause is over")

// try takes an idle resource, opens one directly, or waits. again means that
// the resource it found did not pass its check, or that a pause in which it has
// waited is over.
func (p *Pool[T]) try(ctx context.Context, t arrival) (l Lease[T], handed, again bool, err error) {
	var e effects[T]
	start := t.start
	c := &p.core
	p.mu.Lock()
	p.touch(start)
	switch {
	case c.closed:
		err = c.newError(ErrClosed, nil, 0, t.key)
	case ctx.Err() != nil:
		err = p.ctxError(ctx, start, t.key)
	case c.timeLeft(start) <= 0: // spent on checks
		c.timedOut++
		err = c.newError(ErrTimeout, nil, c.clock-start, t.key)
	case len(c.idle) > 0:
		s := c.takeIdle(c.nearest(t.affinity))
		if c.clock >= s.expires {
			c.retire(s, ReasonLifetime, &e)
			p.unlock(&e)
			return l, false, true, nil
		}
		stale := p.config.Check != nil && c.clock-s.idleSince > int64(c.limits.CheckAfter)
		l = c.lease(s)
		if !stale {
			c.notePeak()
		}
		p.hold(s)
		c.dispatch(&e)
		until, opens := p.start.Add(time.Duration(c.clock)+min(c.timeLeft(start), c.limits.OpenTimeout)), p.opens
		p.unlock(&e)
		if stale && !p.passes(ctx, opens, l, start, until) {
			err = p.failedCheck(opens, t)
			return Lease[T]{}, false, err == nil, err
		}
		return l, false, false, nil
	case c.limits.Overflow == OverflowDirect && c.total >= c.limits.MaxSize && !c.paused:
		c.direct++
		p.mu.Unlock()
		l, err = p.openDirect(ctx, start)
		return l, false, false, err
	case c.hopeless(t.key, t.until):
		c.gaveUp++
		err = c.newError(ErrNoTime, nil, 0, t.key)
	case c.full() && !c.makeRoom(t.key, &e):
		c.rejected++
		err = c.newError(ErrTooManyWaiters, nil, 0, t.key)
	default:
		l, err = p.wait(ctx, t, &e)
		return l, true, errors.Is(err, errAgain), err
	}
	p.unlock(&e)
	return l, false, false, err
}

// arrival is what the order of an acquire depends on.
type arrival struct {
	start    int64
	key      uint64 // of its flow
	until    int64  // see FlowParker
	affinity int
}

// wait queues the caller and parks it. The lock is held on entry, not on return.
func (p *Pool[T]) wait(ctx context.Context, t arrival, e *effects[T]) (Lease[T], error) {
	var parker Parker
	parker, t.affinity = parkerOf(ctx)
	w := p.queue(parker, t, e)
	return p.await(ctx, w, w.park(ctx))
}

// queue makes the caller a waiter. The lock is held on entry, not on return.
func (p *Pool[T]) queue(parker Parker, t arrival, e *effects[T]) *waiter[T] {
	c := &p.core
	w := p.waiters.Get().(*waiter[T])
	w.since, w.pauses, w.parker, w.affinity, w.key = t.start, c.pauses(), parker, t.affinity, t.key
	p.parkers = p.parkers || parker != nil
	c.waited++
	if c.waiters.n == 0 {
		c.pace.begin(c.clock)
	}
	c.waiters.push(w)
	c.dispatch(e)
	p.unlock(e)
	return w
}

// await returns w's lease or error; parked is the result of its park.
func (p *Pool[T]) await(ctx context.Context, w *waiter[T], parked error) (Lease[T], error) {
	start := w.since
	if parked != nil {
		p.mu.Lock()
		if w.flow != nil { // still queued
			c := &p.core
			c.clock = max(c.clock, p.now())
			c.waiters.remove(w)
			err := p.ctxError(ctx, start, w.key)
			if c.short == 0 {
				p.mu.Unlock()
			} else {
				var e effects[T]
				c.dispatch(&e) // also withdraws the need from the Budget
				p.unlock(&e)
			}
			p.recycle(w)
			return Lease[T]{}, err
		}
		p.mu.Unlock()
		_ = w.park(context.WithoutCancel(ctx)) // returns soon: w has been dequeued to be woken
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

// recycle keeps w for another caller.
func (p *Pool[T]) recycle(w *waiter[T]) {
	w.parker, w.lease, w.err = nil, Lease[T]{}, nil
	p.waiters.Put(w)
}

// ctxError counts and describes the end of a caller's context. Under mu.
func (p *Pool[T]) ctxError(ctx context.Context, start int64, key uint64) error {
	c := &p.core
	kind, cause := context.Canceled, context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = ErrTimeout
		c.timedOut++
		if cause != ctx.Err() {
			cause = fmt.Errorf("%w: %w", ctx.Err(), cause)
		}
	} else {
		c.canceled++
	}
	return c.newError(kind, cause, c.clock-start, key)
}

// timeLeft is what remains of AcquireTimeout for an acquire that began at start.
func (c *core[T]) timeLeft(start int64) time.Duration {
	if c.limits.AcquireTimeout == 0 {
		return longest
	}
	return c.limits.AcquireTimeout - time.Duration(c.clock-start)
}

// passes runs Check on a lease just taken, with the deadline until. A resource that
// fails is closed: in this goroutine only if the caller still has time left.
// GiveUp ends the Check.
func (p *Pool[T]) passes(ctx, opens context.Context, l Lease[T], start int64, until time.Time) bool {
	failed := func() {
		var e effects[T]
		p.mu.Lock()
		p.touch(p.now())
		c := &p.core
		c.acquired-- // no caller has seen this lease
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
		within, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(opens, cancel)()
		b := Bound(within, until)
		defer b.End()
		return p.config.Check(b, l.s.value)
	}, failed); err != nil {
		failed()
		return false
	}
	p.mu.Lock()
	p.core.timed++
	p.core.notePeak()
	p.mu.Unlock()
	p.waits.observe(time.Duration(p.now() - start))
	return true
}

// failedCheck returns the error of an acquire after a Check that has failed; nil = it begins again.
func (p *Pool[T]) failedCheck(opens context.Context, t arrival) error {
	if opens.Err() == nil || p.ctx.Err() != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.newError(ErrOpen, context.Cause(opens), p.core.clock-t.start, t.key)
}
