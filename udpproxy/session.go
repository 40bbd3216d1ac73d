package udpproxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/upstream"
)

// maxAttempts bounds the endpoints that a client's first datagrams are sent to, if one after the other refuses them.
const maxAttempts = 3

// joinAfter is the number of datagrams after which a session asks the kernel to join them. Most sessions have fewer,
// and asking costs a system call.
const joinAfter = 64

// maxSessionPause bounds the pause of a session's reader after errors that may last, such as a shortage of memory. A
// session that is to end meanwhile ends after the pause.
const maxSessionPause = 100 * time.Millisecond

var (
	errKilled  = errors.New("killed by an operator")
	errDrained = errors.New("cut off at the end of a drain")
	errSilent  = errors.New("no answer")
)

// session sends a client what its endpoint sends. The reader of the port handles the other direction.
type session struct {
	proxy  *Proxy
	cfg    *Config
	client *listener.Conn
	flow   *flow

	// Only the session's goroutine uses these fields.
	received   int       // number of datagrams from the endpoint
	spoken     time.Time // when the last one came; at first, when the session got its socket
	reportedAt time.Time // when the session last told the upstream that the endpoint answers
	doubt      doubt
	lease      upstream.Lease[*Socket]
	leased     bool     // lease has not ended
	refused    []string // endpoints that have refused the first datagrams

	mu         sync.Mutex         // held for a few instructions
	cut        error              // the error that ends the session from this side; nil = none
	cancelWait context.CancelFunc // ends the wait for a socket; nil = not waiting
	socket     *Socket            // nil = none
	since      time.Time          // when the session got its socket
	where      string             // address of its endpoint
}

// serveConn runs a session and closes c; it is the listener's handler.
func (p *Proxy) serveConn(ctx context.Context, c *listener.Conn) {
	defer c.Close()
	p.cutting.Do(func() { context.AfterFunc(ctx, p.cutAll) }) // the context is common to all sessions
	s := &session{proxy: p, cfg: p.cfg.Load(), client: c, flow: flowOf(c)}
	if !c.Attach(s) {
		return // killed
	}
	s.flow.onClose(func(why error) { s.cutOff(why) })
	defer func() {
		if s.leased { // after a panic, from which the listener recovers, the socket must be closed
			s.lease.Discard()
		}
	}()
	for attempt := 1; ; attempt++ {
		if err := s.connect(ctx); err != nil {
			s.report(reasonOf(err), err, "session failed")
			return
		}
		err := s.relay()
		if !blames(err) || attempt == maxAttempts || !s.others() || !s.flow.disconnect() {
			s.end(err)
			return
		}
		s.disconnect(err)
	}
}

// flowOf returns the flow below c.
func flowOf(c *listener.Conn) *flow {
	return c.Raw().(interface{ NetConn() net.Conn }).NetConn().(*flow) //nolint:forcetypeassert // Serve has looked
}

// others reports whether there is another endpoint that has not refused the client's datagrams.
func (s *session) others() bool {
	return s.cfg.Upstream.Others(append(s.refused[:len(s.refused):len(s.refused)], s.lease.Endpoint()))
}

// connect leases a socket to an endpoint.
func (s *session) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ConnectTimeout)
	defer cancel()
	s.mu.Lock()
	cut := s.cut
	s.cancelWait = cancel
	s.mu.Unlock()
	if cut != nil {
		return cut
	}
	lease, err := s.cfg.Upstream.AcquireNarrow(ctx, s.flow.key.peer.Addr().String(), upstream.Narrow{Avoid: s.refused})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelWait = nil
	if err != nil {
		return errors.Join(s.cut, err)
	}
	s.lease, s.leased = lease, true
	s.socket, s.since, s.where = lease.Value(), time.Now(), lease.Endpoint()
	s.spoken = s.since
	s.socket.session.Store(s)
	if why := s.socket.why.Load(); why != nil && s.cut == nil {
		s.cut = *why
	}
	return nil
}

// disconnect ends the use of an endpoint that refuses datagrams.
func (s *session) disconnect(err error) {
	s.refused = append(s.refused, s.lease.Endpoint())
	s.mu.Lock()
	s.socket, s.where = nil, ""
	s.mu.Unlock()
	s.leased = false
	s.lease.FailUnheard(err, s.since)
}

// relay sends the client what its endpoint sends, until the session is over, for which it returns nil.
func (s *session) relay() error {
	socket := s.lease.Value()
	s.flow.connect(socket, s.client, s.cfg.Answers, s.others())
	var pause time.Duration // after the last error; 0 = something has come since
	for {
		if over, err := s.wait(socket); over || err != nil {
			return err
		}
		received := s.received
		err := socket.socket.receiveAll(s.answer)
		if s.received > received {
			pause = 0
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
		case blames(err):
			if err = s.weigh(err, time.Now()); err != nil {
				return err
			}
		case errors.Is(err, net.ErrClosed), !interrupted(err):
			return err
		default:
			pause = sessionPauseAfter(pause)
			time.Sleep(pause)
		}
	}
}

// sessionPauseAfter returns the pause of a session's reader after an error that follows another one with the pause
// last; 0 = there was none.
func sessionPauseAfter(last time.Duration) time.Duration {
	return min(pauseAfter(last), maxSessionPause)
}

// weigh returns a refusal that ends the session: one by an endpoint that has never answered. It records any other
// refusal for wait, unless the endpoint has sent something after it.
func (s *session) weigh(refusal error, at time.Time) error {
	if _, answered := s.flow.silence(); !answered {
		return refusal
	}
	s.doubt.raise(refusal, at, s.spoken)
	return nil
}

