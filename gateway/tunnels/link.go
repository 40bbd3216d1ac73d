package tunnels

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/tunnel"
)

// link is a running tunnel that this gateway makes.
type link struct {
	cfg    Tunnel // used by Plan and its commits
	files  extend.Fingerprint
	client *tunnel.Client
}

// clientConfig translates a tunnel, and checks it.
func (p *part) clientConfig(t *Tunnel) (cfg tunnel.ClientConfig, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("tunnel %q: %w", t.Name, err)
		}
	}()
	tlsConfig, err := extend.ClientTLS(t.TLS)
	if err != nil {
		return cfg, err
	}
	policy, err := policyOf(p.gateway, t.Upstreams, t.Allow)
	if err != nil {
		return cfg, err
	}
	policy.Timeout = t.DialTimeout
	cfg = tunnel.ClientConfig{
		Tunnel: t.Name, Address: t.Connect[0], Fallbacks: t.Connect[1:], TLS: tlsConfig, Sessions: t.Sessions,
		Config: tunnel.Config{
			Name: t.As, PSK: []byte(t.PSK.Reveal()), Policy: policy, MaxStreams: t.MaxStreams, ResumeWindow: t.ResumeWindow, KeepAlive: t.KeepAlive,
			Logger: p.gateway.Logger(),
		},
	}
	return cfg, cfg.Verify()
}

// newLink begins to connect.
func (p *part) newLink(t *Tunnel, files extend.Fingerprint) (*link, error) {
	cfg, err := p.clientConfig(t)
	if err != nil {
		return nil, err
	}
	client, err := tunnel.NewClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("tunnel %q: %w", t.Name, err)
	}
	return &link{cfg: *t, files: files, client: client}, nil
}

// Plan implements extend.Part: it keeps, updates, makes and retires the tunnels that this gateway makes.
func (p *part) Plan(plan *extend.Plan) error {
	p.mu.Lock()
	old := p.links
	p.mu.Unlock()
	next := state{links: map[string]*link{}, tunnels: tunnelsOf(plan.New), upstreams: plan.New.Upstreams}
	for i := range next.tunnels {
		t := &next.tunnels[i]
		if len(t.Connect) == 0 {
			continue
		}
		l, err := p.planLink(plan, t, old[t.Name])
		if err != nil {
			return err
		}
		next.links[t.Name] = l
	}
	var removed []*link
	for name, l := range old {
		if next.links[name] == l {
			continue
		}
		removed = append(removed, l)
		plan.Retired = append(plan.Retired, &extend.Retired{
			Kind: "tunnel", Name: name, Protocol: string(Protocol), Sessions: "connections through a removed tunnel",
			Active: func() int { return l.client.Stats().Streams }, Drain: l.client.Drain, Gone: func() { p.drained(l) },
		})
		if next.links[name] == nil {
			plan.Changes = append(plan.Changes, fmt.Sprintf("tunnel %s removed", name))
		}
	}
	if plan.Old == nil { // warming pools use the tunnels before the commit
		p.swap(next, nil)
	}
	plan.Swap = append(plan.Swap, func() { p.swap(next, removed) })
	return nil
}

// planLink returns the link of a tunnel: old, if it can be updated.
func (p *part) planLink(plan *extend.Plan, t *Tunnel, old *link) (*link, error) {
	files, err := extend.FingerprintOf(extend.TLSFiles(t.TLS)...)
	if err != nil {
		return nil, fmt.Errorf("tunnel %q: %w", t.Name, err)
	}
	if old == nil || old.files != files || !reflect.DeepEqual(withoutPolicy(old.cfg), withoutPolicy(*t)) {
		l, err := p.newLink(t, files)
		if err != nil {
			return nil, err
		}
		plan.Abort = append(plan.Abort, func() { l.client.Close() })
		plan.Changes = append(plan.Changes, fmt.Sprintf("tunnel %s made", t.Name))
		return l, nil
	}
	if reflect.DeepEqual(old.cfg, *t) {
		return old, nil
	}
	policy, err := policyOf(p.gateway, t.Upstreams, t.Allow)
	if err != nil {
		return nil, fmt.Errorf("tunnel %q: %w", t.Name, err)
	}
	policy.Timeout = t.DialTimeout
	plan.Changes = append(plan.Changes, fmt.Sprintf("tunnel %s changed", t.Name))
	plan.Commit = append(plan.Commit, func() error {
		old.cfg = *t
		return old.client.SetPolicy(policy)
	})
	return old, nil
}

// withoutPolicy returns the settings that a session depends on.
func withoutPolicy(t Tunnel) Tunnel {
	t.Upstreams, t.Allow, t.DialTimeout = nil, nil, 0
	return t
}

// errStarting: a tunnel or upstream of a configuration that is not in force yet.
var errStarting = errors.New("the gateway is starting or reloading")
