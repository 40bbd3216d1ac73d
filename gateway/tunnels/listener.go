package tunnels

import (
	"context"
	"fmt"
	"net"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/tunnel"
)

// offLoop: package mux reads and writes sockets in its own way.
func offLoop(*config.Config, *config.Listener) bool { return true }

// replaces reports a change that cannot be made in running sessions.
func replaces(old, changed *config.Listener) bool {
	return config.SectionOf[Listener](old).ResumeWindow != config.SectionOf[Listener](changed).ResumeWindow
}

func maxConns(l *config.Listener) int { return config.SectionOf[Listener](l).MaxSessions }

// prepare translates a tunnel listener.
func prepare(l extend.Listener) (extend.Server, error) {
	t := config.SectionOf[Listener](l.Listener)
	policy, err := policyOf(l.Gateway, t.Upstreams, t.Allow)
	if err != nil {
		return extend.Server{}, err
	}
	policy.Timeout = t.DialTimeout
	peers, err := peersOf(l.Gateway, t.Peers)
	if err != nil {
		return extend.Server{}, err
	}
	cfg := tunnel.ServerConfig{
		Listener: l.Common, TLS: l.TLS, Peers: peers, MaxSessions: t.MaxSessions, MaxSessionsPerPeer: t.PeerSessions,
		Insecure: config.Loopback(l.Listen), // config has refused it elsewhere, and warned
		Config: tunnel.Config{
			Name: l.Name, // for the peers' logs
			PSK:  []byte(t.PSK.Reveal()), Policy: policy, MaxStreams: t.MaxStreams, ResumeWindow: t.ResumeWindow, KeepAlive: t.KeepAlive, Logger: l.Gateway.Logger(),
		},
	}
	return extend.Serve(cfg, tunnel.NewServer)
}

// peersOf translates the peers of a tunnel listener.
func peersOf(g extend.Gateway, all []Peer) (peers []tunnel.Peer, err error) {
	for _, p := range all {
		peer := tunnel.Peer{Name: p.Name}
		for _, key := range p.Keys {
			peer.Keys = append(peer.Keys, []byte(key.Reveal()))
		}
		if peer.Policy, err = policyOf(g, p.Upstreams, p.Allow); err != nil {
			return nil, fmt.Errorf("peer %q: %w", p.Name, err)
		}
		peers = append(peers, peer)
	}
	return peers, nil
}

// policyOf returns the targets that the other side of a tunnel may connect to.
func policyOf(g extend.Gateway, upstreams []string, allow []Rule) (tunnel.Policy, error) {
	p := tunnel.Policy{Upstreams: map[string]func(context.Context) (net.Conn, error){}}
	for _, name := range upstreams {
		p.Upstreams[name] = func(ctx context.Context) (net.Conn, error) { return offered(ctx, g, name) }
	}
	for _, text := range allow {
		rule, err := tunnel.ParseRule(string(text))
		if err != nil {
			return p, err
		}
		p.Allow = append(p.Allow, rule)
	}
	return p, nil
}

// offered connects to an upstream that the other side of a tunnel has named, as it is configured now.
func offered(ctx context.Context, g extend.Gateway, name string) (net.Conn, error) {
	u, ok := g.Upstream(name).(interface {
		Connect(ctx context.Context) (net.Conn, error)
	})
	if !ok {
		return nil, fmt.Errorf("upstream %q: %w", name, errStarting)
	}
	return u.Connect(ctx)
}
