package httpproxy

import (
	"slices"
	"strconv"

	"github.com/headpond/headpond/httpwire"
)

// h2Body is the received part of a request's body that was not read yet.
type h2Body struct {
	bufs []*[bufferSize]byte // from buffers
	r, w int                 // in the first and in the last
	held *tally              // where bufs are counted
}

// size is how many bytes there are.
func (b *h2Body) size() int {
	if len(b.bufs) == 0 {
		return 0
	}
	return (len(b.bufs)-1)*bufferSize + b.w - b.r
}

// put takes a copy of p.
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

// get moves available bytes to p.
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

// drop forgets all.
func (b *h2Body) drop() {
	for _, buf := range b.bufs {
		putBuffer(b.held, buf)
	}
	clear(b.bufs)
	b.bufs, b.r, b.w = b.bufs[:0], 0, 0
}

// h2Content is what has come of a message, of which somebody reads the text in HTTP/1.1.
type h2Content struct {
	in        h2Body
	chunked   bool   // the body has no length of its own
	held      int    // bytes of a body with a length that nobody reads before its end has come
	chunk     int    // of the chunk that is read
	framing   []byte // before and after it, in frameBuf or made by lastChunk
	frameBuf  [chunkOverhead]byte
	last      bool             // the end of a chunked body has come, and is not read yet
	trailers  []httpwire.Field // that have come with it
	trailText []byte           // that their names and values are in
	trailSize int              // of them; see h2Block.size
}

// readable reports whether there is something to read.
func (c *h2Content) readable() bool {
	return c.in.size() > c.held || len(c.framing) > 0 || c.last
}

// clear forgets what was not read of the message, but not the memory of its trailers.
func (c *h2Content) clear() {
	c.in.drop()
	c.forgetFraming()
}

// forgetFraming makes the content ready for another message; that of the last one has been taken.
func (c *h2Content) forgetFraming() {
	c.held, c.chunk, c.framing, c.last, c.chunked = 0, 0, nil, false, false
	c.trailers, c.trailText, c.trailSize = emptied(c.trailers), emptiedText(c.trailText), 0
}

// asText moves what has come to p; content is how much of that is no framing.
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

// complete ends the body. b has its trailers, whose text is the content's from now on; nil = there are none. A body with a length has
// none in any case.
func (c *h2Content) complete(b *h2Head) {
	c.held = 0
	if c.last = c.chunked; c.chunked && b != nil {
		c.trailers, c.trailSize = append(c.trailers[:0], b.fields...), b.size
		b.giveText(&c.trailText)
	}
}

// lastChunk is what ends the body as text.
func (c *h2Content) lastChunk() []byte {
	if len(c.trailers) == 0 {
		return lastChunk
	}
	return append(appendLines([]byte("0\r\n"), c.trailers), crlf...)
}

// lastChunk ends a body without trailers. Nobody writes to it.
var lastChunk = []byte("0\r\n\r\n")

// preread gives the session the part of the body that has come, if it is small: no stream that waits for its server holds more.
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

// take moves what has come of the request to p; more says that there is a frame to be sent. mu is held.
func (st *h2Stream) take(p []byte) (n int, more bool) {
	n, content := st.asText(p)
	st.spent += int64(content)
	if st.spent >= h2Window/4 && !st.ended {
		st.widen()
	}
	return n, st.giveBack()
}

// widen enlarges the window of a stream whose server keeps up. mu is held.
func (st *h2Stream) widen() {
	if h := st.h; st.extra == 0 && h.extra < h2AllExtra && (st.left < 0 || st.left > h2Window) {
		if _, ok := st.session.claim(h2Extra); !ok { // until the stream's end
			return
		}
		st.extra = h2Extra
		h.extra += st.extra
		st.spent += st.extra
	}
}

// giveBack returns credit for taken bytes to the client, if that is worth a frame; true = there is one to send. mu is
// held.
func (st *h2Stream) giveBack() bool {
	if st.spent < (h2Window+st.extra)/4 || st.ended || st.err != nil {
		return false
	}
	st.h.out = appendWindow(st.h.outgoing(), st.id, st.spent)
	st.spent = 0
	return true
}
