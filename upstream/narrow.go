package upstream

import (
	"context"
	"slices"
	"time"
)

// Narrow says which endpoints AcquireNarrow may choose. The zero value allows all.
type Narrow struct {
	// Avoid are the addresses of endpoints that are used only if no other one is in, or those cannot open a connection.
	Avoid []string
	// One: if the endpoint that is chosen cannot open a connection, no other is tried.
	One bool
	// MaxLoad keeps a key of RingHash from overloading its endpoint: one that would have more leases (callers that wait for one included) than
	// MaxLoad percent of its share of all leases, by weight and rounded up, is passed over for the next one on the ring. 0 = no limit, at least
	// 100 otherwise. The choice after a failure does not heed it.
	MaxLoad int
	// Wait bounds the wait for a connection of each endpoint that is tried, whether one is opened or must become free.
	// Then the next one is tried, also if the pool of this one is full. 0 = only the pool's limits and the context end it, and a caller that has
	// waited for a full pool is not sent to another.
	Wait time.Duration
}

// AcquireNarrow is AcquireKey with a choice among fewer endpoints, for work that
// has failed at some of them. Avoid is not kept.
func (u *Upstream[T]) AcquireNarrow(ctx context.Context, key string, n Narrow) (Lease[T], error) {
	e := u.set.Load().pickAvoiding(key, n)
	if e == nil {
		var err error
		if e, err = u.pickFirst(ctx, key); err != nil {
			return Lease[T]{}, err
		}
	}
	if !n.One {
		return u.acquireFrom(ctx, key, e, n)
	}
	l, err := e.acquireWithin(ctx, n.Wait)
	if err != nil {
		return Lease[T]{}, &Error{Upstream: u.cfg.Name, Causes: []EndpointError{{e.addr, err}}}
	}
	return l, nil
}

// Others reports whether an endpoint is in that has none of these addresses.
func (u *Upstream[T]) Others(addresses []string) bool {
	return slices.ContainsFunc(u.set.Load().all, func(e *endpoint[T]) bool {
		return e.usable.Load() && !slices.Contains(addresses, e.addr)
	})
}

// pickAvoiding is pick with a preference for endpoints that n does not avoid: the endpoints that
// are in, or any if every endpoint is out.
func (s *set[T]) pickAvoiding(key string, n Narrow) *endpoint[T] {
	switch {
	case len(n.Avoid) > 0:
	case n.MaxLoad > 0 && s.hashes(key) && len(s.in.list) > 1:
		return s.pickBounded(key, n.MaxLoad)
	default:
		return s.pick(key)
	}
	if e := s.pickOther(key, s.avoided(n.Avoid)); e != nil {
		return e
	}
	return s.pick(key)
}

// pickNext is pickOther with the preference of pickAvoiding.
func (s *set[T]) pickNext(key string, tried []*endpoint[T], avoid []string) *endpoint[T] {
	if len(avoid) > 0 {
		if e := s.pickOther(key, append(s.avoided(avoid), tried...)); e != nil {
			return e
		}
	}
	return s.pickOther(key, tried)
}

// avoided returns the endpoints with these addresses, and those that are out unless all are.
func (s *set[T]) avoided(addresses []string) (not []*endpoint[T]) {
	for _, e := range s.all {
		if !s.failOpen && !e.usable.Load() || slices.Contains(addresses, e.addr) {
			not = append(not, e)
		}
	}
	return not
}

// pickBounded is pick on the ring with a bound on the load of each endpoint, see
// Narrow.MaxLoad. As loads change meanwhile, all may seem to be beyond it; then
// the key's own endpoint is chosen.
func (s *set[T]) pickBounded(key string, maxLoad int) *endpoint[T] {
	all, weights := int64(1), int64(0) // with the lease that is asked for
	for _, e := range s.in.list {
		all += e.load.Load()
		weights += int64(e.weight())
	}
	i := s.ring.lookup(key, func(i int) bool {
		e := s.all[i]
		return !s.chosen[i] || e.load.Load()+1 > leastAbove(all*int64(e.weight())*int64(maxLoad), weights*100)
	})
	if i < 0 {
		return s.onRing(key, s.chosen)
	}
	return s.all[i]
}

// leastAbove is a divided by b, rounded up.
func leastAbove(a, b int64) int64 { return (a + b - 1) / b }
