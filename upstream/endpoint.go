package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/traffic"
)

// endpoint is one address with its pools and its state. Methods may be called from any goroutine.
type endpoint[T any] struct {
	addr     string
	spec     atomic.Pointer[Endpoint] // as last reported
	since    atomic.Int64             // when its slow start began, in sinceEpoch; 0 = no slow start
	number   int                      // identifies it among the endpoints of the set; immutable; see Tenant.sites
	load     atomic.Int64             // leases out, and callers that wait for one
	usable   atomic.Bool              // neither down nor ejected, and the Target accepts its role
	suspect  atomic.Bool              // a success must reset failures
	paused   atomic.Bool              // by Upstream.Pause
	stale    atomic.Uint64
	traffic  *traffic.Cell // nil without Config.Traffic
	log      *slog.Logger
	passed   atomic.Int64  // when it last passed its check, in sinceEpoch; 0: never
	answered atomic.Int64  // when it last answered a check with CloseUnhealthy, however late, in sinceEpoch; 0: never
	heard    *atomic.Int64 // when a user was last answered, in Unix nanoseconds; 0: Heard was never called; one for the address
	distance distance
	latency  latency
	roles    roleState
	// judgement says what answers are measured for; nil = they are not measured.
	judgement atomic.Pointer[judgement]
	changed   func()                      // tells the Upstream that usable has changed; called without mu
	try       func(context.Context) error // opens a connection and closes it, as a trial
	// asker, reopen and shed are Config.AskRole, and the methods of the Upstream, for this endpoint; waiting is the
	// Upstream's.
	asker        func() RoleAsker
	reopen, shed func()
	waiting      *atomic.Int64
	ctx          context.Context // context of trials and evictions
	cancel       context.CancelFunc

	mu         sync.Mutex // guards the fields below; never held across I/O
	health     health
	ejector    ejector
	lastError  string
	lastFailed time.Time
	unopened   bool // the last failure was that of an open
	reopened   bool // and another open has succeeded since; uses may still fail
	readmit    *time.Timer
	trialTime  time.Duration
	stopProbe  context.CancelFunc
	probing    chan struct{} // closed when the probe's goroutine has ended
	closed     bool          // it is no longer in the set
	over       bool          // and its check no longer watches the remaining leases

	onUnhealthy      UnhealthyPolicy
	unhealthyTimeout time.Duration
	stagger          time.Duration
	failingSince     time.Time // start of the first of the failed probes in a row
	downSince        time.Time // when the active check took it out
	slowAt           time.Time // when it was last seen to be slow; see wasSlow
	evicting         bool      // evict is running, or about to
	evictions        sync.WaitGroup
	interrupt        func(T, error)       // Config.Interrupt; immutable
	hears            func(T) bool         // Config.Heard; immutable
	leased           func(func(T)) int    // Upstream.leasedAt for this endpoint; immutable
	proven           func(time.Time) bool // Upstream.proven; immutable
	emptied          *emptied             // of the Upstream; immutable
	byDistance       func() bool          // reports whether the set depends on distance; immutable
	judging          *sync.Mutex          // serializes ejections by answers; taken before mu; immutable
	spare            func(int) bool       // Upstream.spare for this endpoint; immutable

	pools endpointPools[T]
}

