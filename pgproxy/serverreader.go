package pgproxy

import (
	"errors"
	"time"

	"github.com/headpond/headpond/fiber"
)

// unixSoon is a deadline for reading data that has arrived already.
func unixSoon() time.Time { return time.Now().Add(aliveTimeout) }

// startServerReader starts a goroutine that reads the server while both sides may send: until everything is answered,
// or until the lease ends if only this goroutine can watch the server connection.
func (s *session) startServerReader() {
	s.mu.Lock()
	s.reading = true
	s.mu.Unlock()
	if s.runReader == nil { // made once, because it is allocated
		s.runReader = func() {
			defer s.readers.Done()
			s.readServer()
		}
	}
	s.readers.Add(1)
	fiber.Go(s.runReader)
}

// readServer is the server reader's goroutine.
func (s *session) readServer() {
	r := s.srv.r // the server connection stays leased while reading
	for {
		h, err := r.Next()
		if err == nil {
			_, err = r.Peek(h.Len) // as much as the Reader can show, so that mu is not held while waiting
		}
		s.mu.Lock()
		if err == nil {
			err = s.answer(h)
		}
		if err == nil && !r.HasMessage() {
			err = s.c.Writer.Flush()
			if err != nil {
				err = errors.Join(errClientWrite, err)
			} else if s.machine.st.serverSilent() {
				s.c.Writer.Release()
			}
		}
		if err != nil {
			s.readerFailed(err)
		} else {
			s.readerAnswered()
		}
		over := !s.reading
		s.mu.Unlock()
		if over {
			return
		}
	}
}

// readerAnswered checks whether the server reader has done its work. mu is held.
func (s *session) readerAnswered() {
	free := s.machine.over()
	if s.machine.st.serverSilent() && s.readerActivity.n.Load()&1 == 1 {
		now := s.c.proxy.ticks.now.Load()
		s.readerActivity.set(now, false)
		s.c.activity.renew(now)
	}
	switch {
	case s.learning && s.machine.canJudgeAgain():
	case !s.machine.st.serverSilent() || s.srv.r.HasMessage():
		return
	case free || s.machine.due():
	case s.resident || !s.waiting || s.srv.r.Buffered() > 0: // nobody else would watch the server connection
		s.allowDrain()
		return
	}
	s.reading = false
	due := s.machine.due() // due work takes a round trip, and the session's goroutine does it
	if free && !due && !s.forwarding {
		_ = s.c.Writer.Flush()
		s.release()
	}
	s.allowDrain()
	if s.waiting && (!s.resident || s.srv != nil && due) {
		s.nudged = true
		_ = s.c.Conn.SetReadDeadline(unixPast) // the session's goroutine continues to watch, or gives up its stack
	}
}

// readerFailed ends the session from the server reader. mu is held.
func (s *session) readerFailed(err error) {
	s.reading = false
	switch {
	case isTimeout(err) && !errors.Is(err, errClientWrite):
		return // stopServerReader
	case errors.Is(err, errClientWrite) || s.c.over(s.ctx) != nil:
		s.broken = err
		_ = s.srv.conn.SetWriteDeadline(unixPast) // nobody reads the server any more, so it may never read either
	default:
		s.broken = s.readerLost(err)
	}
	_ = s.c.Conn.SetReadDeadline(unixPast)
}

// readerLost informs the client that its server connection broke. It closes the connection but keeps the lease,
// because the session's goroutine may be using the connection.
func (s *session) readerLost(cause error) error {
	lost := s.reportLost(s.srv.lossReason(cause), false)
	_ = s.c.Writer.Flush()
	s.machine.st.unsynced = true // makes the connection doubtful, so that close discards it
	_ = s.srv.conn.Close()
	return lost
}
