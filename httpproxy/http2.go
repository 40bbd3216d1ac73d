package httpproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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
	h2Window     = 64<<10 - 1 // of body that a stream holds for its server: the initial value of the RFC
	h2Extra      = 192 << 10  // more, for a stream whose server takes it
	h2AllExtra   = 1 << 20    // and for all streams together
	h2AllWindow  = 1 << 20    // of body on its way; received data is given back at once, because the streams' windows bound the memory
	maxOut       = 64 << 10   // of frames that wait for the client, and a frame more
	h2Preface    = http2Preface + "\r\nSM\r\n\r\n"
	pingAfter    = 30 * time.Second // of silence: a client that has vanished is noticed although nothing is sent to it
	pongWithin   = 15 * time.Second
	maxBlock     = 2       // times the limit of a head: a block of fields is smaller than its decoded form, but need not be
	maxFragments = 64      // frames of one block
	maxCut       = 500     // streams that are remembered because the client may not know their end yet, or twice as many as there may be
	tableSize    = 4 << 10 // of the client's compression, the default
)

// http2 is a client's HTTP/2 connection. One fiber reads it; each stream has one of its own, which serves it as a
// session does a connection with one request. Their frames collect in out, and the first that finds no flush running
// sends them.
type http2 struct {
	p       *Proxy
	ctx     context.Context
	lc      *listener.Conn
	conn    fiber.Stream
	isTLS   *tls.ConnectionState // nil without
	peer    peer
	counts  bool  // see session
	shard   uint8 // likewise
	held    tally // the reader's buffer, and frames that were not sent
	limits  *limits
	over    fiber.Group // the streams' fibers
	sending fiber.Group // the running flush
	flusher func()      // flushes; it is made once

	// The reader's.
	h2Reader
	greeted   bool
	suspended bool   // the fiber of an idle connection has given up its stack; Resume continues
	last      uint32 // the highest stream
	skipped   bool   // some below it were never begun
	served    uint32 // the last one, as GOAWAY has it
	pinged    bool
	unsent    *h2Server    // that has frames which the reader is to send; nil = none has
	expected  []*h2Stream  // whose sessions wait for the body that may have come with the head; see expect
	ripe      *h2Stream    // that of them whose request has just come whole; nil = none has
	said      clientFields // of the client, in the last request without a fiber

	mu       sync.Mutex // held for a few instructions
	streams  map[uint32]*h2Stream
	spare    []*h2Stream // that are over, for others; see newStream
	active   int         // of them, those whose answers are not whole and that nobody has reset: the client takes these at most for open
	room     h2Waiter    // the reader waits for streams to unwind; see mayOpen
	window   int64       // that the client gives
	idle     time.Time   // since when there has been no stream; zero = there are some
	initial  int64       // of each stream
	widest   int64       // the most that one of them has beyond it
	taken    int64       // of body, not yet given back to the client
	extra    int64       // that streams have beyond their windows
	cut      []uint32    // streams that ended here before the client ended them
	resets   int         // streams that the client gave up, minus those that completed
	owed     int         // answers in out
	out      []byte
	flushing bool
	patience time.Duration // with a client that does not read
	starved  int           // writers that wait
	look     bool          // the reader is to look again
	widened  bool          // a window has room; streams are woken once for all frames that arrived together
	emptied  bool
	draining bool
	leaving  time.Time // when the client was sent GOAWAY; zero = not yet
	gone     bool      // GOAWAY has named the last one
	err      error     // of sending, or why it is over
}

