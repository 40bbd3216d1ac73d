package httpproxy

import (
	"net"
	"slices"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// Most requests from an HTTP/2 client to an HTTP/2 server need no fiber, if both connections live on the same loop. The
// client's reader sends them (h2Stream.sendAhead), and the server's reader passes complete answers on
// (h2Stream.answerAhead). Neither waits, and both use the steps of the session. In between the session has no fiber; it is
// parked at its place on the server's connection (h2Place.parked). Everything else, above all every error and every wait,
// falls back to a fiber (h2Stream.serve), which continues the session from its current state.

// aheadOf is the state of an exchange that a fiber takes over.
type aheadOf struct {
	leased      bool   // there is a lease, and it was not checked
	sent        bool   // sending the head was tried; err is the result
	bodyPending bool   // the body was not sent
	step        string // the step that returned err
	err         error  // to be handled by the fiber
}

// maxAhead bounds the content of a request or an answer that is passed on without a fiber, and the trailers of an answer,
// in bytes. It is the size that loops send at the end of a tick. A longer message costs more than a fiber.
const maxAhead = 8 << 10

// expect begins the exchange of a stream whose head has arrived. A small body nearly always follows at once, so the stream
// waits until the reader has handled all received data.
func (h *http2) expect(st *h2Stream) {
	if st.ended || st.left > maxAhead || st.session.headErr != nil {
		h.launch(st)
		return
	}
	st.waitsForBody = true
	h.expected = append(h.expected, st)
}

// launch sends the request, or starts a fiber for it.
func (h *http2) launch(st *h2Stream) {
	st.waitsForBody = false
	if !st.sendAhead() {
		fiber.Go(st.run)
	}
}

// launchCompleted launches the stream whose request has just become complete.
func (h *http2) launchCompleted() {
	st := h.completed
	if h.completed = nil; st != nil && st.waitsForBody { // padding may follow, see launchAll
		h.launch(st)
	}
}

// launchAll launches the streams that wait for their bodies. The reader must call it before it waits for anything.
func (h *http2) launchAll() {
	for i, st := range h.expected {
		h.expected[i] = nil
		if st != nil && st.waitsForBody { // otherwise it was launched, and may be another request's by now
			h.launch(st)
		}
	}
	h.expected = h.expected[:0]
}

// sendAhead sends the request in the client's reader, if that needs no waiting, and parks the session; false = start a
// fiber.
func (st *h2Stream) sendAhead() (parked bool) {
	s := st.session
	done := false
	defer func() {
		if !done { // a panic
			st.abandon()
			parked = true
		}
	}()
	defer s.p.recovered(s.lc)
	parked = st.trySend(s)
	done = true
	return parked
}

// bodyComplete reports whether the request is complete and its body small or empty. It then moves the body to the session.
func (st *h2Stream) bodyComplete() bool {
	if st.ended && st.session.req.Length == 0 {
		return true
	}
	if n, come, _ := st.whole(); !come || n > maxAhead {
		return false
	}
	st.preread()
	return true
}

// trySend is sendAhead without care for panics.
func (st *h2Stream) trySend(s *session) bool {
	loop := st.h.conn.Loop()
	if loop == 0 || s.headErr != nil || !st.bodyComplete() {
		return false
	}
	x := &s.ex
	*x = exchange{}
	if no, ok := s.judge(false); !ok || no.status != 0 {
		return false
	}
	x.judged = true
	if t := x.target; x.close || !x.inline || !t.retries.connect || t.affinity != nil || t.compress != nil || t.llm != nil || t.mirror != nil || t.pages.forServers() {
		return false
	}
	l, ok := x.target.route.Upstream.TryAcquireKey(s.key(), loop)
	if !ok {
		return false
	}
	p, ok := l.Value().NetConn().(*h2Place)
	if !ok || p.c.conn.Loop() != loop || !p.ready() {
		x.lease, x.ahead.leased = l, true
		return false
	}
	if s.hold(l) != nil { // the client has gone; the fiber finds that, too
		return false
	}
	x.ahead.sent = true
	st.h.sendsTo(p.c)
	p.c.borrow(s)
	err := s.send()
	p.c.returnBuffer(s)
	if err != nil {
		x.ahead.step, x.ahead.err = "send", err
	}
	if err != nil || x.ahead.bodyPending {
		return false
	}
	by := x.earlier(x.sent.Add(checkInterval))
	if limit := s.responseLimit(); limit > 0 && limit < checkInterval {
		by = x.earlier(x.sent.Add(limit))
	}
	return p.park(st, by)
}

// borrow lends the session a buffer of the connection to build a message in. returnBuffer must be called before the
// session waits or another user needs its buffer. Both are for fibers of the connection's loop.
func (c *h2Server) borrow(s *session) {
	if s.out, c.scratch = c.scratch, nil; s.out == nil {
		s.out = takeBuffer(nil)[:0]
	}
}

func (c *h2Server) returnBuffer(s *session) {
	if c.scratch == nil && cap(s.out) == bufferSize {
		c.scratch = s.out[:0]
	} else {
		putOut(nil, s.out)
	}
	s.out = nil
}

// dropScratch frees the lent buffer of an idle connection.
func (c *h2Server) dropScratch() {
	if c.scratch != nil {
		putOut(nil, c.scratch)
		c.scratch = nil
	}
}

// answerAhead passes a complete answer on, and ends the request. The reader of the server's connection calls it when the
// place p has news; false = start a fiber.
func (st *h2Stream) answerAhead(p *h2Place) (over bool) {
	h, s := st.h, st.session
	done := false
	defer func() {
		if !done { // a panic
			st.abandon()
			over = true
		}
	}()
	defer h.p.recovered(h.lc)
	over = st.tryAnswer(s, p)
	done = true
	if !over {
		return false
	}
	defer h.fibers.Done()
	h.mu.Lock()
	defer h.mu.Unlock()
	st.close()
	st.about.drop()
	s.client.drop()
	s.held.end()
	h.keep(st)
	return true
}

// tryAnswer is answerAhead without the end of the stream.
func (st *h2Stream) tryAnswer(s *session, p *h2Place) bool {
	x := &s.ex
	size, whole := p.whole()
	if !whole || s.p.isDraining() || !st.takesAtOnce(size) {
		return false
	}
	there, err := p.takeHead(&s.resp, &s.respText)
	if !there { // another thread has just closed the place
		return false
	}
	x.answered = true
	if err != nil {
		x.ahead.step, x.ahead.err = "receive", err
		return false
	}
	p.c.borrow(s)
	n := len(s.beginResponse())
	out, ok := p.takeContent(s.out, size, s.ex.target.responseRules)
	sent := ok && st.sendWhole(out[:n], out[n:n+size], out[n+size:])
	s.out = out
	p.c.returnBuffer(s)
	switch {
	case !ok:
		x.wrote = false
		x.ahead.step, x.ahead.err = "receive", net.ErrClosed
		return false
	case !sent: // an operator has ended the session
		x.ahead.step, x.ahead.err = "body", httppool.ErrClientGone
		return false
	}
	x.result.BytesOut = int64(size)
	x.ahead = aheadOf{}
	s.served = true
	s.finish(s.endLease())
	return true
}

// abandon ends a stream whose session has panicked without a fiber. The pool loses no connection, and the client only the
// stream.
func (st *h2Stream) abandon() {
	h := st.h
	defer h.fibers.Done()
	st.h.mu.Lock()
	holds := st.server != nil
	st.h.mu.Unlock()
	if holds {
		_ = st.session.fail("", httppool.ErrClientGone)
	}
	st.session.logPanic()
	h.locked(st.close)
	h.flushSoon()
	st.about.drop()
	st.session.held.end()
}

// takesAtOnce reports whether a head and that much content can be sent to the client without waiting.
func (st *h2Stream) takesAtOnce(content int) bool {
	h := st.h
	h.mu.Lock()
	defer h.mu.Unlock()
	return st.err == nil && h.err == nil && len(h.out) < maxOut && int64(content) <= min(h.initial+st.window, h.window)
}

// sendWhole sends a response, for which there is space; trailers is a field block, perhaps empty. false = the stream has
// ended. The caller flushes.
func (st *h2Stream) sendWhole(head, content, trailers []byte) bool {
	h := st.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if st.err != nil {
		return false
	}
	st.began = true
	h.out = st.appendFields(head, len(content)+len(trailers) == 0)
	if len(content) > 0 {
		st.appendData(content, len(trailers) == 0)
	}
	if len(trailers) > 0 {
		h.out = st.appendFields(trailers, true)
	}
	return true
}

// flushAhead sends the frames collected for the client, as far as its socket accepts them; a fiber sends the others.
func (h *http2) flushAhead() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.flushing || h.err != nil {
		return
	}
	if h.isTLS == nil && len(h.out) > 0 {
		n := h.conn.TryWrite(h.out)
		if h.counts {
			h.lc.Count(0, int64(n))
		}
		if n == len(h.out) {
			putOut(&h.held, h.out)
			h.out, h.controls = nil, 0
			h.wakeWriters()
		} else {
			h.out = h.out[:copy(h.out, h.out[n:])]
		}
	}
	h.sendSoon()
}

