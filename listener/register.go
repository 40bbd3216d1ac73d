package listener

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// The register of sessions is the Server's table of connections. It costs a running session
// nothing: reading the register calls Describe of each session, which reads the session's own
// state.

// Session is what the register needs of a session. Any goroutine may call the methods, without a
// lock of the Server, and also just after the session has ended.
type Session interface {
	// Describe appends the session's current state to all: base with details added. A connection
	// with several streams also appends an element for each stream. Describe may wait only for
	// locks that are held for a few instructions, never for a loop.
	Describe(all []Info, base Info) []Info
	// Kill ends a stream of the session, or the session itself if stream is 0. It does not wait
	// until it has ended. It reports whether there was something to end.
	Kill(stream uint64) bool
}

// Resumer is a Session that can be suspended; see Conn.Suspend.
type Resumer interface {
	Session
	// Resume continues the session of conn. The rules of Handler.ServeConn apply to it.
	Resume(ctx context.Context, conn *Conn)
}

// State is the activity of a session.
type State string

// The states of sessions.
const (
	StateQueued        State = "queued"              // it waits for admission, see Config.MaxConns
	StateStarting      State = "starting"            // PROXY header, TLS handshake, login
	StateIdle          State = "idle"                // it waits for its client, and nothing is under way
	StateWaiting       State = "waiting"             // for an upstream connection
	StateActive        State = "active"              // something is under way
	StateInTransaction State = "idle in transaction" // it waits for its client and holds a server connection
	StatePinned        State = "pinned"              // it waits for its client and holds a server connection outside a transaction, for the state in Info.Pinned
)

// States returns all states.
func States() []State {
	return []State{StateQueued, StateStarting, StateIdle, StateWaiting, StateActive, StateInTransaction, StatePinned}
}

// Info describes a session at one moment. Fields that do not apply are empty.
type Info struct {
	ID                 string
	Listener, Protocol string
	Client             string    // address
	Accepted           time.Time // when the session began
	State              State
	Since              time.Time // when it entered State; in the PostgreSQL protocol up to a quarter of a second late
	Draining           bool      // the listener drains: the session ends at its next boundary

	User, Database, Application string // Application: application_name, or the user agent
	Method, Host, Path          string // of the request under way, or the last; no query
	Statement                   string // the beginning of the last one, if statements are shown
	Streams                     int    // open on the connection

	Upstream  string    // the upstream that the session waits for or has a connection to
	Mirror    string    // the upstream to which a copy of the request may go
	Endpoint  string    // the endpoint of the connection that it holds; empty: none
	ServerPID uint32    // of the PostgreSQL server's process
	Held      time.Time // when it got the connection; zero: it holds none
	Pinned    string    // why it holds the connection outside a transaction, such as "temporary objects"

	Channels int // notification channels that it listens to without a connection of its own

	BytesIn, BytesOut uint64 // from and to the client, where they are counted for this session
}

// ID identifies a session. IDs are unique in the process.
type ID int64 // microseconds since the program began; no two sessions get the same

var lastID atomic.Int64

// NewID returns an ID for a session that begins now.
func NewID() ID {
	for {
		last := lastID.Load()
		id := max(last+1, time.Since(began).Microseconds())
		if lastID.CompareAndSwap(last, id) {
			return ID(id)
		}
	}
}

// String returns the ID in base 36, which operators type.
func (id ID) String() string { return strconv.FormatInt(int64(id), 36) }

// Time returns when the session began.
func (id ID) Time() time.Time { return began.Add(time.Duration(id) * time.Microsecond) }

// StreamID returns the ID of a stream of a session.
func StreamID(session string, stream uint64) string {
	return session + "." + strconv.FormatUint(stream, 10)
}

// ParseID parses the ID of a session or stream; stream 0 is the session.
func ParseID(s string) (id ID, stream uint64, ok bool) {
	session, of, isStream := strings.Cut(s, ".")
	n, err := strconv.ParseInt(session, 36, 64)
	if err != nil || n <= 0 {
		return 0, 0, false
	}
	if isStream {
		stream, err = strconv.ParseUint(of, 10, 64)
	}
	return ID(n), stream, err == nil && isStream == (stream > 0)
}

