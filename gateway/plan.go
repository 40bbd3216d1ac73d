package gateway

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/traffic"
)

// plan is the transition from the running configuration to another one. Making it does everything that
// can fail, and changes nothing that runs; then either abort or commit is called.
type plan struct {
	extend.Plan
	backends []*backend // all of the new configuration, in its order
	services []*service // all of the new configuration, in its order
	admin    *adminServer

	touched map[string]bool // upstreams whose proxies need an update: new ones, and those with another connect_timeout or tls

	opened  []*socket  // bound for the plan
	created []*backend // built for the plan

	starts          []start // services to start
	closed          []start // sockets that had failed under the previous service, and still cannot be opened: see stillFailed
	retiredSockets  []*socket
	retiredProxies  []*service
	retiredBackends []*backend
	retiredAdmin    *adminServer
}

// start is one socket to serve by one service.
type start struct {
	service *service
	socket  *socket
}

// start serves a new service. old is the one that it replaces, if any; a failed socket that it keeps from old is opened later.
func (p *plan) start(svc, old *service) {
	for _, sock := range svc.sockets() {
		if old != nil && slices.Contains(old.sockets(), sock) {
			p.closed = append(p.closed, start{svc, sock})
		} else {
			p.starts = append(p.starts, start{svc, sock})
		}
	}
}

// abort closes everything that the plan opened.
func (p *plan) abort() {
	for _, undo := range slices.Backward(p.Abort) {
		undo()
	}
	for _, s := range p.opened {
		s.retire()
	}
	inParallel(p.created, func(b *backend) error { b.drop(); return nil })
}

// newPlan prepares cfg beside the running configuration. g.reloading is held.
func (g *Gateway) newPlan(cfg *config.Config) (*plan, error) {
	p := &plan{Plan: extend.Plan{Old: g.cfg, New: cfg}, touched: map[string]bool{}}
	err := g.planParts(p)
	if err == nil {
		err = g.planBackends(p)
	}
	if err == nil {
		err = g.planLogs(p)
	}
	if err == nil {
		err = g.planServices(p)
	}
	if err == nil {
		err = g.planAdmin(p)
	}
	if err != nil {
		p.abort()
		return nil, err
	}
	if g.cfg != nil && g.cfg.Log != cfg.Log {
		p.change("log changed")
	}
	if g.cfg != nil && g.cfg.DrainTimeout != cfg.DrainTimeout {
		p.change("drain_timeout changed")
	}
	return p, nil
}

func (p *plan) change(format string, args ...any) {
	p.Changes = append(p.Changes, fmt.Sprintf(format, args...))
}

// planBackends keeps, updates, builds and retires upstreams.
func (g *Gateway) planBackends(p *plan) error {
	old := map[string]*backend{}
	for _, b := range g.backends {
		old[b.cfg.Name] = b
	}
	for i := range p.New.Upstreams {
		u := &p.New.Upstreams[i]
		b, err := g.planBackend(p, u, old[u.Name])
		if err != nil {
			return err
		}
		p.backends = append(p.backends, b)
		if old[u.Name] == b {
			delete(old, u.Name)
		}
	}
	for _, b := range g.backends {
		if old[b.cfg.Name] == b {
			p.retiredBackends = append(p.retiredBackends, b)
			if p.New.Upstream(b.cfg.Name) == nil {
				p.change("upstream %s removed", b.cfg.Name)
			}
		}
	}
	return nil
}

