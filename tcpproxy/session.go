package tcpproxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/upstream"
)

// session is one client and the upstream connection it got.
type session struct {
	proxy  *Proxy
	cfg    *settings
	client *listener.Conn
	watch  *watch // on the client while it waits for the upstream, then on the relay

	counted int // bytes the relay will copy first that were counted when they were read

	mu       sync.Mutex // held for a few instructions
	target   *target    // nil = none yet; the session's own fiber or goroutine sets it, with mu
	cut      error      // why the session is to end from this side; nil = it is not
	relay    *relay     // nil = there is none yet
	giveUp   func()     // ends the wait for the upstream; nil = it has not begun
	endpoint string
	since    time.Time // when it got its connection
}

// serveConn runs a session and closes c; it is the listener's handler.
func (p *Proxy) serveConn(ctx context.Context, c *listener.Conn) {
	p.cutting.Do(func() { context.AfterFunc(ctx, p.cutOff) }) // the context of all sessions
	s := &session{proxy: p, cfg: p.cfg.Load(), client: c}
	if !s.cfg.routed {
		s.target = s.cfg.fallback
	}
	s.client.Attach(s)
	defer s.client.Close()
	defer s.stopWatch()
	client, err := s.clientSide(ctx)
	if err != nil {
		s.refuseClient(err)
		return
	}
	lease, server, err := s.lease(ctx, client)
	if err != nil {
		_ = client.conn.SetLinger(0) // a clean end would look like an empty answer
		s.refuse(reasonOf(err), err)
		return
	}
	ended := false
	defer func() {
		if !ended { // a panic: the listener recovers, the connection must not stay
			lease.Discard()
		}
	}()
	r := newRelay(s, client, server)
	r.firstByte = lease.OK
	s.relays(ctx, r, lease.Endpoint())
	if w, ok := lease.Value().(*warmConn); ok {
		w.session.Store(s)
	}
	r.run()
	ended = true
	s.end(lease, r)
}

func (s *session) stopWatch() {
	if s.watch != nil {
		s.watch.stop()
	}
}

// clientSide returns the client's end as the relay copies it, when the session has its target.
func (s *session) clientSide(ctx context.Context) (*side, error) {
	switch {
	case s.cfg.TLS == nil && s.cfg.routed:
		ahead, err := s.route(ctx)
		return &side{"client", fiber.Ahead(s.client.Raw(), ahead)}, err
	case s.cfg.TLS == nil:
		return &side{"client", s.client.Raw()}, nil
	}
	tc := fiber.TLSServer(s.client, s.cfg.TLS)
	err := s.shakeHands(ctx, tc)
	return &side{"client", tc}, err
}

// reasonOf returns the error counter of an error of lease.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, errClientGone):
		return listener.ReasonClientGone
	case errors.Is(err, errDrained), errors.Is(err, errKilled):
		return reasonOfCut(err)
	case upstream.Exhausted(err):
		return listener.ReasonPoolExhausted
	}
	return listener.ReasonUpstreamUnavailable
}

// refuseClient is for a client whose TLS handshake failed, or that has no target.
func (s *session) refuseClient(err error) {
	reason := listener.ReasonTLS
	var refused *refusal
	cut := s.isCut()
	switch {
	case cut != nil:
		reason, err = reasonOfCut(cut), cut
	case errors.As(err, &refused):
		reason = refused.reason
		s.tell(refused)
	}
	s.refuse(reason, err)
}

// tell answers a client that has no target. With TLS, crypto/tls has sent the alert.
func (s *session) tell(r *refusal) {
	switch {
	case r.alert == nil:
		_ = s.client.SetLinger(0) // a clean end would look like an empty answer
	case s.cfg.TLS == nil:
		_, _ = s.client.Write(r.alert) // its first bytes: there is room for them
	}
}

// upstreamName returns the name of the session's upstream, "" while there is none.
func (s *session) upstreamName() string {
	if s.target == nil {
		return ""
	}
	return s.target.upstream.Name()
}

// refuse accounts for a session that never reached an endpoint.
func (s *session) refuse(reason string, err error) {
	s.proxy.srv.Report(reason, level(reason), "session failed", "client", s.client.RemoteAddr().String(),
		"upstream", s.upstreamName(), "reason", reason, "error", err)
	s.access("", err)
}

// level returns the level of the log line about a session that ended for reason.
func level(reason string) slog.Level {
	if reason == listener.ReasonClientGone || reason == listener.ReasonTimeout || reason == listener.ReasonKilled {
		return slog.LevelInfo // expected in normal operation
	}
	return slog.LevelWarn
}

// end closes both connections and accounts for the session. After a failure, time-outs among them, it resets
// them: an ordinary end would make the part of a stream that has arrived look whole.
func (s *session) end(lease upstream.Lease[net.Conn], r *relay) {
	reason, err := r.outcome()
	if err != nil {
		_ = r.client.conn.SetLinger(0)
		_ = r.server.conn.SetLinger(0)
	}
	switch {
	case reason == listener.ReasonBackendGone && !r.heard.Load():
		lease.Fail(err)
	default:
		lease.Discard()
	}
	_ = r.client.conn.Close()
	if err != nil {
		s.proxy.srv.Report(reason, level(reason), "session broke off",
			"client", s.client.RemoteAddr().String(), "upstream", s.upstreamName(),
			"endpoint", lease.Endpoint(), "reason", reason, "error", err)
	}
	s.access(lease.Endpoint(), err)
}

// access writes the access log's line.
func (s *session) access(endpoint string, err error) {
	if !s.proxy.srv.AccessLog() {
		return
	}
	attrs := []slog.Attr{
		slog.String("client", s.client.RemoteAddr().String()),
		slog.String("upstream", s.upstreamName()),
		slog.String("endpoint", endpoint),
		slog.Duration("duration", time.Since(s.client.Accepted())),
		slog.Uint64("bytes_in", s.client.BytesIn()),
		slog.Uint64("bytes_out", s.client.BytesOut()),
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	s.proxy.srv.Access(context.Background(), attrs...)
}

// Reasons for which the proxy ends a session.
var (
	errIdle    = errors.New("no byte in either direction for the idle time-out")
	errDrained = errors.New("the time to drain is over")
	errKilled  = errors.New("an operator has ended it")
)
