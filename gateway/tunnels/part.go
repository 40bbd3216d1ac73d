package tunnels

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/tunnel"
)

// part has the tunnels of one gateway: the tunnels it opens, and its connections through tunnels that peers have
// opened.
type part struct {
	gateway extend.Gateway

	mu sync.Mutex // never held during calls of the gateway or a tunnel
	state
	retired []*link // by a reload, and not drained yet
}

// state is the state for one configuration.
type state struct {
	links     map[string]*link // tunnels that this gateway makes, by name
	tunnels   []Tunnel
	upstreams []config.Upstream
}

func newPart(g extend.Gateway) extend.Part { return &part{gateway: g} }

// Check implements extend.Part.
func (p *part) Check(cfg *config.Config, report func(err error, at any)) {
	all := tunnelsOf(cfg)
	for i := range all {
		if t := &all[i]; len(t.Connect) > 0 {
			if _, err := p.clientConfig(t); err != nil {
				report(err, &t.Name)
			}
		}
	}
}

// swap puts a state into force.
func (p *part) swap(next state, retired []*link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.retired = next, append(p.retired, retired...)
}

// drained records that a retired link has drained.
func (p *part) drained(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = slices.DeleteFunc(p.retired, func(r *link) bool { return r == l })
}

// now returns the link and the configuration of a tunnel, nil if there is none.
func (p *part) now(name string) (*link, *Tunnel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.tunnels {
		if p.tunnels[i].Name == name {
			return p.links[name], &p.tunnels[i]
		}
	}
	return nil, nil
}

// server returns a running tunnel listener, or nil.
func (p *part) server(listener string) *tunnel.Server {
	for name, proxy := range p.gateway.Proxies() {
		if server, ok := proxy.(*tunnel.Server); ok && name == listener {
			return server
		}
	}
	return nil
}

// Carrier implements extend.Part.
func (p *part) Carrier(u *config.Upstream) (listener string, ok bool) {
	_, t := p.now(through(u))
	if t == nil {
		return "", false
	}
	return t.Listener, true
}

// Retreats implements extend.Part. Upstreams of optimistic protocols keep nothing idle.
func (p *part) Retreats(u *config.Upstream) bool {
	name := through(u)
	if name == "" || u.Optimistic() {
		return false
	}
	l, t := p.now(name)
	switch {
	case l != nil && l.client.Draining():
		return true
	case l == nil && t != nil:
		if s := p.server(t.Listener); s != nil && s.Draining(t.Peer) {
			return true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.retired, func(l *link) bool { return l.cfg.Name == name })
}

// Drain implements extend.Part.
func (p *part) Drain(ctx context.Context, last bool) error {
	p.mu.Lock()
	var clients []*tunnel.Client
	for name, l := range p.links {
		if last == slices.ContainsFunc(p.upstreams, func(u config.Upstream) bool { return through(&u) == name }) {
			clients = append(clients, l.client)
		}
	}
	p.mu.Unlock()
	errs := make([]error, len(clients))
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() { errs[i] = c.Drain(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Registers implements extend.Part.
func (p *part) Registers() (all []extend.Register) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		all = append(all, l.client)
	}
	for _, l := range p.retired {
		all = append(all, l.client)
	}
	return all
}

// Show implements extend.Part.
func (p *part) Show() []admin.Addition {
	var rows []Status
	p.mu.Lock()
	now := p.state
	p.mu.Unlock()
	for _, t := range now.tunnels {
		if l := now.links[t.Name]; l != nil {
			rows = append(rows, statusOf(Connects, l.client.Stats()))
		}
	}
	for name, proxy := range p.gateway.Proxies() {
		if server, ok := proxy.(*tunnel.Server); ok {
			stats := server.Tunnel()
			stats.FailingSince, stats.LastError = now.absent(name, server)
			rows = append(rows, statusOf(Listens, stats))
		}
	}
	return []admin.Addition{report.Of(rows)}
}

// absent returns the peers, named by tunnels, that are not connected to a listener, and since when the
// first of them is not.
func (s state) absent(listener string, server *tunnel.Server) (first time.Time, err error) {
	for _, t := range s.tunnels {
		if t.Listener != listener {
			continue
		}
		since, why := server.Absent(t.Peer)
		if why == nil {
			continue
		}
		if err = errors.Join(err, why); first.IsZero() || since.Before(first) {
			first = since
		}
	}
	return first, err
}
