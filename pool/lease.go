package pool

import (
	"context"
	"fmt"
	"runtime"
)

// Lease is the right to use one resource until Release, Discard or DiscardAsync,
// exactly one of which must be called exactly once: a second call panics, naming
// the pool.
// It is a small value; copies are the same lease. The zero Lease is none.
type Lease[T any] struct {
	s   *slot[T]
	gen uint64 // the slot's generation while this lease lasts
}

// Value returns the resource. It must not be used after Release or Discard.
func (l Lease[T]) Value() T { return l.s.value }

// Reused reports whether the resource had been leased before, so that it may
// have gone stale and a failed operation may be worth a retry on another.
func (l Lease[T]) Reused() bool { return l.gen > 1 }

// Release gives the resource back: to the first caller that waits, else to the
// idle ones. After a hand-over to a waiting goroutine it yields the processor
// once, so that this goroutine runs first; it does not in a pool that a Parker
// has waited in. Config.Reset, if set, runs first, in this goroutine. The resource
// is closed instead, in this goroutine, when Reset fails, when it is past its
// lifetime or surplus, or when the pool is closed.
func (l Lease[T]) Release() {
	s := l.s
	if s == nil {
		panic("pool: Release of a zero Lease")
	}
	p := s.pool
	p.mu.Lock()
	c := &p.core
	if s.gen == l.gen && c.releases(s) {
		s.gen++
		c.released++
		c.pushIdle(s)
		p.mu.Unlock()
		return
	}
	l.releaseSlow(p) // unlocks
}

// releases reports whether to release s is no more than a push.
func (c *core[T]) releases(s *slot[T]) bool {
	return c.hot && c.waiters.head == nil && c.clock < s.expires && s.pool.config.Reset == nil &&
		len(c.idle) < c.limits.MaxIdle && c.total <= c.limits.MaxSize && !s.direct
}

// releaseSlow is Release whenever it is more than a push. The lock is held on
// entry, not on return.
func (l Lease[T]) releaseSlow(p *Pool[T]) {
	c := &p.core
	if l.s.gen != l.gen {
		l.misuse("Release")
	}
	l.s.gen++
	c.released++
	if p.config.Reset != nil && !c.closed && !l.s.direct && c.total <= c.limits.MaxSize && c.clock < l.s.expires {
		timeout := c.limits.OpenTimeout
		p.mu.Unlock()
		failed := func() { p.put(l.s, ReasonReset) }
		if err := p.guard("Reset", func() error {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			return p.config.Reset(ctx, l.s.value)
		}, failed); err != nil {
			failed()
			return
		}
		p.mu.Lock()
	}
	var e effects[T]
	p.touchLazily()
	c.give(l.s, &e)
	c.settle(&e)
	yield := e.wake != nil && !p.parkers
	p.unlock(&e)
	if yield {
		// Without this the goroutine that releases goes on, finds no idle resource at its next Acquire and waits
		// in its turn: once there is a queue, every lease goes through it and costs a park and a wake-up.
		runtime.Gosched()
	}
}

// put retires a slot in nobody's hands.
func (p *Pool[T]) put(s *slot[T], why Reason) {
	var e effects[T]
	p.mu.Lock()
	p.touchLazily()
	p.core.retire(s, why, &e)
	p.unlock(&e)
}

// Discard closes the resource, in this goroutine, and frees its place for
// another.
func (l Lease[T]) Discard() {
	var e effects[T]
	l.discard("Discard", &e).unlock(&e)
}

// DiscardAsync is Discard for a resource whose Close may take its time: it runs
// in a goroutine of the pool's, and the place is free when it has returned.
func (l Lease[T]) DiscardAsync() {
	var e effects[T]
	l.discard("DiscardAsync", &e).unlockAsync(&e)
}

// discard retires the resource. The pool is returned with its lock held.
func (l Lease[T]) discard(call string, e *effects[T]) *Pool[T] {
	if l.s == nil {
		panic("pool: " + call + " of a zero Lease")
	}
	p := l.s.pool
	p.mu.Lock()
	if l.s.gen != l.gen {
		l.misuse(call)
	}
	l.s.gen++
	p.core.discarded++
	p.touchLazily()
	p.core.retire(l.s, ReasonDiscarded, e)
	return p
}

// misuse panics. It unlocks first, so that the pool survives a recover.
func (l Lease[T]) misuse(call string) {
	p := l.s.pool
	p.mu.Unlock()
	panic(fmt.Sprintf("pool %q: %s of a lease that was released or discarded already", p.name, call))
}
