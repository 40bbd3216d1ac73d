package mux

import (
	"fmt"
	"io"
	"time"

	"github.com/headpond/headpond/fiber"
)

// rounds is the number of batches with other senders' data that a sender writes before the
// session's writer takes over.
const rounds = 4

// maxDiscard is how many bytes are read and dropped after a last frame that reports
// the other side's violation: closing a connection with unread data destroys what it
// has sent.
const maxDiscard = 1 << 20

// flush writes queued frames, unless another goroutine is writing already, which then puts them
// into its next batch. So a single sender makes one system call and wakes no goroutine, and many
// senders share system calls.
//
// own, if not nil, is the caller's operation: flush writes at least until that is done. patient
// means that the caller may wait for the socket. mu is held; it is released while writing.
func (s *Session) flush(own *sendOp, patient bool) {
	if s.core.replay != nil {
		s.flushRing(own, patient)
		return
	}
	if s.flushing || s.mute() || s.core.idle() {
		return
	}
	if s.link.raw == nil && !patient {
		s.handOver()
		return
	}
	s.flushing = true
	for i := 0; i < rounds || own != nil && !own.done; i++ {
		b := s.core.fill()
		if b.empty() {
			break
		}
		if !s.writeBatch(b, own, patient) {
			return
		}
		if s.core.idle() {
			break
		}
	}
	s.flushing = false
	if s.closing || !s.core.idle() {
		s.handOver()
	}
}

const (
	// soon is the longest time in ns between small sends of a stream of them, each with its own
	// system call.
	soon = 8e3
	// streak is how many make a stream, and untimed how many of them need not be soon, so
	// that a sender that waits for answers does not read the clock.
	streak  = 16
	untimed = 4
	// company is how many messages the writer should find when it is woken for a
	// stream; streamless is how many senders write by themselves after it found fewer.
	company    = 8
	streamless = 256
)

// stream reports whether the small message just queued is one of a stream of them,
// between which no caller here waits for an answer: then the writer writes it, with
// those that are queued by the time it runs. mu is held.
func (s *Session) stream() bool {
	if s.flushing {
		return true
	}
	if s.quick++; s.quick > 0 && s.quick < untimed {
		return false
	}
	now := s.core.now()
	if s.quick != untimed && now-s.lastSend > soon {
		s.quick = 0
	}
	s.lastSend = now
	if s.quick <= streak || s.mute() {
		return false
	}
	s.streamed = s.core.counts.messagesSent
	s.handOver()
	return true
}

// streamOver is called when the writer has nothing left to write: if it was
// woken for little, the next senders write themselves. mu is held.
func (s *Session) streamOver() {
	if s.quick > streak && s.core.counts.messagesSent-s.streamed < company {
		s.quick = -streamless
	}
}

// handOver makes the session's writer flush, unless another goroutine is flushing,
// which hands over when it has finished. mu is held.
func (s *Session) handOver() {
	if !s.flushing {
		s.flushing, s.handed = true, true
		s.wakeWriter()
	}
}

func (s *Session) wakeWriter() {
	select {
	case s.writerWake <- struct{}{}:
	default:
	}
}

// writeBatch writes b, which is core.pend. It reports false when the socket did not take
// everything, so that the writer continues, or when it failed. A patient caller waits for the
// socket, unless b refers to the data of another sender, which may need it back. mu is held, and
// released while writing.
func (s *Session) writeBatch(b *batch, own *sendOp, patient bool) (all bool) {
	s.core.pend, s.spare = s.spare, nil
	s.list = b.pieces(s.list[:0], 0)
	list := s.list
	s.mu.Unlock()
	l := s.link
	n, err := s.put(l, list)
	s.mu.Lock()
	total := length(list)
	s.core.took(n, total)
	if alone := len(b.ops) == 0 || len(b.ops) == 1 && b.ops[0] == own; n < total && err == nil && patient && alone {
		s.list = b.pieces(list[:0], n)
		err = s.putRest(l, s.list)
		n = total
	}
	if all = n == total; !all && err == nil {
		s.list = b.pieces(s.list[:0], n)
		for _, p := range s.list {
			s.spill = append(s.spill, p...)
		}
	}
	clear(s.list)
	if err != nil {
		err = lost(fmt.Errorf("writing: %w", err))
	}
	s.core.wrote(b, err)
	b.reset()
	b.free = b.free[:0]
	s.spare = b
	switch {
	case err != nil:
		s.writeFailed(l, err)
	case s.dead:
	case !all && !s.handed:
		s.handed = true
		s.wakeWriter()
		return false
	default:
		return all
	}
	s.flushing, s.handed = false, false
	return false
}

