package httpproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool/httppool"
)

// Bounds of an HTTP/2 connection.
const (
	h2Window      = 64<<10 - 1 // bytes of body that a stream buffers for its server: the RFC's initial value
	h2Extra       = 192 << 10  // more of it, for a stream whose server reads quickly
	h2AllExtra    = 1 << 20    // the sum of h2Extra over all streams of a connection
	h2AllWindow   = 1 << 20    // of body in flight; credit is returned on receipt, because the streams' windows bound the memory
	maxOut        = 64 << 10   // of frames that wait for the client; one frame may exceed it
	h2Preface     = http2Preface + "\r\nSM\r\n\r\n"
	pingAfter     = 30 * time.Second // of silence: finds a client that has vanished while nothing is sent to it
	pongWithin    = 15 * time.Second
	maxBlock      = 2       // times the limit of a head: a field block is smaller than its decoded form, but need not be
	maxFragments  = 64      // frames of one block
	maxEndedEarly = 500     // ended streams that the client may still send on: twice this many, or twice the stream limit, are remembered
	tableSize     = 4 << 10 // of the client's compression, the RFC's default
)

// http2 is a client's HTTP/2 connection. One fiber reads it. Each stream has its own fiber, which serves it like a
// connection with one request. All frames collect in out; a stream that finds no flush running sends them.
type http2 struct {
	p       *Proxy
	ctx     context.Context
	lc      *listener.Conn
	conn    fiber.Stream
	isTLS   *tls.ConnectionState // nil = no TLS
	peer    peer
	counts  bool  // see session
	shard   uint8 // see session
	held    tally // the reader's buffer, and unsent frames
	limits  *limits
	fibers  fiber.Group // the streams' fibers
	sending fiber.Group // the running flush
	flusher func()      // flushes; made once

	// The reader's.
	h2Reader
	handshaken bool
	suspended  bool         // the fiber of an idle connection has given up its stack; Resume continues
	last       uint32       // the highest stream ID
	skipped    bool         // some lower IDs were never used
	served     uint32       // the last stream ID for GOAWAY
	pinged     time.Time    // when the last PING was sent; zero = something has come since
	unsent     *h2Server    // has frames that the reader must send; nil = none
	expected   []*h2Stream  // streams whose sessions wait for the body that may have arrived with the head; see expect
	completed  *h2Stream    // the one of expected whose request has just become complete; nil = none
	lastClient clientFields // fields of the client in the last request served without a fiber

	mu           sync.Mutex // held for a few instructions
	streams      map[uint32]*h2Stream
	spare        []*h2Stream // ended streams, for reuse; see newStream
	active       int         // streams that the client counts as open: neither answered completely nor reset
	tunnels      int         // streams that are tunnels
	room         h2Waiter    // the reader waits for ended streams to unwind; see mayOpen
	window       int64       // the client's send window for the connection
	idle         time.Time   // since when there has been no stream; zero = there are streams
	initial      int64       // the client's initial window of a stream
	widest       int64       // the most that a stream's window has beyond initial
	taken        int64       // bytes of body whose credit was not returned to the client yet
	extra        int64       // sum of the streams' extra windows
	endedEarly   []uint32    // streams that ended here before the client ended them
	resets       int         // streams that the client reset, minus those that completed
	controls     int         // control answers in out
	out          []byte
	flushing     bool
	writeTimeout time.Duration // how long a client may take to read
	blocked      int           // writers that wait for window or buffer space
	recheck      bool          // the reader must check its deadlines again
	widened      bool          // a window grew; writers are woken once for all frames that arrived together
	emptied      bool
	draining     bool
	drainBegan   time.Time // when the client was sent GOAWAY; zero = not yet
	closing      bool      // GOAWAY with the last stream ID was sent
	err          error     // of sending, or why the connection ended
}

