package httppool

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	maxStale   = 256 // connections found dead before giving up: one restart may kill a whole pool's
	maxUnused  = 2   // of them, those opened for this request and never used: a server that hangs up at once will do so again
	maxRenewed = 8   // reopenings for a request that was not answered afterwards: connections that others share may end at any time
	maxFailed  = 3   // failed reopenings, each at an endpoint that a connection could be leased from
)

// Stale replaces the connections that one request finds closed by the server: when they are leased (see Conn.Alive), or when
// the request is sent on them (see Conn.Use). None of them counts as an attempt. The zero value is for a new request; it is
// not for concurrent use.
type Stale struct {
	first   time.Time // when the first was found
	all     int
	unused  int // of connections opened since
	renewed int
	failed  []string // endpoints where no connection could be opened again
}

type failedKey struct{}

// Failed returns the endpoints at which the request that ctx was given to a Source for could not be sent, because a closed
// connection could not be opened again. Another one is the better choice, if there is one.
func Failed(ctx context.Context) []string {
	failed, _ := ctx.Value(failedKey{}).([]string)
	return failed
}

// within returns the context for a Source.
func (s *Stale) within(ctx context.Context) context.Context {
	if len(s.failed) == 0 {
		return ctx
	}
	return context.WithValue(ctx, failedKey{}, s.failed)
}

// Next closes and discards the connection of l, after which another may be leased. Its *Error means that leasing another
// is pointless: it wraps ErrServerGone when the server hangs up on connections that were opened just for this
// request, which then counts against its endpoint, and ErrStale when too many were dead.
func (s *Stale) Next(l Lease) error {
	countStale(l)
	return s.next(l)
}

// countStale counts a stale connection if the lease's type does, as upstream.Lease does.
func countStale(l Lease) {
	if c, ok := l.(interface{ Stale() }); ok {
		c.Stale()
	}
}

func (s *Stale) next(l Lease) error {
	c := l.Value().link.Load()
	_ = c.close()
	if s.all++; s.all == 1 {
		s.first = time.Now()
	} else if c.opened.After(s.first) && !c.used { // one that was used is closed by a server that answers once
		s.unused++
	}
	switch {
	case s.unused == maxUnused:
		gone := &Error{Endpoint: l.Endpoint(), Step: "acquire", Err: fmt.Errorf("%w as soon as it was opened", ErrServerGone)}
		l.Fail(gone)
		return gone
	case s.all == maxStale:
		l.Discard()
		return &Error{Step: "acquire", Err: ErrStale}
	}
	l.Discard()
	return nil
}

// Renew replaces the connection of l, which was closed before it answered a request. It returns true when l has a new
// connection, false when l has ended and another may be leased, and an error when l has ended and leasing another is
// pointless. Only a connection that cannot be opened counts against the endpoint.
func (s *Stale) Renew(ctx context.Context, l Lease) (renewed bool, err error) {
	countStale(l)
	if s.renewed++; s.renewed > maxRenewed {
		gone := &Error{Endpoint: l.Endpoint(), Step: "acquire", Err: fmt.Errorf("%w on each of %d connections", ErrServerGone, maxRenewed)}
		l.Fail(gone)
		return false, gone
	}
	return s.reopen(ctx, l)
}

// Refused is Renew after the server has given the request back unread. The connection is not stale
// then, and a server that refuses repeatedly is not gone: nothing counts against the endpoint.
func (s *Stale) Refused(ctx context.Context, l Lease) (renewed bool, err error) {
	if s.renewed++; s.renewed > maxRenewed {
		l.Discard()
		return false, &Error{Endpoint: l.Endpoint(), Step: "acquire", Err: fmt.Errorf("%w: it refused the request %d times", ErrServerGone, maxRenewed+1)}
	}
	return s.reopen(ctx, l)
}

// reopen opens a connection under the lease.
func (s *Stale) reopen(ctx context.Context, l Lease) (renewed bool, err error) {
	panicked := true
	defer func() {
		if panicked { // in the program's own Dial
			l.Discard()
		}
	}()
	cause := l.Value().Reopen(ctx)
	panicked = false
	switch {
	case cause == nil:
		return true, nil
	case errors.Is(cause, ErrNotReopened):
		s.renewed-- // nothing was opened
		return false, s.next(l)
	case ctx.Err() != nil:
		l.Discard()
		return false, &Error{Endpoint: l.Endpoint(), Step: "acquire", Err: contextError(ctx)}
	}
	failed := &Error{Endpoint: l.Endpoint(), Step: "acquire", Err: cause}
	l.Fail(failed)
	if s.failed = append(s.failed, failed.Endpoint); len(s.failed) == maxFailed {
		return false, failed
	}
	return false, nil
}
