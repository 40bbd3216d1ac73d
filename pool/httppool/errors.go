package httppool

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/headpond/headpond/httpwire"
)

// Errors of an exchange. Every error of RoundTrip is an *Error that wraps one of these, an error of the pool
// (pool.ErrTimeout, pool.ErrOpen, …), the dialer's, or the context's.
var (
	// ErrInvalidRequest: the request cannot be written without changing its meaning. Nothing was sent.
	ErrInvalidRequest = errors.New("invalid request")
	// ErrRequestBody: reading the request's body failed, or it is not as long as its Content-Length says.
	ErrRequestBody = errors.New("cannot read the request body")
	// ErrMalformedResponse: the server's answer is not unambiguous HTTP/1.1.
	ErrMalformedResponse = errors.New("malformed response")
	// ErrResponseTimeout: no response head arrived within Options.ResponseHeaderTimeout.
	ErrResponseTimeout = errors.New("timed out waiting for the response")
	// ErrIdleTimeout: no byte of a body moved within Options.IdleTimeout.
	ErrIdleTimeout = errors.New("no data of the body within the idle time-out")
	// ErrServerGone: the connection ended before the response did.
	ErrServerGone = errors.New("the server closed the connection")
	// ErrNoUpgrade: the request asks for an upgrade, which the server does not take over HTTP/2. This package does not return it.
	ErrNoUpgrade = errors.New("the server takes no WebSockets and other upgrades over HTTP/2")
	// ErrStale: every connection from the pool had been closed by the server while idle.
	ErrStale = errors.New("no usable connection in the pool")
	// ErrClosed: the Transport is closed.
	ErrClosed = errors.New("transport is closed")
)

// ServerFailure wraps an error of a server's connection, or of a message on it, with a sentinel: ErrMalformedResponse if
// err wraps httpwire.ErrMalformed, ErrServerGone otherwise.
func ServerFailure(err error) error {
	switch {
	case errors.Is(err, httpwire.ErrMalformed):
		return fmt.Errorf("%w: %w", ErrMalformedResponse, err)
	case err == io.EOF:
		return fmt.Errorf("%w before it answered", ErrServerGone)
	}
	return fmt.Errorf("%w: %w", ErrServerGone, err)
}

// Error is the failure of an exchange, with its step and endpoint.
type Error struct {
	Endpoint string // "" if no connection was had
	Step     string // "acquire", "send", "receive" or "body"
	Reused   bool   // the connection had been idle before the request
	Err      error
}

// Error returns the step, the endpoint and the cause.
func (e *Error) Error() string {
	if e.Endpoint == "" {
		return fmt.Sprintf("http upstream: %s: %v", e.Step, e.Err)
	}
	return fmt.Sprintf("http upstream %s: %s: %v", e.Endpoint, e.Step, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the error is a time-out, as in net.Error.
func (e *Error) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.Is(e.Err, ErrResponseTimeout) || errors.Is(e.Err, ErrIdleTimeout) ||
		errors.Is(e.Err, context.DeadlineExceeded) || (errors.As(e.Err, &t) && t.Timeout())
}
