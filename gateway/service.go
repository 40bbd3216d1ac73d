package gateway

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"reflect"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/traffic"
)

// service is one listener of the configuration, running. Its fields are guarded by Gateway.mu.
type service struct {
	cfg    config.Listener
	files  extend.Fingerprint
	proxy  extend.Proxy
	socket *socket
	beside *socket       // the second one; nil: none
	fibers bool          // its sessions run on the engine
	cert   *certificates // read by handshakes; nil without TLS
	recent *traffic.Window
}

// spec is a listener's configuration translated for its proxy: checked, but nothing has been opened or changed.
type spec struct {
	cfg   config.Listener
	files extend.Fingerprint
	cert  *certificateSet // to be used from now on; nil without TLS
	perm  permission      // of a unix socket

	server extend.Server
}

// newSpec translates l. hold has the certificates for handshakes.
func (g *Gateway) newSpec(l *config.Listener, backends map[string]*backend, hold *certificates) (*spec, error) {
	wrap := func(err error) error { return fmt.Errorf("listener %q: %w", l.Name, err) }
	kind := extend.ProtocolOf(l.Protocol)
	if kind == nil {
		return nil, wrap(fmt.Errorf("there is no protocol %q", l.Protocol))
	}
	files, err := extend.FingerprintOf(listenerFiles(l, kind)...)
	if err != nil {
		return nil, wrap(err)
	}
	s := &spec{cfg: *l, files: files}
	if s.perm, err = permissionOf(l); err != nil {
		return nil, wrap(err)
	}
	var serverTLS *tls.Config
	var secret []byte
	if l.TLS != nil {
		if s.cert, err = g.loadCertificates(l); err != nil {
			return nil, wrap(err)
		}
		if serverTLS, err = hold.serverConfig(l.TLS, g.logger, l.Name); err != nil {
			return nil, wrap(err)
		}
		secret = s.cert.secret
	}
	s.server, err = kind.Prepare(extend.Listener{
		Listener: l, Common: g.listenerConfig(l), TLS: serverTLS, Secret: secret, Gateway: view{g}, LogFile: g.logFile, Upstreams: usedBy(l, backends),
	})
	if err != nil {
		return nil, wrap(err)
	}
	return s, nil
}

// listenerConfig returns the settings that listeners of all protocols have.
func (g *Gateway) listenerConfig(l *config.Listener) listener.Config {
	rate := listener.Rate{}
	if l.ConnectionRate != nil {
		rate = listener.Rate(*l.ConnectionRate)
	}
	room := &g.room
	if p := extend.ProtocolOf(l.Protocol); p != nil && p.Config.Datagrams {
		room = &g.senders
	}
	return listener.Config{
		Allow: l.Allow, Deny: l.Deny, MaxConnsPerSource: l.MaxConnsPerSource, ConnectionRate: rate,
		Name: l.Name, Protocol: string(l.Protocol), MaxConns: l.MaxConns, MaxQueue: cmp.Or(l.MaxQueue, -1), QueueTimeout: l.QueueTimeout,
		AcceptProxy: l.AcceptProxy, TrustedProxies: l.TrustedProxies, AccessLog: l.AccessLog, Logger: g.logger, Room: room,
		TCP: tcpOptions(l.KeepAlive),
	}
}

// sameListener reports whether nothing about a listener has changed, except perhaps its address.
func sameListener(a, b config.Listener) bool {
	a.Listen = b.Listen
	return reflect.DeepEqual(a, b)
}

// needsNewProxy reports whether changing listener a to b needs a new proxy.
func needsNewProxy(a, b *config.Listener) bool {
	if a.Protocol != b.Protocol {
		return true
	}
	replaces := extend.ProtocolOf(a.Protocol).Replaces
	return replaces != nil && replaces(a, b)
}

// usedBy returns the upstreams of a listener.
func usedBy(l *config.Listener, backends map[string]*backend) map[string]extend.Upstream {
	used := map[string]extend.Upstream{}
	for _, name := range l.Upstreams() {
		if b := backends[name]; b != nil { // nil: an upstream that the listener need not have
			used[name] = extend.Upstream{Config: &b.cfg, Runs: b.impl.Runs()}
		}
	}
	return used
}

// listenerFiles lists the files that a listener reads.
func listenerFiles(l *config.Listener, kind *extend.Protocol) (files []config.Path) {
	if l.TLS != nil {
		files = append(files, l.TLS.Files()...)
	}
	if kind.Files != nil {
		files = append(files, kind.Files(l)...)
	}
	return files
}

// sockets are the sockets of a service.
func (s *service) sockets() []*socket {
	if s.beside == nil {
		return []*socket{s.socket}
	}
	return []*socket{s.socket, s.beside}
}

// firstFor returns the first socket of s, which may be nil, if it has the address and the network of l, else nil.
func (s *service) firstFor(l *config.Listener) *socket {
	if s == nil || s.cfg.Listen != l.Listen || s.datagrams() != extend.ProtocolOf(l.Protocol).Config.Datagrams {
		return nil
	}
	return s.socket
}

// besideFor is firstFor for the second socket, of a listener whose first one is given.
func (s *service) besideFor(l *config.Listener, first *socket) *socket {
	if s == nil || withPort(s.cfg.Listen, s.socket) != withPort(l.Listen, first) {
		return nil
	}
	return s.beside
}
