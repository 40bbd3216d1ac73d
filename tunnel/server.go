package tunnel

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
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
	// Peers are the peers that may connect, with their settings; empty = all that authenticate.
	Peers []Peer
	// MaxSessions bounds the sessions of all peers; 0 = DefaultMaxSessions. Sessions
	// that have lost their socket and may be resumed count.
	MaxSessions int
	// MaxSessionsPerPeer bounds the sessions of one peer, so that it cannot lock others out; 0 = a
	// quarter of MaxSessions, at least 2. Clients with the same certificate key or the same
	// Peer.Keys are one peer; without either, clients of the same IP address (of IPv6 the /64
	// network; all of a Unix socket are one). A peer over either bound is told so and tries again.
	MaxSessionsPerPeer int
	// Insecure says that peers without PSK and certificate are meant to be served.
	Insecure bool
	// Identify returns the name of the peer at an address, for transports that have authenticated it. The name that the peer claims
	// is ignored then, and Peers does not restrict who may connect. An error refuses the peer. nil = the name is proved as Config.Name says.
	Identify func(net.Addr) (name string, err error)
}

// Verify reports every problem of c, joined; each wraps ErrConfig or listener.ErrConfig. A server
// without authentication is one, unless Insecure is set.
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
	c.verifyPeers(bad)
	if len(c.PSK) == 0 && !certificates && !c.keyed() && !c.Insecure && c.Identify == nil {
		bad("nothing authenticates peers: set Keys of each of Peers, PSK, or TLS with RequireAndVerifyClientCert")
	}
	return errors.Join(errs...)
}

// Server is the listening end of a tunnel. It serves streams that its peers open, under its policy,
// and opens connections through them. All methods are safe for concurrent use.
type Server struct {
	cfg         atomic.Pointer[ServerConfig] // with defaults
	listener    *listener.Server
	sessions    *sessions
	limit       sessionLimit
	resume      *mux.Resume
	began       time.Time
	lastRefused atomic.Pointer[failure] // of the last connection that became no session
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
	s.sessions.apply(&cfg.Config, cfg.Peers)
	s.cfg.Store(&cfg)
	var err error
	s.listener, err = listener.New(cfg.Listener, listener.HandlerFunc(s.serveConn))
	return s, err
}

func (s *Server) defaults(cfg ServerConfig) ServerConfig {
	cfg.Listener.ClientFirst = true // it begins the handshake
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

// Update replaces the settings. Policy and MaxStreams apply to new streams, the rest to new sessions. Running sessions
// continue, except those of peers whose key, certificate authority (ClientCAs) or entry in Peers was removed, or whose
// certificate TLS.VerifyConnection refuses now: they end at once. ResumeWindow cannot change. On an error nothing has changed.
func (s *Server) Update(cfg ServerConfig) error {
	if err := cfg.Verify(); err != nil {
		return err
	}
	if err := s.listener.Update(cfg.Listener); err != nil {
		return err
	}
	cfg = s.defaults(cfg)
	s.sessions.apply(&cfg.Config, cfg.Peers)
	s.cfg.Store(&cfg)
	s.sessions.revoke(cfg.admits)
	return nil
}

// Serve makes sessions of the connections from l until Drain or Close, then it
// returns nil; it closes l. Several listeners may be served at once.
func (s *Server) Serve(l net.Listener) error { return s.listener.Serve(detachingListener{l}) }

// Drain stops accepting sockets and streams, informs the peers, and waits until the open streams
// have ended. When ctx ends first they are cut off and the error says how many.
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
	st.TurnedAway = s.limit.turnedAway()
	return st
}

// Absent returns why a peer has no session, and since when, as far as that is known here: how its last session ended, or which
// connection was refused last. The error wraps ErrNotConnected; it is nil when the peer has one.
func (s *Server) Absent(peer string) (since time.Time, err error) {
	s.sessions.mu.Lock()
	here, absent := s.sessions.peers[peer] != nil, s.sessions.absent[peer]
	s.sessions.mu.Unlock()
	if here {
		return time.Time{}, nil
	}
	if absent.err == nil {
		absent.since = s.began
	}
	why := absent.err
	if r := s.lastRefused.Load(); r != nil && r.since.After(absent.since) {
		why = r.err
	}
	if why == nil {
		return absent.since, fmt.Errorf("%w: no session of peer %q", ErrNotConnected, peer)
	}
	return absent.since, fmt.Errorf("%w: no session of peer %q; last heard: %w", ErrNotConnected, peer, why)
}