func (g *Gateway) planBackend(p *plan, u *config.Upstream, old *backend) (*backend, error) {
	files, err := extend.FingerprintOf(extend.TLSFiles(u.TLS)...)
	if err != nil {
		return nil, fmt.Errorf("upstream %q: %w", u.Name, err)
	}
	if old == nil || !old.canUpdate(u, files) {
		b, err := g.newBackend(u, old)
		if err != nil {
			return nil, err
		}
		p.created = append(p.created, b)
		p.touched[u.Name] = true
		if old != nil {
			p.change("upstream %s replaced", u.Name)
			if err := g.planFollow(p, u, old, b); err != nil {
				return nil, err
			}
		} else if g.cfg != nil {
			p.change("upstream %s added", u.Name)
		}
		return b, nil
	}
	same, undone := reflect.DeepEqual(old.cfg, *u) && old.files == files, old.temporary()
	if same && len(undone) == 0 {
		return old, nil
	}
	s, err := g.settingsOf(u, old)
	if err != nil {
		return nil, fmt.Errorf("upstream %q: %w", u.Name, err)
	}
	cfg := *u
	s.Overrides = old.kept()
	p.touched[u.Name] = old.files != files || old.cfg.ConnectTimeout != u.ConnectTimeout || !reflect.DeepEqual(old.cfg.TLS, u.TLS)
	if !same {
		p.change("upstream %s changed", u.Name)
	}
	if len(undone) > 0 {
		p.change("changes by operators undone in upstream %s: %s", u.Name, strings.Join(undone, " "))
	}
	p.Commit = append(p.Commit, func() error {
		if err := old.impl.Update(s); err != nil {
			return fmt.Errorf("upstream %q: %w", u.Name, err)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		old.cfg, old.files, old.source = cfg, files, s.Source
		return nil
	})
	return old, nil
}

// planServices keeps, updates, builds and retires listeners.
func (g *Gateway) planServices(p *plan) error {
	view := map[string]*backend{} // the backends as they will be after the commit
	for _, b := range p.backends {
		view[b.cfg.Name] = &backend{cfg: *p.New.Upstream(b.cfg.Name), impl: b.impl}
	}
	old := map[string]*service{}
	for _, s := range g.services {
		old[s.cfg.Name] = s
	}
	for i := range p.New.Listeners {
		l := &p.New.Listeners[i]
		if err := g.planService(p, l, old[l.Name], view); err != nil {
			return err
		}
		delete(old, l.Name)
	}
	for _, s := range g.services {
		if old[s.cfg.Name] == s {
			p.retiredSockets = append(p.retiredSockets, s.sockets()...)
			p.retiredProxies = append(p.retiredProxies, s)
			p.change("listener %s removed", s.cfg.Name)
		}
	}
	return nil
}

func (g *Gateway) planService(p *plan, l *config.Listener, old *service, view map[string]*backend) error {
	hold := &certificates{}
	replace := old != nil && (needsNewProxy(&old.cfg, l) || old.fibers != onFibers(l, p.New))
	if old != nil && old.cert != nil && !replace {
		hold = old.cert
	}
	s, err := g.newSpec(l, view, hold)
	switch {
	case err != nil:
		return err
	case old == nil:
		return g.addService(p, s, hold)
	case replace:
		return g.replaceService(p, s, old, hold)
	}
	p.services = append(p.services, old)
	changed := !sameListener(old.cfg, *l) || old.files != s.files
	for _, name := range l.Upstreams() {
		changed = changed || p.touched[name]
	}
	if changed || old.cfg.Listen != l.Listen || g.hasFailed(old) {
		return g.changeService(p, s, old, hold, changed)
	}
	return nil
}

// changeService applies s to a listener that continues. changed says that more than its address and its failed sockets is different.
func (g *Gateway) changeService(p *plan, s *spec, svc *service, hold *certificates, changed bool) error {
	p.Commit = append(p.Commit, func() error { return g.updateService(svc, s, hold) })
	if err := g.changeSockets(p, s, svc); err != nil {
		return err
	}
	reopened := slices.ContainsFunc(p.retiredSockets, func(sock *socket) bool {
		return slices.Contains(svc.sockets(), sock) && g.failure(sock) != nil
	})
	switch {
	case svc.cfg.Listen != s.cfg.Listen:
		p.change("listener %s moves from %s to %s", s.cfg.Name, svc.cfg.Listen, s.cfg.Listen)
	case reopened:
		p.change("listener %s opened again", s.cfg.Name)
	case changed:
		p.change("listener %s changed", s.cfg.Name)
	}
	return nil
}

// changeSockets opens the sockets that a service needs for s: at another address, in place of one that has failed, or for a protocol that now
// has two. The others stay as they are, and so does one that has failed and whose address is still taken. What the service does not need any
// more is closed once the new ones are served.
func (g *Gateway) changeSockets(p *plan, s *spec, svc *service) error {
	first, err := g.changeFirst(p, s, svc)
	if err != nil && g.stillFailed(p, s, svc, svc.firstFor(&s.cfg), err) {
		first, err = svc.socket, nil
	}
	if err != nil {
		return err
	}
	err = g.changeSecond(p, s, svc, first)
	if err != nil && g.stillFailed(p, s, svc, svc.besideFor(&s.cfg, first), err) {
		return nil
	}
	return err
}

// changeFirst is changeSockets for the first socket, which it returns.
func (g *Gateway) changeFirst(p *plan, s *spec, svc *service) (*socket, error) {
	if svc.cfg.Listen == s.cfg.Listen && g.failure(svc.socket) == nil {
		if !reflect.DeepEqual(svc.cfg.Socket, s.cfg.Socket) {
			if err := p.permit(s.perm, s.cfg.Listen); err != nil {
				return nil, fmt.Errorf("listener %q: %w", s.cfg.Name, err)
			}
		}
		return svc.socket, nil
	}
	first, err := g.openListener(p, s, svc)
	if err != nil {
		return nil, err
	}
	p.starts = append(p.starts, start{svc, first})
	p.retiredSockets = append(p.retiredSockets, svc.socket)
	p.Commit = append(p.Commit, func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		svc.socket = first
		return nil
	})
	return first, nil
}

