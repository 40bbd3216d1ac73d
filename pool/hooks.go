package pool

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"
)

// Reason says why a resource was closed.
type Reason int

// The reasons.
const (
	ReasonDiscarded Reason = iota // Discard, Replace, or a panic in With
	ReasonIdle                    // idle for IdleTimeout
	ReasonLifetime                // older than MaxLifetime, or ended by Renew or Expire
	ReasonCheck                   // Check failed
	ReasonReset                   // Reset failed
	ReasonSurplus                 // beyond MaxSize or MaxIdle, needed by the Budget, or the pool is paused
	ReasonDirect                  // an overflow resource that was released
	ReasonShutdown                // the pool is closed
	reasons
)

// String returns the reason in one word.
func (r Reason) String() string {
	names := [reasons]string{"discarded", "idle", "lifetime", "check", "reset", "surplus", "direct", "shutdown"}
	if r < 0 || r >= reasons {
		return "unknown"
	}
	return names[r]
}

// AcquireEvent describes an acquire to Hooks.Acquired.
type AcquireEvent struct {
	Took   time.Duration
	Waited bool // for a release or an open
	Reused bool
	Direct bool  // an overflow resource
	Err    error // nil or an *Error
}

// Hooks observe a pool, for tracing. Each may be nil; each is called without the pool's lock, in
// the goroutine whose action it observes, and must not block. Acquired makes every acquire read the
// clock twice. A panic in a hook is reported like one in a callback, and does not affect the
// observed action.
type Hooks struct {
	Acquired func(ctx context.Context, e AcquireEvent)
	Opened   func(took time.Duration, err error)
	Closed   func(why Reason)
	// Panicked gets panics of the callbacks and hooks; nil logs them with slog.Default. A panic in
	// Panicked is dropped.
	Panicked func(*PanicError)
}

// guard runs one callback. It returns the callback's error, or a *PanicError if it panicked. If the
// callback ends its goroutine instead, exited is called on the way out, for clean-up.
func (p *Pool[T]) guard(callback string, f func() error, exited func()) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		v := recover()
		pe := &PanicError{Pool: p.name, Callback: callback, Value: v, Stack: debug.Stack()}
		p.panics.Add(1)
		p.reportPanic(pe)
		err = pe
		if v == nil {
			exited() // runtime.Goexit: nothing after this function runs
		}
	}()
	err = f()
	returned = true
	return err
}

// reportPanic hands pe to the hook or the log; a hook that panics itself is
// not called again.
func (p *Pool[T]) reportPanic(pe *PanicError) {
	if p.hooks.Panicked == nil {
		slog.Error("pool: panic in callback", "pool", pe.Pool, "callback", pe.Callback, "panic", pe.Value, "stack", string(pe.Stack))
		return
	}
	defer func() { _ = recover() }()
	p.hooks.Panicked(pe)
}