// goHTTP2 serves the connection in HTTP/2. Its first bytes may have been read already.
func (s *session) goHTTP2() {
	s.kept = true
	now := time.Now()
	h := &http2{ // all that Describe reads is set here, before the register has it
		lastRead: now, started: now, idle: now,
		p: s.p, ctx: s.ctx, lc: s.lc, conn: s.client.conn, isTLS: s.isTLS, counts: s.counts, shard: s.shard, limits: s.p.limits.Load(),
		streams: make(map[uint32]*h2Stream), window: 64<<10 - 1, initial: 64<<10 - 1, writeTimeout: DefaultIdleTimeout,
	}
	h.flusher = func() { _ = h.flush(nil) }
	h.peer = *s.from()
	h.in, s.client = s.client, stream{conn: s.client.conn}
	h.holds(s)
	h.h2Reader.begin(h, false, h.limits.head)
	h.lc.Attach(h)
	if h.p.isDraining() {
		h.interrupt() // an interrupt may have come before the session was registered
	}
	h.carry()
	s.suspended = h.suspended
}

// holds starts the memory accounting of the connection, and takes over the session's.
func (h *http2) holds(s *session) {
	h.held.to, h.in.held = s.held.to, &h.held
	h.held.add(h.in.cost())
	s.held.end()
}

// carry runs the connection to its end, or to where it is suspended.
func (h *http2) carry() {
	err := errPanicked
	defer func() {
		if h.suspended {
			return
		}
		h.end(err)
	}()
	err = h.serve()
}

// run runs fn in a new fiber of the connection. A panic there ends only that fiber.
func (h *http2) run(fn func()) {
	h.fibers.Go(func() {
		defer h.p.recovered(h.lc)
		fn()
	})
}

// locked runs fn with mu held.
func (h *http2) locked(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn()
}

// unlocked runs fn with mu, which is held, released.
func (h *http2) unlocked(fn func()) {
	h.mu.Unlock()
	defer h.mu.Lock()
	fn()
}

// Resume implements listener.Resumer.
func (h *http2) Resume(ctx context.Context, _ *listener.Conn) {
	h.ctx, h.suspended = ctx, false
	h.carry()
}

// interrupt starts the drain: see Proxy.Drain.
func (h *http2) interrupt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
	h.checkBy(time.Unix(1, 0))
}

// checkBy has the reader check its deadlines at t, even if it is about to set a later one. mu is held.
func (h *http2) checkBy(t time.Time) {
	h.recheck = true
	_ = h.conn.SetReadDeadline(t)
}

var (
	errH2Ended     = errors.New("the connection is over") // a normal end
	errH2Suspended = errors.New("the connection is idle")
)

// serve reads frames until the connection ends or is suspended.
func (h *http2) serve() error {
	if !h.handshaken {
		if err := h.handshake(); err != nil {
			return err
		}
		h.handshaken = true
	}
	for {
		if err := h.frame(); err != nil {
			return err
		}
		h.launchCompleted()
	}
}

// handshake sends the settings, and reads the client's preface.
func (h *http2) handshake() error {
	out := appendFrame(h.outgoing(), 4*6, frameSettings, 0, 0)
	out = appendSetting(out, settingStreams, uint32(h.limits.streams))
	out = appendSetting(out, settingFrame, maxFrame)
	out = appendSetting(out, settingHeaderList, uint32(h.limits.head))
	out = appendSetting(out, settingConnect, 1)
	h.out = appendWindow(out, 0, h2AllWindow-(64<<10-1))
	if err := h.need(len(h2Preface)); err != nil {
		return err
	}
	if string(h.in.upTo(len(h2Preface))) != h2Preface {
		return codeProtocol
	}
	h.in.take(len(h2Preface))
	return nil
}

