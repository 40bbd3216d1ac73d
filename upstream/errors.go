package upstream

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headpond/headpond/pool"
)

// ErrUnavailable is wrapped by every error of Acquire: no endpoint provided a connection. If a pool refused, the error
// also wraps the pool's (pool.ErrTimeout, pool.ErrTooManyWaiters, pool.ErrNoTime, pool.ErrOpen, pool.ErrClosed,
// context.Canceled). Exhausted tells a full pool from a failed endpoint.
var ErrUnavailable = errors.New("upstream unavailable")

// ErrTenant is for an Open, Try or Lease.Fail to wrap in an error whose reason is the tenant's own: a wrong password, an
// unknown database, a role that may not log in. The endpoint has answered and works for others, so that it is not
// counted as a failure of the endpoint. Another endpoint is tried, because it may know the tenant if this one does not
// yet (a replica may lag behind); after the second refusal no more are tried, because they have the same data and a
// caller must not make every endpoint refuse a login.
var ErrTenant = errors.New("upstream: the endpoint refuses the tenant")

// ErrPassing is for an error to wrap, besides ErrTenant, if its reason may pass by itself, such as a connection limit.
// Acquires that wait for a Role then keep waiting.
var ErrPassing = errors.New("upstream: the refusal may pass")

// maxRefusals is the number of endpoints that may refuse a tenant in one acquire; see ErrTenant.
const maxRefusals = 2

// errNoneOwn is the error of an Upstream's own acquires without Config.Open.
var errNoneOwn = errors.New("upstream: it has connections of tenants only, see Config.Open")

// Error is the error of Acquire. It names the upstream, and the error of each endpoint that was tried.
type Error struct {
	Upstream string
	Causes   []EndpointError // in the order of the attempts
	Source   error           // why there are no endpoints, if the Source has failed
	// Target, Roles and Ended are set if no endpoint had a role that the Target accepts: the endpoints' roles, and why the
	// wait for one has ended, which is pool.ErrTimeout, pool.ErrTooManyWaiters, pool.ErrClosed or the context's error.
	Target Target
	Roles  []EndpointRole
	Ended  error
}

// EndpointRole is what is known of an endpoint's role.
type EndpointRole struct {
	Endpoint string
	Role     Role
	Err      error // why the last question had no answer; nil = it had one, or none was asked yet
}

// String describes the role for operators.
func (r EndpointRole) String() string {
	switch {
	case r.Role != UnknownRole:
		return fmt.Sprintf("%s is a %s", r.Endpoint, r.Role)
	case r.Err != nil:
		return fmt.Sprintf("%s does not report its role: %v", r.Endpoint, r.Err)
	}
	return r.Endpoint + " has not answered yet"
}

// EndpointError is the error of one endpoint.
type EndpointError struct {
	Endpoint string
	Err      error
}

// Error names the upstream and every endpoint tried, once, with its cause.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "upstream %q: no connection", e.Upstream)
	switch {
	case e.Ended != nil:
		fmt.Fprintf(&b, ": no endpoint is %s: ", e.Target.Wanted())
		for _, r := range e.Roles {
			fmt.Fprintf(&b, "%s; ", r)
		}
		fmt.Fprintf(&b, "%v", e.Ended)
	case len(e.Causes) == 0:
		b.WriteString(": it has no endpoints")
	}
	if e.Source != nil {
		fmt.Fprintf(&b, ": %v", e.Source)
	}
	sep := ": "
	for _, c := range e.Causes {
		b.WriteString(sep)
		sep = "; "
		cause := c.Err.Error()
		if !strings.Contains(cause, c.Endpoint) { // a pool's error names it already
			fmt.Fprintf(&b, "endpoint %s: ", c.Endpoint)
		}
		b.WriteString(cause)
	}
	return b.String()
}

// Unwrap returns ErrUnavailable and the causes.
func (e *Error) Unwrap() []error {
	errs := make([]error, 0, 2+len(e.Causes))
	errs = append(errs, ErrUnavailable)
	if e.Source != nil {
		errs = append(errs, e.Source)
	}
	if e.Ended != nil {
		errs = append(errs, e.Ended)
	}
	for _, c := range e.Causes {
		errs = append(errs, c.Err)
	}
	return errs
}

// waited returns how long the acquire has waited in pools.
func (e *Error) waited() (sum time.Duration) {
	for _, c := range e.Causes {
		if pe, ok := errors.AsType[*pool.Error](c.Err); ok {
			sum += pe.Waited
		}
	}
	return sum
}

// gone reports whether the endpoint that was tried last could not be connected to, or gives no more leases.
func (e *Error) gone() bool {
	last := e.Causes[len(e.Causes)-1].Err
	pe, ok := errors.AsType[*pool.Error](last)
	return ok && !errors.Is(last, ErrTenant) && (errors.Is(pe.Kind, pool.ErrOpen) || errors.Is(pe.Kind, pool.ErrClosed))
}

// Exhausted reports whether err is an error of Acquire that means that a pool was at its limit: too many waiters, a
// queue too long for the caller's deadline, or a time-out while every connection was in use. The endpoints themselves
// may be well.
func Exhausted(err error) bool {
	pe, ok := errors.AsType[*pool.Error](err)
	if !ok {
		return errors.Is(err, pool.ErrTooManyWaiters) // of a wait that is not a pool's
	}
	return errors.Is(pe.Kind, pool.ErrTooManyWaiters) || errors.Is(pe.Kind, pool.ErrNoTime) || errors.Is(pe.Kind, pool.ErrTimeout) && full(pe)
}

// full reports whether an acquire failed while its pool, or all pools of the endpoint together, had no room.
func full(pe *pool.Error) bool { return pe.InUse >= pe.MaxSize || pe.Budget > 0 }

// timedOut reports whether err means that no connection was available in time.
func timedOut(err error) bool {
	pe, ok := errors.AsType[*pool.Error](err)
	return ok && errors.Is(pe.Kind, pool.ErrTimeout)
}

// another reports whether it makes sense to try another endpoint after err. A caller whose time has passed in a full
// pool's queue does not wait again; one whose connection was not opened in time may try another endpoint.
func another(err error) bool {
	pe, ok := errors.AsType[*pool.Error](err)
	if !ok {
		return false
	}
	if errors.Is(pe.Kind, pool.ErrTimeout) {
		return !full(pe)
	}
	if errors.Is(pe.Kind, pool.ErrTooManyWaiters) {
		return pe.Waited == 0 // otherwise it made room for another caller
	}
	return errors.Is(pe.Kind, pool.ErrOpen) || errors.Is(pe.Kind, pool.ErrNoTime) || errors.Is(pe.Kind, pool.ErrClosed)
}
