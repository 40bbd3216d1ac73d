package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/tunnel"
)

// link is a tunnel that this gateway makes, running.
type link struct {
	cfg    config.Tunnel // guarded by Gateway.mu
	files  fingerprint
	client *tunnel.Client
}

// linkConfig translates a tunnel, and checks it.
func (g *Gateway) linkConfig(t *config.Tunnel) (cfg tunnel.ClientConfig, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("tunnel %q: %w", t.Name, err)
		}
	}()
	tlsConfig, err := clientConfig(t.TLS)
	if err != nil {
		return cfg, err
	}
	policy, err := g.policy(t.Upstreams, t.Allow)
	if err != nil {
		return cfg, err
	}
	policy.Timeout = t.DialTimeout
	cfg = tunnel.ClientConfig{
		Tunnel: t.Name, Address: t.Connect[0], Fallbacks: t.Connect[1:], TLS: tlsConfig, Sessions: t.Sessions,
		Config: tunnel.Config{
			Name: t.As, PSK: []byte(t.PSK.Reveal()), Policy: policy, MaxStreams: t.MaxStreams, ResumeWindow: t.ResumeWindow, KeepAlive: t.KeepAlive, Logger: g.logger,
		},
	}
	return cfg, cfg.Verify()
}

// newLink begins to connect.
func (g *Gateway) newLink(t *config.Tunnel, files fingerprint) (*link, error) {
	cfg, err := g.linkConfig(t)
	if err != nil {
		return nil, err
	}
	client, err := tunnel.NewClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("tunnel %q: %w", t.Name, err)
	}
	return &link{cfg: *t, files: files, client: client}, nil
}

// policy is what the other side of a tunnel may have connected here.
func (g *Gateway) policy(upstreams, allow []string) (tunnel.Policy, error) {
	p := tunnel.Policy{Upstreams: map[string]func(context.Context) (net.Conn, error){}}
	for _, name := range upstreams {
		p.Upstreams[name] = func(ctx context.Context) (net.Conn, error) { return g.offered(ctx, name) }
	}
	for _, text := range allow {
		rule, err := tunnel.ParseRule(text)
		if err != nil {
			return p, err
		}
		p.Allow = append(p.Allow, rule)
	}
	return p, nil
}

// errStarting: a tunnel or upstream of a configuration that is not in force yet.
var errStarting = errors.New("the gateway is starting or reloading")

// offered connects to an upstream that the other side of a tunnel has named, as it is configured now.
func (g *Gateway) offered(ctx context.Context, name string) (net.Conn, error) {
	g.mu.Lock()
	var found *offeredBackend
	for _, b := range g.backends {
		if impl, ok := b.impl.(*offeredBackend); ok && b.cfg.Name == name {
			found = impl
		}
	}
	g.mu.Unlock()
	if found == nil {
		return nil, fmt.Errorf("upstream %q: %w", name, errStarting)
	}
	return found.connect(ctx)
}

// dialer returns how an upstream's endpoints are connected to, and how a connection is opened ahead of its user (pool.Config.Go).
func (g *Gateway) dialer(u *config.Upstream) (dial func(ctx context.Context, endpoint string) (net.Conn, error), start func(func())) {
	switch {
	case u.Tunnel == "" && u.Protocol == config.TunnelProtocol:
		return nil, nil // package net's: the users are goroutines
	case u.Tunnel == "" && u.Protocol == config.TCP:
		return g.dial, fiber.Go
	case u.Tunnel == "":
		return g.dialKept, fiber.Go
	}
	name, wait := u.Tunnel, u.Protocol != config.TCP
	return func(ctx context.Context, endpoint string) (net.Conn, error) {
		c, err := g.through(ctx, name, endpoint, wait)
		if err != nil {
			return nil, err
		}
		return &throughConn{Conn: fiber.Wrap(c), inner: c}, nil
	}, nil // opening may wait on something else than the engine
}