// changeSecond is changeSockets for the second socket of a service whose first one is given.
func (g *Gateway) changeSecond(p *plan, s *spec, svc *service, first *socket) error {
	beside, err := g.openBeside(p, s, first, svc)
	if err != nil {
		return err
	}
	g.changeBeside(p, svc, beside)
	return nil
}

// updateService applies s in place.
func (g *Gateway) updateService(svc *service, s *spec, hold *certificates) error {
	if s.cert != nil {
		hold.current.Store(s.cert)
	}
	if err := s.server.Update(svc.proxy); err != nil {
		return fmt.Errorf("listener %q: %w", s.cfg.Name, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	svc.cfg, svc.files, svc.cert = s.cfg, s.files, nil
	if s.cert != nil {
		svc.cert = hold
	}
	return nil
}

// addService opens and builds a listener that did not exist.
func (g *Gateway) addService(p *plan, s *spec, hold *certificates) error {
	svc, err := g.newService(p, s, nil, hold)
	if err != nil {
		return err
	}
	p.services = append(p.services, svc)
	p.start(svc, nil)
	p.change("listener %s added", s.cfg.Name)
	return nil
}

// newService opens the sockets of a listener (see open) and builds its proxy. old is its previous service, if any; the new one keeps a socket of
// old that has failed and whose address is still taken.
func (g *Gateway) newService(p *plan, s *spec, old *service, hold *certificates) (*service, error) {
	sock, err := g.openListener(p, s, old)
	if err != nil {
		if sock = old.firstFor(&s.cfg); !g.stillFailed(p, s, old, sock, err) {
			return nil, err
		}
	}
	beside, err := g.openBeside(p, s, sock, nil)
	if err != nil {
		if beside = old.besideFor(&s.cfg, sock); !g.stillFailed(p, s, old, beside, err) {
			return nil, err
		}
	}
	if s.cert != nil {
		hold.current.Store(s.cert)
	} else {
		hold = nil
	}
	proxy, err := s.server.Create()
	if err != nil {
		return nil, fmt.Errorf("listener %q: %w", s.cfg.Name, err)
	}
	return &service{cfg: s.cfg, files: s.files, proxy: proxy, socket: sock, beside: beside, cert: hold, fibers: onFibers(&s.cfg, p.New), recent: traffic.NewWindow(time.Now())}, nil
}

// replaceService builds a new proxy for a listener; the sessions of the old one finish there.
func (g *Gateway) replaceService(p *plan, s *spec, old *service, hold *certificates) error {
	svc, err := g.newService(p, s, old, hold)
	if err != nil {
		return err
	}
	p.services = append(p.services, svc)
	p.start(svc, old)
	for _, sock := range old.sockets() {
		if !slices.Contains(svc.sockets(), sock) {
			p.retiredSockets = append(p.retiredSockets, sock)
		}
	}
	p.retiredProxies = append(p.retiredProxies, old)
	p.change("listener %s replaced", s.cfg.Name)
	return nil
}

// planAdmin opens the admin address if it is a new one.
func (g *Gateway) planAdmin(p *plan) error {
	if g.cfg != nil && g.cfg.Admin == p.New.Admin {
		p.admin = g.admin
		return nil
	}
	if p.retiredAdmin = g.admin; g.admin != nil {
		p.retiredSockets = append(p.retiredSockets, g.admin.socket)
	}
	if g.cfg != nil {
		p.change("admin page moves from %s to %s", cmp.Or(g.cfg.Admin, "nowhere"), cmp.Or(p.New.Admin, "nowhere"))
	}
	if p.New.Admin == "" {
		return nil
	}
	sock, err := g.open(p, nil, "admin", p.New.Admin, permission{}, nil)
	if err != nil {
		return err
	}
	p.admin, err = g.newAdmin(sock, p.New.Admin)
	return err
}
