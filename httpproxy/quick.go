package httpproxy

import (
	"net"
	"slices"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// Most requests from a client of HTTP/2 to a server of HTTP/2 need no fiber of their own, if both connections live on the same loop: the
// client's reader sends them at once (h2Stream.sendAhead), and the server's reader passes answers on that have come whole
// (h2Stream.answerAhead). Neither waits, and both use the session's own steps. Between the two the session has no fiber; its place on the
// server's connection knows it (h2Place.parked). Everything else, above all every error and every wait, is for a fiber
// (h2Stream.serve), which continues the session where it is.

// aheadOf is how far an exchange has come without a fiber.
type aheadOf struct {
	leased bool   // there is a lease, which has not been looked at
	sent   bool   // the head of the request is sent, or sending has failed with err
	owes   bool   // the body is not sent
	step   string // in which err came
	err    error  // that the fiber is to deal with
}

// maxAhead bounds the content of a request or an answer that is passed on without a fiber, and the trailers of an answer, in bytes: one
// frame, in the sizes that the loops send at the end of a tick. A longer message costs more than a fiber.
const maxAhead = 8 << 10

// expect begins the exchange of a stream whose head has come. A small body is nearly always right behind it: so the stream waits until the
// reader has dealt with all that has come.
func (h *http2) expect(st *h2Stream) {
	if st.ended || st.left > maxAhead || st.session.wrong != nil {
		h.launch(st)
		return
	}
	st.waitsForBody = true
	h.expected = append(h.expected, st)
}

// launch sends the request, or has a fiber do that.
func (h *http2) launch(st *h2Stream) {
	st.waitsForBody = false
	if !st.sendAhead() {
		fiber.Go(st.run)
	}
}

// launchRipe launches the stream whose request has just come whole.
func (h *http2) launchRipe() {
	st := h.ripe
	if h.ripe = nil; st != nil && st.waitsForBody { // padding may have come later, see launchAll
		h.launch(st)
	}
}

// launchAll launches the streams that have waited for their bodies. The reader must call it before it waits for anything.
func (h *http2) launchAll() {
	for i, st := range h.expected {
		h.expected[i] = nil
		if st != nil && st.waitsForBody { // else it has been launched, and may be another request's by now
			h.launch(st)
		}
	}
	h.expected = h.expected[:0]
}

// sendAhead sends the request in the client's reader, if that needs no waiting, and parks its session; false = it is for a fiber.
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

// bodyCame reports whether the request has come whole and has a small body, or none. The session has the body then.
func (st *h2Stream) bodyCame() bool {
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
	if loop == 0 || s.wrong != nil || !st.bodyCame() {
		return false
	}
	x := &s.ex
	*x = exchange{}
	if no, ok := s.judge(false); !ok || no.status != 0 {
		return false
	}
	x.judged = true
	if t := x.target; x.close || !t.retries.connect || t.affinity != nil || t.compress != nil {
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
	if s.hold(l) != nil { // the client has gone: it finds that again
		return false
	}
	x.ahead.sent = true
	st.h.sendsTo(p.c)
	p.c.borrow(s)
	err := s.send(x.raw)
	p.c.giveBack(s)
	if err != nil {
		x.ahead.step, x.ahead.err = "send", err
	}
	if err != nil || x.ahead.owes {
		return false
	}
	by := x.earlier(x.sent.Add(lookInterval))
	if limit := s.responseLimit(); limit > 0 && limit < lookInterval {
		by = x.earlier(x.sent.Add(limit))
	}
	return p.park(st, by)
}

// borrow gives a session a buffer of the connection's to put a message together in. giveBack must be called before anything else uses the
// session's buffer, or may wait. Both are for fibers of the connection's loop.
func (c *h2Server) borrow(s *session) {
	if s.out, c.scratch = c.scratch, nil; s.out == nil {
		s.out = takeBuffer(nil)[:0]
	}
}

func (c *h2Server) giveBack(s *session) {
	if c.scratch == nil && cap(s.out) == bufferSize {
		c.scratch = s.out[:0]
	} else {
		putOut(nil, s.out)
	}
	s.out = nil
}

// dropScratch frees the buffer of an idle connection.
func (c *h2Server) dropScratch() {
	if c.scratch != nil {
		putOut(nil, c.scratch)
		c.scratch = nil
	}
}

// answerAhead passes the answer on if it has come whole, and ends the request. It is called by the reader of the server's connection
// when the place p has something new; false = it is for a fiber.
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
	defer h.over.Done()
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
	if !there { // the place has just been closed, by another thread
		return false
	}
	x.answered = true
	if err != nil {
		x.ahead.step, x.ahead.err = "receive", err
		return false
	}
	p.c.borrow(s)
	n := len(s.beginResponse())
	out, ok := p.takeContent(s.out, size)
	sent := ok && st.sendWhole(out[:n], out[n:n+size], out[n+size:])
	s.out = out
	p.c.giveBack(s)
	switch {
	case !ok:
		x.wrote = false
		x.ahead.step, x.ahead.err = "receive", net.ErrClosed
		return false
	case !sent: // an operator has ended it
		x.ahead.step, x.ahead.err = "body", httppool.ErrClientGone
		return false
	}
	x.result.BytesOut = int64(size)
	x.ahead = aheadOf{}
	s.served = true
	s.finish(s.endLease())
	return true
}

// abandon ends a stream whose session has panicked without a fiber: it costs neither the pool a connection nor the client more than the
// stream.
func (st *h2Stream) abandon() {
	h := st.h
	defer h.over.Done()
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

// takesAtOnce reports whether a head and so much content can be sent to the client without waiting for it.
func (st *h2Stream) takesAtOnce(content int) bool {
	h := st.h
	h.mu.Lock()
	defer h.mu.Unlock()
	return st.err == nil && h.err == nil && len(h.out) < maxOut && int64(content) <= min(h.initial+st.window, h.window)
}

// sendWhole sends a response, for which there is room; trailers are a block of fields, perhaps without any. false = the stream is over. The
// caller flushes.
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

// flushAhead sends what has come together for the client, as far as its socket takes that at once; a fiber sends the rest.
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
			h.out, h.owed = nil, 0
			h.wakeWriters()
		} else {
			h.out = h.out[:copy(h.out, h.out[n:])]
		}
	}
	h.sendSoon()
}

