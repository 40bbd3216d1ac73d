package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/pool"
)

// Upstream leases connections to the best of its endpoints. Make one with New
// and end it with Close or Drain. All methods are safe for concurrent use.
type Upstream[T any] struct {
	cfg     Config[T] // its Settings are the initial ones only
	own     Tenant[T] // of the Upstream's own acquires
	set     atomic.Pointer[set[T]]
	turns   turns
	waiting atomic.Int64 // acquires that wait for an endpoint's role
	judging sync.Mutex   // see endpoint.judging
	emptied emptied
	follows atomic.Pointer[Upstream[T]]
	ctx     context.Context // of background tasks
	stop    context.CancelFunc
	tasks   sync.WaitGroup // Sources, and endpoints being retired

	updating    sync.Mutex         // held by Update, Drain, Close and a Source's reports, so that they run one at a time
	settings    Settings           // guarded by updating
	list        []Endpoint         // as set by Settings or the Source, without Overrides; guarded by updating
	rebalancing context.CancelFunc // ends rebalance; nil = not running; guarded by updating
	closed      bool               // guarded by updating
	numbers     numbers            // of the endpoints in the set; guarded by updating

	mu           sync.Mutex     // guards the replacement of set, and the fields below; never held across I/O
	draining     []*endpoint[T] // removed endpoints with leases out
	ramp         *time.Timer    // renews the set while an endpoint starts slowly
	watch        *watch         // changed only with updating held, too; nil = no Source
	paused       *pause         // nil = not paused; changed only with updating held, too
	pauseBegan   time.Time      // of the last pause
	pauseEnded   time.Time      // of the last pause that is over
	sourceStatus SourceStatus
	changed      []Override // settings.Overrides; replaced as a whole, never modified

	tenancy sync.Mutex   // guards the fields below, and the pools of tenants and endpoints; never held across I/O; taken last
	tenants []*Tenant[T] // without own; with those that were closed and have leases out
	limits  pool.Limits  // of new pools
	ended   bool         // no more tenants
}

// New makes an Upstream. It starts to fill the pools, to probe, and to watch the Source. The error wraps ErrConfig.
func New[T any](cfg Config[T]) (*Upstream[T], error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	u := &Upstream[T]{cfg: cfg}
	u.own.up, u.own.cfg = u, TenantConfig[T]{Name: cfg.Name, Open: cfg.Open, Close: cfg.Close, Check: cfg.Check, Reset: cfg.Reset}
	u.own.sites.Store(&[]site[T]{})
	u.ctx, u.stop = context.WithCancel(context.Background())
	u.set.Store(&set[T]{turns: &u.turns, replaced: make(chan struct{})})
	if err := u.Update(cfg.Settings); err != nil {
		u.Close()
		return nil, err
	}
	return u, nil
}

// Name returns Config.Name.
func (u *Upstream[T]) Name() string { return u.cfg.Name }

// Acquire leases a connection from the endpoint that Balance chooses. If that endpoint cannot open a connection, the
// others are tried, ejected and unhealthy ones last. The error is an *Error and wraps ErrUnavailable. A full pool is
// not a failure of its endpoint.
func (u *Upstream[T]) Acquire(ctx context.Context) (Lease[T], error) {
	return u.own.AcquireKey(ctx, "")
}

// AcquireKey is Acquire with the key for RingHash; other balances ignore the key.
func (u *Upstream[T]) AcquireKey(ctx context.Context, key string) (Lease[T], error) {
	return u.own.AcquireKey(ctx, key)
}

// UsesKeys reports whether a key of AcquireKey matters now, for callers that would have to make one.
func (u *Upstream[T]) UsesKeys() bool { return u.set.Load().balance == RingHash }

// Choose returns the address of the endpoint that an Acquire would try after those that were tried, "" if there is no
// other, for a connection that is in no pool. It waits only for the Source's first report, and for an endpoint with the
// role that the Target wants.
func (u *Upstream[T]) Choose(ctx context.Context, tried []string) (address string, err error) {
	return u.own.Choose(ctx, tried)
}

