package pool

import (
	"context"
	"errors"
)

// TryParker is a Parker that can also be asked without waiting. Begin needs one.
type TryParker interface {
	Parker
	// TryPark is a Park that does not wait: it reports whether Unpark has been called, once per
	// Unpark. After it has returned false the next Unpark must notify the caller by other means.
	TryPark() bool
}

// Pending is an acquire that Begin has queued. Wait must be called for it exactly once. It belongs
// to the caller of Begin; the zero Pending waits for nothing.
type Pending[T any] struct {
	pool   *Pool[T]
	w      *waiter[T]
	parker TryParker
	woken  bool
}

// Begin is Acquire for a caller that cannot block, such as an event loop. If ok, it returns a lease, or, if no
// resource is idle, a Pending that has Begun: parker, which may be an AffinityParker, is unparked when the acquire is done.
// Not ok means that the acquire may block, as for a check, or that the pool is full or closed: call Acquire.
// Begin neither waits nor opens or closes anything in the caller. In a pool with Hooks.Acquired or LeakAfter it
// is never ok.
func (p *Pool[T]) Begin(parker TryParker) (l Lease[T], w Pending[T], ok bool) {
	affinity := 0
	if at, ok := parker.(AffinityParker); ok && p.config.Affinity != nil {
		affinity = at.Affinity()
	}
	c := &p.core
	p.mu.Lock()
	if l, ok = c.instant(affinity); ok {
		p.mu.Unlock()
		return l, w, true
	}
	if !c.calm || c.closed || len(c.idle) > 0 || c.full() || c.limits.Overflow == OverflowDirect {
		p.mu.Unlock()
		return l, w, false
	}
	start := p.now()
	p.touch(start)
	var e effects[T]
	return l, Pending[T]{pool: p, w: p.queue(parker, arrival{start: start, affinity: affinity}, &e), parker: parker}, true
}

// TryAcquire is Acquire if an idle resource can be leased at once, without a check. Otherwise it does
// nothing, and ok is false. affinity is the caller's; see Config.Affinity.
func (p *Pool[T]) TryAcquire(affinity int) (l Lease[T], ok bool) {
	if p.config.Affinity == nil {
		affinity = 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.instant(affinity)
}

// Begun reports whether an acquire was queued, so that Wait must be called.
func (w *Pending[T]) Begun() bool { return w.w != nil }

// Ready reports whether Wait would return at once, and then whether it would return a lease. Call it
// when the TryParker has been unparked, and as often as you like.
func (w *Pending[T]) Ready() (ready, granted bool) {
	if !w.woken {
		w.woken = w.parker.TryPark()
	}
	return w.woken, w.woken && w.w.err == nil
}

// Wait returns the result of Acquire: the lease, or an error, also ctx's if it ends first.
func (w *Pending[T]) Wait(ctx context.Context) (l Lease[T], err error) {
	waiter, woken := w.w, w.woken
	p := w.pool
	*w = Pending[T]{}
	var parked error
	if !woken {
		parked = waiter.park(ctx)
	}
	if l, err = p.await(ctx, waiter, parked); errors.Is(err, errAgain) {
		return p.Acquire(ctx)
	}
	return l, err
}

// TryRelease is Release if that neither waits nor closes anything. Otherwise, for instance with
// Config.Reset, an expired resource or a closed pool, it does nothing and returns false: then call
// Release.
func (l Lease[T]) TryRelease() bool {
	s := l.s
	if s == nil {
		panic("pool: TryRelease of a zero Lease")
	}
	p := s.pool
	p.mu.Lock()
	c := &p.core
	if s.gen != l.gen {
		l.misuse("TryRelease")
	}
	if p.config.Reset == nil && c.pushes(s) {
		s.gen++
		c.released++
		c.pushIdle(s)
		p.mu.Unlock()
		return true
	}
	p.touchLazily()
	if _, unwanted := c.unwanted(s); unwanted || p.config.Reset != nil || c.share.isPressed() {
		p.mu.Unlock()
		return false
	}
	var e effects[T]
	s.gen++
	c.released++
	c.keep(s, &e)
	c.dispatch(&e)
	p.unlock(&e)
	return true
}