// sendsTo records that the reader appended frames for c. The reader flushes them once it has handled all received data.
func (h *http2) sendsTo(c *h2Server) {
	if h.unsent != c {
		h.flushUnsent()
		h.unsent = c
	}
}

// flushUnsent flushes these frames.
func (h *http2) flushUnsent() {
	if c := h.unsent; c != nil {
		h.unsent = nil
		c.flushAhead()
	}
}

// flushAhead sends the frames collected for the server, as far as its socket accepts them; the writer sends the others.
func (c *h2Server) flushAhead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.writer.waits || len(c.out) == 0 { // otherwise the writer is sending
		return
	}
	n := c.conn.TryWrite(c.out)
	if n < len(c.out) {
		c.out = c.out[:copy(c.out, c.out[n:])]
		c.writer.wake()
		return
	}
	putOut(nil, c.out)
	c.out, c.controls = nil, 0
	c.wakeWriters()
}

// ready reports whether a request can begin without waiting.
func (st *h2Place) ready() bool {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	return !st.closed && !c.closing && st.err == nil && !st.open && !st.readable() && len(c.out) < maxOut
}

// park leaves the session of a stream, which has sent its request, to the connection's reader, until there is news or by
// has passed; false = there is news already.
func (st *h2Place) park(stream *h2Stream, by time.Time) bool {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.closed || st.err != nil || st.ended || st.readable() {
		return false
	}
	st.parked, st.by = stream, by
	if c.checkAt.IsZero() || by.Before(c.checkAt) {
		c.checkAt = by
		if c.waits && !c.recheck {
			_ = c.conn.SetReadDeadline(by)
		}
	}
	return true
}

