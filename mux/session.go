package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"sync"
	"time"

	"github.com/headpond/headpond/mux/frame"
)

// Session connects two processes over one connection, or with Config.Resume over a sequence of
// connections. All methods of it and of its channels may be called from any goroutine.
type Session struct {
	cfg    Config
	peer   Peer
	number ID
	log    *slog.Logger
	ticket *ticket        // nil: the session ends with its connection
	work   sync.WaitGroup // reconnecting

	// mu guards core and everything below. It is never held while waiting for
	// the socket or for anything else.
	mu       sync.Mutex
	core     *core
	link     *link  // nil: suspended, without a connection
	last     *link  // the newest there was
	flushing bool   // a goroutine is writing
	handed   bool   // it is the session's writer
	spare    *batch // the other of two, swapped with core.pend
	list     [][]byte
	spill    []byte // bytes the socket did not take, to be written first
	called   string // the peer, in the log
	closing  bool   // write queued frames, then end
	dead     bool   // the session no longer uses a connection
	timer    *time.Timer

	// Small sends; see stream.
	lastSend int64  // when the last was, ns
	quick    int    // how many followed each other closely, while no caller waited for an answer
	streamed uint64 // messages sent when the writer was woken for them

	waiting int  // goroutines in pause
	patient bool // the last receiver that waited could read itself

	// Free lists. Not shared by sessions, so that a session belongs to one synctest
	// bubble.
	freeOps     *sendOp
	freeWaiters *waiter

	writerWake chan struct{} // hands flushing over to the writer
	done       chan struct{} // closed when core.err is set
	writerDone chan struct{}
}

// Client makes a session of conn, which must be new and connected to a process
// that calls Server. It returns after the handshake, or with an error that wraps
// ErrHandshake, ErrDenied, ErrConfig or the context's; conn is closed then. The
// session owns conn from the call on.
func Client(ctx context.Context, conn net.Conn, cfg Config) (*Session, error) {
	return start(ctx, conn, cfg, true)
}

// Server is Client's other side. Use it on an accepted connection, in its own goroutine: it waits
// for the client.
func Server(ctx context.Context, conn net.Conn, cfg Config) (*Session, error) {
	return start(ctx, conn, cfg, false)
}