// newEndpoint makes the endpoint, without pools. Probing begins with configure.
func newEndpoint[T any](u *Upstream[T], spec Endpoint, number int) *endpoint[T] {
	cfg, addr := &u.cfg, spec.Address
	e := &endpoint[T]{
		addr:       addr,
		number:     number,
		log:        cfg.Logger.With("upstream", cfg.Name, "endpoint", addr),
		changed:    u.refresh,
		interrupt:  cfg.Interrupt,
		hears:      cfg.Heard,
		proven:     u.proven,
		emptied:    &u.emptied,
		heard:      new(atomic.Int64),
		byDistance: func() bool { return u.set.Load().balance == Nearest },
	}
	if cfg.Traffic != nil {
		e.traffic = traffic.NewCell(cfg.Traffic)
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.try = func(ctx context.Context) error {
		if cfg.Try != nil {
			return cfg.Try(ctx, addr)
		}
		v, err := u.own.opening()(ctx, addr)
		if err == nil {
			cfg.Close(v)
		}
		return err
	}
	e.roles.poke, e.waiting = make(chan struct{}, 1), &u.waiting
	e.asker = func() RoleAsker { return cfg.AskRole(addr) }
	e.reopen, e.shed = func() { u.reopen(e) }, func() { u.shed(e) }
	e.judging, e.spare = &u.judging, func(most int) bool { return u.spare(e, most) }
	e.leased = func(f func(T)) int { return u.leasedAt(e, f) }
	e.spec.Store(&spec)
	e.usable.Store(true)
	e.ejector.cfg = cfg.Ejection.withDefaults()
	e.pools.mu, e.pools.name = &u.tenancy, cfg.Name+"/"+addr
	return e
}

// open connects. A failure counts once for each attempt, however many callers wait for it.
func (e *endpoint[T]) open(ctx context.Context, open func(context.Context, string) (T, error)) (T, error) {
	began := time.Now()
	v, err := open(ctx, e.addr)
	switch {
	case err == nil && (e.suspect.Load() || !e.usable.Load()):
		e.opened(began)
	case err != nil && !errors.Is(ctx.Err(), context.Canceled):
		e.failed(err, false)
		e.mu.Lock()
		e.unopened = !errors.Is(err, ErrTenant)
		e.mu.Unlock()
	}
	return v, err
}

// opened notes that a connection was opened, and when that began. If no connection could be opened before, this ends the
// ejection: it shows the same as the trial at the end of the ejection would.
func (e *endpoint[T]) opened(began time.Time) {
	e.mu.Lock()
	e.reopened = e.unopened
	back := e.unopened && !e.closed && began.After(e.lastFailed) && e.ejector.reopened(time.Now())
	if back {
		e.stopReadmit()
		e.suspect.Store(true) // a success during the ejection may have reset it
	}
	changed := e.updateUsable()
	e.mu.Unlock()
	if back {
		e.log.Info("endpoint re-admitted")
	}
	if changed {
		e.changed()
	}
}

// succeeded ends a series of failures.
func (e *endpoint[T]) succeeded() {
	if !e.suspect.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.suspect.Store(false)
	e.ejector.success()
}

// failed counts a failure seen in use. byAnswer says that an answer was the failure; it ejects the endpoint only if
// enough others are in.
func (e *endpoint[T]) failed(cause error, byAnswer bool) {
	if byAnswer { // one at a time, so that two ejections do not both count the other endpoint as in
		e.judging.Lock()
	}
	ejected, changed := e.countFailure(cause, byAnswer)
	if byAnswer {
		e.judging.Unlock()
	}
	if ejected {
		e.mu.Lock()
		failures, until := e.ejector.failures, e.ejector.until
		e.mu.Unlock()
		e.log.Warn("endpoint ejected", "failures", failures, "for", time.Until(until).Round(time.Millisecond), "error", cause)
	}
	if changed {
		e.changed()
	}
	if !errors.Is(cause, ErrTenant) && !shortage(cause) {
		e.doubt()
	}
}

// countFailure is the part of failed under mu.
func (e *endpoint[T]) countFailure(cause error, byAnswer bool) (ejected, changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || errors.Is(cause, ErrTenant) {
		return false, false
	}
	e.unopened, e.reopened = false, false
	if cause != nil {
		e.lastError, e.lastFailed = cause.Error(), time.Now()
	}
	if shortage(cause) {
		return false, false
	}
	ejected = e.fail(!byAnswer || e.spare(e.ejector.cfg.MaxEjected))
	return ejected, e.updateUsable()
}

// fail counts a failure and reports whether it ejects the endpoint, for which may must be true. The caller holds mu.
func (e *endpoint[T]) fail(may bool) bool {
	e.suspect.Store(true)
	ejected := e.ejector.failure(time.Now(), rand.Float64(), may)
	if ejected {
		e.readmit = time.AfterFunc(time.Until(e.ejector.until), e.endEjection)
	}
	return ejected
}

// endEjection ends an ejection whose time has passed if a trial connection can be opened, so that clients are not the
// first to try.
func (e *endpoint[T]) endEjection() {
	err := e.trial()
	e.mu.Lock()
	back := !e.closed && e.ejector.readmit(time.Now())
	if back {
		e.suspect.Store(true) // a success during the ejection may have reset it
	}
	again := back && err != nil && !shortage(err) && e.fail(true)
	if again {
		e.lastError, e.lastFailed = err.Error(), time.Now()
		e.unopened, e.reopened = true, false
	}
	until := e.ejector.until
	changed := e.updateUsable()
	e.mu.Unlock()
	switch {
	case again:
		e.log.Warn("endpoint stays ejected", "for", time.Until(until).Round(time.Millisecond), "error", err)
	case back:
		e.log.Info("endpoint re-admitted")
	}
	if changed {
		e.changed()
	}
}

// trial opens a connection outside the pools; a panic counts as a failure.
func (e *endpoint[T]) trial() (err error) {
	e.mu.Lock()
	ctx, cancel := context.WithTimeout(e.ctx, e.trialTime)
	e.mu.Unlock()
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("opening a connection panicked: %v", p)
		}
	}()
	if err = e.try(ctx); errors.Is(err, ErrTenant) {
		return nil // the endpoint has answered
	}
	return err
}

