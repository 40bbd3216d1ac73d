package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/listener"
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

// active counts a backend's users: its sessions if it counts them, else its leases and the callers that wait for one.
func (b *backend) active() int {
	if c, ok := b.impl.(extend.Counted); ok {
		return c.Active()
	}
	s := b.impl.Status()
	n := s.Waiting
	for _, e := range s.Endpoints {
		n += int(e.Leases)
	}
	return n
}

// retireGrace is how long an upstream is kept at least: a session that read the old settings just before the reload may not have got as
// far as the register of sessions. retirePause is the interval at which its users are looked for after that.
const (
	retireGrace = 5 * time.Second
	retirePause = time.Second
)

// retireBackend closes a backend, which a reload took out of service at a moment, once nobody can need it any more, or the gateway ends.
func (g *Gateway) retireBackend(b *backend, at time.Time) {
	wait(g.hard, retireGrace)
	for g.hard.Err() == nil && (b.active() > 0 || g.mayReach(b, at)) {
		wait(g.hard, retirePause)
	}
	_ = b.impl.Drain(g.hard) // its error is that hard ended: leases still out are closed when they are released
}

// mayReach reports whether a request or session from before a reload may yet acquire a connection of a backend that the reload took out of
// service: it has that upstream, or none so far, as while its body or login is awaited.
func (g *Gateway) mayReach(b *backend, reloaded time.Time) bool {
	for _, p := range g.proxiesOf(b.cfg.Protocol) {
		if slices.ContainsFunc(p.Sessions(), func(s listener.Info) bool {
			waits := s.State == listener.StateIdle || s.State == listener.StateQueued // then it has not read the settings
			return !waits && s.Streams == 0 && s.Since.Before(reloaded) && (s.Upstream == "" || s.Upstream == b.cfg.Name || s.Mirror == b.cfg.Name)
		}) {
			return true
		}
	}
	return false
}

// proxiesOf returns the proxies of listeners of a protocol, including those that a reload has taken out of service.
func (g *Gateway) proxiesOf(protocol config.Protocol) (list []extend.Proxy) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.services {
		if s.cfg.Protocol == protocol {
			list = append(list, s.proxy)
		}
	}
	for _, l := range g.retiring {
		if s, ok := l.part.(*service); ok && s.cfg.Protocol == protocol {
			list = append(list, s.proxy)
		}
	}
	return list
}

// retired records that a part that was taken out of service has no more sessions.
func (g *Gateway) retired(part any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.retiring = slices.DeleteFunc(slices.Clone(g.retiring), func(l retiring) bool { return l.part == part })
}