// pickFirst chooses an endpoint when there was none to choose, after a wait for the Source's first report, or for the
// role that the Target wants.
func (t *Tenant[T]) pickFirst(ctx context.Context, key string) (*endpoint[T], error) {
	u := t.up
	if s := u.set.Load(); len(s.all) > 0 {
		return t.awaitRole(ctx, key, new(roleWait))
	}
	u.mu.Lock()
	w := u.watch
	u.mu.Unlock()
	if w == nil {
		return nil, &Error{Upstream: u.cfg.Name}
	}
	wait := new(roleWait)
	ended := t.until(ctx, wait, w.answered, func(s *set[T]) bool { return len(s.all) > 0 })
	if s := u.set.Load(); len(s.all) > 0 {
		return t.awaitRole(ctx, key, wait)
	}
	if errors.Is(ended, pool.ErrTimeout) { // no pool's
		ended = context.DeadlineExceeded
	}
	u.mu.Lock()
	err := w.err
	u.mu.Unlock()
	err = cmp.Or(err, ended, errNoEndpoints)
	return nil, &Error{Upstream: u.cfg.Name, Source: fmt.Errorf("%s: %w", w.source, err)}
}

// Update replaces the settings of a running Upstream. Endpoints that stay keep their pools, connections and state.
// Removed endpoints get no more leases, and are closed as their leases are released. The pools of new endpoints start
// to fill. On an error, which wraps ErrConfig or pool.ErrClosed, nothing changes.
func (u *Upstream[T]) Update(s Settings) error {
	if err := s.verify(u.cfg.Name, u.cfg.Interrupt != nil, u.cfg.AskRole != nil); err != nil {
		return err
	}
	u.updating.Lock()
	defer u.updating.Unlock()
	if u.closed {
		return fmt.Errorf("upstream %q: update: %w", u.cfg.Name, pool.ErrClosed)
	}
	endpoints := s.Endpoints
	if s.Source != nil && len(u.list) > 0 {
		endpoints = u.list
	}
	stay := u.set.Load().all
	s.Overrides = slices.Clone(s.Overrides)
	if err := u.apply(s, endpoints, bySettings); err != nil {
		return err
	}
	u.setRebalance(s.Rebalance)
	u.settings = s
	for _, e := range u.set.Load().all {
		if slices.Contains(stay, e) {
			e.pools.update(s.Limits, s.MaxConnections)
			e.configure(s)
		}
	}
	for _, e := range u.leaving() {
		e.configure(s)
	}
	u.follow(s.Source)
	return nil
}

// cause names the origin of a change.
type cause int

const (
	bySettings cause = iota // the Settings or their Source
	byOperator
)

// apply puts the set reported into use, changed by the Overrides of s. Endpoints that stay are not affected. The caller
// holds updating.
func (u *Upstream[T]) apply(s Settings, reported []Endpoint, by cause) error {
	list := slices.Clone(inForce(reported, s.Overrides))
	slices.SortStableFunc(list, func(a, b Endpoint) int { return cmp.Compare(a.Priority, b.Priority) })
	before := u.set.Load()
	d := compare(before.specs(), list)
	u.setLimits(s.Limits)
	all, added := u.build(before.all, list, s)
	if len(before.all) > 0 {
		for _, e := range added {
			e.startSlowly()
		}
	}
	var r ring
	if s.Balance == RingHash {
		r = ringOf(list)
	}
	removed := without(before.all, all)
	u.publish(func(*set[T]) *set[T] {
		for i, e := range all {
			e.spec.Store(&list[i])
		}
		u.draining = append(u.draining, removed...)
		u.changed = s.Overrides
		return newSet(planOf(s, before.plan), all, r, &u.turns)
	})
	for _, e := range all {
		e.shed() // if it does not have the role
	}
	for _, e := range added {
		u.takeOver(e)
		e.configure(s)
	}
	for _, e := range removed {
		how := s.OnRemoved
		if o := overrideOf(s.Overrides, e.addr); o != nil && o.Out == Drained {
			how = DrainRemoved
		}
		e.leave()
		u.numbers.free(e.number) // its pools are closed, so that no Tenant makes another one for it
		u.tasks.Go(func() { u.retire(e, how, s.RemovedTimeout) })
	}
	u.list = slices.Clone(reported)
	if len(before.all) > 0 && !d.none() || s.Source != nil && u.watch != nil && !d.none() {
		u.logDifference(d, s.Source, by, len(list))
	}
	return nil
}