func start(ctx context.Context, conn net.Conn, cfg Config, client bool) (*Session, error) {
	err := cfg.Verify()
	if err == nil && client && cfg.Resume != nil && cfg.Resume.Dial == nil {
		err = fmt.Errorf("%w: Resume.Dial is not set: a client needs it to make another connection", ErrConfig)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	cfg = cfg.withDefaults()
	shaken := false
	defer func() {
		if !shaken { // Authorize has panicked
			closeNow(conn)
		}
	}()
	h, err := shakeHands(ctx, conn, cfg, client)
	shaken = true
	if err == nil {
		cfg.PSK = h.psk
	}
	if err != nil {
		if !errors.Is(err, ErrResumed) {
			closeNow(conn)
		}
		return nil, &Error{Op: "handshake", Err: err, retry: true}
	}
	l := newLink(detach(conn))
	s := &Session{
		cfg: cfg, peer: h.peer, called: h.peer.Name, number: h.session, link: l, last: l, log: cfg.Logger,
		spare: &batch{}, writerWake: make(chan struct{}, 1), done: make(chan struct{}), writerDone: make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	began := time.Now()
	s.core = newCore(cfg, client, &h.theirs, func() int64 { return int64(time.Since(began)) })
	s.resumable(h)
	s.core.copyAll = l.raw == nil && s.core.replay == nil // the ring has its own copy
	go s.write()
	go s.read(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	if cfg.KeepAlive > 0 && s.core.err == nil {
		s.timer = time.AfterFunc(cfg.KeepAlive, s.tick)
	}
	s.flush(nil, false)
	return s, nil
}

// lifeSign is how many bytes of a large frame count as a sign of life for keep-alive: on a
// slow line a whole frame may take longer than keep-alive waits. Single bytes do not count.
const lifeSign = 1 << 10

// tick runs when a keep-alive period ends.
func (s *Session) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.core.err != nil {
		return
	}
	if s.link == nil {
		s.timer.Reset(s.cfg.KeepAlive)
		return
	}
	if got := s.link.in.got.Load(); got-s.link.lastGot >= lifeSign {
		s.core.frames++
		s.link.lastGot = got
	}
	dead, asking := s.core.tick()
	switch {
	case dead:
		s.lose(s.link, fmt.Errorf("%w: %w: no frame for %v", ErrSessionLost, ErrDeadPeer, s.cfg.KeepAlive+s.cfg.KeepAliveTimeout))
		if s.core.err == nil {
			s.timer.Reset(s.cfg.KeepAlive)
		}
	case asking:
		if !s.flushing && s.core.replay != nil {
			s.core.replay.shrink()
		}
		s.flush(nil, false)
		s.timer.Reset(s.cfg.KeepAliveTimeout)
	default:
		s.timer.Reset(s.cfg.KeepAlive)
	}
}

// fail ends the session at once. mu is held.
func (s *Session) fail(err error) {
	s.over(err)
	if !s.dead {
		s.dead = true
		if s.link != nil {
			closeNow(s.link.conn)
		}
	}
	s.wakeWriter()
}

// over marks the session as ended, for the first reason given. mu is held.
func (s *Session) over(err error) {
	if s.core.err != nil {
		return
	}
	if s.ticket != nil {
		err = s.surrender(err)
	}
	if s.inGoodOrder(err) {
		err = closedThere{}
	}
	s.core.fail(err)
	s.last.wakeReader()
	close(s.done)
	if s.timer != nil {
		s.timer.Stop()
	}
	if err != ErrSessionClosed { //nolint:errorlint // this side's Close, which needs no line
		s.log.Info("mux: session ended", "peer", s.called, "address", s.peer.Addr, "error", err)
	}
}

// closedThere ends a session that the other side has closed normally.
type closedThere struct{}

func (closedThere) Error() string { return "mux: session closed by the other side" }
func (closedThere) Unwrap() error { return ErrSessionClosed }

// inGoodOrder reports whether the other side has closed the session, which ends with err,
// while it held nothing that could be lost. mu is held.
func (s *Session) inGoodOrder(err error) bool {
	c := s.core
	if len(c.channels) > 0 || errors.Is(err, ErrNotResumed) {
		return false
	}
	if bye, ok := errors.AsType[*GoAwayError](err); ok {
		lost, some := errors.AsType[*LostError](err)
		return bye.Code == frame.CodeOver && (!some || len(lost.Unacknowledged) == 0)
	}
	return c.replay == nil && c.goneAway && errors.Is(err, errConnectionClosed)
}

// finish ends the session for err, after accepted data and a last frame with the reason are
// written, or CloseTimeout has passed. mu is held.
func (s *Session) finish(err error, code frame.Code, reason string) {
	if s.closing || s.dead {
		return
	}
	s.over(err)
	if s.mute() {
		s.fail(err)
		return
	}
	s.closing = true
	f := frame.GoAway{Last: s.core.last, Code: code, Reason: []byte(reason)}
	if s.core.replay == nil {
		s.core.pend.ctl = f.Append(s.core.pend.ctl)
	} else {
		if code == frame.CodeNone {
			f.Code = frame.CodeOver // so that the other side does not wait for a connection
		}
		s.core.pend.out = f.Append(s.core.pend.out) // the last frame
	}
	s.link.conn.SetWriteDeadline(time.Now().Add(s.cfg.CloseTimeout))
	s.handOver()
}

// Close ends the session. Accepted data is written first, within CloseTimeout; all waiting calls
// return ErrSessionClosed. When Close returns no goroutine, timer or socket of the session is left.
// Closing twice is fine. Use Drain to let the channels finish.
func (s *Session) Close() error {
	s.mu.Lock()
	s.finish(ErrSessionClosed, frame.CodeNone, "")
	l := s.last
	s.mu.Unlock()
	<-s.writerDone
	linger := time.NewTimer(s.cfg.CloseTimeout)
	defer linger.Stop()
	select { // the other side closes when it has read everything
	case <-l.readerDone:
	case <-linger.C:
	}
	closeNow(l.conn)
	<-l.readerDone
	s.work.Wait()
	return nil
}

// Drain accepts no more channels, informs the other side, and waits until all channels are over; then it closes the
// session. It does not wait for a lost connection once all channels are closed at this side and the other side has
// acknowledged their data: only the other side would gain from resuming. If ctx ends first, its error is returned and
// the session continues to drain: call Close.
func (s *Session) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.core.drain()
	s.flush(nil, false)
	w := newWaiter()
	s.core.empty.add(&w)
	for s.core.err == nil && len(s.core.channels) > 0 && !s.abandoned() {
		if err := s.pause(ctx, &w); err != nil {
			s.core.empty.remove(&w)
			s.mu.Unlock()
			return &Error{Op: "drain", Err: err}
		}
	}
	s.core.empty.remove(&w)
	s.mu.Unlock()
	return s.Close()
}

// abandoned reports that the session has no connection and that this side needs none: every channel is closed here, and
// no data is unacknowledged. mu is held.
func (s *Session) abandoned() bool {
	if s.ticket == nil || s.link != nil {
		return false
	}
	for _, ch := range s.core.channels {
		if !ch.closed || !ch.sendOver {
			return false
		}
	}
	return len(s.core.replay.unacknowledged(s.core.channels)) == 0
}

// pause gives mu up until w is woken or ctx ends; it returns with mu held.
func (s *Session) pause(ctx context.Context, w *waiter) error {
	s.waiting++
	if l := s.link; l != nil && !l.reading {
		l.wakeReader()
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting--
	}()
	if w.by != nil {
		return w.by.Park(ctx)
	}
	if ctx.Done() == nil {
		<-w.ready
		return nil
	}
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Done is closed when the session has ended; Err says why.
func (s *Session) Done() <-chan struct{} { return s.done }

// Ping measures the round trip to the other side. It fails when ctx ends, when the
// connection is lost meanwhile, or when there is none (in a suspended session).
func (s *Session) Ping(ctx context.Context) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, l := s.core, s.link
	if c.err == nil && l != nil {
		c.ping()
	}
	began, want := c.now(), c.pings
	w := newWaiter()
	c.pongs.add(&w)
	defer c.pongs.remove(&w)
	s.flush(nil, false)
	for {
		err := c.err
		switch {
		case err != nil:
		case l == nil || s.link != l:
			err = errNoConnection
		case c.ponged >= want:
			return time.Duration(c.now() - began), nil
		default:
			err = s.pause(ctx, &w)
		}
		if err != nil {
			return 0, &Error{Op: "ping", Err: err}
		}
	}
}

var errNoConnection = errors.New("mux: the session has no connection now")

// Err is nil while the session lives; then it wraps ErrSessionClosed or ErrSessionLost.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.err
}

// Draining reports whether no more channels can be opened here: either side drains, or
// this side has used up its two billion channel numbers.
func (s *Session) Draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.drained || s.core.goneAway || s.core.exhausted() || s.core.err != nil
}

// Resumable reports whether the session outlives its connection: both sides have
// Config.Resume.
func (s *Session) Resumable() bool { return s.ticket != nil }

// CallPeer sets the name of the other side in the session's log lines, in place of
// the one of the handshake.
func (s *Session) CallPeer(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called = name
}

// Peer describes the other side, from the handshake.
func (s *Session) Peer() Peer { return s.peer }

// ID is the session's, the same on both sides, for logs.
func (s *Session) ID() ID { return s.number }

var errConnectionClosed = fmt.Errorf("%w: the other side closed the connection", ErrSessionLost)

// lost wraps the error that ended the connection from outside.
func lost(err error) error {
	if errors.Is(err, io.EOF) {
		return errConnectionClosed
	}
	return fmt.Errorf("%w: %w", ErrSessionLost, err)
}

const anySize = math.MaxInt
