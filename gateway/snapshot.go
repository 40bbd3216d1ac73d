package gateway

import (
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
)

// Snapshot returns the current state, as the admin pages show it.
func (g *Gateway) Snapshot() admin.Snapshot {
	now := time.Now()
	g.mu.Lock()
	s := admin.Snapshot{
		Version: g.opts.Version, Engine: string(g.engine.Kind()), EngineReason: g.engine.Reason(),
		EngineStats: g.engine.Stats(), Process: processUse(), ConfigFile: g.cfg.File,
		Started: g.started, Draining: g.draining, Reloads: g.reloads, Log: g.logs.state(),
	}
	if !g.running {
		s.NotReady = append(s.NotReady, "the listeners are not served yet")
	}
	services, backends := slices.Clone(g.services), slices.Clone(g.backends)
	s.Certificates, s.RevocationLists, s.Recent = map[string]time.Time{}, map[string]time.Time{}, map[string]admin.Recent{}
	certs := map[string]*certificates{}
	addresses := make([]string, len(services))
	proxies := map[config.Protocol][]extend.Proxy{}
	for i, svc := range services {
		proxies[svc.cfg.Protocol] = append(proxies[svc.cfg.Protocol], svc.proxy)
		addresses[i] = address(svc.socket)
		if svc.cert != nil {
			certs[svc.cfg.Name] = svc.cert
		}
		s.NotReady = append(s.NotReady, svc.failures()...)
	}
	for _, b := range backends {
		p := extend.ProtocolOf(b.cfg.Protocol)
		s.Upstreams = append(s.Upstreams, admin.Upstream{Protocol: string(b.cfg.Protocol), Reuses: p != nil && p.Reuses, Heavy: p != nil && p.Heavy})
	}
	leavers := g.retiring
	g.mu.Unlock()
	for name, c := range certs { // extensions are not called under mu
		s.Certificates[name], s.RevocationLists[name] = c.expires(), c.listsExpire()
	}
	s.Additions = g.additions(proxies)
	for _, l := range leavers {
		l.shown.Active = l.active()
		s.Retiring = append(s.Retiring, l.shown)
	}
	for i, svc := range services {
		stats := svc.proxy.Stats()
		stats.Address = addresses[i]
		s.Listeners = append(s.Listeners, stats)
		if unit, total := totalOf(stats); unit != "" {
			r := admin.Recent{Unit: unit}
			r.Total, r.Over = svc.recent.Since(now, total)
			s.Recent[stats.Name] = r
		}
	}
	for i, b := range backends {
		u := &s.Upstreams[i]
		u.Status = b.impl.Status()
		u.Recent = b.recent.since(now, &u.Status)
	}
	return s
}

// additions are the rows of extensions and protocols.
func (g *Gateway) additions(proxies map[config.Protocol][]extend.Proxy) (all []admin.Addition) {
	all = append(all, g.showLogs(), oldProcessReport.Of(g.processes.statuses(time.Now())))
	for _, p := range g.parts {
		all = append(all, p.Show()...)
	}
	for _, p := range extend.Protocols() {
		if p.Show != nil {
			all = append(all, p.Show(proxies[p.Config.Name])...)
		}
	}
	return all
}