// retire waits until the leases of a removed endpoint are released, and interrupts those that last
// too long.
func (u *Upstream[T]) retire(e *endpoint[T], how Removal, limit time.Duration) {
	defer e.end()
	var err error
	switch {
	case how == CloseRemoved:
		err = context.Canceled
	case limit > 0:
		ctx, cancel := context.WithTimeout(u.ctx, limit)
		defer cancel()
		err = e.pools.drain(ctx)
	default:
		err = e.pools.drain(u.ctx)
	}
	if err != nil && u.ctx.Err() == nil {
		if n := e.pools.interrupt(func(v T) { u.cfg.Interrupt(v, ErrRemoved) }); n > 0 {
			e.log.Warn("leases of a removed endpoint were interrupted", "leases", n)
		}
		err = e.pools.drain(u.ctx)
	}
	if err == nil {
		u.forget(e.pools.now()...)
		for _, o := range u.leavingAt(e) {
			_ = o.pools.drain(e.ctx) // its leases are watched by e
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.draining = slices.DeleteFunc(slices.Clone(u.draining), func(l *endpoint[T]) bool { return l == e })
	}
}

// leaving returns the removed endpoints with leases out.
func (u *Upstream[T]) leaving() []*endpoint[T] {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.draining)
}

// leavingAt returns the removed endpoints with leases out at the address of e, without e.
func (u *Upstream[T]) leavingAt(e *endpoint[T]) []*endpoint[T] {
	return slices.DeleteFunc(u.leaving(), func(o *endpoint[T]) bool { return o == e || o.addr != e.addr })
}

// takeOver lets the check of a new endpoint watch the leases of removed ones with its address. If each had its own check,
// an overloaded server that leaves the set and returns would get more checks each time.
func (u *Upstream[T]) takeOver(e *endpoint[T]) {
	for _, o := range u.leavingAt(e) {
		o.end()
	}
}

// leasedAt calls f with each leased connection to the address of e, and returns their number.
func (u *Upstream[T]) leasedAt(e *endpoint[T], f func(T)) int {
	n := e.pools.interrupt(f)
	for _, o := range u.leavingAt(e) {
		n += o.pools.interrupt(f)
	}
	return n
}

// build returns the endpoints of list, and the new ones among them; it reuses those of old. The Upstream's own
// pools of new endpoints start to fill. The caller holds updating.
func (u *Upstream[T]) build(old []*endpoint[T], list []Endpoint, s Settings) (all, added []*endpoint[T]) {
	known := make(map[string]*endpoint[T], len(old))
	for _, e := range old {
		known[e.addr] = e
	}
	for _, spec := range list {
		e := known[spec.Address]
		if e == nil {
			e = newEndpoint(u, spec, u.numbers.next())
			e.paused.Store(u.paused != nil)
			e.pools.budget = u.budgetOf(e.addr, s.MaxConnections)
			for _, o := range u.leavingAt(e) {
				e.heard = o.heard
			}
			added = append(added, e)
		}
		e.setTarget(s.Target)
		all = append(all, e)
	}
	return all, added
}

