package httpproxy

import (
	"slices"
	"strconv"
)

// h2Body is the received part of a request's body that was not read yet.
type h2Body struct {
	bufs []*[bufferSize]byte // from buffers
	r, w int                 // in the first and in the last
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
			b.bufs = append(b.bufs, buffers.Get().(*[bufferSize]byte))
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
			buffers.Put(b.bufs[0])
			b.bufs = slices.Delete(b.bufs, 0, 1)
			b.r = 0
		}
	}
	return n
}

// drop forgets all.
func (b *h2Body) drop() {
	for _, buf := range b.bufs {
		buffers.Put(buf)
	}
	*b = h2Body{}
}

// readable reports whether there is something of the request. mu is held.
func (st *h2Stream) readable() bool {
	return len(st.in.bufs) > 0 || len(st.framing) > 0 || st.last != nil
}

// take moves received bytes of the body to p, in HTTP/1.1's framing; more says that there is a frame to send. mu is
// held.
func (st *h2Stream) take(p []byte) (n int, more bool) {
	for n < len(p) && st.readable() {
		unread := st.in.size()
		switch {
		case len(st.framing) > 0:
			k := copy(p[n:], st.framing)
			st.framing = st.framing[k:]
			n += k
		case unread == 0:
			st.framing, st.last = st.last, nil
		case st.chunked && st.chunk == 0:
			st.chunk = unread
			st.framing = append(strconv.AppendUint(st.frameBuf[:0], uint64(unread), 16), crlf...)
		default:
			if st.chunked {
				unread = st.chunk
			}
			k := st.in.get(p[n:min(len(p), n+unread)])
			st.spent += int64(k)
			n += k
			if st.chunked {
				if st.chunk -= k; st.chunk == 0 {
					st.framing = append(st.frameBuf[:0], crlf...)
				}
			}
		}
	}
	if st.spent >= h2Window/4 && !st.ended {
		st.widen()
	}
	return n, st.giveBack()
}

// widen enlarges the window of a stream whose server keeps up. mu is held.
func (st *h2Stream) widen() {
	if h := st.h; st.extra == 0 && h.extra < h2AllExtra && (st.left < 0 || st.left > h2Window) {
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
