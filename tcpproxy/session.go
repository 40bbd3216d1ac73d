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
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// session is one client and the upstream connection it got.
type session struct {
	proxy  *Proxy
	cfg    *settings
	client *listener.Conn
	watch  watch // on the client while it waits for the upstream, then on the relay

	counted int          // bytes the relay will copy first that were counted when they were read
	waiting fiber.Stream // the client's end while the session waits for the upstream, for watch

	mu     sync.Mutex    // held for a few instructions
	target *target       // nil = none yet; the session's own fiber or goroutine sets it, with mu
	cut    error         // why the session was cut off; nil = it was not
	relay  *relay        // nil = none at the moment
	wait   *pool.Bounded // the current wait for the upstream; nil = none
	waited bool          // a wait for the upstream has begun
	since  time.Time     // when the session got its connection

	leased     upstream.Lease[net.Conn] // of the current or last relay
	holds      bool                     // leased has not ended
	tried      []string                 // endpoints that the session has left, see relay.moves
	departed   *departure               // the last of them
	triesUntil time.Time                // zero = it has had no connection yet
}

// serveConn runs a session and closes c; it is the listener's handler.
func (p *Proxy) serveConn(ctx context.Context, c *listener.Conn) {
	p.cutting.Do(func() { context.AfterFunc(ctx, p.cutOff) }) // the context of all sessions
	p.begun.Add(1)
	s := &session{proxy: p, cfg: p.cfg.Load(), client: c}
	if !s.cfg.routed {
		s.target = s.cfg.fallback
	}
	if !s.client.Attach(s) {
		return // killed
	}
	s.part(ctx, s.begin)
}

// Resume implements listener.Resumer: the relay of the suspended session has ended.
func (s *session) Resume(ctx context.Context, _ *listener.Conn) { s.part(ctx, s.relayed) }

var _ listener.Resumer = (*session)(nil)

// part runs a part of the session: first, and then one endpoint after the other while the session moves. It returns when
// the session ends or is suspended. After a panic, from which the listener recovers, nothing of the session stays.
func (s *session) part(ctx context.Context, first func(context.Context) (next fiber.Stream, suspended bool)) {
	suspended := false
	defer func() {
		if !suspended {
			s.watch.stop()
			_ = s.client.Close()
		}
	}()
	defer func() {
		if !suspended && s.holds { // a panic
			s.discard()
		}
	}()
	var next fiber.Stream
	for next, suspended = first(ctx); next != nil; {
		next, suspended = s.serve(ctx, next)
	}
}

// begin is the first part of a session.
func (s *session) begin(ctx context.Context) (next fiber.Stream, suspended bool) {
	client, err := s.clientSide(ctx)
	if err != nil {
		s.refuseClient(err)
		return nil, false
	}
	return s.serve(ctx, client)
}

// serve connects the client to an endpoint and copies until the session ends, or is suspended while the loop copies. If
// the session moves, serve returns the client's end for the next endpoint, and nil otherwise.
func (s *session) serve(ctx context.Context, client fiber.Stream) (next fiber.Stream, suspended bool) {
	lease, server, err := s.lease(ctx, client)
	if err != nil {
		_ = client.SetLinger(0) // a clean end would look like an empty answer
		switch reason := reasonOf(err); {
		case len(s.tried) > 0 && (reason == listener.ReasonUpstreamUnavailable || reason == listener.ReasonPoolExhausted):
			s.refuseMoved(err)
		default:
			s.refuse(reason, err)
		}
		return nil, false
	}
	s.leased, s.holds = lease, true
	if s.triesUntil.IsZero() {
		s.triesUntil = fiber.Now().Add(s.target.connect)
	}
	r := newRelay(s, client, server, lease.Endpoint())
	s.relays(ctx, r)
	if w, ok := lease.Value().(*warmConn); ok {
		w.use(r)
	}
	if r.run() {
		return nil, true
	}
	return s.relayed(ctx)
}

// relayed ends the session's relay, whose directions have ended. If the session moves, next is the client's end for that.
func (s *session) relayed(context.Context) (next fiber.Stream, suspended bool) {
	r := s.relay // only the session's own fiber or goroutine sets it
	r.stop()
	if first, moves := r.moves(); moves {
		s.leaveEndpoint(r)
		return fiber.Ahead(r.client.conn, first), false
	}
	s.end(r)
	return nil, false
}

