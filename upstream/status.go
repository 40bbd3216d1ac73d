package upstream

import (
	"slices"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/traffic"
)

// Status is a snapshot for metrics and dashboards.
type Status struct {
	Name     string
	Balance  string // a name that ParseBalance parses
	Target   Target
	NoRole   bool // no endpoint has a role that Target accepts
	FailOpen bool // every endpoint is out, so those of the first priority are used
	Source   SourceStatus
	// PausedUntil is when a pause ends by itself, zero if the Upstream is not paused.
	PausedUntil time.Time
	Traffic     *traffic.Schema // schema of each endpoint's counters; nil = none
	// Endpoints are the endpoints in use, by priority, and then the removed ones until their leases are released. An
	// endpoint that was removed and added again may be listed twice.
	Endpoints []EndpointStatus
	// Waiting is the number of callers that wait before they acquire; see Tenant.BeginWait. Callers that wait at pools are
	// counted in EndpointStatus.Pool.
	Waiting int
	// Tenants are the first MaxTenantsListed tenants by name, without the Upstream's own connections, and MoreTenants is
	// the number of the others.
	Tenants     []TenantStatus
	MoreTenants int
}

// MaxTenantsListed bounds the tenants in a Status: more would be of no use to a reader, and costly for metrics.
const MaxTenantsListed = 1000

// TenantStatus is a snapshot of one tenant.
type TenantStatus struct {
	Name   string
	Closed bool       // it waits for its leases
	Pool   pool.Stats // as Tenant.Stats returns
}

// EndpointStatus is a snapshot of one endpoint.
type EndpointStatus struct {
	Address      string
	Weight       int // at least 1
	Priority     int
	Zone         string
	Metadata     map[string]string
	Removed      bool        // it gets no more leases
	Override     string      // an operator's change: "added", "drained", "removed", "weight" or ""
	Kept         bool        // Override.Keep
	Absent       bool        // an operator has removed it, and only the override is left: the fields below are zero
	Healthy      bool        // result of the active check; true without one
	Ejected      bool        // result of the passive check
	EjectedUntil time.Time   // zero unless Ejected
	Failures     int         // consecutive, seen in use; 0 if an open was the last to fail, and one has succeeded since
	LastError    string      // of the last failure or failed probe; kept after recovery
	LastFailed   time.Time   // time of LastError; zero: never
	Role         Role        // as last answered; UnknownRole with TargetAny
	Leases       int64       // leases out, and callers that wait for one
	Stale        uint64      // connections that the server had closed while they were idle, as reported with Lease.Stale
	Pool         pool.Stats  // the sum of the pools of all tenants, and of what those counted that are gone; see pool.Stats.Add
	Traffic      traffic.Row // counters as in Status.Traffic
}

// AllInUse reports whether every connection that the pools of the endpoints in use may have is leased, so that Acquire
// would have to wait.
func (u *Upstream[T]) AllInUse() bool {
	return u.own.AllInUse()
}

// OnlyEndpoint returns the address of the endpoint in use, or "" unless there is exactly one whose role the Target
// accepts. It is cheap.
func (u *Upstream[T]) OnlyEndpoint() (address string) {
	if fit := u.set.Load().fit; len(fit) == 1 {
		return fit[0].addr
	}
	return ""
}

// Load returns the number of leases, including awaited ones, and the number of endpoints that get new leases. in is 0
// if no endpoint is usable, although Acquire tries them then.
func (u *Upstream[T]) Load() (leases, in int64) {
	s := u.set.Load()
	for _, e := range s.all {
		leases += e.load.Load()
	}
	if s.failOpen {
		return leases, 0
	}
	return leases, int64(len(s.in.list))
}

// Status returns the state of the Upstream and of every endpoint.
func (u *Upstream[T]) Status() Status {
	u.mu.Lock()
	s, leaving, source, overrides, paused := u.set.Load(), slices.Clone(u.draining), u.sourceStatus, u.changed, u.paused
	u.mu.Unlock()
	st := Status{Name: u.cfg.Name, Balance: s.balance.String(), Target: s.target, NoRole: len(s.all) > 0 && len(s.fit) == 0, FailOpen: s.failOpen, Source: source, Traffic: u.cfg.Traffic}
	if paused != nil {
		st.PausedUntil = paused.until
	}
	st.Waiting = u.ahead()
	st.Tenants, st.MoreTenants = u.tenantStatus()
	st.Endpoints = make([]EndpointStatus, 0, len(s.all)+len(leaving))
	for _, e := range s.all {
		st.Endpoints = append(st.Endpoints, e.status())
	}
	for _, e := range leaving {
		if e.load.Load() > 0 {
			gone := e.status()
			gone.Removed = true
			st.Endpoints = append(st.Endpoints, gone)
		}
	}
	for _, o := range overrides {
		st.override(o)
	}
	return st
}

// override adds the operators' changes of an endpoint.
func (s *Status) override(o Override) {
	shown := false
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; e.Address == o.Address && (o.Out != InUse || !e.Removed) {
			e.Override, e.Kept, shown = o.String(), o.Keep, true
		}
	}
	if !shown && o.Out != InUse {
		s.Endpoints = append(s.Endpoints, EndpointStatus{
			Address: o.Address, Weight: max(o.Weight, 1), Priority: o.Priority, Zone: o.Zone, Removed: true, Override: o.String(), Kept: o.Keep, Absent: true,
		})
	}
}
