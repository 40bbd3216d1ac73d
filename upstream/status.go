package upstream

import (
	"time"

	"github.com/headpond/headpond/pool"
)

// Status is a snapshot for metrics and dashboards.
type Status struct {
	Name      string
	Balance   string // as ParseBalance reads it
	FailOpen  bool   // every endpoint is out, all of them are used
	Endpoints []EndpointStatus
}

// EndpointStatus is a snapshot of one endpoint.
type EndpointStatus struct {
	Address      string
	Healthy      bool      // as the active check has it; true without one
	Ejected      bool      // by the passive check
	EjectedUntil time.Time // zero unless Ejected
	Failures     int       // in a row, seen in use
	LastError    string    // of the last failure or failed probe; stays after recovery
	Leases       int64     // out, and callers that wait for one
	Pool         pool.Stats
}

// Status returns the present state of every endpoint.
func (u *Upstream[T]) Status() Status {
	s := u.set.Load()
	st := Status{Name: u.cfg.Name, Balance: s.balance.String(), FailOpen: s.failOpen}
	st.Endpoints = make([]EndpointStatus, len(s.all))
	for i, e := range s.all {
		st.Endpoints[i] = e.status()
	}
	return st
}
