package tcpproxy

import (
	"context"
	"errors"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// waits records the context of the wait for the upstream connection. It ends it if the session was cut off before.
func (s *session) waits(client fiber.Stream, wait *pool.Bounded) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting, s.wait, s.waited = client, wait, true
	if s.cut != nil {
		wait.End()
	}
}

// giveUp ends the wait for the upstream connection.
func (s *session) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wait != nil {
		s.wait.End()
	}
}

// relays records that r is about to run. If the session was cut off or ctx has ended, it ends r at once.
func (s *session) relays(ctx context.Context, r *relay) {
	now := time.Now()
	s.mu.Lock()
	s.relay, s.since, s.wait = r, now, nil
	cut := s.cut
	s.mu.Unlock()
	switch {
	case cut != nil:
		r.fail(reasonOfCut(cut), cut)
	case ctx.Err() != nil:
		r.fail(listener.ReasonDrained, errDrained)
	}
}

// isCut returns the error with which the session was cut off, nil if it was not.
func (s *session) isCut() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut
}

// cutOff ends the session with the error why; false = it was cut off before. Any goroutine may call it. If the session
// waits for its client's ClientHello or TLS handshake, cutOff closes the client's connection.
func (s *session) cutOff(why error) bool {
	s.mu.Lock()
	if s.cut != nil {
		s.mu.Unlock()
		return false
	}
	s.cut = why
	r, waited := s.relay, s.waited
	if r == nil && s.wait != nil {
		s.wait.End()
	}
	s.mu.Unlock()
	switch {
	case r != nil:
		r.fail(reasonOfCut(why), why)
	case !waited:
		_ = s.client.SetLinger(0)
		_ = s.client.Close()
	}
	return true
}

// reasonOfCut returns the error counter for a cut-off.
func reasonOfCut(why error) string {
	switch {
	case errors.Is(why, errKilled):
		return listener.ReasonKilled
	case errors.Is(why, upstream.ErrUnhealthy), errors.Is(why, upstream.ErrRemoved):
		return listener.ReasonEndpointOut
	case errors.Is(why, upstream.ErrRebalanced):
		return listener.ReasonRebalanced
	}
	return listener.ReasonDrained
}

// cutOff ends all sessions, when their context has ended.
func (p *Proxy) cutOff() {
	p.srv.Each(func(s listener.Session) { s.(*session).cutOff(errDrained) }) //nolint:forcetypeassert // all are
}

var _ listener.Session = (*session)(nil)

// Describe implements listener.Session.
func (s *session) Describe(all []listener.Info, info listener.Info) []listener.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.relay != nil:
		info.State, info.Since, info.Endpoint, info.Held = listener.StateActive, s.since, s.relay.endpoint, s.since
	case s.waited:
		info.State = listener.StateWaiting
	default:
		info.State = listener.StateStarting
	}
	info.Upstream = s.upstreamName()
	return append(all, info)
}

// Kill implements listener.Session.
func (s *session) Kill(stream uint64) bool { return stream == 0 && s.cutOff(errKilled) }

// Sessions describes the streams, in no particular order.
func (p *Proxy) Sessions() []listener.Info { return p.srv.Sessions() }

// Kill resets the stream with an ID from Sessions, on both sides; false = there is none.
func (p *Proxy) Kill(id listener.ID, stream uint64) bool { return p.srv.Kill(id, stream) }