// put writes the pieces: all, or, where the socket allows it, only the part that fits now.
func (s *Session) put(l *link, list [][]byte) (n int, err error) {
	if l.raw != nil {
		return l.raw.write(list)
	}
	if len(list) == 1 {
		return l.conn.Write(list[0])
	}
	s.spill = s.spill[:0]
	for _, p := range list {
		s.spill = append(s.spill, p...)
	}
	n, err = l.conn.Write(s.spill)
	s.spill = s.spill[:0]
	return n, err
}

// putRest writes the pieces that the socket did not take at once, and waits for it.
// mu is held, and released while writing.
func (s *Session) putRest(l *link, list [][]byte) error {
	s.waiting++ // so that the session's reader reads: the other side may wait for that
	if !l.reading {
		l.wakeReader()
	}
	s.mu.Unlock()
	var err error
	for _, p := range list {
		if _, err = l.conn.Write(p); err != nil {
			break
		}
	}
	s.mu.Lock()
	s.waiting--
	return err
}

func length(list [][]byte) (n int) {
	for _, p := range list {
		n += len(p)
	}
	return n
}

// write is the session's writer goroutine: it writes data for which no sender may block.
func (s *Session) write() {
	defer close(s.writerDone)
	for range s.writerWake {
		s.mu.Lock()
		if s.core.replay != nil {
			s.drainRing()
		} else {
			s.drainOut()
		}
		over := s.dead || s.closing && !s.flushing && s.idle()
		closing := s.closing && !s.dead
		s.mu.Unlock()
		if over {
			if closing {
				s.finishWrites()
			}
			return
		}
	}
}

// drainOut writes until there is nothing left. mu is held, released while writing.
func (s *Session) drainOut() {
	if !s.handed {
		return
	}
	for !s.mute() {
		if len(s.spill) > 0 {
			p := s.spill
			s.mu.Unlock()
			_, err := s.link.conn.Write(p)
			s.mu.Lock()
			if s.spill = s.spill[:0]; cap(s.spill) > 2*batchSize {
				s.spill = nil // a large sender was held up; do not keep so much for the next
			}
			if err != nil {
				s.writeFailed(s.link, lost(fmt.Errorf("writing: %w", err)))
				break
			}
			continue
		}
		if s.core.idle() {
			break
		}
		b := s.core.fill()
		if b.empty() {
			break
		}
		s.writeBatch(b, nil, false)
	}
	s.streamOver()
	s.flushing, s.handed = false, false
}

// finishWrites half-closes the connection, so that the other side reads everything and then the
// end; closing at once might destroy data that it has not read yet.
func (s *Session) finishWrites() {
	s.mu.Lock()
	ours, conn := s.core.err, s.last.conn
	s.mu.Unlock()
	halfClosed := fiber.StreamOf(conn).CloseWrite() == nil
	switch {
	case ours == ErrSessionClosed && (halfClosed || s.ticket != nil):
		return // Close waits for the other side, which closes after the GoAway
	case ours != ErrSessionClosed && halfClosed: // the reader has ended
		conn.SetReadDeadline(time.Now().Add(s.cfg.CloseTimeout))
		_, _ = io.CopyN(io.Discard, conn, maxDiscard)
	}
	closeNow(conn)
}