// fill reads once, and handles the deadlines of the connection meanwhile.
func (h *http2) fill() error {
	h.launchAll()
	h.flushUnsent()
	for late := false; ; {
		by, err := h.deadline(time.Now())
		if errors.Is(err, os.ErrDeadlineExceeded) && !late && hasCome(h.conn) {
			by, err, late = time.Now().Add(interruptGrace), nil, true
		}
		if err != nil {
			return err
		}
		h.flushAhead()
		_ = h.conn.SetReadDeadline(by)
		again, idle := h.beforeWait()
		if again {
			continue
		}
		if idle && h.in.waitIdle() {
			if h.suspend() {
				return errH2Suspended
			}
			continue
		}
		n, err := h.in.fill()
		if h.counts {
			h.lc.Count(int64(n), 0)
		}
		if n > 0 {
			h.lastRead, h.pinged = fiber.Now(), time.Time{}
			return nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// beforeWait is called before the reader waits. again: checkBy's deadline was set, and may have been overwritten. idle: no
// stream is open, except for tunnels, which may pause for long.
func (h *http2) beforeWait() (again, idle bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.widened {
		h.widened = false
		h.wakeWriters()
	}
	return h.recheck, len(h.streams) == h.tunnels && h.started.IsZero() && !h.pouring
}

// suspend frees the memory that an idle connection does not need; false = the connection is not idle.
func (h *http2) suspend() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pending() || h.flushing || !h.lc.Suspend() {
		return false
	}
	h.suspended = true
	h.dropSpare()
	h.lastClient, h.expected = clientFields{}, nil
	h.block, h.head.fields, h.head.cookie, h.head.text = nil, nil, nil, nil
	h.head.reset(false)
	if len(h.streams) == 0 {
		h.streams = make(map[uint32]*h2Stream)
	}
	return true
}

// deadline returns when the reader must check again. An error means that the connection has ended.
func (h *http2) deadline(now time.Time) (time.Time, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recheck = false
	if len(h.streams) == 0 && h.started.IsZero() && !now.Before(h.idle.Add(h.clientIdle())) {
		h.draining = true
	}
	if h.draining && !h.closing {
		h.drain(now)
	}
	switch by := h.started.Add(h.limits.readHeader); {
	case h.err != nil:
		return by, h.err
	case h.closing && len(h.streams) == 0:
		return by, errH2Ended
	case !h.started.IsZero() && !now.Before(by):
		if !h.handshaken && len(h.in.bytes()) == 0 { // the client has sent nothing
			return by, os.ErrDeadlineExceeded
		}
		return by, codeNone // the client may send again what comes after the last stream
	case h.draining && !h.closing:
		return h.drainBegan.Add(lingerTime), nil
	case !h.started.IsZero():
		return by, nil
	case len(h.streams) == 0:
		return h.idle.Add(h.clientIdle()), nil
	}
	if !h.pinged.IsZero() {
		by := h.pinged.Add(pongWithin)
		if !now.Before(by) {
			return by, os.ErrDeadlineExceeded
		}
		return by, nil
	}
	if by := h.lastRead.Add(pingAfter); now.Before(by) {
		return by, nil
	}
	h.pinged = now // which may be long after the PING was due, on a machine that stood still
	h.out = append(appendFrame(h.outgoing(), 8, framePing, 0, 0), "headpond"...)
	return now.Add(pongWithin), nil
}

// clientIdle returns how long the connection may be without streams.
func (h *http2) clientIdle() time.Duration { return h.p.limits.Load().clientIdle }

// becameIdle is called when the last stream has ended. mu is held.
func (h *http2) becameIdle() {
	h.idle = time.Now()
	switch {
	case h.closing:
		h.checkBy(time.Unix(1, 0))
	case !h.in.holds: // the reader holds no buffer, so it can be suspended
		h.checkBy(h.idle.Add(min(suspendAfter, h.clientIdle())))
	case h.clientIdle() < pingAfter: // otherwise the next check is early enough
		h.checkBy(h.idle.Add(h.clientIdle()))
	}
}

// drainPing is the PING whose answer shows that the client has read GOAWAY.
const drainPing = "good-bye"

// drain ends a connection without losing a request (RFC 9113, section 6.8): the client is asked to begin no more streams,
// and those that it has begun are served. mu is held.
func (h *http2) drain(now time.Time) {
	switch {
	case h.drainBegan.IsZero():
		h.drainBegan = now
		h.out = appendGoAway(h.outgoing(), maxStream, codeNone)
		h.out = append(appendFrame(h.out, 8, framePing, 0, 0), drainPing...)
	case !now.Before(h.drainBegan.Add(lingerTime)):
		h.goAway(codeNone)
	}
}

// goAway announces that no stream after the last one is served. mu is held.
func (h *http2) goAway(code h2Code) {
	if !h.closing {
		h.closing, h.served = true, h.last
	}
	h.out = appendGoAway(h.outgoing(), h.served, code)
}

// end closes the connection, and returns when all its fibers have ended.
func (h *http2) end(err error) {
	h.launchAll()
	h.flushUnsent()
	code, broken := errors.AsType[h2Code](err)
	h.locked(func() {
		if broken {
			h.goAway(code)
		}
		h.writeTimeout = lingerTime
		h.failAll(err) // otherwise they would keep the sender busy
	})
	if broken {
		h.p.noteRefused(h.lc, listener.ReasonProtocol)
	}
	_ = h.conn.SetWriteDeadline(time.Now().Add(lingerTime))
	h.sending.Wait()
	_ = h.flush(nil)
	h.locked(func() {
		if h.err == nil {
			h.err = net.ErrClosed
		}
	})
	if broken || errors.Is(err, errH2Ended) {
		h.in.lingeringClose()
	}
	h.in.drop()
	_ = h.conn.Close()
	h.fibers.Wait()
	h.locked(h.dropSpare)
	h.held.end()
}

// clientGone wraps the error that ends the client's requests.
func clientGone(err error) error {
	if errors.Is(err, httppool.ErrClientGone) {
		return err
	}
	return fmt.Errorf("%w: %w", httppool.ErrClientGone, err)
}

// pending reports whether there is something to send. mu is held.
func (h *http2) pending() bool { return len(h.out) > 0 || h.taken >= h2AllWindow/4 }

// maxRounds is how often one flush also sends frames that collected meanwhile. Then another fiber continues, and the
// stream goes back to its own work.
const maxRounds = 8

// flush sends the collected frames, unless another flush runs. Each buffer has the write time-out of st, or if that is nil
// the connection's.
func (h *http2) flush(st *h2Stream) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.flushFor(st)
}

// flushFor is flush with mu held. It releases mu while it sends.
func (h *http2) flushFor(st *h2Stream) error {
	idle := h.writeTimeout
	if st != nil && !st.writer.by.IsZero() && !h.flushing {
		if idle = time.Until(st.writer.by); idle <= 0 {
			return os.ErrDeadlineExceeded
		}
	}
	return h.flushWithin(idle)
}

// flushWithin is flush with a given write time-out. mu is held.
func (h *http2) flushWithin(idle time.Duration) error {
	if h.flushing {
		return h.err
	}
	h.flushing = true
	h.sending.Add(1)
	defer func() {
		h.flushing = false
		h.sending.Done()
	}()
	for round := 0; h.pending() && h.err == nil; round++ {
		if round == maxRounds {
			h.sending.Add(1)
			h.run(func() {
				defer h.sending.Done()
				h.locked(func() { _ = h.flushWithin(idle) })
			})
			break
		}
		out := h.outgoing()
		if h.taken >= h2AllWindow/4 { // smaller credit is not worth a frame
			out = appendWindow(out, 0, h.taken)
			h.taken = 0
		}
		h.out, h.controls = nil, 0
		limit := min(h.writeTimeout, idle*time.Duration((len(out)+bufferSize-1)/bufferSize))
		h.send(out, limit)
		h.wakeWriters()
	}
	return h.err
}

// send sends out. mu is held, and released meanwhile.
func (h *http2) send(out []byte, limit time.Duration) {
	err := errPanicked
	defer func() {
		if err != nil {
			h.broken(err)
		}
	}()
	grown := cap(out) - bufferSize
	h.held.add(grown)
	h.unlocked(func() {
		_ = h.conn.SetWriteDeadline(time.Now().Add(limit))
		var n int
		n, err = h.conn.Write(out)
		if h.counts {
			h.lc.Count(0, int64(n))
		}
	})
	h.held.add(-grown)
	putOut(&h.held, out)
}

// outgoing returns the buffer of collected frames, to be appended to. mu is held.
func (h *http2) outgoing() []byte {
	if h.out == nil {
		h.out = takeBuffer(&h.held)[:0]
	}
	return h.out
}

// broken ends the connection and wakes its reader. mu is held.
func (h *http2) broken(err error) {
	if h.err == nil {
		h.err = err
	}
	h.failAll(err)
	h.room.wake()
	h.checkBy(time.Unix(1, 0))
}

// failAll ends all streams. mu is held.
func (h *http2) failAll(err error) {
	err = clientGone(err)
	for _, st := range h.streams {
		st.fail(err)
	}
}

// wakeWriters is called with mu held when writers may continue, or must stop.
func (h *http2) wakeWriters() {
	if h.blocked == 0 {
		return
	}
	for _, st := range h.streams {
		st.writer.wake()
	}
}

// noteEndedEarly records a stream that ended here while the client may still send on it. mu is held.
func (h *http2) noteEndedEarly(id uint32) {
	if n := len(h.endedEarly); n >= 2*max(h.limits.streams, maxEndedEarly) {
		h.endedEarly = h.endedEarly[:copy(h.endedEarly, h.endedEarly[n/2:])]
	}
	h.endedEarly = append(h.endedEarly, id)
}

// stray checks a frame on an ended stream (RFC 9113, section 5.1). It is allowed if the client had not ended the stream:
// it may have been sent before the client knew. ends marks the client's last frame. mu is held.
func (h *http2) stray(id uint32, ends bool) error {
	i := slices.Index(h.endedEarly, id)
	switch {
	case i < 0 && h.skipped:
		return codeProtocol // the stream may never have begun (section 5.1.1)
	case i < 0:
		return codeClosed
	case ends:
		h.endedEarly = slices.Delete(h.endedEarly, i, i+1)
	}
	return nil
}

// open creates the stream of a request; the error is an h2Code.
func (h *http2) open(id uint32, ends bool) error {
	b := &h.head
	if b.bad {
		return h.refuseMalformed(id, ends)
	}
	st := h.newStream(id, ends)
	if b.large {
		return h.answerLarge(st)
	}
	s := sessions.Get().(*session)
	if !b.request(&s.req, &s.reqText, ends) {
		s.recycle()
		return h.refuseMalformed(id, ends)
	}
	if !h.mayOpen(st) {
		s.recycle()
		return h.refuseMore(id, ends)
	}
	h.fibers.Add(1)
	st.begin(s)
	h.expect(st)
	return nil
}

// maxSpareStreams is how many ended streams, with their timers, a connection keeps for reuse.
const maxSpareStreams = 64

// newStream returns a stream for the received head, perhaps a reused one. Only the reader begins streams, so no frame of
// the former request is being handled.
func (h *http2) newStream(id uint32, ends bool) (st *h2Stream) {
	h.locked(func() {
		if n := len(h.spare); n > 0 {
			st = h.spare[n-1]
			h.spare[n-1] = nil
			h.spare = h.spare[:n-1]
		}
	})
	if st == nil {
		st = &h2Stream{h: h}
		st.mu = &h.mu
		st.run = st.serve
	}
	b := &h.head
	st.id, st.ended, st.left, st.timeout, st.received = id, ends, b.length, b.timeout, h.lastRead
	st.lengthless = !ends && st.left < 0 && b.protocol == ""
	return st
}

// keep keeps an ended stream and its session for newStream. Only the reader uses them from now on. mu is held.
func (h *http2) keep(st *h2Stream) {
	st.session.recycle()
	st.again()
	if h.err == nil && len(h.spare) < maxSpareStreams {
		h.spare = append(h.spare, st)
	} else {
		st.stop()
	}
}

// dropSpare frees the kept streams. mu is held.
func (h *http2) dropSpare() {
	for _, st := range h.spare {
		st.stop()
	}
	h.spare = nil
}

// mayOpen reports whether one more stream may open. Streams that have ended for the client (answered or reset) may take
// time to unwind. Their number is bounded, too. The client does not know that bound, so the reader waits instead of
// refusing.
func (h *http2) mayOpen(st *h2Stream) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.streams) >= 2*h.limits.streams && h.active < h.limits.streams && h.err == nil {
		if len(h.expected) > 0 || h.unsent != nil { // the wait may be for the end of these
			h.unlocked(h.launchAll)
			h.unlocked(h.flushUnsent)
			continue
		}
		h.sendSoon()
		h.room.wait(&h.mu)
	}
	if h.closing || h.active >= h.limits.streams || h.err != nil {
		return false
	}
	h.streams[st.id] = st
	h.active++
	st.active = true
	h.idle = time.Time{}
	return true
}

