package gateway

import (
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// leaver is a part of the gateway that a reload has taken out of service and whose sessions are not over yet.
type leaver struct {
	part   any // *service, *backend or *link
	shown  admin.Retiring
	active func() int // called without mu
}

// leaversOf lists what a plan takes out of service. mu is held.
func leaversOf(p *plan) []leaver {
	var list []leaver
	now := time.Now()
	for _, s := range p.retiredProxies {
		list = append(list, leaver{s, admin.Retiring{Kind: admin.RetiringListener, Name: s.cfg.Name, Protocol: string(s.cfg.Protocol), Since: now},
			func() int { return s.proxy.Stats().Active }})
	}
	for _, b := range p.retiredBackends {
		list = append(list, leaver{b, admin.Retiring{Kind: admin.RetiringUpstream, Name: b.cfg.Name, Protocol: string(b.cfg.Protocol), Since: now}, b.active})
	}
	for _, l := range p.retiredLinks {
		list = append(list, leaver{l, admin.Retiring{Kind: admin.RetiringTunnel, Name: l.cfg.Name, Protocol: "tunnel", Since: now},
			func() int { return l.client.Stats().Streams }})
	}
	return list
}

// active counts what still uses a backend: PostgreSQL's sessions, which lease again and again, else connections that are out.
func (b *backend) active() int {
	if pg, ok := b.impl.(*pgBackend); ok {
		return pg.using()
	}
	n := 0
	for _, e := range b.impl.Status().Endpoints {
		n += e.Pool.InUse + e.Pool.Direct
	}
	return n
}

// left notes that the sessions of a part that was taken out of service are over.
func (g *Gateway) left(part any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leavers = slices.DeleteFunc(slices.Clone(g.leavers), func(l leaver) bool { return l.part == part })
}

// leaving lists the listeners and tunnels among the parts that leave. mu is held.
func (g *Gateway) leaving() (services []*service, links []*link) {
	for _, l := range g.leavers {
		switch part := l.part.(type) {
		case *service:
			services = append(services, part)
		case *link:
			links = append(links, part)
		}
	}
	return services, links
}

// tunnelLeaves reports whether a tunnel of that name leaves. mu is held.
func (g *Gateway) tunnelLeaves(name string) bool {
	return slices.ContainsFunc(g.leavers, func(l leaver) bool {
		_, ok := l.part.(*link)
		return ok && l.shown.Name == name
	})
}
