package tunnel

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/mux"
)

// ServerConfig describes a Server.
type ServerConfig struct {
	Config
	// Listener is about sockets until their session is made; sessions are bounded
	// by MaxSessions. Its Name is the tunnel's.
	Listener listener.Config
	// TLS is spoken with peers; nil = none. With ClientAuth
	// tls.RequireAndVerifyClientCert the certificate is the proof of Config.Name.
	TLS *tls.Config
	// Peers are the names that may connect; empty = all that authenticate.
	Peers []string
	// MaxSessions bounds the sessions of all peers; 0 = DefaultMaxSessions. Sessions
	// that have lost their socket and may be resumed count.
	MaxSessions int
	// MaxSessionsPerPeer bounds those of one peer, so that one cannot keep the others
	// out; 0 = a quarter of MaxSessions, at least 2. A peer is whoever has the same
	// certificate key; without a certificate, the same IP address (of IPv6 the /64
	// network; all of a Unix socket's peers are one). Who is over either bound is told
	// so and comes again.
	MaxSessionsPerPeer int
	// Insecure says that peers without PSK and certificate are meant to be served.
	Insecure bool
}

// Verify reports every problem of c, joined; each wraps ErrConfig or
// listener.ErrConfig. A server that authenticates nobody is one, unless Insecure is
// set.
func (c ServerConfig) Verify() error {
	errs := []error{c.Listener.Verify(), c.verify()}
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: listener %q: "+format, append([]any{ErrConfig, c.Listener.Name}, args...)...))
	}
	if c.MaxSessions < 0 {
		bad("MaxSessions %d is negative", c.MaxSessions)
	}
	if c.MaxSessionsPerPeer < 0 {
		bad("MaxSessionsPerPeer %d is negative", c.MaxSessionsPerPeer)
	}
	certificates := c.TLS != nil && c.TLS.ClientAuth == tls.RequireAndVerifyClientCert
	if len(c.PSK) == 0 && !certificates && !c.Insecure {
		bad("nothing authenticates peers: set PSK, or TLS with RequireAndVerifyClientCert")
	}
	return errors.Join(errs...)
}

// Server is the end of a tunnel that is connected to. It serves what its peers
// open, under its policy, and opens connections out of them. All methods are safe
// for concurrent use.
type Server struct {
	cfg      atomic.Pointer[ServerConfig] // with defaults
	listener *listener.Server
	sessions *sessions
	places   places
	resume   *mux.Resume
	began    time.Time
	refused  atomic.Pointer[trouble] // the last connection that became no session
}

// NewServer returns a Server; nothing runs until Serve. The error wraps ErrConfig
// or listener.ErrConfig.
func NewServer(cfg ServerConfig) (*Server, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	s := &Server{began: time.Now()}
	cfg = s.defaults(cfg)
	s.resume = &mux.Resume{Window: cfg.ResumeWindow, MaxSuspended: cfg.MaxSessions}
	s.sessions = newSessions(cfg.Listener.Name, &cfg.Config)
	s.cfg.Store(&cfg)
	var err error
	s.listener, err = listener.New(cfg.Listener, listener.HandlerFunc(s.serveConn))
	return s, err
}

func (s *Server) defaults(cfg ServerConfig) ServerConfig {
	cfg.MaxSessions = cmp.Or(cfg.MaxSessions, DefaultMaxSessions)
	if cfg.MaxSessionsPerPeer == 0 {
		cfg.MaxSessionsPerPeer = max(minPeerSessions, cfg.MaxSessions/4)
	}
	if cfg.Config.Logger == nil {
		cfg.Config.Logger = cfg.Listener.Logger
	}
	cfg.Config = cfg.withDefaults()
	return cfg
}

// Update replaces the settings. Policy and MaxStreams hold for the streams to come,
// the rest for sessions to come; running ones are untouched. ResumeWindow cannot
// change. On an error nothing has changed.
func (s *Server) Update(cfg ServerConfig) error {
	if err := cfg.Verify(); err != nil {
		return err
	}
	if err := s.listener.Update(cfg.Listener); err != nil {
		return err
	}
	cfg = s.defaults(cfg)
	s.sessions.apply(&cfg.Config)
	s.cfg.Store(&cfg)
	return nil
}

// Serve makes sessions of the connections from l until Drain or Close, then it
// returns nil; it closes l. Several listeners may be served at once.
func (s *Server) Serve(l net.Listener) error { return s.listener.Serve(taking{l}) }

// Drain stops accepting sockets and streams, tells the peers so, and waits until
// the open streams have ended. When ctx ends first they are cut off and the error
// says how many.
func (s *Server) Drain(ctx context.Context) error {
	var wg sync.WaitGroup
	var early error
	wg.Go(func() { early = s.listener.Drain(ctx) })
	err := s.sessions.drain(ctx)
	wg.Wait()
	return errors.Join(early, err)
}

// Close ends everything now.
func (s *Server) Close() {
	s.listener.Close()
	s.sessions.close()
}

// Stats are the listener's counters, with sessions for connections and the bytes
// that went through them.
func (s *Server) Stats() listener.Stats {
	st, t := s.listener.Stats(), s.sessions.stats()
	st.Active, st.MaxConns = t.Sessions, s.cfg.Load().MaxSessions
	st.BytesIn, st.BytesOut = t.BytesIn, t.BytesOut
	return st
}

