package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"reflect"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/tcpproxy"
)

// proxy is what the proxies have in common.
type proxy interface {
	Serve(l net.Listener) error
	Drain(ctx context.Context) error
	Stats() listener.Stats
}

// service is one listener of the configuration, running. Its fields are guarded by Gateway.mu.
type service struct {
	cfg    config.Listener
	files  fingerprint
	proxy  proxy
	socket *socket
	fibers bool         // its sessions run on the engine
	cert   *certificate // the one handshakes read; nil without TLS
	failed error        // why it stopped serving by itself
}

// spec is a listener's configuration translated for its proxy: checked, but nothing has been opened or changed.
type spec struct {
	cfg   config.Listener
	files fingerprint
	cert  *tls.Certificate // to be shown from now on; nil without TLS
	perm  permission       // of a unix socket

	verify func() error
	create func() (proxy, error)
	update func(proxy) error // in place
}

// newSpec translates l. hold is where handshakes will find the certificate.
func (g *Gateway) newSpec(l *config.Listener, backends map[string]*backend, hold *certificate) (*spec, error) {
	wrap := func(err error) error { return fmt.Errorf("listener %q: %w", l.Name, err) }
	files, err := fingerprintOf(listenerFiles(l)...)
	if err != nil {
		return nil, wrap(err)
	}
	s := &spec{cfg: *l, files: files}
	if s.perm, err = permissionOf(l); err != nil {
		return nil, wrap(err)
	}
	var serverTLS *tls.Config
	if l.TLS != nil {
		if s.cert, err = loadCertificate(l.TLS); err != nil {
			return nil, wrap(err)
		}
		serverTLS = hold.serverConfig()
	}
	switch l.Protocol {
	case config.TCP:
		err = s.tcp(g, l, backends, serverTLS)
	case config.HTTP:
		err = s.http(g, l, backends, serverTLS)
	case config.TunnelProtocol:
		err = s.tunnel(g, l, serverTLS)
	default:
		err = s.postgres(g, l, backends, serverTLS)
	}
	if err == nil {
		err = s.verify()
	}
	if err != nil {
		return nil, wrap(err)
	}
	return s, nil
}

// listenerConfig is the part every protocol has.
func (g *Gateway) listenerConfig(l *config.Listener) listener.Config {
	return listener.Config{
		Name: l.Name, Protocol: string(l.Protocol), MaxConns: l.MaxConns, MaxQueue: cmp.Or(l.MaxQueue, -1), QueueTimeout: l.QueueTimeout,
		AcceptProxy: l.AcceptProxy, TrustedProxies: l.TrustedProxies, AccessLog: l.AccessLog, Logger: g.logger, Room: &g.room,
	}
}

func (s *spec) tcp(g *Gateway, l *config.Listener, backends map[string]*backend, serverTLS *tls.Config) error {
	b := backends[l.Upstream]
	impl, ok := b.impl.(tcpBackend)
	if !ok {
		return fmt.Errorf("upstream %q is not one of protocol tcp", l.Upstream)
	}
	clientTLS, err := clientConfig(b.cfg.TLS)
	if err != nil {
		return err
	}
	cfg := tcpproxy.Config{
		Listener: g.listenerConfig(l), Upstream: impl.Upstream, IdleTimeout: l.TCP.IdleTimeout,
		ConnectTimeout: b.cfg.ConnectTimeout, SendProxy: l.TCP.SendProxy.Version(), TLS: serverTLS, UpstreamTLS: clientTLS,
	}
	s.verify = cfg.Verify
	s.create = func() (proxy, error) { return tcpproxy.New(cfg) }
	s.update = func(p proxy) error { return p.(*tcpproxy.Proxy).Update(cfg) }
	return nil
}