// deactivate records that the stream has ended for the client, which may begin another. mu is held.
func (st *h2Stream) deactivate() {
	if st.active {
		st.active = false
		st.h.active--
	}
}

// refuseMalformed resets a stream whose head is malformed.
func (h *http2) refuseMalformed(id uint32, ended bool) error {
	h.p.noteRefused(h.lc, listener.ReasonProtocol)
	h.logUnread(0, listener.ReasonProtocol, "the head is malformed")
	return h.refuse(id, codeProtocol, ended)
}

// refuseMore resets a stream that may not open. When the connection ends, that is no error: the client sends the request again.
func (h *http2) refuseMore(id uint32, ended bool) error {
	over := false
	h.locked(func() { over = h.closing || h.err != nil })
	if over {
		h.logUnread(0, "", "the connection ends")
	} else {
		h.p.srv.Report(listener.ReasonRejected, slog.LevelInfo, "request refused: the client sends too many at once", "client", h.lc.RemoteAddr().String())
		h.logUnread(0, listener.ReasonRejected, "too many requests at once")
	}
	return h.refuse(id, codeRefused, ended)
}

// refuse resets a stream that has not begun.
func (h *http2) refuse(id uint32, code h2Code, ended bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !ended {
		h.noteEndedEarly(id)
	}
	h.out = appendReset(h.outgoing(), id, code)
	return h.control()
}

