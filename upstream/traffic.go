package upstream

import "github.com/headpond/headpond/traffic"

// Traffic returns the counters of the endpoint, also after the lease has ended; nil without Config.Traffic.
func (l Lease[T]) Traffic() *traffic.Cell { return l.endpoint.traffic }
