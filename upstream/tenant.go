package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/pool"
)

// MaxTenants bounds the tenants of an Upstream, with those that wait for their leases: each has a pool, with its own
// statistics, at every endpoint it uses.
const MaxTenants = 10000

// ErrTooManyTenants is wrapped by the error of NewTenant if the Upstream has MaxTenants.
var ErrTooManyTenants = errors.New("upstream: too many tenants")

// TenantConfig describes a Tenant. Open and Close are required.
type TenantConfig[T any] struct {
	// Name appears in errors and in Status. It need not be unique.
	Name string
	// Open, Close, Check and Reset are as in Config. Open returns an error that wraps ErrTenant if the endpoint works and
	// refuses this tenant.
	Open  func(ctx context.Context, endpoint string) (T, error)
	Close func(T)
	Check func(ctx context.Context, v T) error
	Reset func(ctx context.Context, v T) error
}

// Tenant has pools of its own at the endpoints of an Upstream, such as connections that are logged in as one user. The
// endpoints with their health, balance, overrides and pauses are shared by all tenants; each pool has Settings.Limits.
// Make one with Upstream.NewTenant and end it with Close or Drain, or with the Upstream. All methods are safe for
// concurrent use.
type Tenant[T any] struct {
	up    *Upstream[T]
	cfg   TenantConfig[T]
	sites atomic.Pointer[[]site[T]] // of the endpoints in the set, by endpoint.number; never modified
	ahead atomic.Int64              // callers that wait before they acquire; see BeginWait

	// The fields below are guarded by up.tenancy.
	all    []site[T]  // with those of removed endpoints; only appended to, or replaced
	past   pool.Stats // what pools counted that are gone
	closed bool
}

// NewTenant makes a Tenant. Its pool at an endpoint is made, and starts to fill, when an acquire first needs it. Errors
// wrap ErrConfig, ErrTooManyTenants or pool.ErrClosed.
func (u *Upstream[T]) NewTenant(cfg TenantConfig[T]) (*Tenant[T], error) {
	if cfg.Open == nil || cfg.Close == nil {
		return nil, fmt.Errorf("%w: upstream %q: tenant %q: Open or Close is missing", ErrConfig, u.cfg.Name, cfg.Name)
	}
	t := &Tenant[T]{up: u, cfg: cfg}
	t.sites.Store(&[]site[T]{})
	u.tenancy.Lock()
	defer u.tenancy.Unlock()
	switch {
	case u.ended:
		return nil, fmt.Errorf("upstream %q: tenant %q: %w", u.cfg.Name, cfg.Name, pool.ErrClosed)
	case len(u.tenants) >= MaxTenants:
		return nil, fmt.Errorf("upstream %q: tenant %q: %w: at most %d are possible", u.cfg.Name, cfg.Name, ErrTooManyTenants, MaxTenants)
	}
	u.tenants = append(u.tenants, t)
	return t, nil
}

// Own returns the tenant of the Upstream's own acquires, for code that uses either those or a tenant's. Status does not
// list it. It ends with the Upstream.
func (u *Upstream[T]) Own() *Tenant[T] { return &u.own }

// Name returns TenantConfig.Name.
func (t *Tenant[T]) Name() string { return t.cfg.Name }

// Acquire is Upstream.Acquire for the tenant.
func (t *Tenant[T]) Acquire(ctx context.Context) (Lease[T], error) { return t.AcquireKey(ctx, "") }

// AcquireKey is Upstream.AcquireKey for the tenant.
func (t *Tenant[T]) AcquireKey(ctx context.Context, key string) (Lease[T], error) {
	e := t.up.set.Load().pick(key)
	if e == nil {
		var err error
		if e, err = t.pickFirst(ctx, key); err != nil {
			return Lease[T]{}, err
		}
	}
	return t.acquireFrom(ctx, key, e, Narrow{})
}

// acquireFrom tries e first. It respects n.Wait, and for further tries n.Avoid.
func (t *Tenant[T]) acquireFrom(ctx context.Context, key string, e *endpoint[T], n Narrow) (Lease[T], error) {
	l, err := t.acquireWithin(ctx, e, n.Wait)
	if err == nil {
		return l, nil
	}
	return t.acquireOther(ctx, key, e, err, n)
}

// acquireOther tries other endpoints after the first one failed with err, and with a Target those that have its role
// afterwards.
func (t *Tenant[T]) acquireOther(ctx context.Context, key string, e *endpoint[T], err error, n Narrow) (Lease[T], error) {
	l, failed := t.tryOthers(ctx, key, e, err, n)
	switch {
	case failed == nil:
		return l, nil
	case t.up.set.Load().target != TargetAny:
		return t.acquireAfterFailover(ctx, key, failed, n)
	}
	return l, failed
}

