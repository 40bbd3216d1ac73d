package httpproxy

import (
	"slices"

	"github.com/headpond/headpond/httpwire"
)

// h2Body is the received, unread part of a message's body.
type h2Body struct {
	bufs []*[bufferSize]byte // from buffers
	r, w int                 // in the first and in the last buffer
	held *tally              // where bufs are counted
}

// size returns the number of unread bytes.
func (b *h2Body) size() int {
	if len(b.bufs) == 0 {
		return 0
	}
	return (len(b.bufs)-1)*bufferSize + b.w - b.r
}

// put appends a copy of p.
func (b *h2Body) put(p []byte) {
	for len(p) > 0 {
		if len(b.bufs) == 0 || b.w == bufferSize {
			b.bufs = append(b.bufs, takeBuffer(b.held))
			b.w = 0
		}
		n := copy(b.bufs[len(b.bufs)-1][b.w:], p)
		b.w += n
		p = p[n:]
	}
}

// get moves unread bytes to p.
func (b *h2Body) get(p []byte) (n int) {
	for n < len(p) && len(b.bufs) > 0 {
		end := bufferSize
		if len(b.bufs) == 1 {
			end = b.w
		}
		k := copy(p[n:], b.bufs[0][b.r:end])
		n += k
		if b.r += k; b.r == end {
			putBuffer(b.held, b.bufs[0])
			b.bufs = slices.Delete(b.bufs, 0, 1)
			b.r = 0
		}
	}
	return n
}

// drop discards all unread bytes.
func (b *h2Body) drop() {
	for _, buf := range b.bufs {
		putBuffer(b.held, buf)
	}
	clear(b.bufs)
	b.bufs, b.r, b.w = b.bufs[:0], 0, 0
}

// h2Content is the received part of a message's body and trailers.
type h2Content struct {
	in         h2Body
	lengthless bool             // the body has no length
	arrived    bool             // all of a body without a length has arrived
	endUnread  bool             // and no Read has returned its end: it returns no bytes, unless content comes before the end
	held       int              // received bytes of a body with a length whose end has not arrived; not readable yet
	trailers   []httpwire.Field // the received trailers
	trailText  []byte           // holds their names and values
	trailSize  int              // their size; see h2Block.size
}

// readable reports whether there is something to read.
func (c *h2Content) readable() bool { return c.in.size() > c.held || c.endUnread }

// clear discards what is unread of the message. It keeps the memory of the trailers.
func (c *h2Content) clear() {
	c.in.drop()
	c.forget()
}

// forget makes the content ready for another message. That of the last one has been read.
func (c *h2Content) forget() {
	c.lengthless, c.arrived, c.endUnread, c.held = false, false, false, 0
	c.trailers, c.trailText, c.trailSize = emptied(c.trailers), emptiedText(c.trailText), 0
}

// get moves readable content to p.
func (c *h2Content) get(p []byte) (n int) {
	n = c.in.get(p[:min(len(p), c.in.size()-c.held)])
	c.endUnread = c.endUnread && c.in.size() > 0
	return n
}

// complete ends the body. b holds its trailers, whose text then belongs to the content; nil = none. A body with a length
// has no trailers.
func (c *h2Content) complete(b *h2Head) {
	c.held = 0
	if c.arrived, c.endUnread = c.lengthless, c.lengthless; c.lengthless && b != nil {
		c.trailers, c.trailSize = append(c.trailers[:0], b.fields...), b.size
		b.giveText(&c.trailText)
	}
}

// readToEnd implements carrying.bodyEnd, for a caller that holds the mutex.
func (c *h2Content) readToEnd(dst []httpwire.Field) ([]httpwire.Field, bool) {
	if !c.arrived || c.in.size() > 0 {
		return dst, false
	}
	c.endUnread = false
	return append(dst, c.trailers...), true
}

// preread gives the session the received part of the body, if it is small: no stream that waits for its server holds more.
func (st *h2Stream) preread() {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	s := &st.session.client
	switch n := st.in.size(); {
	case s.buf != nil || !st.readable() || n > bufferSize:
	case n == 0: // only the end
		_, _ = st.take(nil)
	default:
		s.buf = takeBuffer(s.held)[:]
		s.w, _ = st.take(s.buf)
	}
}

func (st *h2Stream) whole() (content int64, come, read bool) {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	come = st.ended && st.err == nil && !st.drops && len(st.trailers) == 0
	return st.content, come, come && !st.readable()
}

// take moves the received part of the request to p; more reports that a frame must be sent. mu is held.
func (st *h2Stream) take(p []byte) (n int, more bool) {
	n = st.get(p)
	st.spent += int64(n)
	if st.spent >= h2Window/4 && !st.ended {
		st.widen()
	}
	return n, st.returnCredit()
}

// widen enlarges the window of a stream whose server keeps up. mu is held.
func (st *h2Stream) widen() {
	if h := st.h; st.extra == 0 && h.extra < h2AllExtra && (st.left < 0 || st.left > h2Window) {
		if _, ok := st.session.claim(h2Extra); !ok { // released when the stream ends
			return
		}
		st.extra = h2Extra
		h.extra += st.extra
		st.spent += st.extra
	}
}

// returnCredit returns credit for read bytes to the client, if it is worth a frame; true = there is a frame to send. mu is
// held.
func (st *h2Stream) returnCredit() bool {
	if st.spent < (h2Window+st.extra)/4 || st.ended || st.err != nil {
		return false
	}
	st.h.out = appendWindow(st.h.outgoing(), st.id, st.spent)
	st.spent = 0
	return true
}
