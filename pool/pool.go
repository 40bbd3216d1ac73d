package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Config makes a Pool. Open and Close are required.
type Config[T any] struct {
	// Name appears in errors, statistics and leak reports.
	Name string
	// Open makes a resource. ctx ends with Limits.OpenTimeout, when the pool is
	// closed, and when Open has returned: the resource must not depend on it. It
	// carries no values of the caller that waits, except for an overflow resource
	// and in Lease.Replace, where it is derived from the caller's. Pool.GiveUp
	// cancels it. Open must heed ctx.
	Open func(ctx context.Context) (T, error)
	// Go starts fn, which calls Open, outside of the caller; nil means the go statement. It is
	// called where a resource is needed, mostly in Acquire. It must run each fn exactly once and
	// must not wait for it.
	Go func(fn func())
	// Close ends a resource. It runs in the goroutine that gave the resource up
	// or in one of the pool's, and must not block for long: the resource's
	// slot is free only when it returns.
	Close func(T)
	// Check, optional, returns an error if an idle resource is no longer usable. It runs in Acquire
	// after CheckAfter, with the caller's context, bounded by the rest of AcquireTimeout, and in
	// the background every CheckInterval. ctx ends with Limits.OpenTimeout, too. An error closes
	// the resource.
	Check func(ctx context.Context, v T) error
	// Reset, optional, runs in Release and makes the resource ready for the
	// next lease. ctx ends with Limits.OpenTimeout. An error closes the resource.
	Reset func(ctx context.Context, v T) error

	// Affinity, optional, returns a resource's affinity: a number from 1, such as that of its event
	// loop, or 0 for none. It is for resources that are expensive to use from another affinity. A
	// caller has the affinity that its Parker reports (AffinityParker) and mostly gets a resource
	// with the same one: the most recently used idle one, or the next that is released, unless
	// another caller has waited a millisecond longer. Affinity is called under the pool's lock, for
	// resources that are not leased, and must only read.
	//
	// The lowest AffinityPlace bits of an affinity are its place; the bits above may have a kind, such as
	// the settings of a connection. If no resource has an equal affinity, one of an equal kind is
	// preferred, then one of an equal place.
	Affinity func(T) int

	// LongLeases states that most leases last for ten microseconds or more. Release then does not
	// yield the processor after a hand-over to a waiting goroutine: that pays for shorter leases only.
	LongLeases bool

	Limits

	// Budget, optional, bounds the resources of this pool together with those of others.
	Budget *Budget

	// Ahead, optional, is the number of callers that wait for something else before they acquire. Limits.MaxWaiters bounds
	// both together.
	Ahead *atomic.Int64

	// Hooks observe the pool, for tracing.
	Hooks Hooks
	// LeakAfter reports leases held for longer to OnLeak, once each, from one of
	// the pool's goroutines. 0 is off.
	// It costs Acquire about a microsecond now and then, for the call stack,
	// and its fast path.
	LeakAfter time.Duration
	OnLeak    func(Leak)
}

// Pool leases resources of type T. Make one with New and end it with Close or
// Drain. All methods are safe for concurrent use.
type Pool[T any] struct {
	mu   sync.Mutex // no callback, wake-up or blocking operation while held
	core core[T]

	name    string
	config  Config[T] // its Limits are only the first ones
	hooks   *Hooks
	start   time.Time
	ctx     context.Context // of opens and background checks
	cancel  context.CancelFunc
	done    chan struct{} // closed when a closed pool is empty
	quiet   chan struct{} // closed when a paused pool is empty, and at the end of the pause; nil = not paused; under mu
	waiters sync.Pool     // *waiter[T]; the pool's own: channels must not leave a synctest bubble
	waits   histogram
	panics  atomic.Uint64
	timer   *time.Timer // under mu, as is timerAt
	timerAt int64       // when timer fires, never if it is not set
	armed   bool        // under mu: timerAt is no later than the next tick
	checker bool        // under mu: a background check is under way
	parkers bool        // under mu: a Parker has waited, so callers may be fibers, whose thread must not yield

	opens    context.Context // of opens, until GiveUp; under mu, as is endOpens
	endOpens context.CancelCauseFunc

	lingerTimer *time.Timer // under mu, as is lingerAt
	lingerAt    int64       // when lingerTimer fires; 0 = it is not set
}