// wake wakes all waiters of the place. mu is held.
func (st *h2Place) wake() {
	st.wakeReader()
	st.writer.wake()
}

// wakeReader wakes the waiter for the response. The connection's reader continues a parked session. mu is held.
func (st *h2Place) wakeReader() {
	if st.parked == nil {
		st.reader.wake()
		return
	}
	if st.news {
		return
	}
	st.news = true
	c := st.c
	c.news = append(c.news, st)
	if c.waits {
		c.checkNow()
	}
}

// whole reports whether the response is complete and can be passed on at once, and the size of its content.
func (st *h2Place) whole() (size int, ok bool) {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	size = st.in.size()
	if !st.ended || st.err != nil || st.closed || len(st.heads) != 1 || size+st.trailSize > maxAhead {
		return 0, false
	}
	status := st.heads[0].Status
	return size, status >= 200 && status < 502 // others may be retried
}

// takeContent appends the content of a complete response, of the given size, and the trailers that appendTrailers would
// append, as a field block. Nothing remains; false = the place has been closed.
func (st *h2Place) takeContent(dst []byte, size int, rules *headerRules) ([]byte, bool) {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.closed || st.in.size() != size {
		return dst, false
	}
	n := len(dst)
	dst = slices.Grow(dst, size)[:n+size]
	st.in.get(dst[n:])
	for i := range st.trailers {
		if f := &st.trailers[i]; !httpwire.ForbiddenTrailer(f.Name) && !rules.drops(f.Name) {
			dst = appendCoded(dst, f)
		}
	}
	st.forget()
	return dst, true
}

// continueParked continues the parked sessions that have news. Only the reader calls it.
func (c *h2Server) continueParked() {
	for {
		c.mu.Lock()
		news := c.news
		c.news, c.spareNews = c.spareNews[:0], nil
		for _, p := range news {
			p.news = false
		}
		c.mu.Unlock()
		for i, p := range news {
			news[i] = nil
			c.proceed(p, p.unpark())
		}
		c.spareNews = news[:0]
		if len(news) == 0 {
			break
		}
	}
	if c.answers != nil {
		c.answers.flushAhead()
		c.answers = nil
	}
}

// proceed continues the session of st that was parked at p; st may be nil.
func (c *h2Server) proceed(p *h2Place, st *h2Stream) {
	if st == nil {
		return
	}
	if c.answers != nil && c.answers != st.h {
		c.answers.flushAhead()
	}
	c.answers = st.h
	if !st.answerAhead(p) {
		fiber.Go(st.run)
	}
}

// passCompleted passes on the response that has just become complete, while its data is in the processor's caches.
func (c *h2Server) passCompleted() {
	p := c.completed
	if c.completed, c.arriving = nil, nil; p == nil {
		return
	}
	c.mu.Lock()
	if p.news {
		i := slices.Index(c.news, p)
		c.news = slices.Delete(c.news, i, i+1)
		p.news = false
	}
	st := p.parked
	p.parked = nil
	c.mu.Unlock()
	c.proceed(p, st)
}

// unpark returns the stream parked at the place. nil = there is none, or the last frame of its response is arriving: then
// the end of the frame is news again.
func (st *h2Place) unpark() (stream *h2Stream) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	if st.c.arriving == st && st.open && st.err == nil {
		return nil
	}
	stream, st.parked = st.parked, nil
	return stream
}

// checkParked wakes the parked sessions whose deadline has passed. mu is held.
func (c *h2Server) checkParked(now time.Time) {
	if c.checkAt.IsZero() || now.Before(c.checkAt) {
		return
	}
	c.checkAt = time.Time{}
	for _, st := range c.streams {
		switch {
		case st.parked == nil || st.news:
		case !now.Before(st.by):
			if c.arriving == st { // the frame has stalled
				c.arriving = nil
			}
			st.wakeReader()
		case c.checkAt.IsZero() || st.by.Before(c.checkAt):
			c.checkAt = st.by
		}
	}
}