// sendsTo notes that the reader appends frames for c, which it has sent when it has read all that has come. It is the reader's.
func (h *http2) sendsTo(c *h2Server) {
	if h.unsent != c {
		h.flushUnsent()
		h.unsent = c
	}
}

// flushUnsent has these frames sent.
func (h *http2) flushUnsent() {
	if c := h.unsent; c != nil {
		h.unsent = nil
		c.flushAhead()
	}
}

// flushAhead sends what has come together for the server, as far as its socket takes that at once; the writer sends the rest.
func (c *h2Server) flushAhead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.writer.waits || len(c.out) == 0 { // it sends that, too
		return
	}
	n := c.conn.TryWrite(c.out)
	if n < len(c.out) {
		c.out = c.out[:copy(c.out, c.out[n:])]
		c.writer.wake()
		return
	}
	putOut(nil, c.out)
	c.out, c.owed = nil, 0
	c.wakeWriters()
}

// ready reports whether a request can be begun without waiting.
func (st *h2Place) ready() bool {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	return !st.closed && !c.gone && st.err == nil && !st.open && !st.readable() && len(c.out) < maxOut
}

// park leaves the session of a stream, which has sent its request, to the connection's reader until there is news of it, or by has
// passed; false = there is news.
func (st *h2Place) park(stream *h2Stream, by time.Time) bool {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.closed || st.err != nil || st.ended || st.readable() {
		return false
	}
	st.parked, st.by = stream, by
	if c.lookAt.IsZero() || by.Before(c.lookAt) {
		c.lookAt = by
		if c.waits && !c.again {
			_ = c.conn.SetReadDeadline(by)
		}
	}
	return true
}

// wake wakes who waits for something on the place. mu is held.
func (st *h2Place) wake() {
	st.wakeReader()
	st.writer.wake()
}

// wakeReader wakes who waits for the response; a session without a fiber is continued by the connection's reader. mu is held.
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
		c.lookNow()
	}
}

// whole reports whether the response has come whole, so that it can be passed on at once, and the size of its content.
func (st *h2Place) whole() (size int, ok bool) {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	size = st.in.size()
	if !st.ended || st.err != nil || st.closed || len(st.heads) != 1 || size+st.trailSize > maxAhead {
		return 0, false
	}
	status := st.heads[0].Status
	return size, status >= 200 && status < 502 // later ones may have the request sent again
}

// takeContent appends the content of a response that is whole, of that size, and the block of its trailers, of which a client gets only the
// permitted ones. It leaves nothing; false = the place has been closed.
func (st *h2Place) takeContent(dst []byte, size int) ([]byte, bool) {
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
		if f := &st.trailers[i]; !httpwire.ForbiddenTrailer(f.Name) {
			dst = appendCoded(dst, f)
		}
	}
	st.forgetFraming()
	return dst, true
}

// continueParked continues the sessions without a fiber that there is news for. It is the reader's.
func (c *h2Server) continueParked() {
	for {
		c.mu.Lock()
		news := c.news
		c.news, c.told = c.told[:0], nil
		for _, p := range news {
			p.news = false
		}
		c.mu.Unlock()
		for i, p := range news {
			news[i] = nil
			c.proceed(p, p.unpark())
		}
		c.told = news[:0]
		if len(news) == 0 {
			break
		}
	}
	if c.answers != nil {
		c.answers.flushAhead()
		c.answers = nil
	}
}

// proceed continues the session of a stream, if there is one, that was parked at p.
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

// passRipe passes on the response that has just come whole: what it uses is in the processor's caches, and serves the next.
func (c *h2Server) passRipe() {
	p := c.ripe
	if c.ripe, c.coming = nil, nil; p == nil {
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

// unpark gives the session that is parked a place's news; nil = none is, or the rest of its response is about to come: its end is news again.
func (st *h2Place) unpark() (stream *h2Stream) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	if st.c.coming == st && st.open && st.err == nil {
		return nil
	}
	stream, st.parked = st.parked, nil
	return stream
}

// lookAtParked has the sessions without a fiber continued whose time has come. mu is held.
func (c *h2Server) lookAtParked(now time.Time) {
	if c.lookAt.IsZero() || now.Before(c.lookAt) {
		return
	}
	c.lookAt = time.Time{}
	for _, st := range c.streams {
		switch {
		case st.parked == nil || st.news:
		case !now.Before(st.by):
			if c.coming == st { // what comes does not go on
				c.coming = nil
			}
			st.wakeReader()
		case c.lookAt.IsZero() || st.by.Before(c.lookAt):
			c.lookAt = st.by
		}
	}
}
