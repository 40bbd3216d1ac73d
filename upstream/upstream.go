package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/headpond/headpond/pool"
)

// Upstream leases connections to the best of its endpoints. Make one with New
// and end it with Close or Drain. All methods are safe for concurrent use.
type Upstream[T any] struct {
	cfg   Config[T] // as given to New; what Update changes is in set and the pools
	set   atomic.Pointer[set[T]]
	turns turns

	updating sync.Mutex     // held by Update, Drain and Close, one at a time
	closed   bool           // guarded by updating
	mu       sync.Mutex     // guards the making of sets, and leaving; never held across I/O
	leaving  []*endpoint[T] // removed, with leases out as of the last Update
}

// New makes an Upstream; its pools begin to warm up and its probes to run. The
// error wraps ErrConfig.
func New[T any](cfg Config[T]) (*Upstream[T], error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	u := &Upstream[T]{cfg: cfg}
	u.set.Store(newSet[T](cfg.Balance, nil, nil, &u.turns))
	if err := u.Update(cfg.Endpoints, cfg.Balance, cfg.Limits, cfg.Health, cfg.Ejection); err != nil {
		u.Close()
		return nil, err
	}
	return u, nil
}

// Name returns Config.Name.
func (u *Upstream[T]) Name() string { return u.cfg.Name }

// Acquire leases a connection from the endpoint Balance chooses. When that one
// cannot open a connection the others are tried, those that are out last. The
// error is an *Error and wraps ErrUnavailable; a pool that is full is no fault
// of its endpoint.
func (u *Upstream[T]) Acquire(ctx context.Context) (Lease[T], error) {
	return u.AcquireKey(ctx, "")
}

// AcquireKey is Acquire with the key for RingHash; other balances ignore it.
func (u *Upstream[T]) AcquireKey(ctx context.Context, key string) (Lease[T], error) {
	e := u.set.Load().pick(key)
	if e == nil {
		return Lease[T]{}, &Error{Upstream: u.cfg.Name}
	}
	return u.acquireFrom(ctx, key, e)
}

// acquireFrom tries e first.
func (u *Upstream[T]) acquireFrom(ctx context.Context, key string, e *endpoint[T]) (Lease[T], error) {
	l, err := e.acquire(ctx)
	if err == nil {
		return l, nil
	}
	return u.acquireOther(ctx, key, e, err)
}

// acquireOther goes on after the first endpoint failed with err.
func (u *Upstream[T]) acquireOther(ctx context.Context, key string, e *endpoint[T], err error) (Lease[T], error) {
	failure := &Error{Upstream: u.cfg.Name}
	var tried []*endpoint[T]
	for {
		failure.Causes = append(failure.Causes, EndpointError{e.addr, err})
		tried = append(tried, e)
		if !another(err) || ctx.Err() != nil {
			return Lease[T]{}, failure
		}
		if e = u.set.Load().pickOther(key, tried); e == nil {
			return Lease[T]{}, failure
		}
		l, nextErr := e.acquire(ctx)
		if nextErr == nil {
			return l, nil
		}
		err = nextErr
	}
}

// Update replaces the settings of a running Upstream. Endpoints that stay keep
// their pools, connections and state; removed ones get no more leases and are
// closed as theirs come back; new ones warm up. On an error, which wraps
// ErrConfig or pool.ErrClosed, nothing has changed.
func (u *Upstream[T]) Update(endpoints []string, b Balance, l pool.Limits, h Health, ej Ejection) error {
	if err := verify(u.cfg.Name, endpoints, b, l, h, ej); err != nil {
		return err
	}
	u.updating.Lock()
	defer u.updating.Unlock()
	if u.closed {
		return fmt.Errorf("upstream %q: update: %w", u.cfg.Name, pool.ErrClosed)
	}
	old := u.set.Load().all
	all, added, err := u.build(old, endpoints, l)
	if err != nil {
		return err
	}
	var r ring
	if b == RingHash {
		r = newRing(endpoints)
	}
	removed := without(old, all)
	u.publish(func(*set[T]) *set[T] {
		u.leaving = slices.DeleteFunc(append(u.leaving, removed...), func(e *endpoint[T]) bool { return e.load.Load() == 0 })
		return newSet(b, all, r, &u.turns)
	})
	for _, e := range all {
		if !slices.Contains(added, e) {
			_ = e.pool.Update(l) // valid, and only Close closes the pools
		}
		e.configure(h, ej, l)
	}
	for _, e := range removed {
		e.close()
	}
	return nil
}

// build returns the endpoints for addrs, those of old where they stay, and
// those of them that are new.
func (u *Upstream[T]) build(old []*endpoint[T], addrs []string, l pool.Limits) (all, added []*endpoint[T], err error) {
	for _, addr := range addrs {
		i := slices.IndexFunc(old, func(e *endpoint[T]) bool { return e.addr == addr })
		if i >= 0 {
			all = append(all, old[i])
			continue
		}
		e, err := newEndpoint(&u.cfg, addr, l, u.refresh)
		if err != nil {
			for _, e := range added {
				e.close()
			}
			return nil, nil, fmt.Errorf("%w: upstream %q: endpoint %s: %w", ErrConfig, u.cfg.Name, addr, err)
		}
		all, added = append(all, e), append(added, e)
	}
	return all, added, nil
}

// refresh makes the set anew after an endpoint's state has changed.
func (u *Upstream[T]) refresh() {
	u.publish(func(s *set[T]) *set[T] { return newSet(s.balance, s.all, s.ring, s.turns) })
}

func (u *Upstream[T]) publish(next func(*set[T]) *set[T]) {
	u.mu.Lock()
	was := u.set.Load()
	now := next(was)
	u.set.Store(now)
	u.mu.Unlock()
	if now.failOpen && !was.failOpen {
		u.cfg.Logger.Error("every endpoint is out, using all of them", "upstream", u.cfg.Name, "endpoints", len(now.all))
	} else if was.failOpen && !now.failOpen && len(now.all) > 0 {
		u.cfg.Logger.Info("an endpoint is in again", "upstream", u.cfg.Name, "in", len(now.in), "endpoints", len(now.all))
	}
}

// Close refuses new leases, stops the probes and closes idle connections;
// leased ones are closed when they come back. A second Close does nothing.
func (u *Upstream[T]) Close() { u.shutdown() }

// shutdown closes every endpoint and returns them all, the removed ones too.
func (u *Upstream[T]) shutdown() []*endpoint[T] {
	u.updating.Lock()
	defer u.updating.Unlock()
	u.closed = true
	u.mu.Lock()
	all := slices.Concat(u.set.Load().all, u.leaving)
	u.mu.Unlock()
	for _, e := range all {
		e.close()
	}
	return all
}

// Drain is Close, and then waits for every lease to come back. When ctx ends
// first its error is returned, once for each endpoint with leases out.
func (u *Upstream[T]) Drain(ctx context.Context) error {
	all := u.shutdown()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, e := range all {
		wg.Go(func() { errs[i] = e.pool.Drain(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