// tryOthers tries other endpoints after the first one failed with err.
func (t *Tenant[T]) tryOthers(ctx context.Context, key string, e *endpoint[T], err error, n Narrow) (Lease[T], *Error) {
	failure := &Error{Upstream: t.up.cfg.Name}
	var tried []*endpoint[T]
	for refusals := 0; ; {
		failure.Causes = append(failure.Causes, EndpointError{e.addr, err})
		tried = append(tried, e)
		if errors.Is(err, ErrTenant) {
			refusals++
		}
		if ctx.Err() != nil || refusals >= maxRefusals || !another(err) && (n.Wait == 0 || !timedOut(err)) {
			return Lease[T]{}, failure
		}
		if e = t.up.set.Load().pickNext(key, tried, n.Avoid); e == nil {
			return Lease[T]{}, failure
		}
		l, nextErr := t.acquireWithin(ctx, e, n.Wait)
		if nextErr == nil {
			return l, nil
		}
		err = nextErr
	}
}

// acquireWithin acquires a lease of e within wait, as Narrow.Wait says.
func (t *Tenant[T]) acquireWithin(ctx context.Context, e *endpoint[T], wait time.Duration) (Lease[T], error) {
	if wait > 0 && !e.paused.Load() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	p := t.at(e)
	if p == nil {
		var err error
		if p, err = t.join(e); err != nil {
			return Lease[T]{}, err
		}
	}
	e.load.Add(1)
	l, err := p.Acquire(ctx)
	if err != nil {
		e.load.Add(-1)
		return Lease[T]{}, err
	}
	return Lease[T]{lease: l, endpoint: e}, nil
}

// AllInUse is Upstream.AllInUse for the tenant.
func (t *Tenant[T]) AllInUse() bool {
	return !slices.ContainsFunc(t.up.set.Load().in.list, func(e *endpoint[T]) bool {
		if p := t.at(e); p != nil {
			return !p.AllInUse()
		}
		return !e.paused.Load()
	})
}

// OnlyEndpoint is Upstream.OnlyEndpoint.
func (t *Tenant[T]) OnlyEndpoint() (address string) { return t.up.OnlyEndpoint() }

// EndpointNames is Upstream.EndpointNames.
func (t *Tenant[T]) EndpointNames() []string { return t.up.EndpointNames() }

// Choose is Upstream.Choose.
func (t *Tenant[T]) Choose(ctx context.Context, tried []string) (address string, err error) {
	set := t.up.set.Load()
	e := set.pick("")
	if len(tried) > 0 {
		var before []*endpoint[T]
		for _, known := range set.all {
			if slices.Contains(tried, known.addr) {
				before = append(before, known)
			}
		}
		if e = set.pickOther("", before); e == nil {
			return "", nil
		}
	}
	if e == nil {
		if e, err = t.pickFirst(ctx, ""); err != nil {
			return "", err
		}
	}
	return e.addr, nil
}

// Stats returns the sum of the tenant's pools, and of what pools at removed endpoints have counted; see pool.Stats.Add.
// Waiting includes the callers of BeginWait.
func (t *Tenant[T]) Stats() pool.Stats {
	t.up.tenancy.Lock()
	sum, all := t.past, t.all
	t.up.tenancy.Unlock()
	sum.Name = t.cfg.Name
	sum.Waiting += int(t.ahead.Load())
	return sumOf(sum, all)
}

// Close refuses new leases and closes idle connections; a leased connection is closed when it is released. A second
// Close does nothing.
func (t *Tenant[T]) Close() { t.shutdown() }

// Drain is Close, and then waits for the release of every lease. If ctx ends first, Drain returns its error, once for
// each endpoint with leases out.
func (t *Tenant[T]) Drain(ctx context.Context) error {
	var errs []error
	for _, s := range t.shutdown() {
		errs = append(errs, s.pool.Drain(ctx))
	}
	return errors.Join(errs...)
}

// shutdown closes the pools and returns them. They are forgotten when the last lease is released.
func (t *Tenant[T]) shutdown() []site[T] {
	u := t.up
	u.tenancy.Lock()
	all, first := t.all, !t.closed
	t.closed = true
	if first && !u.ended {
		u.tasks.Add(1)
		defer func() { // after the pools are closed
			go func() {
				defer u.tasks.Done()
				t.leave(all)
			}()
		}()
	}
	u.tenancy.Unlock()
	for _, s := range all {
		s.pool.Close()
	}
	return all
}

// leave removes a closed tenant when its leases are released.
func (t *Tenant[T]) leave(all []site[T]) {
	u := t.up
	for _, s := range all {
		if s.pool.Drain(u.ctx) != nil {
			return // the Upstream has ended
		}
		u.forget(s)
	}
	u.tenancy.Lock()
	defer u.tenancy.Unlock()
	u.tenants = slices.DeleteFunc(u.tenants, func(other *Tenant[T]) bool { return other == t })
}

// tenantStatus returns Status.Tenants and Status.MoreTenants.
func (u *Upstream[T]) tenantStatus() (list []TenantStatus, more int) {
	u.tenancy.Lock()
	tenants := slices.Clone(u.tenants)
	closed := make(map[*Tenant[T]]bool, len(tenants))
	for _, t := range tenants {
		closed[t] = t.closed
	}
	u.tenancy.Unlock()
	slices.SortStableFunc(tenants, func(a, b *Tenant[T]) int { return cmp.Compare(a.cfg.Name, b.cfg.Name) })
	listed := min(len(tenants), MaxTenantsListed)
	for _, t := range tenants[:listed] {
		list = append(list, TenantStatus{Name: t.cfg.Name, Closed: closed[t], Pool: t.Stats()})
	}
	return list, len(tenants) - listed
}