// Tunnel returns the tunnel's counters.
func (s *Server) Tunnel() Stats {
	st := s.sessions.stats()
	st.TurnedAway = s.places.turnedAway()
	return st
}

// Absent returns why a peer has no session, and since when, as far as that is known here: how its last one ended, or who was turned away last.
// The error wraps ErrNotConnected; it is nil when the peer has one.
func (s *Server) Absent(peer string) (since time.Time, err error) {
	s.sessions.mu.Lock()
	here, left := s.sessions.peers[peer] != nil, s.sessions.left[peer]
	s.sessions.mu.Unlock()
	if here {
		return time.Time{}, nil
	}
	if left.err == nil {
		left.since = s.began
	}
	why := left.err
	if r := s.refused.Load(); r != nil && r.since.After(left.since) {
		why = r.err
	}
	if why == nil {
		return left.since, fmt.Errorf("%w: no session of peer %q", ErrNotConnected, peer)
	}
	return left.since, fmt.Errorf("%w: no session of peer %q; last heard: %w", ErrNotConnected, peer, why)
}

// Leaving is Client.Leaving for the sessions of a peer.
func (s *Server) Leaving(peer string) bool { return s.sessions.draining(peer) }

// serveConn makes a session of a connection, or gives it to the session that it
// resumes; both outlive the call.
func (s *Server) serveConn(ctx context.Context, nc net.Conn) {
	cfg := s.cfg.Load()
	raw, pending := nc.(*listener.Conn).Raw()
	conn := raw.(*taken).take()
	if len(pending) > 0 {
		conn = &prefixed{conn, pending}
	}
	if cfg.TLS != nil {
		conn = tls.Server(conn, cfg.TLS)
	}
	mc := cfg.mux(cfg.Listener.Name, s.resume)
	claimed := ""      // the peer's name, as far as it came
	leave := func() {} // gives the place back
	mc.Authorize = func(_ context.Context, p mux.Peer) error {
		claimed = p.Name
		name, err := cfg.identify(p)
		if err != nil || p.Resumes { // it has a place
			return err
		}
		claimed = name
		s.sessions.restarted(name, p.Instance)
		who := holder(p, nc.RemoteAddr())
		if err = s.places.take(who, cfg.MaxSessions, cfg.MaxSessionsPerPeer); err == nil {
			leave = func() { s.places.give(who) }
		}
		return err
	}
	session, err := mux.Server(ctx, conn, mc)
	if errors.Is(err, mux.ErrResumed) {
		return
	}
	if err == nil {
		name, _ := cfg.identify(session.Peer())
		if err = s.sessions.add(newMember(name, session, leave)); err == nil {
			return
		}
		_ = session.Close()
	}
	leave()
	reason := listener.ReasonProtocol
	switch {
	case errors.Is(err, mux.ErrDenied):
		reason = listener.ReasonAuthFailed
	case errors.Is(err, mux.ErrRefused):
		reason = listener.ReasonRejected
	}
	s.refused.Store(&trouble{fmt.Errorf("%s was turned away: %w", nc.RemoteAddr(), err), time.Now()})
	s.listener.Report(reason, slog.LevelWarn, "tunnel: no session with a peer", "peer", clip(claimed), "client", nc.RemoteAddr().String(), "reason", reason, "error", err)
}

// identify returns the name of a peer, as far as it is proved.
func (c *ServerConfig) identify(p mux.Peer) (string, error) {
	name := p.Name
	if p.TLS != nil && len(p.TLS.PeerCertificates) > 0 {
		leaf := p.TLS.PeerCertificates[0]
		names := slices.DeleteFunc(append([]string{leaf.Subject.CommonName}, leaf.DNSNames...), func(n string) bool { return n == "" })
		switch {
		case len(names) == 0:
			return "", errors.New("the peer's certificate has neither a common name nor a DNS name")
		case name == "":
			name = names[0]
		case !slices.Contains(names, name):
			return "", fmt.Errorf("the peer calls itself %q, its certificate says %q", clip(name), names)
		}
	}
	if len(c.Peers) > 0 && !slices.Contains(c.Peers, name) {
		return "", fmt.Errorf("peer %q is not one of those that may connect", clip(name))
	}
	return name, nil
}

// taking is a listener whose connections outlive the listener.Server's interest in
// them.
type taking struct{ net.Listener }

// Accept implements net.Listener.
func (l taking) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &taken{Conn: c}, nil
}

// taken is a connection whose Close does nothing any more once it was taken.
type taken struct {
	net.Conn
	gone atomic.Bool
}

func (t *taken) take() net.Conn {
	t.gone.Store(true)
	return t.Conn
}

// Close implements net.Conn.
func (t *taken) Close() error {
	if t.gone.Load() {
		return nil
	}
	return t.Conn.Close()
}

// prefixed is a connection of which some was read.
type prefixed struct {
	net.Conn
	pending []byte
}

// Read implements net.Conn.
func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.pending) > 0 {
		n := copy(b, p.pending)
		p.pending = p.pending[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}