// through opens a connection through a tunnel. wait says whether to wait until it stands: connections that are pooled are worth the round
// trip, because then another endpoint can be tried; one that has its client waiting is not.
func (g *Gateway) through(ctx context.Context, name, target string, wait bool) (*tunnel.Conn, error) {
	for {
		conn, by, err := g.throughNow(ctx, name, target, wait)
		if err == nil || by == nil || !errors.Is(err, tunnel.ErrClosed) {
			return conn, err
		}
		g.mu.Lock()
		replaced := g.links[name] != nil && g.links[name].client != by
		g.mu.Unlock()
		if !replaced {
			return nil, err
		}
	}
}

// throughNow is through what the tunnel is now; by is the client that was asked, if it is one.
func (g *Gateway) throughNow(ctx context.Context, name, target string, wait bool) (conn *tunnel.Conn, by *tunnel.Client, err error) {
	g.mu.Lock()
	var client *tunnel.Client
	var server *tunnel.Server
	peer := ""
	if l := g.links[name]; l != nil {
		client = l.client
	} else if g.cfg != nil {
		if t := g.cfg.Tunnel(name); t != nil {
			peer = t.Peer
			server = g.tunnelServer(t.Listener)
		}
	}
	g.mu.Unlock()
	switch {
	case client != nil && wait:
		conn, err = client.Dial(ctx, target)
	case client != nil:
		conn, err = client.Open(ctx, target)
	case server != nil && wait:
		conn, err = server.Dial(ctx, peer, target)
	case server != nil:
		conn, err = server.Open(ctx, peer, target)
	default:
		err = fmt.Errorf("tunnel %q: %w", name, errStarting)
	}
	return conn, client, err
}

// tunnelServer returns a running tunnel listener, or nil. mu is held.
func (g *Gateway) tunnelServer(listener string) *tunnel.Server {
	for _, s := range g.services {
		if server, ok := s.proxy.(*tunnel.Server); ok && s.cfg.Name == listener {
			return server
		}
	}
	return nil
}

// throughConn is a connection through a tunnel as pools see it: once the tunnel drains or is lost it is no longer quiet, so that it is
// closed when it is idle, and then reading fails, so that nobody waits for what made it unquiet; nor is it once something has arrived.
type throughConn struct {
	net.Conn
	inner   *tunnel.Conn
	leaving atomic.Bool
}

var errLeaving = fmt.Errorf("the tunnel drains: %w", net.ErrClosed)

// Quiet reports whether the connection can be given to somebody.
func (c *throughConn) Quiet() bool {
	if c.inner.Leaving() {
		c.leaving.Store(true)
		return false
	}
	return c.inner.Quiet()
}

// Read implements net.Conn.
func (c *throughConn) Read(p []byte) (int, error) {
	if c.leaving.Load() {
		return 0, errLeaving
	}
	return c.Conn.Read(p)
}

// CloseWrite sends a FIN.
func (c *throughConn) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

// SetLinger makes Close a reset.
func (c *throughConn) SetLinger(seconds int) error { return c.inner.SetLinger(seconds) }

// tunnel translates a tunnel listener.
func (s *spec) tunnel(g *Gateway, l *config.Listener, serverTLS *tls.Config) error {
	t := l.Tunnel
	policy, err := g.policy(t.Upstreams, t.Allow)
	if err != nil {
		return err
	}
	policy.Timeout = t.DialTimeout
	peers, err := g.peers(t.Peers)
	if err != nil {
		return err
	}
	cfg := tunnel.ServerConfig{
		Listener: g.listenerConfig(l), TLS: serverTLS, Peers: peers, MaxSessions: t.MaxSessions, MaxSessionsPerPeer: t.PeerSessions,
		Insecure: config.Loopback(l.Listen), // config has refused it elsewhere, and warned
		Config: tunnel.Config{
			Name: l.Name, // for the peers' logs
			PSK:  []byte(t.PSK.Reveal()), Policy: policy, MaxStreams: t.MaxStreams, ResumeWindow: t.ResumeWindow, KeepAlive: t.KeepAlive, Logger: g.logger,
		},
	}
	if serverTLS != nil && l.TLS.ClientCA != "" {
		pem, err := l.TLS.ClientCA.Read()
		if err != nil {
			return fmt.Errorf("tls: client_ca: %w", err)
		}
		serverTLS.ClientAuth, serverTLS.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		if !serverTLS.ClientCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("tls: client_ca: %s has no PEM certificate in it", l.TLS.ClientCA)
		}
	}
	s.verify = cfg.Verify
	s.create = func() (proxy, error) { return tunnel.NewServer(cfg) }
	s.update = func(p proxy) error { return p.(*tunnel.Server).Update(cfg) }
	return nil
}