// ID returns the connection's ID in the register.
func (c *Conn) ID() ID { return ID(c.accepted / time.Microsecond) }

// Attach adds a session to the register, until its connection is closed. It replaces a session
// attached before. The session's own goroutine or fiber calls it, after the last Unread. It returns
// false if the connection was closed: then an operator has ended it, which is counted already.
func (c *Conn) Attach(session Session) (open bool) {
	if c.server == nil {
		return true
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.session = session
	return !c.is(connClosed)
}

// registered is a row of the table of connections.
type registered struct {
	conn    *Conn
	session Session // nil = none is attached
	serving bool
}

// registered copies the table, so that sessions are asked without mu.
func (s *Server) registered() []registered {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]registered, len(s.conns))
	for i, c := range s.conns {
		all[i] = registered{c, c.session, c.is(connServing)}
	}
	return all
}

// Each calls fn for every session that is attached. Sessions attached meanwhile may be left out.
func (s *Server) Each(fn func(Session)) {
	for _, r := range s.registered() {
		if r.session != nil {
			fn(r.session)
		}
	}
}

// Sessions describes all sessions, in no particular order.
func (s *Server) Sessions() []Info {
	table, cfg, draining := s.registered(), s.config(), s.IsDraining()
	all := make([]Info, 0, len(table))
	for _, r := range table {
		c := r.conn
		info := Info{
			ID: c.ID().String(), Listener: cfg.Name, Protocol: cfg.Protocol, Accepted: c.Accepted(), Since: c.Accepted(),
			State: StateQueued, Draining: draining, BytesIn: c.BytesIn(), BytesOut: c.BytesOut(),
		}
		switch {
		case r.session != nil:
			info.State, info.Client = StateActive, c.RemoteAddr().String()
			all = r.session.Describe(all, info)
			continue
		case r.serving:
			info.State = StateStarting
		}
		info.Client = c.stream.RemoteAddr().String() // c's may be about to change
		all = append(all, info)
	}
	return all
}

// Kill ends a session, or one of its streams, at once. It reports whether there was one.
func (s *Server) Kill(id ID, stream uint64) bool {
	for _, r := range s.registered() {
		if r.conn.ID() == id {
			return s.kill(r.conn, stream)
		}
	}
	return false
}

// kill ends c's session. As long as none is attached, it resets c, and Attach returns false.
func (s *Server) kill(c *Conn, stream uint64) bool {
	s.mu.Lock()
	session, was, open := c.session, uint32(0), false
	if session == nil && stream == 0 {
		was, open = c.beginKill() // under mu, because of Attach
	}
	s.mu.Unlock()
	switch {
	case session != nil:
		return session.Kill(stream)
	case !open:
		return false
	}
	_ = c.SetLinger(0) // a clean end would look like an empty answer
	s.finishKill(c, was)
	return true
}

// KillConn closes a connection of s and counts it as killed; implementations of Session.Kill call
// it. It reports whether the connection was open.
func (s *Server) KillConn(c *Conn) bool {
	was, open := c.beginKill()
	if open {
		s.finishKill(c, was)
	}
	return open
}

// beginKill marks a connection as closed by an operator, unless it is closed. It returns the flags before.
func (c *Conn) beginKill() (was uint32, open bool) {
	for {
		if was = c.flags.Load(); was&connClosed != 0 {
			return was, false
		}
		if c.flags.CompareAndSwap(was, was|connClosed|connKilled) {
			return was, true
		}
	}
}

// finishKill closes a connection, of which beginKill has returned the flags, and counts it as killed.
func (s *Server) finishKill(c *Conn, was uint32) {
	_ = c.finishClose(was)
	s.CountError(ReasonKilled)
}

// Killed reports whether an operator has ended the connection, which is counted already.
func (c *Conn) Killed() bool { return c.is(connKilled) }