// answer sends a batch of packets to the client. It returns false when the session is over.
func (s *session) answer(packets []packet) bool {
	socket := s.lease.Value()
	if packets = slices.DeleteFunc(packets, func(p packet) bool { return !socket.from(&p) }); len(packets) == 0 {
		return true
	}
	s.spoken, s.doubt = time.Now(), doubt{}
	s.received += datagramsIn(packets)
	if s.received > joinAfter && !socket.joins {
		socket.joins = true
		socket.socket.join()
	}
	over := s.flow.answer(packets)
	if s.spoken.Sub(s.reportedAt) > reportInterval {
		s.reportedAt = s.spoken
		s.lease.Heard(s.spoken)
	}
	return !over
}

// reportInterval is how often a session tells the upstream that its endpoint answers.
const reportInterval = 100 * time.Millisecond

// wait sets the deadline for the endpoint's next packet. over reports that the session has been silent for its idle
// time-out.
func (s *session) wait(socket *Socket) (over bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut != nil {
		return false, s.cut
	}
	for {
		until, over, err := s.until(time.Now())
		if over || err != nil {
			return over, err
		}
		_ = socket.socket.conn.SetReadDeadline(until)
		at, err := s.flow.failure() // a later failure wakes the session by another deadline
		if err == nil {
			return false, nil
		}
		if err = s.weigh(err, at); err != nil {
			return false, err
		}
	}
}

// until returns how long the session waits for its endpoint. The caller holds mu.
func (s *session) until(now time.Time) (until time.Time, over bool, err error) {
	last, answered := s.flow.silence()
	patience := s.cfg.IdleTimeout
	if !answered {
		patience = s.cfg.UnansweredTimeout
	}
	if s.proxy.srv.IsDraining() && (answered || s.cfg.Answers == 0) { // otherwise the answer is on its way
		patience = min(patience, s.cfg.DrainIdle)
	}
	until = later(last, s.spoken).Add(patience)
	if !now.Before(until) && s.flow.end(last) {
		return until, true, nil
	}
	if believed := s.doubt.believed(last); !believed.IsZero() {
		if !now.Before(believed) {
			return until, false, s.doubt.refusal
		}
		until = earlier(until, believed)
	}
	if expires := s.flow.expire(now); !expires.IsZero() {
		until = earlier(until, expires)
	}
	return until, false, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// check makes the session check its state, because a drain has begun. A session without a socket checks it later.
func (s *session) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.socket != nil {
		s.socket.wake()
	}
}

// cutOff ends the session; false = it was cut off before. Any goroutine may call it.
func (s *session) cutOff(why error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut != nil {
		return false
	}
	s.cut = why
	if s.cancelWait != nil {
		s.cancelWait()
	}
	if s.socket != nil {
		s.socket.wake()
	}
	return true
}

// cutAll ends all sessions, when their context has ended.
func (p *Proxy) cutAll() {
	p.srv.Each(func(s listener.Session) { s.(*session).cutOff(errDrained) }) //nolint:forcetypeassert // all are
}

// end ends the lease, and counts and logs the end of the session. err is nil after silence or the last answer.
func (s *session) end(err error) {
	s.mu.Lock()
	s.socket = nil
	where := s.where
	s.mu.Unlock()
	s.leased = false
	if err == nil && s.cfg.Answers > 0 && s.flow.unanswered() {
		err = errSilent
	}
	switch {
	case err == errSilent:
		s.lease.FailUnheard(err, s.since)
	case blames(err):
		s.lease.FailUnheard(err, later(s.since, s.doubt.asked))
	default:
		s.lease.Discard()
	}
	_ = s.client.Close()
	if err != nil {
		s.report(reasonOf(err), err, "session broke off")
		return
	}
	s.proxy.srv.AccessConn(s.client, s.cfg.Upstream.Name(), where, nil)
}

// report counts and logs a session that did not end by itself.
func (s *session) report(reason string, err error, message string) {
	level := slog.LevelWarn
	if reason == listener.ReasonTimeout || reason == listener.ReasonKilled {
		level = slog.LevelInfo // happens in normal operation
	}
	client := s.client.RemoteAddr().String()
	s.proxy.srv.Report(reason, level, message, "client", client, "upstream", s.cfg.Upstream.Name(), "endpoint", s.where, "error", err)
	s.proxy.srv.AccessConn(s.client, s.cfg.Upstream.Name(), s.where, err)
}

// reasonOf returns the error counter for the error that ended a session.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, errKilled):
		return listener.ReasonKilled
	case errors.Is(err, errDrained), errors.Is(err, net.ErrClosed):
		return listener.ReasonDrained
	case errors.Is(err, upstream.ErrUnhealthy), errors.Is(err, upstream.ErrRemoved):
		return listener.ReasonEndpointOut
	case errors.Is(err, upstream.ErrRebalanced):
		return listener.ReasonRebalanced
	case errors.Is(err, errSilent):
		return listener.ReasonTimeout
	case blames(err):
		return listener.ReasonBackendGone
	case upstream.Exhausted(err):
		return listener.ReasonPoolExhausted
	}
	return listener.ReasonUpstreamUnavailable
}

var _ listener.Session = (*session)(nil)

// Describe implements listener.Session.
func (s *session) Describe(all []listener.Info, info listener.Info) []listener.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	info.Upstream, info.State = s.cfg.Upstream.Name(), listener.StateWaiting
	if s.socket != nil {
		info.State, info.Since, info.Endpoint, info.Held = listener.StateActive, s.since, s.where, s.since
	}
	return append(all, info)
}

// Kill implements listener.Session.
func (s *session) Kill(stream uint64) bool { return stream == 0 && s.cutOff(errKilled) }