// answerLarge refuses a request whose head is too large.
func (h *http2) answerLarge(st *h2Stream) error {
	h.p.noteRefused(h.lc, listener.ReasonProtocol)
	h.logUnread(http.StatusRequestHeaderFieldsTooLarge, listener.ReasonProtocol, "the head is larger than allowed")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out = st.appendFields(appendStatus(nil, http.StatusRequestHeaderFieldsTooLarge), true)
	if !st.ended {
		h.noteEndedEarly(st.id)
		h.out = appendReset(h.out, st.id, codeNone)
	}
	return h.control()
}

// maxControls bounds the answers (to SETTINGS and PING, and resets) that wait for a client that does not read them.
const maxControls = 1000

// control counts such an answer. mu is held.
func (h *http2) control() error {
	if h.controls++; h.controls > maxControls {
		return codeCalm
	}
	return nil
}

// flushSoon flushes in another fiber. The reader must not wait for the client to read: a client that waits for us to read
// would then wait forever.
func (h *http2) flushSoon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sendSoon()
}

// sendSoon is flushSoon with mu held.
func (h *http2) sendSoon() {
	if h.pending() && !h.flushing && h.err == nil {
		h.run(h.flusher)
	}
}

// maxResets is by how much the streams that a client resets, or makes us reset, may exceed those that it completes. Each
// reset costs a connection to the server.
const maxResets = 1000