// New makes a pool and starts to open MinIdle resources; it does not wait for
// them. The error wraps ErrConfig.
func New[T any](cfg Config[T]) (*Pool[T], error) {
	errs := []error{cfg.Limits.Verify()}
	if cfg.Open == nil {
		errs = append(errs, fmt.Errorf("%w: Open is missing", ErrConfig))
	}
	if cfg.Close == nil {
		errs = append(errs, fmt.Errorf("%w: Close is missing", ErrConfig))
	}
	if cfg.LeakAfter < 0 || (cfg.LeakAfter > 0) != (cfg.OnLeak != nil) {
		errs = append(errs, fmt.Errorf("%w: LeakAfter (%v) and OnLeak go together", ErrConfig, cfg.LeakAfter))
	}
	if cfg.Budget != nil && cfg.Budget.start.IsZero() {
		errs = append(errs, fmt.Errorf("%w: the Budget is not one of NewBudget", ErrConfig))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("pool %q: %w", cfg.Name, err)
	}
	p := &Pool[T]{
		name: cfg.Name, config: cfg, start: time.Now(),
		done: make(chan struct{}), timerAt: never,
	}
	if p.config.Go == nil {
		p.config.Go = func(fn func()) { go fn() }
	}
	p.hooks = &p.config.Hooks
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.opens, p.endOpens = context.WithCancelCause(p.ctx)
	p.waiters.New = func() any { return &waiter[T]{ready: make(chan struct{}, 1)} }
	p.core = core[T]{
		affinity: cfg.Affinity, elsewhere: cfg.Ahead, name: cfg.Name, limits: cfg.Limits.withDefaults(), jitter: rand.Float64,
		calm: cfg.Hooks.Acquired == nil && cfg.LeakAfter == 0, leakAfter: int64(cfg.LeakAfter),
	}
	p.core.warm.target = p.core.limits.MinIdle
	if cfg.Budget != nil {
		p.core.share = cfg.Budget.join(p, p.start)
	}
	var e effects[T]
	p.mu.Lock()
	p.core.dispatch(&e)
	p.unlock(&e)
	return p, nil
}

// now is the time on the pool's clock.
func (p *Pool[T]) now() int64 { return int64(time.Since(p.start)) }

// unlock ends a critical section: it sets the timer for the core's next event, unlocks, and
// performs the effects, closing resources in this goroutine.
func (p *Pool[T]) unlock(e *effects[T]) {
	p.schedule()
	round := p.core.begun()
	p.mu.Unlock()
	p.perform(e, round)
	p.closeChain(e.close)
}

// unlockAsync is unlock for the pool's own goroutines and for Drain: each resource is closed in a
// new goroutine.
func (p *Pool[T]) unlockAsync(e *effects[T]) {
	p.schedule()
	round := p.core.begun()
	p.mu.Unlock()
	p.perform(e, round)
	for s := e.close; s != nil; {
		next := s.chain
		s.chain = nil
		go p.closeChain(s)
		s = next
	}
}

func (p *Pool[T]) perform(e *effects[T], round uint64) {
	for w := e.wake; w != nil; {
		next := w.wakeNext
		w.wakeNext = nil
		w.wake()
		w = next
	}
	for range e.opens {
		p.config.Go(func() { p.open(round) })
	}
	if e.serve {
		p.config.Budget.serve()
	}
}

// closeChain closes the resources of retired slots, linked by chain.
func (p *Pool[T]) closeChain(s *slot[T]) {
	for s != nil {
		next := s.chain
		s.chain = nil
		p.closeSlot(s, next)
		s = next
	}
}

