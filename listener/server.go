package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/headpond/headpond/internal/ratelimit"
	"github.com/headpond/headpond/traffic"
)

// Handler serves accepted connections.
type Handler interface {
	// ServeConn runs one session on c and closes c. Once it is called, the Server only closes c.
	// ctx ends when the context of Drain ends, and at Close. A panic ends only this session.
	ServeConn(ctx context.Context, c *Conn)
}

// HandlerFunc is a function that is a Handler.
type HandlerFunc func(ctx context.Context, c *Conn)

// ServeConn calls f.
func (f HandlerFunc) ServeConn(ctx context.Context, c *Conn) { f(ctx, c) }

// Rejecter is a Handler that can send the reason to rejected clients, in their protocol.
type Rejecter interface {
	// RejectConn may write a message to c, within a second; the Server closes c afterwards. It is
	// not called if too many rejections are under way. reason wraps ErrRejected. A PROXY header
	// that c must begin with may not have been read.
	RejectConn(c *Conn, reason error)
}

// Server accepts connections and runs a Handler on each. All methods may be
// called from any goroutine.
type Server struct {
	handler   Handler
	cfg       atomic.Pointer[Config] // with defaults
	connLimit connLimit
	sources   sources
	errors    errorCounts
	// lastRejected is when the connection limit last rejected one, in nanoseconds since 1970; 0: never.
	lastRejected atomic.Int64
	reports      reportLimit
	room         *Room         // not nil
	rejects      chan struct{} // semaphore: one element for each running RejectConn

	accepted, rejected atomic.Uint64
	gone               atomic.Uint64 // clients that disconnected before their session
	halfClosed         ratelimit.Table[struct{}]
	in, out            atomic.Uint64 // bytes of connections that have ended

	ctx      context.Context // of sessions
	cancel   context.CancelFunc
	closing  chan struct{} // closed when no more is accepted
	draining chan struct{}
	empty    chan struct{} // closed when the server drains and has no connections

	accepting atomic.Int64 // running calls of acceptLoop

	mu        sync.Mutex // never held across I/O, except closing sockets
	closed    bool       // closing is closed
	stopped   bool       // draining is closed
	emptied   bool       // empty is closed
	name      string
	address   string
	listeners map[*net.Listener]struct{} // not the listeners themselves, whose type may not be comparable
	conns     []*Conn
	unbegun   int // those of conns that do not serve yet
	traffic   []*traffic.Set
}

// maxRejecting bounds the concurrent calls of RejectConn.
const maxRejecting = 128

// New returns a Server. h may be nil if only Listener is used. Nothing runs until Serve or Listener
// is called. Errors wrap ErrConfig.
func New(cfg Config, h Handler) (*Server, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	s := &Server{
		handler:   h,
		name:      cfg.Name,
		room:      cmp.Or(cfg.Room, &Room{}),
		rejects:   make(chan struct{}, maxRejecting),
		closing:   make(chan struct{}),
		draining:  make(chan struct{}),
		empty:     make(chan struct{}),
		listeners: make(map[*net.Listener]struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.apply(cfg)
	return s, nil
}

// Update changes the configuration of a running Server, except Name, Protocol and Room. It applies
// to new connections. Running sessions continue, even if there are more than MaxConns. On an error,
// which wraps ErrConfig, nothing has changed.
func (s *Server) Update(cfg Config) error {
	if err := cfg.Verify(); err != nil {
		return err
	}
	if cfg.Name != s.name {
		return fmt.Errorf("%w: listener %q cannot be renamed to %q while it runs", ErrConfig, s.name, cfg.Name)
	}
	s.apply(cfg)
	return nil
}

func (s *Server) apply(cfg Config) {
	cfg = cfg.withDefaults()
	s.cfg.Store(&cfg)
	s.connLimit.resize(cfg.MaxConns, cfg.MaxQueue)
}

// Serve accepts connections from l and runs the Handler on each. After Drain or Close it returns
// nil, while sessions may still run. It returns an error if l fails permanently. It closes l.
// Several listeners may be served at once.
func (s *Server) Serve(l net.Listener) error {
	if s.handler == nil {
		return errors.Join(l.Close(), fmt.Errorf("%w: listener %q has no handler", ErrConfig, s.name))
	}
	if !s.addListener(&l) {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
	err := s.acceptLoop(l, s.serveConn)
	s.removeListener(&l)
	if s.isClosing() {
		return nil
	}
	return fmt.Errorf("listener %q: accept on %s: %w", s.name, l.Addr(), err)
}

// Draining returns a channel that is closed when a drain begins. Sessions should then end at their
// next boundary.
func (s *Server) Draining() <-chan struct{} { return s.draining }

// IsDraining reports whether a drain has begun.
func (s *Server) IsDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// isClosing reports whether no more is accepted: the drain has begun, or is about to.
func (s *Server) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// addListener reports whether *l may be served.
func (s *Server) addListener(l *net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.listeners[l] = struct{}{}
	if s.address == "" {
		s.address = (*l).Addr().String()
	}
	return true
}

func (s *Server) removeListener(l *net.Listener) {
	s.mu.Lock()
	delete(s.listeners, l)
	s.mu.Unlock()
	_ = (*l).Close()
}

func (s *Server) config() *Config { return s.cfg.Load() }