// budgetOf returns a budget for a new endpoint: that of a removed endpoint with its address, if there is one with leases
// out.
func (u *Upstream[T]) budgetOf(address string, limit int) *pool.Budget {
	for _, e := range u.leaving() {
		if e.addr == address {
			e.pools.budget.SetLimit(limit, trials(limit))
			return e.pools.budget
		}
	}
	return pool.NewBudget(limit, trials(limit))
}

// trials is how many connections beside MaxConnections show whether the endpoint lets a tenant in.
func trials(maxConnections int) int { return max(maxConnections/16, 1) }

// refresh renews the set after a change of an endpoint's state or share.
func (u *Upstream[T]) refresh() {
	u.publish(func(s *set[T]) *set[T] { return newSet(s.plan, s.all, s.ring, s.turns) })
}

// spare reports whether an answer may eject the endpoint: at most the given percentage of all endpoints may be out
// then, and one must be in. The caller may hold the endpoint's mu.
func (u *Upstream[T]) spare(e *endpoint[T], most int) bool {
	all, out := u.set.Load().all, 1
	for _, other := range all {
		if other != e && !other.usable.Load() {
			out++
		}
	}
	return out < len(all) && out*100 <= most*len(all)
}

// rampSteps is the number of steps in which the share of a starting endpoint grows; minRamp bounds how often the set
// is renewed for them.
const (
	rampSteps = 20
	minRamp   = 10 * time.Millisecond
)

func (u *Upstream[T]) publish(next func(*set[T]) *set[T]) {
	u.mu.Lock()
	was := u.set.Load()
	now := next(was)
	u.set.Store(now)
	close(was.replaced)
	if u.ramp != nil {
		u.ramp.Stop()
		u.ramp = nil
	}
	if now.starting && u.ctx.Err() == nil {
		u.ramp = time.AfterFunc(max(now.slowStart/rampSteps, minRamp), u.refresh)
	}
	u.mu.Unlock()
	if now.failOpen && !was.failOpen {
		u.cfg.Logger.Error("every endpoint is out, using all of them anyway", "upstream", u.cfg.Name, "endpoints", len(now.all))
	} else if was.failOpen && !now.failOpen && len(now.in.list) > 0 {
		u.cfg.Logger.Info("an endpoint is in again", "upstream", u.cfg.Name, "in", len(now.in.list), "endpoints", len(now.all))
	}
	if len(was.in.list) > 0 && len(now.in.list) == 0 && len(now.all) > 0 && !now.anyFresh() {
		u.cfg.Logger.Warn("no endpoint has the role that is wanted, clients wait for one", "upstream", u.cfg.Name, "target", now.target.String())
	}
}

// Close refuses new leases, stops the probes and the Source, and closes idle connections; a leased connection is closed
// when it is released. A second Close does nothing.
func (u *Upstream[T]) Close() { u.shutdown() }

// shutdown closes all endpoints, and returns them together with the removed ones.
func (u *Upstream[T]) shutdown() []*endpoint[T] {
	u.updating.Lock()
	u.closed = true
	u.setPause(nil)
	u.mu.Lock()
	all := slices.Concat(u.set.Load().all, u.draining)
	if u.ramp != nil {
		u.ramp.Stop()
	}
	u.stop()
	u.mu.Unlock()
	if u.watch != nil {
		u.watch.cancel()
		u.watch.answer()
	}
	for _, e := range all {
		e.close()
	}
	u.updating.Unlock()
	u.tenancy.Lock()
	u.ended = true
	u.tenancy.Unlock()
	u.tasks.Wait() // not under updating, which a Source needs to report
	return all
}

// Drain is Close, and then waits for the release of every lease. If ctx ends first, Drain returns its error, once for
// each endpoint with leases out.
func (u *Upstream[T]) Drain(ctx context.Context) error {
	all := u.shutdown()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, e := range all {
		wg.Go(func() { errs[i] = e.pools.drain(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