// handleReset handles RST_STREAM.
func (h *http2) handleReset(id uint32, _ []byte) error {
	if id == 0 || id > h.last {
		return codeProtocol
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	st := h.streams[id]
	if st == nil {
		_ = h.stray(id, true) // the client may have sent it before it knew of the end
		return nil
	}
	st.ended = true
	if st.tunnels && h.lastRead.Sub(st.received) >= tunnelServes {
		st.fail(errStreamReset)
		st.deactivate()
		return nil
	}
	return h.cancelStream(st, errStreamReset)
}

// tunnelServes is the age from which the reset of a tunnel is no abuse: browsers end WebSockets so. Younger ones count, as
// other streams do; see maxResets.
const tunnelServes = time.Second

// cancelStream ends a stream because of its client. mu is held.
func (h *http2) cancelStream(st *h2Stream, err error) error {
	st.fail(err)
	st.deactivate()
	if h.resets++; h.resets > maxResets {
		return codeCalm
	}
	return nil
}

// abort resets a stream because its client broke a rule. mu is held.
func (h *http2) abort(st *h2Stream, code h2Code) error {
	if st.err != nil {
		return nil //nolint:nilerr // the stream has ended already
	}
	h.out = appendReset(h.outgoing(), st.id, code)
	if err := h.cancelStream(st, fmt.Errorf("%w: %w", httppool.ErrClientGone, code)); err != nil {
		return err
	}
	return h.control()
}

// The largest window and stream ID (RFC 9113, sections 5.1.1 and 6.9.1).
const (
	maxWindow = math.MaxInt32
	maxStream = math.MaxInt32
)
