package pool

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Why an Acquire failed; the *Error it returns wraps one of these, or
// context.Canceled.
var (
	// ErrClosed: the pool drains or is closed.
	ErrClosed = errors.New("pool is closed")
	// ErrTimeout: Limits.AcquireTimeout or the context's deadline passed first
	// (then the error wraps context.DeadlineExceeded too).
	ErrTimeout = errors.New("timed out waiting for a resource")
	// ErrTooManyWaiters: Limits.MaxWaiters callers wait already.
	ErrTooManyWaiters = errors.New("too many callers are waiting")
	// ErrNoTime: the lease would come after the time of the caller's FlowParker.
	ErrNoTime = errors.New("the wait for a resource would be longer than the caller has time")
	// ErrOpen: a resource cannot be opened; the error wraps the cause.
	ErrOpen = errors.New("open failed")
)

// ErrConfig is wrapped by every error about a Config or Limits.
var ErrConfig = errors.New("pool: invalid configuration")

// ErrDiscard, wrapped in the error of a function given to Pool.With, makes With
// discard the resource.
var ErrDiscard = errors.New("resource is not fit for reuse")

// Error is the error of Acquire, with the pool's state at that moment.
type Error struct {
	Pool    string // Config.Name
	Kind    error  // ErrClosed, ErrTimeout, ErrTooManyWaiters, ErrNoTime, ErrOpen or context.Canceled
	Cause   error  // the context's error or the open error; may be nil
	Waited  time.Duration
	InUse   int
	Idle    int
	Opening int
	Waiting int // callers waiting, without this one
	MaxSize int
	// Budget is the limit of Config.Budget if that kept the pool from opening a resource; 0 if not.
	Budget int
	// Expected estimates how long another acquire of the same flow would have waited then, by the pace of
	// the last hand-overs to waiters; 0 if unknown.
	Expected time.Duration
	// LastOpenError is the newest open error, nil if the newest open succeeded.
	LastOpenError error
}

// Error names the problem and the pool, with its sizes if they are the cause.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pool %q: %v", e.Pool, e.Kind)
	if e.Waited > 0 {
		fmt.Fprintf(&b, " after %v", e.Waited.Round(time.Microsecond))
	}
	full := errors.Is(e.Kind, ErrTimeout) || errors.Is(e.Kind, ErrTooManyWaiters) || errors.Is(e.Kind, ErrNoTime)
	if errors.Is(e.Kind, ErrNoTime) {
		fmt.Fprintf(&b, ": about %v", e.Expected.Round(time.Millisecond))
	}
	if full && e.Opening > 0 && e.InUse < e.MaxSize {
		b.WriteString(" while one was being opened")
	}
	if e.Cause != nil && e.Cause != e.Kind {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	if !full {
		return b.String() // the sizes have no part in it
	}
	fmt.Fprintf(&b, " (max size %d: %d in use, %d idle, %d opening; %d waiting", e.MaxSize, e.InUse, e.Idle, e.Opening, e.Waiting)
	if e.LastOpenError != nil && e.LastOpenError != e.Cause {
		fmt.Fprintf(&b, "; last open error: %v", e.LastOpenError)
	}
	if e.Budget > 0 {
		fmt.Fprintf(&b, "; all pools together are at their limit of %d", e.Budget)
	}
	b.WriteByte(')')
	return b.String()
}

// Unwrap returns the kind, the cause and the last open error.
func (e *Error) Unwrap() []error {
	errs := make([]error, 0, 3)
	for _, err := range [...]error{e.Kind, e.Cause, e.LastOpenError} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Timeout reports whether the acquire timed out, as in net.Error.
func (e *Error) Timeout() bool { return errors.Is(e.Kind, ErrTimeout) }

// PanicError is a panic in one of the callbacks or hooks of a Config.
type PanicError struct {
	Pool     string
	Callback string // "Open", "Check", "Reset", "Close", "OnLeak", "Hooks.Opened", …
	Value    any    // the argument of panic; nil for runtime.Goexit
	Stack    []byte
}

// Error says which callback panicked and with what; the stack is in the field.
func (e *PanicError) Error() string {
	if e.Value == nil {
		return fmt.Sprintf("pool %q: %s ended its goroutine (runtime.Goexit)", e.Pool, e.Callback)
	}
	return fmt.Sprintf("pool %q: panic in %s: %v", e.Pool, e.Callback, e.Value)
}

// Unwrap returns the value given to panic if that was an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
