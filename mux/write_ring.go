package mux

import "fmt"

// The write path of a session that can be resumed: batches are copied into the
// ring, and written from there. So a sender is done when its bytes are in the ring,
// and bytes that a lost connection swallowed can be written again.

// ringAhead is how many bytes in the ring, which the writer has not begun to write, keep a sender from adding a batch. The writer writes
// them at once, as far as they are contiguous.
const ringAhead = 2 * batchSize

// idle reports whether nothing can be written now. mu is held.
func (s *Session) idle() bool {
	r, c := s.core.replay, s.core
	if r == nil {
		return c.idle()
	}
	return !s.unwritten() && (r.full() && !s.closing || c.idle())
}

// unwritten reports whether there are bytes to write that need no room in the ring. mu is held.
func (s *Session) unwritten() bool {
	r, l := s.core.replay, s.link
	return r.write < r.end || r.due || s.core.pong || len(s.core.pend.free) > 0 || l != nil && l.off < len(l.lead)
}

// stage moves one batch into the ring, if there is one and it has room. mu is held.
func (s *Session) stage() bool {
	if s.core.idle() || s.core.replay.full() && !s.closing {
		return false
	}
	b := s.core.fill()
	if len(b.ctl)+len(b.out) == 0 {
		return false
	}
	s.core.replay.take(b)
	s.core.wrote(b, nil)
	b.reset()
	return true
}

// flushRing is flush. Without a connection it only stages. mu is held, and given
// up while writing.
func (s *Session) flushRing(own *sendOp, patient bool) {
	if s.mute() && s.core.err == nil {
		for s.stage() {
		}
		return
	}
	for own != nil && !own.done && !patient && s.core.replay.ahead() < ringAhead && s.stage() {
	}
	if s.flushing || s.mute() || s.idle() {
		return
	}
	if s.link.raw == nil && !patient {
		s.handOver()
		return
	}
	s.flushing = true
	for i := 0; i < rounds || own != nil && !own.done; i++ {
		s.stage()
		if !s.unwritten() {
			break
		}
		if !s.writeRing(patient) {
			return
		}
		if s.idle() {
			break
		}
	}
	s.flushing = false
	if s.closing || !s.idle() {
		s.handOver()
	}
}

// writeRing writes the ring's unwritten data. It reports false when the connection did not take
// everything and the caller is not patient, so that the writer continues, or when the connection
// was lost. mu is held, and released while writing.
func (s *Session) writeRing(patient bool) bool {
	r, l := s.core.replay, s.link
	if r.write == r.chunk && l.off == len(l.lead) {
		l.lead, l.off = s.core.fillLead(l.lead[:0]), 0
		r.chunk = r.end
	}
	list := s.list[:0]
	if l.off < len(l.lead) {
		list = append(list, l.lead[l.off:])
	}
	list = r.pieces(list)
	s.list = list
	l.users++
	s.mu.Unlock()
	n, err := s.put(l, list)
	s.mu.Lock()
	total := length(list)
	lead := min(n, len(l.lead)-l.off)
	l.off += lead
	r.write += uint64(n - lead)
	if n < total && err == nil && patient && !l.lost {
		if s.list = list[:0]; l.off < len(l.lead) {
			s.list = append(s.list, l.lead[l.off:])
		}
		s.list = r.pieces(s.list)
		if err = s.putRest(l, s.list); err == nil {
			n, l.off, r.write = total, len(l.lead), r.chunk
		}
	}
	clear(s.list)
	if err != nil {
		s.writeFailed(l, lost(fmt.Errorf("writing: %w", err)))
	}
	s.releaseLink(l)
	switch {
	case l.lost, l.broken, s.dead:
		s.flushing, s.handed = false, false
		return false
	case n < total:
		s.handed = true
		s.wakeWriter()
		return false
	}
	return true
}

// drainRing is drainOut. mu is held, released while writing.
func (s *Session) drainRing() {
	for s.handed && !s.mute() {
		if !s.stage() && !s.unwritten() {
			break
		}
		if !s.writeRing(true) {
			return
		}
	}
	if s.handed {
		s.streamOver()
		s.flushing, s.handed = false, false
	}
}
