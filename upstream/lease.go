package upstream

import (
	"time"

	"github.com/headpond/headpond/pool"
)

// Lease is the right to use one connection until exactly one of Release,
// Discard and Fail is called, once; a second call panics. It is a small value;
// copies are the same lease, but do not know of later calls of Answered and Blame.
type Lease[T any] struct {
	lease    pool.Lease[T]
	endpoint *endpoint[T]
	held     bool // it counts in latency.held
	blamed   bool // see Blame
}

// Value returns the connection; not to be used after the lease has ended.
func (l Lease[T]) Value() T { return l.lease.Value() }

// Endpoint returns the address the connection goes to.
func (l Lease[T]) Endpoint() string { return l.endpoint.addr }

// Reused reports whether the connection had been leased before, so that it may
// have gone stale and the work may be worth a retry on another.
func (l Lease[T]) Reused() bool { return l.lease.Reused() }

// OK records that the endpoint works, without ending the lease; for connections that will be
// discarded, and for long leases.
func (l Lease[T]) OK() {
	if !l.blamed {
		l.endpoint.succeeded()
	}
}

// ended takes the lease off the endpoint's load.
func (l Lease[T]) ended() {
	if l.held {
		l.endpoint.latency.held.Add(-1)
	}
	l.endpoint.load.Add(-1)
}

// Heard is OK at a time, for FailUnheard.
func (l Lease[T]) Heard(now time.Time) {
	l.endpoint.heard.Store(now.UnixNano())
	l.endpoint.succeeded()
}

// FailUnheard is Fail if the endpoint has answered nobody since (see Heard), and otherwise Discard: for failures that may be
// the fault of one request, or forged.
func (l Lease[T]) FailUnheard(err error, since time.Time) {
	if l.endpoint.heard.Load() > since.UnixNano() {
		l.Discard()
		return
	}
	l.Fail(err)
}

// Stale counts that the server had closed the connection while it was idle. It
// neither ends the lease nor says anything about the endpoint.
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
