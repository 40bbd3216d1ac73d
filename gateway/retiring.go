package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/extend"
)

// retiring is a part of the gateway that a reload has taken out of service and that still has sessions.
type retiring struct {
	part   any // *service, *backend or *extend.Retired
	shown  admin.Retiring
	active func() int                      // called without mu
	drain  func(ctx context.Context) error // nil: after its users have drained
}

// retiringOf lists the listeners and upstreams that a plan takes out of service. mu is held.
func retiringOf(p *plan) []retiring {
	var list []retiring
	now := time.Now()
	for _, s := range p.retiredProxies {
		list = append(list, retiring{s, admin.Retiring{Kind: admin.RetiringListener, Name: s.cfg.Name, Protocol: string(s.cfg.Protocol), Since: now},
			func() int { return s.proxy.Stats().Active }, s.proxy.Drain})
	}
	for _, b := range p.retiredBackends {
		list = append(list, retiring{b, admin.Retiring{Kind: admin.RetiringUpstream, Name: b.cfg.Name, Protocol: string(b.cfg.Protocol), Since: now}, b.active, nil})
	}
	for _, r := range p.Retired {
		list = append(list, retiring{r, admin.Retiring{Kind: r.Kind, Name: r.Name, Protocol: r.Protocol, Since: now}, r.Active, r.Drain})
	}
	return list
}

// active counts a backend's users: its sessions if it counts them, else its leased connections.
func (b *backend) active() int {
	if c, ok := b.impl.(extend.Counted); ok {
		return c.Active()
	}
	n := 0
	for _, e := range b.impl.Status().Endpoints {
		n += e.Pool.InUse + e.Pool.Direct
	}
	return n
}

// retired records that a part that was taken out of service has no more sessions.
func (g *Gateway) retired(part any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.retiring = slices.DeleteFunc(slices.Clone(g.retiring), func(l retiring) bool { return l.part == part })
}