// goHTTP2 serves the connection, whose first bytes may be there, in HTTP/2.
func (s *session) goHTTP2() {
	h := &http2{
		p: s.p, ctx: s.ctx, lc: s.lc, conn: s.client.conn, isTLS: s.isTLS, counts: s.counts, shard: s.shard, limits: s.p.limits.Load(),
		streams: make(map[uint32]*h2Stream), window: 64<<10 - 1, initial: 64<<10 - 1, patience: DefaultIdleTimeout,
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

// holds prepares the count of the memory that the connection holds, and takes over that of the session before.
func (h *http2) holds(s *session) {
	h.held.to, h.in.held = s.held.to, &h.held
	h.held.add(len(h.in.buf))
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

// run runs fn in a fiber of the connection's own. A panic there ends nothing else.
func (h *http2) run(fn func()) {
	h.over.Go(func() {
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

// unlocked runs fn with mu given up, which is held.
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

// interrupt begins the end: see Proxy.Drain.
func (h *http2) interrupt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
	h.lookBy(time.Unix(1, 0))
}

// lookBy lets the reader look by then at the latest, which may be about to set a deadline that it found before. mu is held.
func (h *http2) lookBy(t time.Time) {
	h.look = true
	_ = h.conn.SetReadDeadline(t)
}

var (
	errH2Over      = errors.New("the connection is over") // nothing more is to come, and nothing is wrong
	errH2Suspended = errors.New("the connection is idle")
)

// serve reads frames until there is no use in it.
func (h *http2) serve() error {
	if !h.greeted {
		if err := h.greet(); err != nil {
			return err
		}
		h.greeted = true
	}
	for {
		if err := h.frame(); err != nil {
			return err
		}
		h.launchRipe()
	}
}

// greet sends the settings, and reads the client's preface.
func (h *http2) greet() error {
	h.heard = time.Now()
	h.started, h.idle = h.heard, h.heard
	out := appendFrame(h.outgoing(), 3*6, frameSettings, 0, 0)
	out = appendSetting(out, settingStreams, uint32(h.limits.streams))
	out = appendSetting(out, settingFrame, maxFrame)
	out = appendSetting(out, settingHeaderList, uint32(h.limits.head))
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

// fill reads once. It looks after the connection meanwhile.
func (h *http2) fill() error {
	h.launchAll()
	h.flushUnsent()
	for {
		by, err := h.deadline(time.Now())
		if err != nil {
			return err
		}
		h.flushAhead()
		_ = h.conn.SetReadDeadline(by)
		again, idle := h.beforeWait()
		if again {
			continue
		}
		if idle && h.in.tires() {
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
			h.heard, h.pinged = time.Now(), false
			return nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// beforeWait is called before the reader waits: again says that lookBy's deadline may have come before the one it has set,
// idle that no stream is open.
func (h *http2) beforeWait() (again, idle bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.widened {
		h.widened = false
		h.wakeWriters()
	}
	return h.look, len(h.streams) == 0 && h.started.IsZero() && !h.pouring
}

// suspend frees the memory that an idle connection does not need; false = it is not idle.
func (h *http2) suspend() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pending() || h.flushing || !h.lc.Suspend() {
		return false
	}
	h.suspended = true
	h.dropSpare()
	h.said, h.expected = clientFields{}, nil
	h.block, h.head.fields, h.head.cookie, h.head.text = nil, nil, nil, nil
	h.head.reset(false)
	h.streams = make(map[uint32]*h2Stream)
	return true
}

// deadline returns when the reader has to look again. An error means that it is over.
func (h *http2) deadline(now time.Time) (time.Time, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.look = false
	if len(h.streams) == 0 && h.started.IsZero() && !now.Before(h.idle.Add(h.limits.keepAlive)) {
		h.draining = true
	}
	if h.draining && !h.gone {
		h.drain(now)
	}
	switch by := h.started.Add(h.limits.readHeader); {
	case h.err != nil:
		return by, h.err
	case h.gone && len(h.streams) == 0:
		return by, errH2Over
	case !h.started.IsZero() && !now.Before(by):
		return by, os.ErrDeadlineExceeded
	case h.draining && !h.gone:
		return h.leaving.Add(byeTime), nil
	case !h.started.IsZero():
		return by, nil
	case len(h.streams) == 0:
		return h.idle.Add(h.limits.keepAlive), nil
	}
	by := h.heard.Add(pingAfter)
	if h.pinged {
		by = by.Add(pongWithin)
	}
	if now.Before(by) {
		return by, nil
	}
	if h.pinged {
		return by, os.ErrDeadlineExceeded
	}
	h.pinged = true
	h.out = append(appendFrame(h.outgoing(), 8, framePing, 0, 0), "headpond"...)
	return by.Add(pongWithin), nil
}

// becameIdle is called when there is no stream any more. mu is held.
func (h *http2) becameIdle() {
	h.idle = time.Now()
	switch {
	case h.gone:
		h.lookBy(time.Unix(1, 0))
	case !h.in.holds: // then it can be suspended
		h.lookBy(h.idle.Add(min(patience, h.limits.keepAlive)))
	case h.limits.keepAlive < pingAfter: // else it does so in time
		h.lookBy(h.idle.Add(h.limits.keepAlive))
	}
}

// goodbye is the PING whose answer shows that the client has read GOAWAY.
const goodbye = "good-bye"

// drain ends a connection without losing a request (RFC 9113, section 6.8): the client is asked to begin no more
// streams, and those that it began before are served. mu is held.
func (h *http2) drain(now time.Time) {
	switch {
	case h.leaving.IsZero():
		h.leaving = now
		h.out = appendGoAway(h.outgoing(), maxStream, codeNone)
		h.out = append(appendFrame(h.out, 8, framePing, 0, 0), goodbye...)
	case !now.Before(h.leaving.Add(byeTime)):
		h.goAway(codeNone)
	}
}

// goAway announces that no stream after the last one is served. mu is held.
func (h *http2) goAway(code h2Code) {
	if !h.gone {
		h.gone, h.served = true, h.last
	}
	h.out = appendGoAway(h.outgoing(), h.served, code)
}

// end closes the connection, and returns when nothing runs on it any more.
func (h *http2) end(err error) {
	h.launchAll()
	h.flushUnsent()
	code, broken := errors.AsType[h2Code](err)
	h.locked(func() {
		if broken {
			h.goAway(code)
		}
		h.patience = byeTime
		h.failAll(err) // or they would give the sender ever more to do
	})
	if broken {
		h.p.noteRefused(h.lc)
	}
	_ = h.conn.SetWriteDeadline(time.Now().Add(byeTime))
	h.sending.Wait()
	_ = h.flush(nil)
	h.locked(func() {
		if h.err == nil {
			h.err = net.ErrClosed
		}
	})
	if broken || errors.Is(err, errH2Over) {
		h.in.bye()
	}
	h.in.drop()
	_ = h.conn.Close()
	h.over.Wait()
	h.locked(h.dropSpare)
	h.held.end()
}

// clientGone makes one error of why the client's requests are over.
func clientGone(err error) error {
	if errors.Is(err, httppool.ErrClientGone) {
		return err
	}
	return fmt.Errorf("%w: %w", httppool.ErrClientGone, err)
}

// pending reports whether there is something to be sent. mu is held.
func (h *http2) pending() bool { return len(h.out) > 0 || h.taken >= h2AllWindow/4 }

// maxRounds is how often a flush also sends frames that collected meanwhile; then its stream continues with its own
// work.
const maxRounds = 8

// flush sends collected frames, unless another flush runs. Each buffer has the write time-out of st; nil = the
// connection's.
func (h *http2) flush(st *h2Stream) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.flushFor(st)
}

// flushFor is flush with mu held, which is given up while it sends.
func (h *http2) flushFor(st *h2Stream) error {
	idle := h.patience
	if st != nil && !st.writer.by.IsZero() && !h.flushing {
		if idle = time.Until(st.writer.by); idle <= 0 {
			return os.ErrDeadlineExceeded
		}
	}
	return h.flushWithin(idle)
}

// flushWithin is flush where the client has so long. mu is held.
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
		if h.taken >= h2AllWindow/4 { // not before: it would not be worth a frame
			out = appendWindow(out, 0, h.taken)
			h.taken = 0
		}
		h.out, h.owed = nil, 0
		limit := min(h.patience, idle*time.Duration((len(out)+bufferSize-1)/bufferSize))
		h.send(out, limit)
		h.wakeWriters()
	}
	return h.err
}

// send sends out. mu is held, and given up meanwhile.
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

// outgoing returns the collected frames, to be appended to. mu is held.
func (h *http2) outgoing() []byte {
	if h.out == nil {
		h.out = takeBuffer(&h.held)[:0]
	}
	return h.out
}

// broken ends the connection, whose reader looks. mu is held.
func (h *http2) broken(err error) {
	if h.err == nil {
		h.err = err
	}
	h.failAll(err)
	h.room.wake()
	h.lookBy(time.Unix(1, 0))
}

// failAll ends all streams. mu is held.
func (h *http2) failAll(err error) {
	err = clientGone(err)
	for _, st := range h.streams {
		st.fail(err)
	}
}

// wakeWriters is called with mu held when there is room, or none is needed.
func (h *http2) wakeWriters() {
	if h.starved == 0 {
		return
	}
	for _, st := range h.streams {
		st.writer.wake()
	}
}

// leaveBehind notes a stream that is over while the client may be sending on it still. mu is held.
func (h *http2) leaveBehind(id uint32) {
	if n := len(h.cut); n >= 2*max(h.limits.streams, maxCut) {
		h.cut = h.cut[:copy(h.cut, h.cut[n/2:])]
	}
	h.cut = append(h.cut, id)
}

// stray judges a frame on an ended stream (RFC 9113, section 5.1): unless the client had ended the stream, the frame
// may have been on its way when it ended here. ends says that it is the last one. mu is held.
func (h *http2) stray(id uint32, ends bool) error {
	i := slices.Index(h.cut, id)
	switch {
	case i < 0 && h.skipped:
		return codeProtocol // it may never have begun (section 5.1.1)
	case i < 0:
		return codeClosed
	case ends:
		h.cut = slices.Delete(h.cut, i, i+1)
	}
	return nil
}

// open makes a stream of a request; the error is an h2Code.
func (h *http2) open(id uint32, ends bool) error {
	b := &h.head
	if b.bad {
		return h.refuse(id, codeProtocol, ends)
	}
	st := h.newStream(id, ends)
	if b.large {
		return h.answerLarge(st)
	}
	s := h2Sessions.Get().(*session)
	if !b.request(&s.req, &s.reqText, ends) {
		s.recycle()
		return h.refuse(id, codeProtocol, ends)
	}
	if !h.mayOpen(st) {
		s.recycle()
		return h.refuse(id, codeRefused, ends)
	}
	h.over.Add(1)
	st.begin(s)
	h.expect(st)
	return nil
}

// maxSpareStreams is how many streams that are over a connection keeps for others, with their timers.
const maxSpareStreams = 64

// newStream returns the stream of the head that has come, perhaps one that is over: only the reader begins streams, so that it has no
// frame of the former one under way.
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
	st.id, st.ended, st.left, st.timeout, st.came = id, ends, b.length, b.timeout, h.heard
	st.chunked = !ends && st.left < 0
	return st
}

// keep keeps a stream that is over and its session, which nobody uses any more but the reader: see newStream. mu is held.
func (h *http2) keep(st *h2Stream) {
	st.session.recycle()
	st.again()
	if h.err == nil && len(h.spare) < maxSpareStreams {
		h.spare = append(h.spare, st)
	} else {
		st.stop()
	}
}

// dropSpare frees the streams that are kept. mu is held.
func (h *http2) dropSpare() {
	for _, st := range h.spare {
		st.stop()
	}
	h.spare = nil
}

// mayOpen reports whether there may be one more stream. Streams that are over for the client, because their answers are whole or they were
// reset, may take time to unwind. They are bounded, too, but the client cannot know that: it waits, and nothing more is read from it.
func (h *http2) mayOpen(st *h2Stream) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.streams) >= 2*h.limits.streams && h.active < h.limits.streams && h.err == nil {
		if len(h.expected) > 0 || h.unsent != nil { // their ends may be what is waited for
			h.unlocked(h.launchAll)
			h.unlocked(h.flushUnsent)
			continue
		}
		h.sendSoon()
		h.room.wait(&h.mu)
	}
	if h.gone || h.active >= h.limits.streams || h.err != nil {
		return false
	}
	h.streams[st.id] = st
	h.active++
	st.active = true
	h.idle = time.Time{}
	return true
}

// rests notes that the client takes the stream for closed, so that it may begin another. mu is held.
func (st *h2Stream) rests() {
	if st.active {
		st.active = false
		st.h.active--
	}
}

// refuse resets a stream.
func (h *http2) refuse(id uint32, code h2Code, ended bool) error {
	if code == codeProtocol {
		h.p.noteRefused(h.lc)
		h.logUnread(0, listener.ReasonProtocol, "the head is malformed")
	} else {
		h.logUnread(0, listener.ReasonRejected, "too many requests at once, or the connection ends")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !ended {
		h.leaveBehind(id)
	}
	h.out = appendReset(h.outgoing(), id, code)
	return h.control()
}

// answerLarge answers a request whose head is too large.
func (h *http2) answerLarge(st *h2Stream) error {
	h.p.noteRefused(h.lc)
	h.logUnread(http.StatusRequestHeaderFieldsTooLarge, listener.ReasonProtocol, "the head is larger than allowed")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out = st.appendFields(appendStatus(nil, http.StatusRequestHeaderFieldsTooLarge), true)
	if !st.ended {
		h.leaveBehind(st.id)
		h.out = appendReset(h.out, st.id, codeNone)
	}
	return h.control()
}

// maxOwed bounds the answers (to SETTINGS and PING, and resets) that wait for a client that does not read them.
const maxOwed = 1000

// control is called after each of these. mu is held.
func (h *http2) control() error {
	if h.owed++; h.owed > maxOwed {
		return codeCalm
	}
	return nil
}

// flushSoon starts another fiber for the flush: a reader that waits for the client to read does not read itself, and a
// client that waits for that would wait forever.
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

// maxResets is how many more streams a client may reset, or make us reset, than it completes: each costs a connection
// to the server.
const maxResets = 1000

// resetCame ends a stream at its client's request.
func (h *http2) resetCame(id uint32, _ []byte) error {
	if id == 0 || id > h.last {
		return codeProtocol
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	st := h.streams[id]
	if st == nil {
		_ = h.stray(id, true) // it may be sent before the client knows of the end
		return nil
	}
	st.ended = true
	return h.giveUp(st, errStreamReset)
}

// giveUp ends a stream for the client. mu is held.
func (h *http2) giveUp(st *h2Stream, err error) error {
	st.fail(err)
	st.rests()
	if h.resets++; h.resets > maxResets {
		return codeCalm
	}
	return nil
}

// abort ends a stream for a violation of its client. mu is held.
func (h *http2) abort(st *h2Stream, code h2Code) error {
	if st.err != nil {
		return nil //nolint:nilerr // the stream is over already
	}
	h.out = appendReset(h.outgoing(), st.id, code)
	if err := h.giveUp(st, fmt.Errorf("%w: %w", httppool.ErrClientGone, code)); err != nil {
		return err
	}
	return h.control()
}

// The largest window and stream there may be (RFC 9113, sections 5.1.1 and 6.9.1).
const (
	maxWindow = math.MaxInt32
	maxStream = math.MaxInt32
)
