package pool

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Lease is the right to use one resource until Release, Discard or DiscardAsync,
// exactly one of which must be called exactly once: a second call panics, naming
// the pool. It is a small value; copies are the same lease. The zero Lease holds
// nothing.
type Lease[T any] struct {
	s   *slot[T]
	gen uint64 // the slot's generation while this lease lasts
}

// Value returns the resource. It must not be used after Release or Discard.
func (l Lease[T]) Value() T { return l.s.value }

// Reused reports whether the resource had been leased before, so that it may
// have gone stale and a failed operation may be worth a retry on another.
func (l Lease[T]) Reused() bool { return l.gen > 1 }

// Release gives the resource back: to the first waiting caller, else to the idle
// resources. After a hand-over to a waiting goroutine it yields the processor once,
// so that the waiting goroutine runs first; it does not in a pool that a Parker
// has waited in, or with Config.LongLeases. Config.Reset, if set, runs first, in this goroutine. The resource
// is closed instead, in this goroutine, when Reset fails, when it is past its
// lifetime or surplus, or when the pool is closed.
func (l Lease[T]) Release() {
	s := l.s
	if s == nil {
		panic("pool: Release of a zero Lease")
	}
	p := s.pool
	c := &p.core
	p.mu.Lock()
	if s.gen != l.gen {
		l.misuse("Release")
	}
	s.gen++
	c.released++
	if p.config.Reset != nil && !c.closed && !s.direct && c.total <= c.limits.MaxSize && !c.paused && c.clock < s.expires {
		timeout := c.limits.OpenTimeout
		p.mu.Unlock()
		if !p.reset(s, timeout) {
			return
		}
		p.mu.Lock()
	}
	if c.pushes(s) {
		c.pushIdle(s)
		p.mu.Unlock()
		return
	}
	p.releaseSlow(s)
}

// pushes reports whether the fast path of Release applies: s only has to be pushed onto the idle stack.
func (c *core[T]) pushes(s *slot[T]) bool {
	return c.hot && c.waiters.head == nil && c.clock < s.expires &&
		len(c.idle) < c.limits.MaxIdle && c.total <= c.limits.MaxSize && !s.direct && !c.share.isPressed()
}

// reset runs Config.Reset. It reports whether that succeeded; if not, s is closed.
func (p *Pool[T]) reset(s *slot[T], timeout time.Duration) (ok bool) {
	failed := func() { p.put(s, ReasonReset) }
	if err := p.guard("Reset", func() error {
		b := Bound(context.Background(), time.Now().Add(timeout))
		defer b.End()
		return p.config.Reset(b, s.value)
	}, failed); err != nil {
		failed()
		return false
	}
	return true
}

// releaseSlow is Release without the fast path. The lock is held on entry, not on return.
func (p *Pool[T]) releaseSlow(s *slot[T]) {
	var e effects[T]
	p.touchLazily()
	p.core.give(s, &e)
	p.core.dispatch(&e)
	yield := e.wake != nil && !p.parkers && !p.config.LongLeases
	p.unlock(&e)
	if yield {
		// Otherwise the releasing goroutine would continue, find no idle resource at its next Acquire and queue
		// too: once there is a queue, every lease would go through it and cost a park and a wake-up.
		runtime.Gosched()
	}
}

// put retires s, whose lease has ended.
func (p *Pool[T]) put(s *slot[T], why Reason) {
	var e effects[T]
	p.mu.Lock()
	p.touchLazily()
	p.core.retire(s, why, &e)
	p.unlock(&e)
}

// Discard closes the resource, in this goroutine, and frees its slot for
// another.
func (l Lease[T]) Discard() {
	var e effects[T]
	l.discard("Discard", &e).unlock(&e)
}

// DiscardAsync is Discard for a resource whose Close may be slow: Close runs in
// one of the pool's goroutines, and the slot is free when it has returned.
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
