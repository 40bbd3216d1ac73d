package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/headpond/headpond/pool"
)

// site is the pool of a tenant at an endpoint.
type site[T any] struct {
	tenant   *Tenant[T]
	endpoint *endpoint[T]
	pool     *pool.Pool[T]
}

// at returns the tenant's pool at e; nil = none is made yet, or it is gone.
func (t *Tenant[T]) at(e *endpoint[T]) *pool.Pool[T] {
	sites := *t.sites.Load()
	if n := e.number; n < len(sites) && sites[n].endpoint == e {
		return sites[n].pool
	}
	return nil
}

// join returns the tenant's pool at e, and makes it if there is none. The error is a *pool.Error that wraps
// pool.ErrClosed, or errNoneOwn.
func (t *Tenant[T]) join(e *endpoint[T]) (*pool.Pool[T], error) {
	u := t.up
	if t.cfg.Open == nil {
		return nil, errNoneOwn
	}
	u.tenancy.Lock()
	defer u.tenancy.Unlock()
	if p := t.at(e); p != nil {
		return p, nil
	}
	name := e.pools.name
	if t != &u.own {
		name += "/" + t.cfg.Name
	}
	if t.closed || e.pools.shut {
		return nil, &pool.Error{Pool: name, Kind: pool.ErrClosed}
	}
	p, err := t.newPool(e, name)
	if err != nil {
		return nil, err
	}
	s := site[T]{t, e, p}
	t.all, e.pools.list = append(t.all, s), append(e.pools.list, s)
	t.put(e.number, s)
	return p, nil
}

// newPool makes a pool, paused if the endpoint is. The caller holds up.tenancy.
func (t *Tenant[T]) newPool(e *endpoint[T], name string) (*pool.Pool[T], error) {
	u := t.up
	first, paused := u.limits, e.paused.Load()
	if paused { // it must not open anything before it is paused
		first.MinIdle, first.MaxWarm = 0, 0
	}
	p, err := pool.New(pool.Config[T]{
		Name:     name,
		Open:     func(ctx context.Context) (T, error) { return t.open(ctx, e) },
		Go:       u.cfg.Go,
		Affinity: u.cfg.Affinity,
		Close:    t.cfg.Close,
		Check:    t.cfg.Check,
		Reset:    t.cfg.Reset,
		Limits:   first,
		Budget:   e.pools.budget,
		Ahead:    &t.ahead,
	})
	if err == nil && paused {
		err = errors.Join(p.Pause(), p.Update(u.limits))
	}
	return p, err
}

// put publishes the pool at the endpoint with a number. The caller holds up.tenancy.
func (t *Tenant[T]) put(number int, s site[T]) {
	old := *t.sites.Load()
	sites := make([]site[T], max(len(old), number+1))
	copy(sites, old)
	sites[number] = s
	t.sites.Store(&sites)
}

// setLimits sets the limits of pools that are made from now on.
func (u *Upstream[T]) setLimits(l pool.Limits) {
	u.tenancy.Lock()
	defer u.tenancy.Unlock()
	u.limits = l
}

// forget removes pools that are drained, and keeps what they have counted.
func (u *Upstream[T]) forget(drained ...site[T]) {
	u.tenancy.Lock()
	defer u.tenancy.Unlock()
	for _, s := range drained {
		e, t := s.endpoint, s.tenant
		if !slices.Contains(e.pools.list, s) {
			continue // its tenant and its endpoint end at the same time
		}
		e.pools.list, t.all = except(e.pools.list, s), except(t.all, s)
		counted := s.pool.Stats()
		counted.MaxSize, counted.MinIdle, counted.WarmTarget, counted.MaxWarm, counted.PeakInUse = 0, 0, 0, 0, 0
		counted.OpenTime, counted.LastOpenError = 0, nil
		e.pools.past.Add(counted)
		t.past.Add(counted)
		if t.at(e) == s.pool { // else it has another one by now
			t.put(e.number, site[T]{})
		}
	}
}

// except returns a copy of list without s.
func except[T any](list []site[T], s site[T]) []site[T] {
	return slices.DeleteFunc(slices.Clone(list), func(other site[T]) bool { return other == s })
}

// endpointPools has the pools of all tenants at an endpoint.
type endpointPools[T any] struct {
	mu     *sync.Mutex  // Upstream.tenancy, guards the fields below; immutable
	name   string       // of the Upstream and the endpoint; immutable
	budget *pool.Budget // of Settings.MaxConnections; immutable

	list []site[T]  // only appended to, or replaced
	past pool.Stats // what pools counted that are gone
	shut bool       // no pool is made
}

// now returns the present pools.
func (p *endpointPools[T]) now() []site[T] {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.list
}

// update changes the limits of all pools.
func (p *endpointPools[T]) update(l pool.Limits, maxConnections int) {
	p.budget.SetLimit(maxConnections, trials(maxConnections))
	for _, s := range p.now() {
		_ = s.pool.Update(l) // the limits are valid; an error says that the pool is closed
	}
}

// close closes all pools; no pool is made after it.
func (p *endpointPools[T]) close() {
	p.mu.Lock()
	p.shut = true
	list := p.list
	p.mu.Unlock()
	for _, s := range list {
		s.pool.Close()
	}
}

// drain waits until all leases of closed pools are released. The error is ctx's.
func (p *endpointPools[T]) drain(ctx context.Context) error {
	var first error
	failed := 0
	for _, s := range p.now() {
		if err := s.pool.Drain(ctx); err != nil {
			if failed++; failed == 1 {
				first = err
			}
		}
	}
	if failed > 1 {
		return fmt.Errorf("%w (and %d more pools of the endpoint)", first, failed-1)
	}
	return first
}

// interrupt calls f with each leased connection and returns their number; see pool.Pool.Interrupt.
func (p *endpointPools[T]) interrupt(f func(T)) (n int) {
	for _, s := range p.now() {
		n += s.pool.Interrupt(f)
	}
	return n
}

// giveUp fails the callers that wait in the pools, and ends their opens; see pool.Pool.GiveUp.
func (p *endpointPools[T]) giveUp(cause error) {
	for _, s := range p.now() {
		s.pool.GiveUp(cause)
	}
}

// movable returns the first leased connection in the given order of the pool with the most; ok is false if none is leased.
func (p *endpointPools[T]) movable(order RebalanceOrder) (v T, ok bool) {
	most := 0
	for _, s := range p.now() {
		var leased []T
		if n := s.pool.Interrupt(func(v T) { leased = append(leased, v) }); n > most {
			most, v = n, leased[n-1] // the newest connection comes first
			if order == NewestFirst {
				v = leased[0]
			}
		}
	}
	return v, most > 0
}

// stats returns the sum of all pools.
func (p *endpointPools[T]) stats() pool.Stats {
	p.mu.Lock()
	sum, list := p.past, p.list
	p.mu.Unlock()
	sum.Name = p.name
	return sumOf(sum, list)
}

// sumOf adds the statistics of pools to sum.
func sumOf[T any](sum pool.Stats, list []site[T]) pool.Stats {
	for _, s := range list {
		sum.Add(s.pool.Stats())
	}
	return sum
}

// numbers hands out the smallest numbers it can, from 0.
type numbers struct {
	spare []int
	used  int // numbers below it were handed out
}

// next returns a number that is not in use.
func (n *numbers) next() int {
	if last := len(n.spare) - 1; last >= 0 {
		number := n.spare[last]
		n.spare = n.spare[:last]
		return number
	}
	n.used++
	return n.used - 1
}

// free makes a number usable again.
func (n *numbers) free(number int) { n.spare = append(n.spare, number) }