// peers translates those that may connect to a tunnel listener.
func (g *Gateway) peers(all []config.TunnelPeer) (peers []tunnel.Peer, err error) {
	for _, p := range all {
		peer := tunnel.Peer{Name: p.Name}
		for _, key := range p.Keys {
			peer.Keys = append(peer.Keys, []byte(key.Reveal()))
		}
		if peer.Policy, err = g.policy(p.Upstreams, p.Allow); err != nil {
			return nil, fmt.Errorf("peer %q: %w", p.Name, err)
		}
		peers = append(peers, peer)
	}
	return peers, nil
}

// planLinks keeps, updates, makes and retires the tunnels that this gateway makes.
func (g *Gateway) planLinks(p *plan) error {
	p.links = map[string]*link{}
	for i := range p.cfg.Tunnels {
		t := &p.cfg.Tunnels[i]
		if len(t.Connect) == 0 {
			continue
		}
		if err := g.planLink(p, t); err != nil {
			return err
		}
	}
	for name, l := range g.links {
		if p.links[name] != l {
			p.retiredLinks = append(p.retiredLinks, l)
			if p.links[name] == nil {
				p.change("tunnel %s removed", name)
			}
		}
	}
	if g.cfg == nil { // pools that warm up use them before there is anything to commit
		g.mu.Lock()
		g.links = p.links
		g.mu.Unlock()
	}
	return nil
}

func (g *Gateway) planLink(p *plan, t *config.Tunnel) error {
	files, err := fingerprintOf(tlsFiles(t.TLS)...)
	if err != nil {
		return fmt.Errorf("tunnel %q: %w", t.Name, err)
	}
	old := g.links[t.Name]
	if old == nil || old.files != files || !reflect.DeepEqual(withoutPolicy(old.cfg), withoutPolicy(*t)) {
		l, err := g.newLink(t, files)
		if err != nil {
			return err
		}
		p.links[t.Name] = l
		p.createdLinks = append(p.createdLinks, l)
		if g.cfg != nil {
			p.change("tunnel %s made", t.Name)
		}
		return nil
	}
	p.links[t.Name] = old
	if reflect.DeepEqual(old.cfg, *t) {
		return nil
	}
	policy, err := g.policy(t.Upstreams, t.Allow)
	if err != nil {
		return fmt.Errorf("tunnel %q: %w", t.Name, err)
	}
	policy.Timeout = t.DialTimeout
	p.change("tunnel %s changed", t.Name)
	p.commits = append(p.commits, func() error {
		g.mu.Lock()
		old.cfg = *t
		g.mu.Unlock()
		return old.client.SetPolicy(policy)
	})
	return nil
}

// withoutPolicy is what a session depends on.
func withoutPolicy(t config.Tunnel) config.Tunnel {
	t.Upstreams, t.Allow, t.DialTimeout = nil, nil, 0
	return t
}

// tunnels are the states of all tunnels. mu is held.
func (g *Gateway) tunnels() []admin.Tunnel {
	var all []admin.Tunnel
	for i := range g.cfg.Tunnels {
		t := &g.cfg.Tunnels[i]
		if l := g.links[t.Name]; l != nil {
			all = append(all, admin.Tunnel{Side: admin.Connects, Stats: l.client.Stats()})
		}
	}
	for _, s := range g.services {
		if server, ok := s.proxy.(*tunnel.Server); ok {
			stats := server.Tunnel()
			stats.FailingSince, stats.LastError = g.absent(s.cfg.Name, server)
			all = append(all, admin.Tunnel{Side: admin.Listens, Stats: stats})
		}
	}
	return all
}

// absent says which of the peers that tunnels name are not connected to a listener, and since when the first of them. mu is held.
func (g *Gateway) absent(listener string, server *tunnel.Server) (first time.Time, err error) {
	for i := range g.cfg.Tunnels {
		t := &g.cfg.Tunnels[i]
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