// closeSlot closes the resource of s, which is retired, and frees the slot. If
// that ends the goroutine, the resources of rest are closed in another.
func (p *Pool[T]) closeSlot(s, rest *slot[T]) {
	freed := func() {
		var e effects[T]
		p.mu.Lock()
		p.touch(p.now())
		p.core.closeDone(s, &e)
		p.signalEmpty()
		p.unlock(&e)
	}
	_ = p.guard("Close", func() error { p.config.Close(s.value); return nil }, func() {
		freed()
		go p.closeChain(rest)
	})
	freed()
	if h := p.hooks.Closed; h != nil {
		_ = p.guard("Hooks.Closed", func() error { h(s.why); return nil }, func() { go p.closeChain(rest) })
	}
}

// With acquires a resource, runs fn with it and gives it back. If fn panics, or
// returns an error that wraps ErrDiscard, the resource is discarded. The error
// is Acquire's or fn's.
func (p *Pool[T]) With(ctx context.Context, fn func(T) error) error {
	l, err := p.Acquire(ctx)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned {
			l.Discard()
		}
	}()
	err = fn(l.Value())
	returned = true
	if errors.Is(err, ErrDiscard) {
		l.Discard()
	} else {
		l.Release()
	}
	return err
}

// Update replaces the limits of the running pool. Idle resources beyond the new limits are closed
// before it returns, leased ones when they are released; waiters use added slots. An error wraps
// ErrConfig, or ErrClosed for a closed pool, and nothing has changed.
func (p *Pool[T]) Update(l Limits) error {
	if err := l.Verify(); err != nil {
		return fmt.Errorf("pool %q: %w", p.name, err)
	}
	return p.update(func(Limits) Limits { return l.withDefaults() })
}

// Resize changes MaxSize alone, as Update does. MinIdle and MaxWarm are lowered with it, and
// a MaxIdle that was the whole pool, or is above it now, becomes the new size.
func (p *Pool[T]) Resize(maxSize int) error {
	if maxSize < 1 || maxSize > maxMaxSize {
		return fmt.Errorf("pool %q: %w: MaxSize %d is not from 1 to %d", p.name, ErrConfig, maxSize, maxMaxSize)
	}
	return p.update(func(l Limits) Limits {
		if l.MaxIdle == l.MaxSize || l.MaxIdle > maxSize {
			l.MaxIdle = maxSize
		}
		l.MaxSize, l.MinIdle, l.MaxWarm = maxSize, min(l.MinIdle, maxSize), min(l.MaxWarm, l.MaxIdle)
		return l
	})
}

func (p *Pool[T]) update(change func(Limits) Limits) error {
	var e effects[T]
	p.mu.Lock()
	if p.core.closed {
		err := p.core.newError(ErrClosed, nil, 0, 0)
		p.mu.Unlock()
		return err
	}
	p.touch(p.now())
	p.core.update(change(p.core.limits), &e)
	p.unlock(&e)
	return nil
}

// Close refuses new leases and the callers that wait (ErrClosed), cancels running opens and closes
// the idle resources before it returns; leased ones are closed when they are released. A second
// Close does nothing.
func (p *Pool[T]) Close() {
	var e effects[T]
	if p.shutdown(&e) {
		p.unlock(&e)
	}
}

// Drain is Close, and then waits until every lease is released and every resource closed. When ctx
// ends first it returns ctx's error; leased resources are closed when they are released, and Drain
// may be called again.
func (p *Pool[T]) Drain(ctx context.Context) error {
	var e effects[T]
	if p.shutdown(&e) {
		p.unlockAsync(&e)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	select { // of two that are ready, select takes any
	case <-p.done:
		return nil
	default:
	}
	s := p.Stats()
	return fmt.Errorf("pool %q: drain: leases still out: %d, resources being opened or closed: %d: %w",
		p.name, s.InUse+s.Direct, s.Opening+s.Busy, ctx.Err())
}

// shutdown returns true with the lock held, the first time.
func (p *Pool[T]) shutdown(e *effects[T]) bool {
	p.mu.Lock()
	if p.core.closed {
		p.mu.Unlock()
		return false
	}
	p.cancel()
	p.core.clock = p.now()
	p.core.shutdown(e)
	if p.timer != nil {
		p.timer.Stop()
	}
	p.endPause()
	p.signalEmpty()
	return true
}
