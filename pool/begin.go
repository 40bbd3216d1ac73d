package pool

import "context"

// TryParker is what a Parker has to be besides for Begin.
type TryParker interface {
	Parker
	// TryPark is a Park that does not wait: it reports whether Unpark has been called, once per
	// Unpark. After a false the next Unpark has to tell the caller, in a way of its own.
	TryPark() bool
}

// Pending is an acquire that Begin has begun and that waits for its turn. Wait must be called for
// it exactly once. It belongs to the caller of Begin; the zero Pending is none.
type Pending[T any] struct {
	pool   *Pool[T]
	w      *waiter[T]
	parker TryParker
	woken  bool
}

// Begin is Acquire for a caller that cannot wait in it, as an event loop's. If ok, it returns a lease, or a
// Pending that has Begun if none is idle: parker, which may be Placed, is told when the caller's turn has
// come. Not ok means that it takes more, such as a check, or that the pool is full or closed: call Acquire.
// It neither waits nor opens or closes anything in the caller. In a pool with Hooks.Acquired or LeakAfter it
// is never ok.
func (p *Pool[T]) Begin(parker TryParker) (l Lease[T], w Pending[T], ok bool) {
	place := 0
	if at, ok := parker.(Placed); ok && p.config.Place != nil {
		place = at.Place()
	}
	c := &p.core
	p.mu.Lock()
	if l, ok = c.instant(place); ok {
		p.mu.Unlock()
		return l, w, true
	}
	if !c.calm || c.closed || len(c.idle) > 0 || c.full() || c.limits.Overflow == OverflowDirect {
		p.mu.Unlock()
		return l, w, false
	}
	start := p.now()
	p.touch(start)
	return l, Pending[T]{pool: p, w: p.queue(parker, place, start), parker: parker}, true
}

// Begun reports whether there is an acquire to wait for.
func (w *Pending[T]) Begun() bool { return w.w != nil }

// Ready reports whether Wait would return at once, and then whether it would return a lease. Call it
// when the TryParker has been unparked, and as often as you like.
func (w *Pending[T]) Ready() (ready, granted bool) {
	if !w.woken {
		w.woken = w.parker.TryPark()
	}
	return w.woken, w.woken && w.w.err == nil
}

// Wait returns what Acquire would: the lease, or an error, also that of ctx where it ends first.
func (w *Pending[T]) Wait(ctx context.Context) (Lease[T], error) {
	waiter, woken := w.w, w.woken
	p := w.pool
	*w = Pending[T]{}
	if woken {
		return p.await(ctx, waiter, nil)
	}
	return p.await(ctx, waiter, waiter.park(ctx))
}

// TryRelease is Release where that neither waits nor closes anything. Where it would, as it may with
// Config.Reset, a lifetime that is over or a pool that is closed, it does nothing and returns false:
// then call Release.
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
	if c.releases(s) {
		s.gen++
		c.released++
		c.pushIdle(s)
		p.mu.Unlock()
		return true
	}
	p.touchLazily()
	if _, leaves := c.leaves(s); leaves || p.config.Reset != nil {
		p.mu.Unlock()
		return false
	}
	var e effects[T]
	s.gen++
	c.released++
	c.give(s, &e)
	c.settle(&e)
	p.unlock(&e)
	return true
}
