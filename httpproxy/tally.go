package httpproxy

import (
	"math"
	"sync/atomic"
)

// tally is what one session or connection holds, in bytes. Those of nil, or without an account, count nothing.
//
// The streams of a connection of HTTP/2 share Config.MaxBufferedPerConn. What a stream may come to hold is reserved before it takes any of
// it, and it counts for the connection as what is reserved for it or what it holds, whichever is more. So streams that begin together see
// each other, and those under way cannot grow beyond the bound. See h2Stream.admit and session.claim.
type tally struct {
	to      *account
	of      *tally        // the connection's, of a stream; nil = it is one
	state   atomic.Uint64 // a holding
	streams atomic.Int64  // what the connection's streams count
}

// holding is what is held (the low half) and what is reserved, in bytes. Each is less than 2 GiB.
type holding uint64

func newHolding(held, reserved int) holding {
	return holding(uint32(held)) | holding(uint32(reserved))<<32
}

func (h holding) held() int     { return int(int32(h)) }
func (h holding) reserved() int { return int(int32(h >> 32)) }

// counts is what it counts for the connection.
func (h holding) counts() int64 {
	if h.over() {
		return 0
	}
	return int64(max(h.held(), h.reserved()))
}

// over reports whether the stream is over, but for what its session still has to free: it counts nothing, and nothing is reserved for it.
func (h holding) over() bool { return h.reserved() < 0 }

func (t *tally) load() holding { return holding(t.state.Load()) }

// add counts n bytes that have been taken, or given back. Any goroutine of the session may call it.
func (t *tally) add(n int) {
	if t == nil || t.to == nil {
		return
	}
	t.to.n.Add(int64(n))
	t.change(n, 0)
}

func (t *tally) change(held, reserved int) {
	for {
		was := t.load()
		is := newHolding(was.held()+held, was.reserved()+reserved)
		if was.over() {
			is = newHolding(was.held()+held, was.reserved())
		}
		if !t.state.CompareAndSwap(uint64(was), uint64(is)) {
			continue
		}
		if t.of != nil {
			t.of.streams.Add(is.counts() - was.counts())
		}
		return
	}
}

// reserve reserves n bytes more for a stream than it counts; false = its connection would count more than limit then. With lone it may all
// the same as long as no other stream counts anything.
func (t *tally) reserve(n int, limit int64, lone bool) bool {
	c := t.of
	for {
		was := t.load()
		if was.over() {
			return true
		}
		is := newHolding(was.held(), int(was.counts())+n)
		streams := c.streams.Load()
		if int64(c.load().held())+streams+int64(n) > limit && !(lone && streams == was.counts()) {
			return false
		}
		if !c.streams.CompareAndSwap(streams, streams+int64(n)) {
			continue
		}
		if t.state.CompareAndSwap(uint64(was), uint64(is)) {
			return true
		}
		c.streams.Add(-int64(n))
	}
}

// finish has the stream count nothing any more: the client is about to get the end of the response, and may send its next request before the
// session has freed what it holds.
func (t *tally) finish() {
	if t.of == nil {
		return
	}
	for {
		was := t.load()
		if t.state.CompareAndSwap(uint64(was), uint64(newHolding(was.held(), -1))) {
			t.of.streams.Add(-was.counts())
			return
		}
	}
}

// end gives back what a session still holds, also if it has panicked.
func (t *tally) end() {
	if t.to == nil {
		return
	}
	was := holding(t.state.Swap(0))
	t.to.n.Add(-int64(was.held()))
	if t.of != nil {
		t.of.streams.Add(-was.counts())
	}
}

// admit reserves what the stream's request may take, unless that is not bounded: for its head to the server and for pieces of the answer;
// of a body, the window that its client has, what is read of that, and what is put together for the server. Without room the request is
// refused, and its body is dropped as it comes. It is called before anything of the body has come.
func (st *h2Stream) admit(s *session) {
	limit := s.p.ledger.perConn.Load()
	if limit == 0 {
		return
	}
	need := 2 * bufferSize
	if !st.ended {
		st.toCome = h2Window/bufferSize*bufferSize + 2*bufferSize // the first buffer may be read in part
		if st.left >= 0 && st.left <= h2Window {
			st.toCome = (int(st.left) + bufferSize - 1) / bufferSize * bufferSize
		}
		if need += st.toCome + 2*bufferSize; st.left < 0 {
			need += bufferSize
		}
	}
	if !s.held.reserve(need, limit, true) {
		s.crowded, st.drops = true, true
		st.toCome, st.chunked = 0, false
	}
}

// cameWhole gives back what was reserved for body, of which nothing more comes. mu is held.
func (st *h2Stream) cameWhole() {
	if n := st.toCome; n > 0 {
		st.toCome = 0
		st.session.held.change(0, min(len(st.in.bufs)*bufferSize-n, 0))
	}
}

// claim reserves n bytes more for the session, if it shares a bound with others; false = there is no room for them. What was claimed is to be
// given to unclaim, unless it is needed until the session's end.
func (s *session) claim(n int) (claimed int, ok bool) {
	limit := s.p.ledger.perConn.Load()
	if limit == 0 || s.held.of == nil {
		return 0, true
	}
	if !s.held.reserve(n, limit, false) {
		return 0, false
	}
	return n, true
}

func (s *session) unclaim(n int) {
	if n > 0 {
		s.held.change(0, -n)
	}
}

// claimPeek reserves what a look at the body takes: the buffer that it is read into, which is doubled as it grows, and a copy on its way to
// the server.
func (s *session) claimPeek() bool {
	limit := s.p.ledger.perConn.Load()
	if limit == 0 || s.held.of == nil {
		return true
	}
	return s.held.reserve(3*s.p.table.Load().peek, limit, true)
}

// largePiece is how much more than bufferSize a fiber.Transfer may hold.
const largePiece = 48 << 10

// pieces is how much of a body is moved at once: less where the connection has no room for more. claimed is for unclaim.
func (s *session) pieces() (most int64, claimed int) {
	if claimed, ok := s.claim(largePiece); ok {
		return math.MaxInt64, claimed
	}
	return bufferSize, 0
}
