package pgproxy

import (
	"errors"
	"time"

	"github.com/headpond/headpond/fiber"
)

// unixSoon is a deadline for reading what has arrived already.
func unixSoon() time.Time { return time.Now().Add(aliveTimeout) }

// startPump starts a goroutine that reads the server for as long as both sides may speak: until everything is answered, or until the
// lease ends if nobody else can watch the server connection.
func (s *session) startPump() {
	s.both = true
	s.mu.Lock()
	s.pumping = true
	s.mu.Unlock()
	if s.pumpOnce == nil { // made once, for it is allocated
		s.pumpOnce = func() {
			defer s.pumps.Done()
			s.pump()
		}
	}
	s.pumps.Add(1)
	fiber.Go(s.pumpOnce)
}

// pump is the goroutine.
func (s *session) pump() {
	r := s.srv.r // the server connection stays leased while pumping
	for {
		h, err := r.Next()
		if err == nil {
			_, err = r.Peek(h.Len) // as much as fits, so that mu is not held while waiting
		}
		s.mu.Lock()
		if err == nil {
			err = s.answer(h)
		}
		if err == nil && !r.HasMessage() {
			err = s.c.Writer.Flush()
			if err != nil {
				err = errors.Join(errClientWrite, err)
			} else if s.st.quiet() {
				s.c.Writer.Release()
			}
		}
		if err != nil {
			s.pumpFailed(err)
		} else {
			s.pumped()
		}
		over := !s.pumping
		s.mu.Unlock()
		if over {
			return
		}
	}
}

// pumped looks whether the pump has done its work. mu is held.
func (s *session) pumped() {
	free := s.st.settled() && !s.pinned
	switch {
	case s.learning && (s.st.empty() || s.st.copyIn):
	case !s.st.quiet() || s.srv.r.HasMessage():
		return
	case free:
	case s.resident || !s.waiting || s.srv.r.Buffered() > 0: // nobody else watches the server connection now
		s.settle()
		return
	}
	s.pumping = false
	if free && !s.forwarding {
		_ = s.c.Writer.Flush()
		s.release()
	}
	s.settle()
	if s.waiting && !s.resident {
		s.nudged = true
		_ = s.c.Conn.SetReadDeadline(unixPast) // the session's goroutine goes on watching, or gives up its stack
	}
}

// pumpFailed ends the session from the pump. mu is held.
func (s *session) pumpFailed(err error) {
	s.pumping = false
	switch {
	case isTimeout(err) && !errors.Is(err, errClientWrite):
		return // stopPump
	case errors.Is(err, errClientWrite) || s.ctx.Err() != nil:
		s.broken = err
		_ = s.srv.conn.SetWriteDeadline(unixPast) // nobody reads the server any more, so that it may never read on
	default:
		s.broken = s.pumpLost(err)
	}
	_ = s.c.Conn.SetReadDeadline(unixPast)
}

// pumpLost tells the client that its server connection broke. The lease stays, for the session's
// goroutine may be using the connection; it is closed under it.
func (s *session) pumpLost(cause error) error {
	lost := s.reportLost(cause, false)
	_ = s.c.Writer.Flush()
	s.st.unsynced = true // in doubt: close discards it
	_ = s.srv.conn.Close()
	return lost
}
