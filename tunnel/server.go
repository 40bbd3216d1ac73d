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
	// Peers are those that may connect, with what is theirs; empty = all that
	// authenticate.
	Peers []Peer
	// MaxSessions bounds the sessions of all peers; 0 = DefaultMaxSessions. Sessions
	// that have lost their socket and may be resumed count.
	MaxSessions int
	// MaxSessionsPerPeer bounds those of one peer, so that one cannot keep the others
	// out; 0 = a quarter of MaxSessions, at least 2. A peer is whoever has the same
	// certificate key or keys of its own (Peer.Keys); without either, the same IP address (of IPv6 the /64
	// network; all of a Unix socket's peers are one). Who is over either bound is told
	// so and comes again.
	MaxSessionsPerPeer int
	// Insecure says that peers without PSK and certificate are meant to be served.
	Insecure bool
	// Identify returns the name of the peer at the other end of a connection, where what carries the connections has authenticated it; what the
	// peer says of itself counts for nothing then, and Peers only adds to what may be called. An error turns it away. nil = the name is proved as
	// Config.Name says.
	Identify func(net.Addr) (name string, err error)
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
	c.verifyPeers(bad)
	if len(c.PSK) == 0 && !certificates && !c.keyed() && !c.Insecure && c.Identify == nil {
		bad("nothing authenticates peers: set Keys of each of Peers, PSK, or TLS with RequireAndVerifyClientCert")
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
	s.sessions.apply(&cfg.Config, cfg.Peers)
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
// the rest for sessions to come. Running sessions go on, but for those of peers whose
// key is gone, whose certificate is by an authority that ClientCAs has no more, or that are not among Peers any more: they end at once. ResumeWindow
// cannot change. On an error nothing has changed.
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
	conn, pending, err := nc.(*listener.Conn).Detach()
	if err != nil {
		return
	}
	conn = conn.(*taken).take()
	if len(pending) > 0 {
		conn = &prefixed{conn, pending}
	}
	if cfg.TLS != nil {
		conn = tls.Server(conn, cfg.TLS)
	}
	h := &hello{server: s, cfg: cfg, from: nc.RemoteAddr(), leave: func() {}}
	mc := cfg.mux(cfg.Listener.Name, s.resume)
	mc.PSK, mc.PSKs, mc.Authorize = nil, h.keys, h.authorize
	session, err := mux.Server(ctx, conn, mc)
	if errors.Is(err, mux.ErrResumed) {
		return
	}
	if err == nil {
		m := newMember(h.name, h.by, session, h.leave)
		if err = s.sessions.add(m); err == nil {
			if now := s.cfg.Load(); now != cfg { // Update has not seen it
				s.sessions.revoke(now.admits)
			}
			return
		}
		_ = session.Close()
	}
	h.leave()
	reason := listener.ReasonProtocol
	switch {
	case errors.Is(err, mux.ErrDenied):
		reason = listener.ReasonAuthFailed
	case errors.Is(err, mux.ErrRefused):
		reason = listener.ReasonRejected
	}
	s.refused.Store(&trouble{fmt.Errorf("%s was turned away: %w", nc.RemoteAddr(), err), time.Now()})
	level := slog.LevelWarn
	if reason == listener.ReasonProtocol && errors.Is(err, mux.ErrSessionLost) {
		level = slog.LevelInfo // it wanted to go on with a session that is over, and makes another
	}
	s.listener.Report(reason, level, "tunnel: no session with a peer", "peer", clip(h.name), "client", nc.RemoteAddr().String(), "reason", reason, "error", err)
}

// hello is a connection whose peer introduces itself.
type hello struct {
	server *Server
	cfg    *ServerConfig
	from   net.Addr
	name   string // claimed, then proved
	proofs []proof
	by     proof
	leave  func() // gives the place of the session back
}

// keys is mux.Config.PSKs.
func (h *hello) keys(p mux.Peer) (keys [][]byte, err error) {
	h.name = p.Name
	h.proofs, err = h.cfg.proofs(p)
	for _, o := range h.proofs {
		keys = append(keys, o.key)
	}
	return keys, err
}

// authorize is mux.Config.Authorize.
func (h *hello) authorize(_ context.Context, p mux.Peer) error {
	s := h.server
	h.name = p.Name
	if p.Resumes { // it has a place, and Update would have ended the session if it were not to come back
		_, err := h.cfg.name(p)
		return err
	}
	if p.PSK {
		h.by = h.proofs[p.Key]
	}
	name, err := h.cfg.identify(p, h.by)
	if err != nil {
		return err
	}
	h.name = name
	s.sessions.restarted(name, p.Instance)
	who := holder(p, h.from)
	if h.by.name != "" || h.cfg.Identify != nil {
		who = "peer " + cmp.Or(h.by.name, name)
	}
	if err = s.places.take(who, h.cfg.MaxSessions, h.cfg.MaxSessionsPerPeer); err == nil {
		h.leave = func() { s.places.give(who) }
	}
	return err
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
