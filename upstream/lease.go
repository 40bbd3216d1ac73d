package upstream

import (
	"context"
	"time"

	"github.com/headpond/headpond/pool"
)

// Lease is the right to use one connection. Exactly one of Release, Discard and Fail must be called, once; a second
// call panics. A Lease is a small value; copies are the same lease, but do not see later calls of Answered and Blame.
type Lease[T any] struct {
	lease    pool.Lease[T]
	endpoint *endpoint[T]
	held     bool // it is counted in latency.held
	blamed   bool // see Blame
}

// Value returns the connection. Do not use it after the lease has ended.
func (l Lease[T]) Value() T { return l.lease.Value() }

// Endpoint returns the address of the endpoint.
func (l Lease[T]) Endpoint() string { return l.endpoint.addr }

// Reused reports whether the connection was leased before. Then it may be stale, and the work may be worth a retry on
// another connection.
func (l Lease[T]) Reused() bool { return l.lease.Reused() }

// OK records that the endpoint works, without ending the lease. It is for connections that will be discarded, and for
// long leases.
func (l Lease[T]) OK() {
	if !l.blamed {
		l.endpoint.succeeded()
	}
}

// ended subtracts the lease from the endpoint's load.
func (l Lease[T]) ended() {
	if l.held {
		l.endpoint.latency.held.Add(-1)
	}
	l.endpoint.load.Add(-1)
}

// Heard is OK, and records the time for FailUnheard.
func (l Lease[T]) Heard(now time.Time) {
	l.endpoint.heard.Store(now.UnixNano())
	l.endpoint.succeeded()
}

// FailUnheard is Fail if the endpoint has not answered any user since then (see Heard), and otherwise Discard. It is
// for failures that a single request may have caused, or that may be forged.
func (l Lease[T]) FailUnheard(err error, since time.Time) {
	if l.endpoint.heard.Load() > since.UnixNano() {
		l.Discard()
		return
	}
	l.Fail(err)
}

// Stale counts a connection that the server had closed while it was idle. It does not end the lease, and says nothing
// about the endpoint.
func (l Lease[T]) Stale() { l.endpoint.stale.Add(1) }

// Release returns the connection for reuse and records that the endpoint works.
func (l Lease[T]) Release() {
	l.lease.Release()
	l.ended()
	l.OK()
}

// Discard closes the connection and says nothing about the endpoint.
func (l Lease[T]) Discard() {
	l.lease.Discard()
	l.ended()
}

// Fail closes the connection and counts a failure of the endpoint, with err as
// its cause.
func (l Lease[T]) Fail(err error) {
	l.lease.Discard()
	l.ended()
	if !l.blamed {
		l.endpoint.failed(err, false)
	}
}

// Replaceable reports whether Replace is likely to succeed; see pool.Lease.Replaceable.
func (l Lease[T]) Replaceable() bool { return l.lease.Replaceable() }

// Replace ends the lease as Discard does, and returns a lease of a new connection to the same endpoint, which takes the
// place of the old one in its pool. It waits for the new connection in this goroutine; a failure to open it counts for
// the endpoint as usual. After an error, which is that of pool.Lease.Replace, there is no lease: call Acquire.
func (l Lease[T]) Replace(ctx context.Context) (Lease[T], error) {
	fresh, err := l.lease.Replace(ctx)
	if err != nil {
		l.ended()
		return Lease[T]{}, err
	}
	l.lease, l.blamed = fresh, false
	return l, nil
}
