package upstream

import (
	"slices"
	"time"

	"github.com/headpond/headpond/pool"
)

// Lingering is a released connection that its last holder may acquire again; see pool.Lease.Linger. The zero Lingering is
// none.
type Lingering[T any] struct {
	place    pool.Lingering[T]
	endpoint *endpoint[T]
}

// Linger is TryRelease, after which no other caller gets the connection for a time; see pool.Lease.Linger.
func (l Lease[T]) Linger(d time.Duration) (w Lingering[T], ok bool) {
	place, ok := l.lease.Linger(d)
	if !ok {
		return w, false
	}
	l.ended()
	l.OK()
	return Lingering[T]{place, l.endpoint}, true
}

// None reports whether w is the zero Lingering.
func (w Lingering[T]) None() bool { return w.place.None() }

// CheckDue reports whether acquires would check the connection; see pool.Lingering.CheckDue.
func (w Lingering[T]) CheckDue() bool { return w.place.CheckDue() }

// End gives the connection to other callers; see pool.Lingering.End.
func (w Lingering[T]) End() { w.place.End() }

// AcquireLingering leases a lingering connection of the tenant again, as pool.Lingering.Acquire does. Otherwise ok is
// false, and the connection does not linger any more: also if acquires would not choose its endpoint now.
func (t *Tenant[T]) AcquireLingering(w Lingering[T], yield bool) (l Lease[T], ok bool) {
	e := w.endpoint
	if !slices.Contains(t.up.set.Load().in.list, e) {
		w.End()
		return l, false
	}
	lease, ok := w.place.Acquire(yield)
	if !ok {
		return l, false
	}
	e.load.Add(1)
	return Lease[T]{lease: lease, endpoint: e}, true
}
