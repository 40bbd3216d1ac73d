package upstream

import (
	"context"

	"github.com/headpond/headpond/pool"
)

// Pending is an acquire that Begin has started. Wait must be called exactly once for it. It belongs to the caller of
// Begin; the zero Pending is no acquire.
type Pending[T any] struct {
	tenant   *Tenant[T]
	endpoint *endpoint[T] // nil = the set was empty
	queued   pool.Pending[T]
}

// Begin is Acquire for a caller that must not wait in it; see pool.Pool.Begin. It returns a lease or a Pending. If the
// Pending is Queued, parker is woken when its turn comes; otherwise call Wait.
func (u *Upstream[T]) Begin(parker pool.TryParker) (l Lease[T], w Pending[T], leased bool) {
	return u.own.Begin(parker)
}

// Begin is Upstream.Begin for the tenant.
func (t *Tenant[T]) Begin(parker pool.TryParker) (l Lease[T], w Pending[T], leased bool) {
	e := t.up.set.Load().pick("")
	if e == nil {
		return l, Pending[T]{tenant: t}, false
	}
	p := t.at(e)
	if p == nil {
		return l, Pending[T]{tenant: t, endpoint: e}, false
	}
	e.load.Add(1)
	lease, queued, ok := p.Begin(parker)
	switch {
	case !ok:
		e.load.Add(-1)
	case !queued.Begun():
		return Lease[T]{lease: lease, endpoint: e}, w, true
	}
	return l, Pending[T]{tenant: t, endpoint: e, queued: queued}, false
}

// TryAcquireKey is AcquireKey if the chosen endpoint has an idle connection that can be leased at once; otherwise it
// does nothing and ok is false. affinity is the caller's; see pool.Config.
func (u *Upstream[T]) TryAcquireKey(key string, affinity int) (l Lease[T], ok bool) {
	return u.own.TryAcquireKey(key, affinity)
}

// TryAcquireKey is Upstream.TryAcquireKey for the tenant.
func (t *Tenant[T]) TryAcquireKey(key string, affinity int) (l Lease[T], ok bool) {
	e := t.up.set.Load().pick(key)
	if e == nil {
		return l, false
	}
	p := t.at(e)
	if p == nil {
		return l, false
	}
	e.load.Add(1)
	lease, ok := p.TryAcquire(affinity)
	if !ok {
		e.load.Add(-1)
		return l, false
	}
	return Lease[T]{lease: lease, endpoint: e}, true
}

// Begun reports whether w is an acquire for which Wait must be called.
func (w *Pending[T]) Begun() bool { return w.tenant != nil }

// Queued reports whether the acquire waits for its turn.
func (w *Pending[T]) Queued() bool { return w.queued.Begun() }

// Ready reports whether the turn of a Queued acquire has come, and if so, whether Wait would return a lease at once.
func (w *Pending[T]) Ready() (ready, granted bool) { return w.queued.Ready() }

// Wait completes the acquire, with the results of Acquire.
func (w *Pending[T]) Wait(ctx context.Context) (Lease[T], error) {
	t, e, queued := w.tenant, w.endpoint, w.queued
	*w = Pending[T]{}
	switch {
	case e == nil:
		return t.Acquire(ctx)
	case !queued.Begun():
		return t.acquireFrom(ctx, "", e, Narrow{})
	}
	lease, err := queued.Wait(ctx)
	if err == nil {
		return Lease[T]{lease: lease, endpoint: e}, nil
	}
	e.load.Add(-1)
	return t.acquireOther(ctx, "", e, err, Narrow{})
}

// TryRelease is Release if that needs neither to wait nor to close anything; otherwise it does nothing and returns
// false.
func (l Lease[T]) TryRelease() bool {
	if !l.lease.TryRelease() {
		return false
	}
	l.ended()
	l.OK()
	return true
}
