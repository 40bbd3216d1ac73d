package mux

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/headpond/headpond/mux/frame"
)

// Resume makes sessions outlive their connections, if both sides have one in their Config: when the
// connection is lost the client makes another, and both sides continue where they were. Channels
// and their callers notice only the delay. Accepted messages reach the other side's queue exactly
// once and in order, as long as both processes live and a connection is made within Window;
// otherwise the session ends with a [LostError].
//
// A server gives the same *Resume to all calls of Server whose clients may resume: it holds their
// sessions. The call of Server that resumes one returns ErrResumed. Do not copy or change a Resume
// once it is in use; the zero value works for servers, and for clients with a Dialer.
type Resume struct {
	// Dial makes another connection to the same server, as the first was made: a
	// client's Config needs it. A Dialer sets it for its sessions. It is called by
	// the session's own goroutine, until it succeeds or Window is over, and must heed
	// ctx: Close waits for it.
	Dial func(ctx context.Context) (net.Conn, error)
	// Window is how long a session without a connection is kept. The shorter of
	// both sides' applies. Default 2 min.
	Window time.Duration
	// Buffer bounds unacknowledged data, in bytes; one batch of frames (64 KiB and a frame) may
	// come on top. When it is full Send waits. It is allocated as needed, in powers of two. Default
	// 4 MiB; 64 KiB to 1 GiB.
	Buffer int
	// Backpressure makes Send fail with ErrBackpressure where it would wait for
	// room in Buffer. (Write on a Stream, and Send for credit, wait nevertheless.)
	Backpressure bool
	// MaxSuspended bounds a server's sessions that have no connection; further ones
	// are lost with their connection. A session whose client is resuming it does not
	// count. Default 1024.
	MaxSuspended int

	mu        sync.Mutex // never held while waiting
	sessions  map[ID]*Session
	suspended int
}

const (
	// ackDelay is how long an acknowledgement may wait for a frame to travel with.
	ackDelay = 25 * time.Millisecond
	// redialFirst and redialMost bound the pause before another attempt to connect.
	redialFirst = 20 * time.Millisecond
	redialMost  = 5 * time.Second
	// redialPatience bounds the first attempt, up to the end of the handshake, and doubles with each, up to HandshakeTimeout:
	// what a path has swallowed when it failed brings no answer once it is back. Three seconds are a few round trips to the
	// other side of the world.
	redialPatience = 3 * time.Second
)

// with returns a new Resume for a session, with the settings of r.
func (r *Resume) with(dial func(ctx context.Context) (net.Conn, error)) *Resume {
	return &Resume{Dial: dial, Window: r.Window, Buffer: r.Buffer, Backpressure: r.Backpressure}
}

func (r *Resume) window() time.Duration {
	if r.Window == 0 {
		return 2 * time.Minute
	}
	return r.Window
}

func (r *Resume) buffer() int {
	if r.Buffer == 0 {
		return 4 << 20
	}
	return r.Buffer
}

func (r *Resume) verify() error {
	switch {
	case r.buffer() < frame.MinReplay || r.buffer() > 1<<30:
		return fmt.Errorf("%w: Resume.Buffer is %d, want 64 KiB to 1 GiB", ErrConfig, r.Buffer)
	case r.window() < time.Millisecond || r.window() > 24*time.Hour:
		return fmt.Errorf("%w: Resume.Window is %v, want 1 ms to 24 h", ErrConfig, r.Window)
	case r.MaxSuspended < 0:
		return fmt.Errorf("%w: Resume.MaxSuspended is %d, want a positive number", ErrConfig, r.MaxSuspended)
	}
	return nil
}

func (r *Resume) find(id ID) *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[id]
}

func (r *Resume) add(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions == nil {
		r.sessions = map[ID]*Session{}
	}
	r.sessions[s.number] = s
}

func (r *Resume) remove(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, s.number)
}

// suspend counts one more session without a connection; false: that is too many.
func (r *Resume) suspend() bool {
	most := r.MaxSuspended
	if most == 0 {
		most = 1024
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.suspended >= most {
		return false
	}
	r.suspended++
	return true
}

func (r *Resume) unsuspend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.suspended--
}

