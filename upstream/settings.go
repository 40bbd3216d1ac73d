package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/pool"
)

// Defaults of Health and Ejection, used where a field is zero.
const (
	DefaultHealthInterval = 2 * time.Second
	DefaultHealthTimeout  = time.Second
	DefaultRise           = 2
	DefaultFall           = 3
	DefaultStagger        = time.Second
	DefaultEjectFailures  = 5
	DefaultEjectBase      = time.Second
	DefaultEjectMax       = time.Minute
	DefaultMaxEjected     = 50
)

// Settings are the parts of a Config that Update can change. The zero value is usable, but has no endpoints.
type Settings struct {
	// Endpoints lists the endpoints, each address once. Without any, Acquire fails until Update adds some. With a
	// Source they are used until its first report.
	Endpoints []Endpoint
	// Source reports the endpoints and every change of them; nil = Endpoints are used. Sources are compared with ==, so
	// a Source must be a pointer; an Update with the same Source does not restart it. After a change of Source the
	// Upstream keeps its endpoints until the first report of the new one.
	Source Source
	// Overrides are operators' changes of single endpoints, applied to the sets of Endpoints and Source; each address
	// once. ChangeEndpoint adds more.
	Overrides []Override
	// Balance chooses among the endpoints; the zero value is P2C.
	Balance Balance
	// Target says which roles endpoints must have to get leases; the zero value is TargetAny. The endpoints are asked for
	// their roles, about once a second. Callers wait for an endpoint with the role up to Limits.AcquireTimeout; they count
	// for Limits.MaxWaiters.
	Target Target
	// Limits are the limits of each endpoint's pool, for each tenant.
	Limits pool.Limits
	// MaxConnections bounds the connections to each endpoint over the pools of all tenants; 0 = only Limits.MaxSize of each
	// pool. When it is reached, the connection that has been idle longest is closed for a tenant that needs another one.
	// If none is idle, the tenants' callers get connections in the order of their acquires; see pool.Budget. A tenant that
	// has no open connection, or whose last open has failed, first opens one beside MaxConnections: so there may be
	// MaxConnections/16 more, at least one. An endpoint that was removed and added again counts its old connections too.
	// It excludes pool.OverflowDirect.
	MaxConnections int
	// Health is the active check; it needs a Probe.
	Health Health
	// Ejection is the passive check.
	Ejection Ejection
	// SlowStart is how long an endpoint takes to get its full share of leases, by P2C and RoundRobin, after it was
	// added to others or is in again after it was out; 0 = no time.
	SlowStart time.Duration
	// OnRemoved says what happens to leases of a removed endpoint.
	OnRemoved Removal
	// RemovedTimeout is how long these leases may last with DrainRemoved until they are interrupted. 0 = forever.
	RemovedTimeout time.Duration
	// Rebalance moves leases to endpoints that have too few of them; the zero value moves none.
	Rebalance Rebalance
}

// Removal says what happens to leases of a removed endpoint.
type Removal int

const (
	// DrainRemoved waits until they are released. The default.
	DrainRemoved Removal = iota
	// CloseRemoved interrupts them at once.
	CloseRemoved
)

// Bounds of a set. More endpoints, or a larger weight, indicate a mistake.
const (
	MaxEndpoints = 1000
	MaxWeight    = 65535 // the largest in a DNS SRV record
)

// Endpoint is the address of one server.
type Endpoint struct {
	// Address is "host:port" or "unix:/path". It identifies the endpoint: as long as the address stays in the set, the
	// endpoint keeps its pool, connections and state.
	Address string
	// Weight is the endpoint's share of leases relative to others of its Priority, from 1 to MaxWeight; 0 = 1. The
	// balance First ignores it.
	Weight int
	// Priority: the endpoints of priority 0 are used as long as one of them is in; otherwise those of the next higher
	// number, and so on.
	Priority int
	// Zone and Metadata are shown to the operator and have no effect.
	Zone     string
	Metadata map[string]string
}

