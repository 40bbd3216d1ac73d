package upstream

import (
	"context"
	"slices"
	"time"
)

// Narrow restricts the choice of AcquireNarrow. The zero value does not.
type Narrow struct {
	// Avoid lists addresses of endpoints that are used only if no other endpoint is in, or if the others cannot open a
	// connection.
	Avoid []string
	// One tries no other endpoint if the chosen one cannot open a connection.
	One bool
	// MaxLoad keeps a RingHash key from overloading its endpoint. An endpoint is passed over, for the next one on the
	// ring, if it would have more leases, including callers that wait for one, than MaxLoad percent of its share of all
	// leases by weight, rounded up. 0 = no limit, otherwise at least 100. The choice after a failure ignores MaxLoad.
	MaxLoad int
	// Wait bounds, for each endpoint tried, the wait for a connection, whether one is opened or another becomes free.
	// After it the next endpoint is tried, even if the pool of this one is full. 0 = only the pool's limits and the
	// context bound the wait, and a caller that has waited for a full pool tries no other endpoint. It does not bound a
	// wait that begins in a pause.
	Wait time.Duration
}

// AcquireNarrow is AcquireKey with a restricted choice, for work that has failed at some endpoints. Avoid is not kept.
func (u *Upstream[T]) AcquireNarrow(ctx context.Context, key string, n Narrow) (Lease[T], error) {
	return u.own.AcquireNarrow(ctx, key, n)
}

// AcquireNarrow is Upstream.AcquireNarrow for the tenant.
func (t *Tenant[T]) AcquireNarrow(ctx context.Context, key string, n Narrow) (Lease[T], error) {
	e := t.up.set.Load().pickAvoiding(key, n)
	if e == nil {
		var err error
		if e, err = t.pickFirst(ctx, key); err != nil {
			return Lease[T]{}, err
		}
	}
	if !n.One {
		return t.acquireFrom(ctx, key, e, n)
	}
	l, err := t.acquireWithin(ctx, e, n.Wait)
	if err != nil {
		return Lease[T]{}, &Error{Upstream: t.up.cfg.Name, Causes: []EndpointError{{e.addr, err}}}
	}
	return l, nil
}

// Others reports whether an endpoint is in whose address is not one of these.
func (u *Upstream[T]) Others(addresses []string) bool {
	return slices.ContainsFunc(u.set.Load().all, func(e *endpoint[T]) bool {
		return e.usable.Load() && !slices.Contains(addresses, e.addr)
	})
}

// pickAvoiding is pick with a preference for endpoints that n does not avoid, among those that are in, or among all if
// none is in.
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

// avoided returns the endpoints with these addresses and, unless all endpoints are out, those that are out.
func (s *set[T]) avoided(addresses []string) (not []*endpoint[T]) {
	for _, e := range s.all {
		if !s.failOpen && !e.usable.Load() || slices.Contains(addresses, e.addr) {
			not = append(not, e)
		}
	}
	return not
}

// pickBounded is pick on the ring with a bound on the load of each endpoint; see Narrow.MaxLoad. Loads change
// concurrently, so that all endpoints may seem to exceed the bound; then it returns the key's own endpoint.
func (s *set[T]) pickBounded(key string, maxLoad int) *endpoint[T] {
	all, weights := int64(1), int64(0) // includes the lease to be acquired
	for _, e := range s.in.list {
		all += e.load.Load()
		weights += int64(e.weight())
	}
	i := s.ring.lookup(key, func(i int) bool {
		e := s.all[i]
		return !s.chosen[i] || e.load.Load()+1 > ceilDiv(all*int64(e.weight())*int64(maxLoad), weights*100)
	})
	if i < 0 {
		return s.onRing(key, s.chosen)
	}
	return s.all[i]
}

// ceilDiv returns a divided by b, rounded up.
func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