// ticket is the state of a session that can be resumed, besides its ring. The
// session's lock guards what is below the line.
type ticket struct {
	cfg      *Resume
	client   bool
	token    [16]byte
	instance [16]byte // the server's
	key      [32]byte // of the client's TLS certificate; zero: none
	window   time.Duration

	// ---
	epoch    uint32 // of the newest connection, or attempt at one
	counted  bool   // in cfg.suspended
	taken    bool   // over, by a client that has resumed: not to be counted
	since    time.Time
	expire   *time.Timer
	ack      *time.Timer
	cancel   context.CancelFunc // of reconnecting
	losses   uint64             // connections
	moved    uint64             // frames there and back, when the last was lost
	vain     int                // connections in a row that were lost at once with nothing moved
	resumed  uint64
	lastGap  time.Duration // from the last loss to its resumption
	lastLoss error
}

// resumable sets the session up for resumption if that was agreed. No other goroutine has the
// session yet.
func (s *Session) resumable(h *handshake) {
	if h.ticket == nil {
		return
	}
	t := h.ticket
	t.cfg, t.client = s.cfg.Resume, h.client
	t.window = min(t.window, t.cfg.window())
	t.key = certificate(h.peer.TLS)
	s.ticket = t
	s.core.replay = &replay{
		limit: t.cfg.buffer(), quarter: int(h.theirs.Replay / 4), backpressure: t.cfg.Backpressure,
	}
	if !h.client {
		t.cfg.add(s)
	}
}

// certificate identifies a client by its public key, which stays when its certificate is renewed.
func certificate(state *tls.ConnectionState) (sum [32]byte) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return sum
	}
	return sha256.Sum256(state.PeerCertificates[0].RawSubjectPublicKeyInfo)
}

// conn is the session's newest connection, for its addresses.
func (s *Session) conn() net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.conn
}

// lose gives l up because of err, which ends a session that cannot be resumed. mu is
// held.
func (s *Session) lose(l *link, err error) {
	t := s.ticket
	if t == nil || s.core.err != nil || s.dead || s.link != l {
		if s.link == l {
			s.fail(err)
		}
		return
	}
	l.lost, s.link = true, nil
	closeNow(l.conn)
	l.wakeReader()
	s.core.suspend()
	t.losses++
	t.judge(s.core.replay)
	t.since, t.lastLoss = time.Now(), err
	s.log.Info("mux: connection lost, session kept", "session", s.number, "peer", s.called, "window", t.window, "error", err)
	if !t.client && !t.taken && !s.count() {
		return
	}
	loss := t.losses
	t.expire = time.AfterFunc(t.window, func() { s.expired(loss) })
	if t.client {
		ctx, cancel := context.WithCancel(context.Background())
		t.cancel = cancel
		vain := t.vain
		s.work.Go(func() { s.reconnect(ctx, l, vain) })
	}
	s.flush(nil, false)    // senders need not wait for the connection while there is room
	s.core.empty.wakeAll() // see abandoned
}

// judge counts the connection that was just lost if it moved nothing: if each one is cut off at once,
// there must be a pause before the next. mu is held.
func (t *ticket) judge(r *replay) {
	moved := r.received + r.acked
	if t.resumed > 0 && moved == t.moved && time.Since(t.since.Add(t.lastGap)) < redialMost {
		t.vain++
	} else {
		t.vain = 0
	}
	t.moved = moved
}

// expired runs when a session has been without a connection for its window.
func (s *Session) expired(loss uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.ticket; s.link == nil && t.losses == loss {
		s.fail(fmt.Errorf("%w (%w within %v)", t.lastLoss, ErrNotResumed, t.window))
	}
}

// surrender ends all activity of resumption, and returns the lost data. mu is held.
func (s *Session) surrender(err error) error {
	t := s.ticket
	if t.expire != nil {
		t.expire.Stop()
	}
	if t.ack != nil {
		t.ack.Stop()
	}
	if t.cancel != nil {
		t.cancel()
	}
	if !t.client {
		t.cfg.remove(s)
	}
	s.uncount()
	if !errors.Is(err, ErrSessionLost) {
		return err
	}
	if b := s.core.pend; len(b.ctl)+len(b.out) > 0 {
		s.core.replay.take(b)
		s.core.wrote(b, nil)
		b.reset()
	}
	return &LostError{Err: err, Unacknowledged: s.core.replay.unacknowledged(s.core.channels)}
}

// count adds the session to those without a connection, or ends it if that is
// too many. mu is held.
func (s *Session) count() bool {
	t := s.ticket
	if t.counted = t.counted || t.cfg.suspend(); !t.counted {
		s.fail(fmt.Errorf("%w (too many sessions without a connection)", t.lastLoss))
	}
	return t.counted
}

func (s *Session) uncount() {
	if t := s.ticket; t.counted {
		t.counted = false
		t.cfg.unsuspend()
	}
}

