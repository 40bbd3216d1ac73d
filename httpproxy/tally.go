package httpproxy

import (
	"math"
	"sync/atomic"
)

// tally counts the bytes that one session or connection holds. A nil tally, or one without an account,
// counts nothing.
//
// The streams of an HTTP/2 connection share Config.MaxBufferedPerConn. The memory that a stream may
// need is reserved before it takes any. For the connection, the stream counts as the larger of its
// reservation and what it holds. So streams that begin together see each other, and running streams
// cannot exceed the limit. See h2Stream.admit and session.claim.
type tally struct {
	to      *account
	of      *tally        // the connection's tally, if this is a stream's; else nil
	state   atomic.Uint64 // a holding
	streams atomic.Int64  // the sum of what the connection's streams count
}

// holding has the bytes that are held (the low half) and reserved. Each is less than 2 GiB.
type holding uint64

func newHolding(held, reserved int) holding {
	return holding(uint32(held)) | holding(uint32(reserved))<<32
}

func (h holding) held() int     { return int(int32(h)) }
func (h holding) reserved() int { return int(int32(h >> 32)) }

// counts returns what a stream counts for its connection.
func (h holding) counts() int64 {
	if h.finished() {
		return 0
	}
	return int64(max(h.held(), h.reserved()))
}

// finished reports whether the stream has ended, and its session only frees memory: it counts nothing, and
// nothing is reserved for it.
func (h holding) finished() bool { return h.reserved() < 0 }

func (t *tally) load() holding { return holding(t.state.Load()) }

// add counts n bytes that were taken, or freed if n is negative. Any goroutine of the session may call
// it.
func (t *tally) add(n int) {
	if t == nil || t.to == nil {
		return
	}
	t.to.n.Add(int64(n))
	if t.of == nil { // nothing is ever reserved
		t.state.Add(uint64(n))
		return
	}
	t.change(n, 0)
}

func (t *tally) change(held, reserved int) {
	for {
		was := t.load()
		is := newHolding(was.held()+held, was.reserved()+reserved)
		if was.finished() {
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

// reserve reserves n more bytes for a stream than it counts. It reports false if the connection would
// then exceed limit. With lone it reserves them nevertheless if no other stream counts anything.
func (t *tally) reserve(n int, limit int64, lone bool) bool {
	c := t.of
	for {
		was := t.load()
		if was.finished() {
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

// finish makes the stream count nothing: the client is about to get the end of the response, and may
// send its next request before the session has freed its memory.
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

// end removes what a session still counts, also after a panic.
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

// admit reserves the memory that the stream's request may take, if there is a limit: for its head to the server and for
// pieces of the answer; for a body, the client's window, the part that is read, and what is assembled for the server. If
// the limit is reached, the request is refused and its body dropped on arrival. admit must be called before any of the
// body has arrived.
func (st *h2Stream) admit(s *session) {
	limit := s.p.ledger.perConn.Load()
	if limit == 0 {
		return
	}
	need := 2 * bufferCost
	if !st.ended {
		st.bodyReserved = (h2Window/bufferSize + 2) * bufferCost // the first buffer may be read in part
		if st.left >= 0 && st.left <= h2Window {
			st.bodyReserved = (int(st.left) + bufferSize - 1) / bufferSize * bufferCost
		}
		if need += st.bodyReserved + 2*bufferCost; st.left < 0 {
			need += bufferCost
		}
	}
	if !s.held.reserve(need, limit, true) {
		s.overMemory, st.drops = true, true
		st.bodyReserved, st.lengthless = 0, false
	}
}

// bodyArrived frees the reservation for the body, which is complete. mu is held.
func (st *h2Stream) bodyArrived() {
	if n := st.bodyReserved; n > 0 {
		st.bodyReserved = 0
		st.session.held.change(0, min(len(st.in.bufs)*bufferCost-n, 0))
	}
}

// claim reserves n more bytes for the session, if it shares a limit with other sessions. It returns false if the limit is
// reached. The caller passes claimed to unclaim, unless it needs the bytes until the session ends.
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

// claimPeek reserves the memory for peeking at the body: the buffer that it is read into, which
// doubles as it grows, and a copy on its way to the server.
func (s *session) claimPeek() bool {
	limit := s.p.ledger.perConn.Load()
	if limit == 0 || s.held.of == nil {
		return true
	}
	return s.held.reserve(3*s.p.table.Load().peek, limit, true)
}

// largePiece is how many more bytes than bufferSize a fiber.Transfer may hold.
const largePiece = 48 << 10

// pieces returns how much of a body is moved at once: less near the connection's limit. claimed is for unclaim.
func (s *session) pieces() (most int64, claimed int) {
	if claimed, ok := s.claim(largePiece); ok {
		return math.MaxInt64, claimed
	}
	return bufferSize, 0
}
