package gateway

import (
	"fmt"
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// Snapshot returns the present state, as the admin pages show it.
func (g *Gateway) Snapshot() admin.Snapshot {
	g.mu.Lock()
	s := admin.Snapshot{
		Version: g.opts.Version, Engine: string(g.engine.Kind()), EngineReason: g.engine.Reason(),
		EngineStats: g.engine.Stats(), ConfigFile: g.cfg.File,
		Started: g.started, Draining: g.draining, Reloads: g.reloads, Log: g.logs.state(),
	}
	if !g.running {
		s.NotReady = append(s.NotReady, "the listeners are not served yet")
	}
	services, backends := slices.Clone(g.services), slices.Clone(g.backends)
	s.Certificates = map[string]time.Time{}
	addresses := make([]string, len(services))
	for i, svc := range services {
		addresses[i] = address(svc.socket)
		if svc.cert != nil {
			s.Certificates[svc.cfg.Name] = svc.cert.expires()
		}
		if svc.failed != nil {
			s.NotReady = append(s.NotReady, fmt.Sprintf("listener %q stopped: %v", svc.cfg.Name, svc.failed))
		}
	}
	for _, b := range backends {
		s.Upstreams = append(s.Upstreams, admin.Upstream{Protocol: string(b.cfg.Protocol)})
	}
	s.Tunnels = g.tunnels()
	leavers := g.leavers
	g.mu.Unlock()
	for _, l := range leavers {
		l.shown.Active = l.active()
		s.Retiring = append(s.Retiring, l.shown)
	}
	for i, svc := range services {
		stats := svc.proxy.Stats()
		stats.Address = addresses[i]
		s.Listeners = append(s.Listeners, stats)
	}
	for i, b := range backends {
		s.Upstreams[i].Status = b.impl.Status()
	}
	return s
}