// attach continues the session on conn: both sides have agreed, no goroutine uses an older
// connection, and the other side has everything up to frame number last. ahead is data that was
// read from conn already. mu is held.
func (s *Session) attach(conn net.Conn, ahead []byte, last uint64) error {
	t := s.ticket
	if !s.core.replay.rewind(last) {
		return fmt.Errorf("%w: the other side has frame %d, this side keeps %d to %d",
			ErrSessionLost, last, s.core.replay.acked, s.core.replay.sent)
	}
	t.expire.Stop()
	s.uncount()
	l := newLink(conn, ahead)
	s.link, s.last = l, l
	t.resumed++
	t.lastGap = time.Since(t.since)
	s.log.Info("mux: session resumed", "session", s.number, "peer", s.called, "epoch", t.epoch, "after", t.lastGap)
	go s.read(l)
	s.core.ping() // the round trip may have changed
	s.handOver()
	return nil
}

// armAck starts the ack timer unless it runs or nothing needs an acknowledgement. mu is held.
func (s *Session) armAck() {
	r := s.core.replay
	if r == nil || r.armed || r.received == r.ackSent || s.core.err != nil {
		return
	}
	r.armed = true
	if s.ticket.ack == nil {
		s.ticket.ack = time.AfterFunc(ackDelay, s.ackNow)
		return
	}
	s.ticket.ack.Reset(ackDelay)
}

func (s *Session) ackNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.core.replay
	r.armed = false
	if s.link != nil && s.core.err == nil && r.received != r.ackSent {
		r.due = true
		s.flush(nil, false)
	}
}

// numbered handles a frame of a session that can be resumed. mu is held.
func (s *Session) numbered(h frame.Header, body []byte) error {
	r := s.core.replay
	if err := r.handleAck(h.Ack); err != nil {
		return protocolError("%v", err)
	}
	if err := s.take(h, body); err != nil {
		return err
	}
	if h.Type.Sequenced() {
		r.count(frame.HeaderSize + len(body))
	}
	return nil
}

// reconnect makes connections until the session is resumed on one, or is over. It begins
// when no goroutine uses the lost connection. Connections before it that moved
// nothing count as attempts.
func (s *Session) reconnect(ctx context.Context, lost *link, vain int) {
	<-lost.over
	for try := vain; ; try++ {
		if try > 0 {
			pause := min(redialFirst<<min(try-1, 16), redialMost)
			timer := time.NewTimer(pause/2 + rand.N(pause))
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
		}
		final, err := s.redial(ctx, min(redialPatience<<min(try, 16), s.cfg.HandshakeTimeout))
		if err == nil || ctx.Err() != nil {
			return
		}
		s.log.Debug("mux: not resumed yet", "session", s.number, "attempt", try+1, "error", err)
		if final {
			s.mu.Lock()
			s.fail(fmt.Errorf("%w: %w: %w", ErrSessionLost, ErrNotResumed, err))
			s.mu.Unlock()
			return
		}
	}
}

// redial tries to resume once, for as long as patience. final means that the server has refused for good. Errors of Dial and
// of the connection are never final, whatever they wrap: they may come from another session below
// this one.
func (s *Session) redial(ctx context.Context, patience time.Duration) (final bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := s.ticket.cfg.Dial(ctx)
	if err != nil {
		return false, err
	}
	last, err := s.present(ctx, conn)
	if err == nil {
		var ahead []byte
		conn, ahead = detach(conn)
		s.mu.Lock()
		if err = s.core.err; err == nil {
			err = s.attach(conn, ahead, last)
		}
		s.mu.Unlock()
		final = err != nil
	} else if bye, ok := err.(*GoAwayError); ok { //nolint:errorlint // this server's, not one that the connection's error wraps
		final = bye.Code != frame.CodeRefused
	} else {
		final = err == errImpostor //nolint:errorlint // as above
	}
	if err != nil {
		closeNow(conn)
	}
	return final, err
}

// sign returns the proof that this side has the session's ticket: a MAC of the frames
// so far, without the proof itself.
func (s *Session) sign(label string, frames ...[]byte) (sum [frame.ProofSize]byte) {
	mac := hmac.New(sha256.New, append(s.ticket.token[:len(s.ticket.token):len(s.ticket.token)], s.cfg.PSK...))
	mac.Write([]byte(label))
	for _, f := range frames {
		mac.Write(f)
	}
	mac.Sum(sum[:0])
	return sum
}
