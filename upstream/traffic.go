package upstream

import (
	"slices"

	"github.com/headpond/headpond/traffic"
)

// Traffic returns the counters of the endpoint, also after the lease has ended; nil without Config.Traffic.
func (l Lease[T]) Traffic() *traffic.Cell { return l.endpoint.traffic }

// TrafficOf is Lease.Traffic for the endpoint with an address; nil if there is no such endpoint.
func (u *Upstream[T]) TrafficOf(address string) *traffic.Cell {
	all := u.set.Load().all
	if i := slices.IndexFunc(all, func(e *endpoint[T]) bool { return e.addr == address }); i >= 0 {
		return all[i].traffic
	}
	return nil
}