func (s *spec) http(g *Gateway, l *config.Listener, backends map[string]*backend, serverTLS *tls.Config) error {
	cfg := httpproxy.Config{Listener: g.listenerConfig(l), TLS: serverTLS, TrustedProxies: l.TrustedProxies}
	for _, r := range l.HTTP.Routes {
		impl, ok := backends[r.Upstream].impl.(httpBackend)
		if !ok {
			return fmt.Errorf("upstream %q is not one of protocol http", r.Upstream)
		}
		cfg.Routes = append(cfg.Routes, httpproxy.Route{
			Host: r.Host, Path: r.Path, StripPrefix: r.StripPrefix, Upstream: impl.Upstream,
			ResponseTimeout: r.Timeout, IdleTimeout: r.IdleTimeout,
		})
	}
	s.verify = cfg.Verify
	s.create = func() (proxy, error) { return httpproxy.New(cfg) }
	s.update = func(p proxy) error { return p.(*httpproxy.Proxy).Update(cfg) }
	return nil
}

func (s *spec) postgres(g *Gateway, l *config.Listener, backends map[string]*backend, serverTLS *tls.Config) error {
	users, err := loadUsers(l.Postgres.UsersFile)
	if err != nil {
		return err
	}
	cfg := pgproxy.Config{
		Listener: g.listenerConfig(l), Users: users, Databases: map[string]pgproxy.Backend{}, TLS: serverTLS, RequireTLS: l.Postgres.RequireTLS,
		Mode: map[config.PoolMode]pgproxy.Mode{config.TransactionMode: pgproxy.Transaction, config.SessionMode: pgproxy.Session}[l.Postgres.Mode],
		Auth: map[config.Auth]pgproxy.Auth{config.AuthTrust: pgproxy.AuthTrust, config.AuthMD5: pgproxy.AuthMD5, config.AuthSCRAM: pgproxy.AuthSCRAM}[l.Postgres.Auth],
	}
	for _, db := range l.Postgres.Databases {
		impl, ok := backends[db.Upstream].impl.(pgproxy.Backend)
		if !ok {
			return fmt.Errorf("upstream %q is not one of protocol postgres", db.Upstream)
		}
		cfg.Databases[db.Name] = impl
	}
	s.verify = cfg.Verify
	s.create = func() (proxy, error) { return pgproxy.New(cfg) }
	s.update = func(p proxy) error { return p.(*pgproxy.Proxy).Update(cfg) }
	return nil
}

// loadUsers reads a user list; "" is none.
func loadUsers(path config.Path) (pgproxy.Users, error) {
	if path == "" {
		return nil, nil
	}
	text, err := path.Read()
	if err != nil {
		return nil, fmt.Errorf("users_file: %w", err)
	}
	users, err := pgproxy.ParseUsers(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("users_file %s: %s", path, strings.ReplaceAll(err.Error(), pgproxy.ErrConfig.Error()+": ", ""))
	}
	return users, nil
}

// upstreamsOf lists the upstreams a listener uses.
func upstreamsOf(l *config.Listener) []string {
	names := []string{}
	if l.Protocol == config.TCP {
		names = append(names, l.Upstream)
	}
	if l.HTTP != nil {
		for _, r := range l.HTTP.Routes {
			names = append(names, r.Upstream)
		}
	}
	if l.Postgres != nil {
		for _, db := range l.Postgres.Databases {
			names = append(names, db.Upstream)
		}
	}
	return names
}

// sameListener reports whether nothing about a listener changed but perhaps its address.
func sameListener(a, b config.Listener) bool {
	a.Listen = b.Listen
	return reflect.DeepEqual(a, b)
}

// needsNewProxy reports whether the proxy of a cannot become b's in place.
func needsNewProxy(a, b *config.Listener) bool {
	return a.Protocol != b.Protocol || a.Protocol == config.HTTP && (a.TLS == nil) != (b.TLS == nil) ||
		a.Protocol == config.TunnelProtocol && a.Tunnel.ResumeWindow != b.Tunnel.ResumeWindow
}