// probed handles the result of an active check that began at a given time. soon asks for an early next check.
func (e *endpoint[T]) probed(began time.Time, err error, seen evidence) (soon bool) {
	e.mu.Lock()
	if err != nil {
		e.lastError, e.lastFailed = err.Error(), time.Now()
	}
	if shortage(err) {
		e.mu.Unlock()
		return false
	}
	e.track(began, err)
	flipped := e.health.observe(err == nil, seen.silent)
	if seen.unanswered && !seen.silent {
		e.wasSlow()
	}
	soon = seen.unanswered && (!e.health.down || e.health.silence > 0 && e.health.silence < e.silentAfter())
	if flipped && err != nil {
		e.downSince = time.Now()
	}
	if err == nil {
		e.distance.passed(time.Since(began))
	}
	back := false
	if flipped && err == nil { // the probe is newer evidence than failures in use
		back = e.ejector.clear()
		e.stopReadmit()
	}
	changed := e.updateUsable() || err == nil && e.byDistance()
	if !e.evicting && e.mustEmpty() {
		e.evicting = true
		e.evictions.Go(e.evict)
	}
	since, unreachable, left := e.failingSince, e.health.down && e.health.silence >= e.health.fall, e.closed
	e.mu.Unlock()
	switch {
	case flipped && left: // so it goes in each rollout; if leases are interrupted, evict logs that
		e.log.Debug("check of a removed endpoint that has leases", "healthy", err == nil, "error", err)
	case flipped && err != nil:
		e.log.Warn("endpoint unhealthy", "error", err)
	case flipped:
		e.log.Info("endpoint healthy", "was_ejected", back)
	}
	if changed {
		e.changed()
	}
	if unreachable && e.proven(since) { // after changed, so that later callers do not wait here
		e.pools.giveUp(ErrUnhealthy) // the callers that wait there try another endpoint, long before OpenTimeout
	}
	return soon
}

// track records since when probes have failed, or that one has passed. The caller holds mu.
func (e *endpoint[T]) track(began time.Time, err error) {
	switch {
	case err == nil:
		e.failingSince = time.Time{}
		e.passed.Store(sinceEpoch(time.Now()))
	case e.failingSince.IsZero():
		e.failingSince = began
	}
}

// updateUsable computes usable and reports whether it has changed. The caller holds mu.
func (e *endpoint[T]) updateUsable() bool {
	usable := e.roles.fit.Load() && !e.health.down && !e.ejector.out
	changed := e.usable.Swap(usable) != usable
	if changed && usable {
		e.startSlowly()
	}
	return changed
}

func (e *endpoint[T]) priority() int { return e.spec.Load().Priority }

func (e *endpoint[T]) weight() int { return max(e.spec.Load().Weight, 1) }

// startSlowly starts the time in which the endpoint's share of leases grows.
func (e *endpoint[T]) startSlowly() { e.since.Store(sinceEpoch(time.Now())) }

// epoch is the origin of times stored in one word, which steps of the wall clock do not affect.
var epoch = time.Now()

// sinceEpoch returns t in ns since epoch, by the monotonic clock.
func sinceEpoch(t time.Time) int64 { return int64(t.Sub(epoch)) }

// minStart is the percentage of its weight that an endpoint starts with: with less, it would wait long for a first
// lease where leases are few.
const minStart = 10

// started returns the current percentage of the endpoint's weight.
func (e *endpoint[T]) started(slowStart time.Duration, now time.Time) int {
	since := e.since.Load()
	if since == 0 || slowStart <= 0 {
		return 100
	}
	percent := 100 * time.Duration(sinceEpoch(now)-since) / slowStart
	return int(min(max(percent, minStart), 100))
}

func (e *endpoint[T]) stopReadmit() {
	if e.readmit != nil {
		e.readmit.Stop()
		e.readmit = nil
	}
}

// close stops the checks and closes the pools: idle connections now, leased ones when they are released.
func (e *endpoint[T]) close() {
	e.leave()
	e.end()
}

// leave closes the pools of an endpoint that is no longer in the set. If its check may interrupt leases, the check
// continues until end, because the leases that are still out need it as much as those of other endpoints.
func (e *endpoint[T]) leave() {
	e.mu.Lock()
	e.closed = true
	e.stopReadmit()
	watched := e.onUnhealthy != KeepUnhealthy
	e.mu.Unlock()
	e.stopAsking()
	if !watched {
		e.end()
	}
	e.pools.close()
}

// end stops the goroutines of an endpoint that is no longer in the set.
func (e *endpoint[T]) end() {
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
	e.cancel() // after closed is set, so that a trial that is cut short is no failure
	e.stopProbing()
	e.evictions.Wait()
}

// status describes the endpoint.
func (e *endpoint[T]) status() EndpointStatus {
	spec := e.spec.Load()
	s := EndpointStatus{
		Address: e.addr, Weight: e.weight(), Priority: spec.Priority, Zone: spec.Zone, Metadata: spec.Metadata,
		Role: e.role(), Leases: e.load.Load(), Stale: e.stale.Load(), Pool: e.pools.stats(),
	}
	if e.traffic != nil {
		s.Traffic = e.traffic.Row()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Healthy, s.Ejected = !e.health.down, e.ejector.out
	if e.ejector.out {
		s.EjectedUntil = e.ejector.until
	}
	s.Failures, s.LastError, s.LastFailed = e.ejector.failures, e.lastError, e.lastFailed
	if e.reopened {
		s.Failures = 0
	}
	return s
}
