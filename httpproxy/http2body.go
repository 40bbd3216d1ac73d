package httpproxy

import (
	"slices"
	"strconv"

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

// h2Content is the received part of a message's body and trailers. It is read as the text of HTTP/1.1.
type h2Content struct {
	in        h2Body
	chunked   bool   // the body has no length
	held      int    // received bytes of a body with a length whose end has not arrived; not readable yet
	chunk     int    // unread bytes of the current chunk
	framing   []byte // text before and after the chunk, in frameBuf or made by lastChunk
	frameBuf  [chunkOverhead]byte
	last      bool             // the end of a chunked body has arrived, and is unread
	trailers  []httpwire.Field // the received trailers
	trailText []byte           // holds their names and values
	trailSize int              // their size; see h2Block.size
}

// readable reports whether there is something to read.
func (c *h2Content) readable() bool {
	return c.in.size() > c.held || len(c.framing) > 0 || c.last
}

// clear discards what is unread of the message. It keeps the memory of the trailers.
func (c *h2Content) clear() {
	c.in.drop()
	c.forgetFraming()
}

// forgetFraming makes the content ready for another message. The text of the last one has been read.
func (c *h2Content) forgetFraming() {
	c.held, c.chunk, c.framing, c.last, c.chunked = 0, 0, nil, false, false
	c.trailers, c.trailText, c.trailSize = emptied(c.trailers), emptiedText(c.trailText), 0
}

// asText moves received content to p; content is how many of the n bytes are not framing.
func (c *h2Content) asText(p []byte) (n, content int) {
	for n < len(p) && c.readable() {
		unread := c.in.size() - c.held
		switch {
		case len(c.framing) > 0:
			k := copy(p[n:], c.framing)
			c.framing = c.framing[k:]
			n += k
		case unread == 0:
			c.framing, c.last = c.lastChunk(), false
		case c.chunked && c.chunk == 0:
			c.chunk = unread
			c.framing = append(strconv.AppendUint(c.frameBuf[:0], uint64(unread), 16), crlf...)
		default:
			if c.chunked {
				unread = c.chunk
			}
			k := c.in.get(p[n:min(len(p), n+unread)])
			content += k
			n += k
			if c.chunked {
				if c.chunk -= k; c.chunk == 0 {
					c.framing = append(c.frameBuf[:0], crlf...)
				}
			}
		}
	}
	return n, content
}

// complete ends the body. b holds its trailers, whose text then belongs to the content; nil = none. A body with a length
// has no trailers.
func (c *h2Content) complete(b *h2Head) {
	c.held = 0
	if c.last = c.chunked; c.chunked && b != nil {
		c.trailers, c.trailSize = append(c.trailers[:0], b.fields...), b.size
		b.giveText(&c.trailText)
	}
}

// lastChunk returns the text that ends the body.
func (c *h2Content) lastChunk() []byte {
	if len(c.trailers) == 0 {
		return lastChunk
	}
	return append(appendLines([]byte("0\r\n"), c.trailers), crlf...)
}

// lastChunk ends a body without trailers. It must not be changed.
var lastChunk = []byte("0\r\n\r\n")

// preread gives the session the received part of the body, if it is small: no stream that waits for its server holds more.
func (st *h2Stream) preread() {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	s := &st.session.client
	if n := st.in.size(); s.buf == nil && st.readable() && n+chunkOverhead <= bufferSize {
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
	n, content := st.asText(p)
	st.spent += int64(content)
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