// Draining is Client.Draining for the sessions of a peer.
func (s *Server) Draining(peer string) bool { return s.sessions.anyDraining(peer) }

// serveConn makes a session of a connection, or gives it to the session that it
// resumes; both outlive the call.
func (s *Server) serveConn(ctx context.Context, lc *listener.Conn) {
	cfg := s.cfg.Load()
	conn, pending, err := lc.Detach()
	if err != nil {
		return
	}
	own := conn.(*detachableConn) //nolint:forcetypeassert // Serve has made it
	conn = own.Conn
	if len(pending) > 0 {
		conn = &prefixed{conn, pending}
	}
	if cfg.TLS != nil {
		conn = tls.Server(conn, cfg.TLS)
	}
	h := &handshake{server: s, cfg: cfg, from: lc.RemoteAddr(), release: func() {}}
	mc := cfg.mux(cfg.Listener.Name, s.resume)
	mc.PSK, mc.PSKs, mc.Authorize = nil, h.keys, h.authorize
	session, err := mux.Server(ctx, conn, mc)
	if err == nil || errors.Is(err, mux.ErrResumed) {
		own.detached.Store(true) // until now an operator can end it
	}
	if errors.Is(err, mux.ErrResumed) {
		return
	}
	if err == nil {
		m := newMember(h.name, h.key, session, h.release)
		if err = s.sessions.add(m); err == nil {
			if now := s.cfg.Load(); now != cfg { // Update has not seen it
				s.sessions.revoke(now.admits)
			}
			return
		}
		_ = session.Close()
	}
	h.release()
	reason := listener.ReasonProtocol
	switch {
	case errors.Is(err, mux.ErrDenied):
		reason = listener.ReasonAuthFailed
	case errors.Is(err, mux.ErrRefused):
		reason = listener.ReasonRejected
	}
	s.lastRefused.Store(&failure{fmt.Errorf("%s was turned away: %w", lc.RemoteAddr(), err), time.Now()})
	level := slog.LevelWarn
	if reason == listener.ReasonProtocol && errors.Is(err, mux.ErrSessionLost) {
		level = slog.LevelInfo // the peer asked for a session that is over; it makes a new one
	}
	s.listener.Report(reason, level, "tunnel: no session with a peer", "peer", clip(h.name), "client", lc.RemoteAddr().String(), "error", err)
}

// handshake is a connection whose peer is being authenticated.
type handshake struct {
	server  *Server
	cfg     *ServerConfig
	from    net.Addr
	name    string // claimed, then proved
	proofs  []proof
	key     proof  // the key that it has proved to have
	release func() // ends the session's count against the sessionLimit
}

// keys is mux.Config.PSKs.
func (h *handshake) keys(p mux.Peer) (keys [][]byte, err error) {
	h.name = p.Name
	h.proofs, err = h.cfg.proofs(p)
	for _, o := range h.proofs {
		keys = append(keys, o.key)
	}
	return keys, err
}

// authorize is mux.Config.Authorize.
func (h *handshake) authorize(_ context.Context, p mux.Peer) error {
	s := h.server
	h.name = p.Name
	if p.Resumes { // the session counts already, and Update ends those that may not continue
		_, err := h.cfg.name(p)
		return err
	}
	if p.PSK {
		h.key = h.proofs[p.Key]
	}
	name, err := h.cfg.identify(p, h.key)
	if err != nil {
		return err
	}
	h.name = name
	s.sessions.restarted(name, p.Instance)
	who := holderOf(p, h.from)
	if h.key.name != "" || h.cfg.Identify != nil {
		who = "peer " + cmp.Or(h.key.name, name)
	}
	if err = s.limit.acquire(who, h.cfg.MaxSessions, h.cfg.MaxSessionsPerPeer); err == nil {
		h.release = func() { s.limit.release(who) }
	}
	return err
}

// detachingListener is a listener whose connections can be taken from the listener.Server, which would close them.
type detachingListener struct{ net.Listener }

// Accept implements net.Listener.
func (l detachingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &detachableConn{Conn: c}, nil
}

// detachableConn is a connection whose Close does nothing once a session has taken it.
type detachableConn struct {
	net.Conn
	detached atomic.Bool
}

// Close implements net.Conn.
func (c *detachableConn) Close() error {
	if c.detached.Load() {
		return nil
	}
	return c.Conn.Close()
}

// prefixed is a connection that begins with bytes which were read of it already.
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
