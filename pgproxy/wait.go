package pgproxy

import (
	"context"
	"errors"
	"time"

	"github.com/headpond/headpond/pgwire"
)

// A session that waits for its client also watches its leased server connection: the client gets the server's
// messages at once, and a dead connection leaves the pool at once.

// nextLeased waits for the client's next message while a server connection is leased, or while the client's messages
// are skipped up to its Sync. again means that something else has happened instead.
func (s *session) nextLeased(watches bool) (h pgwire.Header, again bool, err error) {
	s.c.Reader.Release()
	if watches {
		if again, err = s.watch(); again || err != nil {
			return h, again, err
		}
	}
	h, err = s.c.Reader.Next()
	return h, false, err
}

// watch waits until the header of the client's next message has arrived, or until the server has sent something,
// which it passes on; again is true in the latter case. No server reader may run. ErrSuspended means that both have
// been silent for a while.
func (s *session) watch() (again bool, err error) {
	wait := patience
	if s.x.late {
		s.x.late, wait = false, 1 // the fast path has waited already
	}
	for s.c.Reader.Buffered() < headerSize {
		ready, spoke, err := s.waitEither(wait)
		switch {
		case err == nil:
		case errors.Is(err, errors.ErrUnsupported):
			s.resident = true
			s.c.Writer.Release()
			s.srv.w.Release()
			s.startServerReader()
			return false, nil
		default:
			return false, err
		}
		switch {
		case spoke:
			if err := s.serverSpoke(); err != nil {
				return false, err
			}
			return true, s.releaseIfAnswered()
		case !ready:
			if s.suspend() {
				return false, ErrSuspended
			}
			wait = 0
		case s.c.isTLS():
			return false, nil
		default:
			if err := s.c.Reader.Fill(); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// maxPeek is how much of a message a Reader can show, in bytes.
const maxPeek = 16 << 10

// awaitBytes waits until n bytes of the client's message are buffered, and meanwhile passes on messages of the server.
// It does not wait if it cannot wait for both, or if a server reader runs.
func (s *session) awaitBytes(n int) error {
	for r := s.c.Reader; r.Buffered() < n; {
		s.mu.Lock()
		reading, open := s.reading, s.machine.st.tx != pgwire.TxIdle
		s.mu.Unlock()
		if reading || s.c.isTLS() {
			return nil
		}
		_, spoke, err := s.waitEither(0)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			if open {
				s.resident = true
				s.startServerReader()
			}
			return nil
		case err != nil:
		case spoke:
			err = s.serverSpoke()
		default:
			err = r.Fill()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// waitEither waits until the client or the server can be read, for at most the given time; 0 = without limit.
func (s *session) waitEither(patience time.Duration) (ready, spoke bool, err error) {
	if s.srv.hasUnread() {
		return false, true, nil
	}
	return s.c.Conn.WaitEither(s.srv.raw, patience)
}

// serverSpoke passes on received messages of the server while the session waits for its client. It does not wait for
// the end of an incomplete message, because the server may be waiting for the client: a server reader takes over.
func (s *session) serverSpoke() error {
	srv := s.srv
	if srv.r.Buffered() == 0 {
		if srv.tls != nil {
			s.startServerReader() // a record may have arrived in part
			return nil
		}
		if err := srv.r.Fill(); err != nil {
			return s.serverFailed(err, false)
		}
	}
	for s.srv == srv && srv.r.HasMessage() {
		if _, err := s.fromServer(); err != nil {
			return err
		}
	}
	if s.srv == srv && srv.r.Buffered() > 0 {
		s.startServerReader()
	}
	return s.c.Writer.Flush()
}

// releaseIfAnswered handles the moment when nothing more of the server's has arrived. If everything is answered and the
// client left no state in the server connection, it releases the connection. No server reader may run.
func (s *session) releaseIfAnswered() error {
	s.mu.Lock()
	over := s.srv == nil || s.reading
	s.mu.Unlock()
	if over {
		return nil
	}
	if s.machine.st.serverSilent() {
		s.dropAnswered()
	}
	s.parkLater()
	if err := s.keep(); err != nil {
		return err
	}
	if s.srv != nil && s.machine.over() {
		s.release()
	}
	return nil
}

// dropAnswered drops the data kept for messages, which are all answered. mu is held if a server reader runs.
func (s *session) dropAnswered() {
	s.sent = 0
	s.machine.allAnswered()
}

// suspend arranges for the session to continue, with its server connection, when the client or the server sends
// something. It keeps the session in memory, without its stack and buffers.
func (s *session) suspend() bool {
	raw := s.srv.raw
	if s.c.Reader.Buffered() > 0 || s.srv.r.Buffered() > 0 || s.srv.r.Left() > 0 || !raw.OnReadable(s.call) {
		return false
	}
	if !s.c.Conn.Suspend() {
		raw.OnReadable(nil)
		return false
	}
	s.c.Writer.Release()
	s.c.Reader.Release()
	s.srv.releaseBuffers()
	s.c.Reader, s.c.Writer = nil, nil
	s.asleep, s.c.Session = true, s
	return true
}

// call resumes a suspended session because the server has sent something. It runs as a fiber of the connections'
// loop.
func (s *session) call() {
	if s.asleep {
		s.called = true
		_ = s.c.Conn.SetReadDeadline(unixPast)
	}
}

// wakeUp is the reverse of suspend.
func (s *session) wakeUp(ctx context.Context) {
	s.ctx, s.asleep, s.returned, s.resumed, s.waiting = ctx, false, false, true, false
	s.c.Session = (*suspended)(nil)
	s.c.worker.Store(&s.worker)
	s.srv.raw.OnReadable(nil)
	if s.called {
		s.called = false
		s.clearDeadline()
	}
	s.initFastPath()
}

// clearDeadline removes a deadline that was set to end the wait for the client, unless the wait must end for another
// reason.
func (s *session) clearDeadline() {
	_ = s.c.Conn.SetReadDeadline(time.Time{})
	if s.c.over(s.ctx) != nil || s.c.interrupted() {
		_ = s.c.Conn.SetReadDeadline(unixPast)
	}
}