// Endpoints returns endpoints at the addresses, with the same weight and priority.
func Endpoints(addresses ...string) []Endpoint {
	list := make([]Endpoint, len(addresses))
	for i, a := range addresses {
		list[i].Address = a
	}
	return list
}

// Health is an active health check: it probes every endpoint once per Interval. The first probe decides by itself;
// after it, Fall failures in a row take an endpoint out and Rise successes in a row take it in again.
type Health struct {
	Probe      Probe         // nil = no active check
	Interval   time.Duration // from the end of one probe to the next, ±10 %; a quarter of it after an unanswered probe that decides nothing; 0 = DefaultHealthInterval
	Timeout    time.Duration // of one probe; 0 = DefaultHealthTimeout
	Rise, Fall int           // 0 = DefaultRise, DefaultFall
	// OnUnhealthy says what happens to the leases of an endpoint that the check takes out.
	OnUnhealthy UnhealthyPolicy
	// UnhealthyTimeout is how long these leases may last with DrainUnhealthy; 0 = forever.
	UnhealthyTimeout time.Duration
	// Stagger is the time over which leases are interrupted, so that their users do not all reconnect at once; 0 =
	// DefaultStagger.
	Stagger time.Duration
}

// Ejection is the passive check. Failures in a row (connections that could not be opened, leases ended by Fail) take an
// endpoint out for the time Base. After that time a trial connection is opened and closed, outside the pool. If the
// trial fails, or if one more failure is seen after it, the endpoint is out for twice the time, up to Max. A success
// (Release, OK) ends the series. Up to a tenth is added to each time at random.
type Ejection struct {
	Failures  int           // 0 = DefaultEjectFailures, negative = never eject
	Base, Max time.Duration // 0 = DefaultEjectBase, DefaultEjectMax
	// Errors also counts answers that are server errors; Slow also counts answers that took longer than Slow, 0 = none.
	// Each also counts answers that did not come in time. Both need users that call Lease.Answered, Unanswered and
	// Blame, as package httpproxy does.
	Errors bool
	Slow   time.Duration
	// MaxEjected is the highest percentage of endpoints that may be out, for any reason, when an answer ejects one:
	// errors and slowness may be caused by clients' requests, or by something that all endpoints depend on. Answers
	// never eject the last endpoint that is in. Up to 100; 0 = DefaultMaxEjected.
	MaxEjected int
}

func (h Health) withDefaults() Health {
	h.Interval = cmp.Or(h.Interval, DefaultHealthInterval)
	h.Timeout = cmp.Or(h.Timeout, DefaultHealthTimeout)
	h.Rise = cmp.Or(h.Rise, DefaultRise)
	h.Fall = cmp.Or(h.Fall, DefaultFall)
	h.Stagger = cmp.Or(h.Stagger, DefaultStagger)
	return h
}

func (e Ejection) withDefaults() Ejection {
	e.Failures = cmp.Or(e.Failures, DefaultEjectFailures)
	e.Base = cmp.Or(e.Base, DefaultEjectBase)
	e.Max = cmp.Or(e.Max, DefaultEjectMax)
	e.Max = max(e.Max, e.Base)
	e.MaxEjected = cmp.Or(e.MaxEjected, DefaultMaxEjected)
	return e
}

