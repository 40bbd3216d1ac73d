package httpproxy

import (
	"sync"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// maxKept bounds the part of a body after the head that is kept so that the request can be sent again.
// Documents of APIs and messages of gRPC's unary calls are rarely larger; keeping a larger body would
// cost a useless copy.
const maxKept = 64 << 10

// keptSize leaves room for bytes of the next request that are read together with the end of a body.
const keptSize = maxKept + bufferSize

var keptBuffers = sync.Pool{New: func() any { return new([keptSize]byte) }}

// kept is the part of a request's body that was read after the head. The fiber that sends the body
// adds to it, until the session drops it.
type kept struct {
	mu      sync.Mutex // held for a few instructions and a copy
	b       []byte     // from buffers, keptBuffers or shrink, depending on its capacity; nil = nothing is kept
	dropped bool       // the request cannot be sent again

	claimed int // for b; see session.claim
}

// keeps reports whether the request may be sent again after its body was read: HTTP/2 servers may
// refuse any request.
func (s *session) keeps() bool {
	return s.place() != nil || s.req.Idempotent() || s.ex.target.retries.repeatable(&s.req)
}

// keep keeps a part of the body. It reports false if there is no room, or keeping is useless.
func (s *session) keep(p []byte) bool {
	k := &s.ex.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.b) + len(p)
	switch {
	case k.dropped:
		return false
	case n > keptSize || s.req.Length == httpwire.Chunked && n > maxKept:
		return false
	case n <= cap(k.b):
	case s.p.ledger.exhausted(time.Now()) || !s.claimKept(n):
		return false
	case n <= bufferSize:
		k.move(takeBuffer(&s.held)[:], &s.held)
	default:
		s.held.add(keptSize)
		k.move(keptBuffers.Get().(*[keptSize]byte)[:], &s.held)
	}
	k.b = append(k.b, p...)
	return true
}

// claimKept claims memory for n kept bytes, including those that are kept already. mu is held.
func (s *session) claimKept(n int) bool {
	size := bufferCost
	if n > bufferSize {
		size = keptSize
	}
	claimed, ok := s.claim(size)
	s.ex.kept.claimed += claimed
	return ok
}

// dropKept frees the kept part: the request cannot be sent again.
func (s *session) dropKept() {
	k := &s.ex.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropped = true
	k.free(&s.held)
	s.unclaim(k.claimed)
	k.claimed = 0
}

// move moves what is kept to other memory. mu is held.
func (k *kept) move(to []byte, held *tally) {
	n := copy(to, k.b)
	k.free(held)
	k.b = to[:n]
}

// shrink moves what is kept to memory of its size.
func (k *kept) shrink(held *tally) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.b)
	if n == cap(k.b) || n == bufferSize { // nothing to gain, or free would take it for a buffer
		return
	}
	held.add(n)
	k.move(make([]byte, n), held)
}

// free frees the memory. mu is held.
func (k *kept) free(held *tally) {
	switch n := cap(k.b); n {
	case 0:
		return
	case bufferSize:
		putBuffer(held, (*[bufferSize]byte)(k.b[:bufferSize]))
	case keptSize:
		held.add(-keptSize)
		keptBuffers.Put((*[keptSize]byte)(k.b[:keptSize]))
	default:
		held.add(-n)
	}
	k.b = nil
}

// fillKept reads a part of the body. It keeps the part as long as all of the body is kept.
func (s *session) fillKept(up *uploading) (int, error) {
	n, err := up.in.fill()
	if n > 0 && !up.more && up.mayKeep {
		b := up.in.bytes()
		up.keeps = s.keep(b[len(b)-n:])
	}
	return n, err
}

// smallBody reports whether the whole body will be kept.
func (s *session) smallBody(up *uploading) bool {
	return up.mayKeep && s.req.Length != httpwire.Chunked && s.req.Length <= maxKept
}