// discard discards the lease.
func (s *session) discard() {
	s.holds = false
	s.leased.Discard()
}

// endLease ends the lease of a relay that ended with reason and err. An endpoint that broke off before its first byte has
// failed. One that ended its stream has only failed if it had received a whole ClientHello and has answered no session
// since this one began: any client can withhold the rest of a ClientHello, or ask for what the server refuses.
func (s *session) endLease(r *relay, reason string, err error) {
	silence := r.wasSilent()
	switch {
	case r.serverSent.Load() || !s.blames() || silence == silentAtPart || reason == listener.ReasonInternal:
		s.discard()
	case silence == silentAtHello:
		if reason != listener.ReasonBackendGone {
			err = errSilent
		}
		s.holds = false
		s.leased.FailUnheard(err, s.since)
	case reason == listener.ReasonBackendGone:
		s.holds = false
		s.leased.Fail(err)
	default:
		s.discard()
	}
}

// clientSide returns the client's end for the relay, once the session has its target.
func (s *session) clientSide(ctx context.Context) (fiber.Stream, error) {
	switch {
	case s.cfg.TLS == nil && s.cfg.routed:
		ahead, err := s.route(ctx)
		return fiber.Ahead(s.client.Raw(), ahead), err
	case s.cfg.TLS == nil:
		return s.client.Raw(), nil
	}
	tc := fiber.TLSServer(s.client, s.cfg.TLS)
	err := s.shakeHands(ctx, tc)
	return tc, err
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

// refuseClient ends a session whose TLS handshake failed, or that has no target.
func (s *session) refuseClient(err error) {
	reason := listener.ReasonTLS
	var refused *refusal
	cut := s.isCut()
	switch {
	case cut != nil:
		reason, err = reasonOfCut(cut), cut
	case errors.As(err, &refused):
		reason = refused.reason
		s.sendAlert(refused)
	}
	s.refuse(reason, err)
}

// sendAlert answers a client that has no target. With TLS, crypto/tls has sent the alert.
func (s *session) sendAlert(r *refusal) {
	switch {
	case r.alert == nil:
		_ = s.client.SetLinger(0) // a clean end would look like an empty answer
	case s.cfg.TLS == nil:
		_, _ = s.client.Write(r.alert) // the first bytes on the connection: the socket has space
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
		"upstream", s.upstreamName(), "error", err)
	s.proxy.srv.AccessConn(s.client, s.upstreamName(), "", err)
}

// level returns the level of the log line about a session that ended for reason.
func level(reason string) slog.Level {
	if reason == listener.ReasonClientGone || reason == listener.ReasonTimeout || reason == listener.ReasonKilled {
		return slog.LevelInfo // expected in normal operation
	}
	return slog.LevelWarn
}

// end closes both connections and accounts for the session. After a failure, including a time-out, it resets them: a
// normal end would make the part of a stream that has arrived look complete.
func (s *session) end(r *relay) {
	reason, err := r.outcome()
	if err != nil {
		_ = r.client.conn.SetLinger(0)
		_ = r.server.conn.SetLinger(0)
	}
	s.endLease(r, reason, err)
	_ = r.client.conn.Close()
	s.broke(r.endpoint, reason, err)
}

// broke accounts for a session that ends at an endpoint; a nil err means normally.
func (s *session) broke(endpoint, reason string, err error) {
	if err != nil {
		s.proxy.srv.Report(reason, level(reason), "session broke off",
			"client", s.client.RemoteAddr().String(), "upstream", s.upstreamName(),
			"endpoint", endpoint, "error", err)
	}
	s.proxy.srv.AccessConn(s.client, s.upstreamName(), endpoint, err)
}

// errSilent is the failure of an endpoint that ends its stream instead of answering a ClientHello.
var errSilent = errors.New("the server has ended its stream without an answer to the ClientHello")

// Reasons for which the proxy ends a session.
var (
	errIdle    = errors.New("no byte in either direction for the idle time-out")
	errDrained = errors.New("the time to drain is over")
	errKilled  = errors.New("an operator has ended it")
)