// verify reports every problem, joined. interrupts and asks say that Config.Interrupt and Config.AskRole are set.
func (s *Settings) verify(name string, interrupts, asks bool) error {
	errs := []error{verifyEndpoints(s.Endpoints), verifyOverrides(s.Overrides)}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !s.Balance.valid() {
		bad("balance %v is unknown", s.Balance)
	}
	switch {
	case !s.Target.valid():
		bad("target %v is unknown", s.Target)
	case s.Target != TargetAny && !asks:
		bad("target %v needs AskRole", s.Target)
	}
	if err := s.Limits.Verify(); err != nil {
		bad("%w", err)
	}
	if s.MaxConnections < 0 {
		bad("MaxConnections %d is negative", s.MaxConnections)
	}
	if s.MaxConnections > 0 && s.Limits.Overflow == pool.OverflowDirect {
		bad("MaxConnections cannot bound connections of the overflow %v", s.Limits.Overflow)
	}
	if h := s.Health; h.Interval < 0 || h.Timeout < 0 || h.Rise < 0 || h.Fall < 0 || h.UnhealthyTimeout < 0 || h.Stagger < 0 {
		bad("a health check's Interval, Timeout, Rise, Fall, UnhealthyTimeout and Stagger must not be negative")
	}
	if s.Ejection.Base < 0 || s.Ejection.Max < 0 || s.Ejection.Slow < 0 {
		bad("an ejection's Base, Max and Slow must not be negative")
	}
	if m := s.Ejection.MaxEjected; m < 0 || m > 100 {
		bad("an ejection's MaxEjected is %d; want up to 100 percent", m)
	}
	if s.SlowStart < 0 || s.RemovedTimeout < 0 {
		bad("SlowStart and RemovedTimeout must not be negative")
	}
	switch s.OnRemoved {
	case DrainRemoved, CloseRemoved:
	default:
		bad("OnRemoved %d is unknown", s.OnRemoved)
	}
	switch s.Health.OnUnhealthy {
	case KeepUnhealthy, CloseUnhealthy, DrainUnhealthy:
	default:
		bad("OnUnhealthy %d is unknown", s.Health.OnUnhealthy)
	}
	if s.Rebalance.PerMinute < 0 || s.Rebalance.Excess < 0 {
		bad("a rebalance's PerMinute and Excess must not be negative")
	}
	switch s.Rebalance.Order {
	case OldestFirst, NewestFirst:
	default:
		bad("a rebalance's Order %d is unknown", s.Rebalance.Order)
	}
	if !interrupts && (s.Health.OnUnhealthy != KeepUnhealthy || s.OnRemoved == CloseRemoved || s.RemovedTimeout > 0 || s.Rebalance.PerMinute > 0) {
		bad("leases cannot be interrupted without Interrupt")
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: upstream %q: %w", ErrConfig, name, err)
	}
	return nil
}

// verifyOverrides reports every problem of a list of overrides.
func verifyOverrides(list []Override) error {
	endpoints := make([]Endpoint, len(list))
	for i, o := range list {
		endpoints[i] = o.Endpoint
		switch o.Out {
		case InUse, Drained, Removed:
		default:
			return fmt.Errorf("override of endpoint %q: Out %q is unknown", o.Address, o.Out)
		}
	}
	if err := verifyEndpoints(endpoints); err != nil {
		return fmt.Errorf("overrides: %w", err)
	}
	return nil
}

// verifyEndpoints reports every problem of a set.
func verifyEndpoints(list []Endpoint) error {
	var errs []error
	if len(list) > MaxEndpoints {
		return fmt.Errorf("%d endpoints; at most %d are possible", len(list), MaxEndpoints)
	}
	seen := make(map[string]bool, len(list))
	for _, e := range list {
		if _, _, err := netaddr.Split(e.Address); err != nil {
			errs = append(errs, fmt.Errorf("endpoint: %w", err))
		}
		if seen[e.Address] {
			errs = append(errs, fmt.Errorf("endpoint %q appears twice", e.Address))
		}
		seen[e.Address] = true
		if e.Weight < 0 || e.Weight > MaxWeight {
			errs = append(errs, fmt.Errorf("endpoint %q: weight %d is not from 1 to %d", e.Address, e.Weight, MaxWeight))
		}
		if e.Priority < 0 {
			errs = append(errs, fmt.Errorf("endpoint %q: priority %d is negative", e.Address, e.Priority))
		}
	}
	return errors.Join(errs...)
}
