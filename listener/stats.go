package listener

import (
	"maps"
	"sync"
	"time"

	"github.com/headpond/headpond/traffic"
)

// Reasons for CountError, the same in every protocol. They are the values of
// the metric's label.
const (
	ReasonAccept              = "accept"               // the system refused to accept: EMFILE and the like
	ReasonAuthFailed          = "auth_failed"          // wrong user or password
	ReasonProtocol            = "protocol_error"       // the client broke its protocol
	ReasonProxyHeader         = "proxy_header"         // a trusted peer sent no valid PROXY header
	ReasonUpstreamUnavailable = "upstream_unavailable" // no endpoint could be reached
	ReasonPoolExhausted       = "pool_exhausted"       // no upstream connection became free in time
	ReasonBackendGone         = "backend_gone"         // the upstream connection broke during a session
	ReasonEndpointOut         = "endpoint_out"         // its endpoint became unhealthy or was removed, and the upstream ends sessions then
	ReasonRebalanced          = "rebalanced"           // it was moved to another endpoint, because the upstream rebalances
	ReasonClientGone          = "client_gone"          // the client disconnected during its session, or before it
	ReasonRejected            = "rejected"             // a limit of clients was reached
	ReasonDenied              = "denied"               // the client's address may not connect
	ReasonSourceFull          = "source_full"          // the client's address had too many connections
	ReasonSourceRate          = "source_rate"          // the client's address connected too often
	ReasonDrained             = "drained"              // cut off at the end of a drain, or still queued when it began
	ReasonKilled              = "killed"               // ended by an operator
	ReasonTimeout             = "timeout"              // nothing happened for too long
	ReasonTLS                 = "tls"                  // the TLS handshake with the client failed, or TLS is required and the client did not use it
	ReasonUnknownDatabase     = "unknown_database"
	ReasonUnknownRoute        = "unknown_route"
	ReasonDiskFull            = "disk_full"    // the disk of a database file is full
	ReasonOverloaded          = "overloaded"   // too much memory was in use, or too many passwords were waiting to be checked
	ReasonRateLimited         = "rate_limited" // a client makes more requests than it may
	ReasonStorage             = "storage"      // a database file is damaged, or its disk fails
	ReasonInternal            = "internal"     // a bug: a session, or accepting a connection, panicked
)

// Reasons returns all reasons. Metrics export each of them from the start, because a counter that
// appears with its first error hides that increase.
func Reasons() []string {
	return []string{
		ReasonAccept, ReasonAuthFailed, ReasonProtocol, ReasonProxyHeader, ReasonUpstreamUnavailable, ReasonPoolExhausted, ReasonBackendGone,
		ReasonEndpointOut, ReasonRebalanced, ReasonClientGone, ReasonRejected, ReasonDenied, ReasonSourceFull, ReasonSourceRate, ReasonDrained, ReasonKilled, ReasonTimeout, ReasonTLS, ReasonUnknownDatabase, ReasonUnknownRoute, ReasonDiskFull,
		ReasonOverloaded, ReasonRateLimited, ReasonStorage, ReasonInternal,
	}
}

// Stats is a snapshot of a Server's counters.
type Stats struct {
	Name, Protocol string
	Address        string // of the first listener; empty before Serve
	Active, Queued int
	Pinned         int // sessions that hold an upstream connection longer than their work needs, for state in it
	Listening      int // PostgreSQL sessions that listen for notifications by the listening connection of their upstream
	MaxConns       int
	Draining       bool
	// Counted since the start: all accepted connections, those that were rejected, and those
	// without a session because the client had disconnected.
	Accepted, Rejected, Gone uint64
	StateChecks              uint64               // PostgreSQL transactions after which the server was asked for state of any kind that they may have left
	Moved                    uint64               // moves of TCP sessions to another endpoint before the endpoint's first byte
	MovesRefused             uint64               // moves that the retry budget did not allow
	Errors                   map[string]uint64    // by reason
	LastErrors               map[string]time.Time // when an error with this reason was last counted
	LastRejected             time.Time            // when a connection was last rejected by the connection limit; zero: never
	BytesIn, BytesOut        uint64               // from and to clients, payload only
	Buffered                 int64                // bytes held for requests, in protocols that count them
	Traffic                  []traffic.Snapshot
}

// Stats returns the current counters. The cost grows with the number of open
// connections.
func (s *Server) Stats() Stats {
	cfg := s.config()
	st := Stats{
		Name: cfg.Name, Protocol: cfg.Protocol, MaxConns: cfg.MaxConns,
		Draining: s.IsDraining(), Accepted: s.accepted.Load(), Rejected: s.rejected.Load(), Gone: s.gone.Load(),
	}
	st.Errors, st.LastErrors = s.errors.snapshot()
	for _, set := range s.measured() {
		st.Traffic = append(st.Traffic, set.Snapshot())
	}
	if at := s.lastRejected.Load(); at > 0 {
		st.LastRejected = time.Unix(0, at)
	}
	st.Active, st.Queued = s.connLimit.counts()
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Address = s.address
	st.BytesIn, st.BytesOut = s.in.Load(), s.out.Load()
	for _, c := range s.conns {
		st.BytesIn += c.in.Load()
		st.BytesOut += c.out.Load()
	}
	return st
}

// CountError adds one to the errors of a reason (see the Reason constants).
func (s *Server) CountError(reason string) { s.errors.add(reason) }

// errorCounts counts errors by reason. Errors are rare, so a mutex suffices.
type errorCounts struct {
	mu   sync.Mutex
	n    map[string]uint64
	last map[string]time.Time
}

func (e *errorCounts) add(reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n == nil {
		e.n, e.last = make(map[string]uint64), make(map[string]time.Time)
	}
	e.n[reason]++
	e.last[reason] = time.Now()
}

func (e *errorCounts) snapshot() (n map[string]uint64, last map[string]time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.n), maps.Clone(e.last)
}
