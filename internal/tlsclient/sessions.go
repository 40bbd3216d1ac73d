// Package tlsclient prepares tls.Configs for connections to upstreams. It sets the server's name, and resumes sessions,
// which saves the server's certificate, its signature and their verification.
package tlsclient

import (
	"crypto/tls"
	"net"
	"strings"
	"sync"

	"github.com/headpond/headpond/internal/netaddr"
)

const (
	// maxEndpoints bounds the endpoints whose sessions are kept.
	maxEndpoints = 256
	// maxSessions is the number of sessions kept for one endpoint: half of the connections that a
	// cold pool opens at once (pool.DefaultOpenConcurrency), at about 2 KiB each.
	maxSessions = 8
)

// Sessions is a tls.ClientSessionCache with several sessions per endpoint. The newest is used first. A ticket of TLS
// 1.3 is meant for one connection (RFC 8446, appendix C.4), so it is removed when it is used. The last ticket of an
// endpoint stays: for servers that issue fewer tickets than are used, and for TLS 1.2, where a session can be resumed
// repeatedly. A server that accepts no ticket twice does a full handshake then.
type Sessions struct {
	mu        sync.Mutex // held for a few instructions
	endpoints map[string][]*tls.ClientSessionState
}

var _ tls.ClientSessionCache = (*Sessions)(nil)

// NewSessions returns an empty cache for one upstream. Configurations with different authorities or client certificates
// must not share sessions.
func NewSessions() *Sessions {
	return &Sessions{endpoints: make(map[string][]*tls.ClientSessionState)}
}

// Get implements tls.ClientSessionCache.
func (s *Sessions) Get(key string) (*tls.ClientSessionState, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.endpoints[key]
	n := len(kept) - 1
	if n < 0 {
		return nil, false
	}
	session := kept[n]
	if n > 0 {
		kept[n] = nil
		s.endpoints[key] = kept[:n]
	}
	return session, true
}

// Put implements tls.ClientSessionCache. A nil session removes all sessions of the key.
func (s *Sessions) Put(key string, session *tls.ClientSessionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, known := s.endpoints[key]
	switch {
	case session == nil:
		delete(s.endpoints, key)
		return
	case !known && len(s.endpoints) >= maxEndpoints:
		for other := range s.endpoints { // drops any other endpoint
			delete(s.endpoints, other)
			break
		}
	case len(kept) == maxSessions:
		kept = append(kept[:0], kept[1:]...)
	}
	s.endpoints[key] = append(kept, session)
}

// endpointSessions is the part of Sessions for one endpoint: servers with the same name need not accept each other's
// tickets.
type endpointSessions struct {
	*Sessions
	endpoint string
}

func (e endpointSessions) Get(key string) (*tls.ClientSessionState, bool) {
	return e.Sessions.Get(e.endpoint + " " + key)
}

func (e endpointSessions) Put(key string, session *tls.ClientSessionState) {
	e.Sessions.Put(e.endpoint+" "+key, session)
}

// WithSessions returns cfg, or a copy with new Sessions. A cfg with a cache keeps it. A cfg with
// VerifyPeerCertificate gets none, because that function is not called for a resumed session.
func WithSessions(cfg *tls.Config) *tls.Config {
	if cfg == nil || cfg.ClientSessionCache != nil || cfg.SessionTicketsDisabled || cfg.VerifyPeerCertificate != nil {
		return cfg
	}
	cfg = cfg.Clone()
	cfg.ClientSessionCache = NewSessions()
	return cfg
}

// For returns a copy of cfg for connections to endpoint ("host:port" or "unix:/path"). If cfg has no server name, the
// copy has the host, or "localhost" for a Unix socket. It uses the endpoint's part of cfg's Sessions.
func For(cfg *tls.Config, endpoint string) *tls.Config {
	cfg = cfg.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName = serverName(endpoint)
	}
	if sessions, ok := cfg.ClientSessionCache.(*Sessions); ok {
		cfg.ClientSessionCache = endpointSessions{sessions, endpoint}
	}
	return cfg
}

func serverName(endpoint string) string {
	if network, _, err := netaddr.Split(endpoint); err == nil && network == "unix" {
		return "localhost"
	}
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return endpoint
	}
	host, _, _ = strings.Cut(host, "%") // certificates contain no zones
	return host
}
