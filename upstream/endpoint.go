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

	"github.com/headpond/headpond/pool"
)

// endpoint is one address with its pool and its state. All methods may be
// called from any goroutine.
type endpoint[T any] struct {
	addr    string
	pool    *pool.Pool[T]
	load    atomic.Int64 // leases out and callers that wait for one
	usable  atomic.Bool  // neither down nor ejected
	suspect atomic.Bool  // success has something to reset
	stale   atomic.Uint64
	log     *slog.Logger
	changed func()                      // tells the Upstream that usable changed; called without mu
	try     func(context.Context) error // opens a connection and closes it
	ctx     context.Context             // of trials
	cancel  context.CancelFunc

	mu         sync.Mutex // guards what follows; never held across I/O
	health     health
	ejector    ejector
	lastError  string
	lastFailed time.Time
	readmit    *time.Timer
	trialTime  time.Duration
	stopProbe  context.CancelFunc
	probing    chan struct{} // closed when the probe's goroutine is over
	closed     bool
}

// newEndpoint makes the endpoint and its pool, which begins to warm up. Probing
// begins with configure.
func newEndpoint[T any](cfg *Config[T], addr string, limits pool.Limits, changed func()) (*endpoint[T], error) {
	e := &endpoint[T]{
		addr:    addr,
		log:     cfg.Logger.With("upstream", cfg.Name, "endpoint", addr),
		changed: changed,
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.try = func(ctx context.Context) error {
		v, err := cfg.Open(ctx, addr)
		if err == nil {
			cfg.Close(v)
		}
		return err
	}
	e.usable.Store(true)
	e.ejector.cfg = cfg.Ejection.withDefaults()
	p, err := pool.New(pool.Config[T]{
		Name:   cfg.Name + "/" + addr,
		Open:   func(ctx context.Context) (T, error) { return e.open(ctx, cfg.Open) },
		Go:     cfg.Go,
		Place:  cfg.Place,
		Close:  cfg.Close,
		Check:  cfg.Check,
		Reset:  cfg.Reset,
		Limits: limits,
	})
	e.pool = p
	return e, err
}

// open connects; what goes wrong counts against the endpoint, once for each
// attempt however many callers wait for it.
func (e *endpoint[T]) open(ctx context.Context, open func(context.Context, string) (T, error)) (T, error) {
	v, err := open(ctx, e.addr)
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		e.failed(err)
	}
	return v, err
}

func (e *endpoint[T]) acquire(ctx context.Context) (Lease[T], error) {
	e.load.Add(1)
	l, err := e.pool.Acquire(ctx)
	if err != nil {
		e.load.Add(-1)
		return Lease[T]{}, err
	}
	return Lease[T]{lease: l, endpoint: e}, nil
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

// failed counts a failure seen in use.
func (e *endpoint[T]) failed(cause error) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	if cause != nil {
		e.lastError, e.lastFailed = cause.Error(), time.Now()
	}
	if shortage(cause) {
		e.mu.Unlock()
		return
	}
	ejected := e.fail()
	failures, until := e.ejector.failures, e.ejector.until
	changed := e.settle()
	e.mu.Unlock()
	if ejected {
		e.log.Warn("endpoint ejected", "failures", failures, "for", time.Until(until).Round(time.Millisecond), "error", cause)
	}
	if changed {
		e.changed()
	}
}

// fail counts a failure and reports whether it ejects the endpoint. mu is held.
func (e *endpoint[T]) fail() bool {
	e.suspect.Store(true)
	ejected := e.ejector.failure(time.Now(), rand.Float64())
	if ejected {
		e.readmit = time.AfterFunc(time.Until(e.ejector.until), e.timeServed)
	}
	return ejected
}

// timeServed ends an ejection, if a connection can be opened: it is not for
// clients to find out that one still cannot.
func (e *endpoint[T]) timeServed() {
	err := e.trial()
	e.mu.Lock()
	back := !e.closed && e.ejector.readmit(time.Now())
	if back {
		e.suspect.Store(true) // a success while it was out may have reset it
	}
	again := back && err != nil && !shortage(err) && e.fail()
	if again {
		e.lastError, e.lastFailed = err.Error(), time.Now()
	}
	until := e.ejector.until
	changed := e.settle()
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

// trial opens a connection beside the pool; a panic in it is a failure.
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
	return e.try(ctx)
}

// probed takes the result of an active check.
func (e *endpoint[T]) probed(err error) {
	e.mu.Lock()
	if err != nil {
		e.lastError, e.lastFailed = err.Error(), time.Now()
	}
	if shortage(err) {
		e.mu.Unlock()
		return
	}
	flipped := e.health.observe(err == nil)
	back := false
	if flipped && err == nil { // newer evidence than the failures in use
		back = e.ejector.clear()
		e.stopReadmit()
	}
	changed := e.settle()
	e.mu.Unlock()
	switch {
	case flipped && err != nil:
		e.log.Warn("endpoint unhealthy", "error", err)
	case flipped:
		e.log.Info("endpoint healthy", "was_ejected", back)
	}
	if changed {
		e.changed()
	}
}

// settle derives usable and reports whether it changed. mu is held.
func (e *endpoint[T]) settle() bool {
	usable := !e.health.down && !e.ejector.out
	return e.usable.Swap(usable) != usable
}

func (e *endpoint[T]) stopReadmit() {
	if e.readmit != nil {
		e.readmit.Stop()
		e.readmit = nil
	}
}

// close stops checks and closes the pool: idle connections now, leased ones
// when they come back.
func (e *endpoint[T]) close() {
	e.mu.Lock()
	e.closed = true
	e.stopReadmit()
	e.mu.Unlock()
	e.cancel() // only now: a trial that ends for it is no failure
	e.stopProbing()
	e.pool.Close()
}

// status describes the endpoint.
func (e *endpoint[T]) status() EndpointStatus {
	s := EndpointStatus{Address: e.addr, Leases: e.load.Load(), Stale: e.stale.Load(), Pool: e.pool.Stats()}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Healthy, s.Ejected = !e.health.down, e.ejector.out
	if e.ejector.out {
		s.EjectedUntil = e.ejector.until
	}
	s.Failures, s.LastError, s.LastFailed = e.ejector.failures, e.lastError, e.lastFailed
	return s
}
