package pool

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNotReplaced is wrapped by the error of Lease.Replace if the pool does not open a resource now.
var ErrNotReplaced = errors.New("the pool replaces no resource now")

// replaceAgain is how long after failed opens Lease.Replaceable refuses, unless an open succeeds meanwhile. Each attempt
// costs a resource that works: while the backend admits nobody, holders would close all of a pool, one after the other.
const replaceAgain = 30 * time.Second

// Replaceable reports whether Replace is likely to succeed: it would open a resource now, and opens have not failed in
// the last half minute or have succeeded since. Otherwise a caller that can do without another resource keeps its lease.
func (l Lease[T]) Replaceable() bool {
	p := l.s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.core
	p.touch(p.now())
	return c.replaceable(l.s) && (c.backoff.failures == 0 || c.clock >= c.backoff.retryAt+int64(replaceAgain))
}

// Replace ends the lease as Discard does, opens another resource in the same slot, and returns a lease of that one. No
// other caller gets the slot in between. It closes the old resource and opens the new one in this goroutine, for at
// most Limits.OpenTimeout.
//
// After an error there is no lease: the slot is free, and Acquire may still succeed. The error wraps ErrNotReplaced, and
// nothing was opened, while the pool is closed or paused, waits after failed opens, or has more resources than MaxSize.
// Overflow resources are not replaced either.
func (l Lease[T]) Replace(ctx context.Context) (Lease[T], error) {
	if l.s == nil {
		panic("pool: Replace of a zero Lease")
	}
	p, old := l.s.pool, l.s
	p.mu.Lock()
	if old.gen != l.gen {
		l.misuse("Replace")
	}
	p.touch(p.now())
	if !p.core.replaceable(old) {
		p.mu.Unlock()
		l.Discard()
		return Lease[T]{}, fmt.Errorf("pool %q: %w", p.name, ErrNotReplaced)
	}
	start := p.core.clock
	round := p.core.replace(old)
	timeout, opens := p.core.limits.OpenTimeout, p.opens
	p.mu.Unlock()
	return p.openReplacement(ctx, opens, old, start, round, timeout)
}

// openReplacement closes the resource of a slot, and opens the one that replaces it.
func (p *Pool[T]) openReplacement(caller, opens context.Context, old *slot[T], start int64, round uint64, timeout time.Duration) (l Lease[T], failure error) {
	s := &slot[T]{pool: p, openingSince: start}
	finish := func(err error) {
		var e effects[T]
		p.mu.Lock()
		p.touch(p.now())
		if l, failure = p.core.replaced(s, round, err, caller.Err() != nil, &e); err != nil {
			failure = p.openError(caller, start, err)
		} else if failure == nil {
			p.waits.observe(time.Duration(p.core.clock - start))
			p.hold(s)
		}
		p.signalEmpty()
		p.unlock(&e)
	}
	_ = p.guard("Close", func() error { p.config.Close(old.value); return nil }, func() { finish(errExited) })
	if h := p.hooks.Closed; h != nil {
		_ = p.guard("Hooks.Closed", func() error { h(ReasonDiscarded); return nil }, func() { finish(errExited) })
	}
	ctx, cancel := context.WithCancel(caller)
	defer cancel()
	defer context.AfterFunc(opens, cancel)()
	err := p.givenUp(opens, p.callOpen(ctx, timeout, s, func(err error) {
		if finish(err); failure == nil {
			l.Release()
		}
	}))
	p.opened(err)
	finish(err)
	return l, failure
}

// replaceable reports whether the pool may open a resource in place of the one in s, which is leased.
func (c *core[T]) replaceable(s *slot[T]) bool {
	return !c.closed && !c.paused && !s.direct && c.total <= c.limits.MaxSize && (c.backoff.failures == 0 || c.clock >= c.backoff.retryAt)
}

// replace ends the lease of s, whose resource the caller closes, and begins an open in its place. It returns the open's
// back-off round.
func (c *core[T]) replace(s *slot[T]) (round uint64) {
	s.gen++
	c.discarded++
	c.closedFor[ReasonDiscarded]++
	c.unlink(s)
	c.opening++
	return c.begun()
}

// replaced is called with the result of an open that replace has begun. It returns the lease, or ErrClosed if the pool
// was closed meanwhile. gone means that the caller has given up: a failed open then says nothing about the backend.
func (c *core[T]) replaced(s *slot[T], round uint64, err error, gone bool, e *effects[T]) (l Lease[T], failure error) {
	c.opening--
	switch {
	case err != nil:
		c.total--
		c.unopened(e)
		if !gone && !c.closed && !c.paused && round >= c.pauseRound {
			c.lastErr = err
			c.backoff.failed(round, c.clock, c.jitter())
		}
	default:
		c.backoff.reset()
		c.lastErr = nil
		c.measure(c.clock - s.openingSince)
		c.born(s)
		if c.closed {
			c.retire(s, ReasonShutdown, e)
			return l, c.newError(ErrClosed, nil, 0, 0)
		}
		c.timed++
		c.replacements++
		l = c.lease(s)
		c.notePeak()
	}
	c.dispatch(e)
	return l, nil
}
