package upstream

import (
	"context"
	"slices"
)

// Narrow says which endpoints AcquireNarrow may choose. The zero value allows all.
type Narrow struct {
	// Avoid are the addresses of endpoints that are used only if no other one is in.
	Avoid []string
	// One: if the endpoint that is chosen cannot open a connection, no other is tried.
	One bool
}

// AcquireNarrow is AcquireKey with a choice among fewer endpoints, for work that
// has failed at some of them. Avoid is not kept.
func (u *Upstream[T]) AcquireNarrow(ctx context.Context, key string, n Narrow) (Lease[T], error) {
	e := u.set.Load().pickAvoiding(key, n.Avoid)
	if e == nil {
		var err error
		if e, err = u.pickFirst(ctx, key); err != nil {
			return Lease[T]{}, err
		}
	}
	if !n.One {
		return u.acquireFrom(ctx, key, e)
	}
	l, err := e.acquire(ctx)
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

// pickAvoiding is pick with a preference for endpoints that do not have one of
// these addresses: those that are in, or when every endpoint is out, any.
func (s *set[T]) pickAvoiding(key string, addresses []string) *endpoint[T] {
	if len(addresses) == 0 {
		return s.pick(key)
	}
	var not []*endpoint[T]
	for _, e := range s.all {
		if !s.failOpen && !e.usable.Load() || slices.Contains(addresses, e.addr) {
			not = append(not, e)
		}
	}
	if e := s.pickOther(key, not); e != nil {
		return e
	}
	return s.pick(key)
}
