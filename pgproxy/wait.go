package pgproxy

import (
	"context"
	"errors"
	"time"

	"github.com/headpond/headpond/pgwire"
)

// While a session waits for its client, it watches the server connection that it has leased: the client gets messages
// of the server at once, and a dead connection leaves the pool at once.

// nextLeased waits for the client's next message while a server connection is leased, or while the client's messages are skipped up to
// its Sync. again means that something else has happened.
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

// watch waits until the header of the client's next message has arrived, or until the server has said something, which is passed on:
// again. No server reader runs. ErrSuspended means that both have been silent for long.
func (s *session) watch() (again bool, err error) {
	for wait := patience; s.c.Reader.Buffered() < headerSize; {
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
			return true, s.caughtUp()
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

// arrive waits until n bytes of the client's message are buffered, and passes messages of the server on meanwhile. It
// does not wait where that is not possible, or a server reader does it.
func (s *session) arrive(n int) error {
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

// waitEither waits for as long as patience lasts, 0 = for ever, until the client can be read, or the server.
func (s *session) waitEither(patience time.Duration) (ready, spoke bool, err error) {
	if s.srv.heard() {
		return false, true, nil
	}
	return s.c.Conn.WaitEither(s.srv.raw, patience)
}

// serverSpoke passes on received messages of the server while the session waits for its client. It does not wait for
// more: in the middle of a message the server may be waiting for the client. Then a server reader takes over.
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

// caughtUp notes that the server has been heard as far as is known. If all is answered, and nothing is left in it, it gives it back. No server
// reader runs.
func (s *session) caughtUp() error {
	s.mu.Lock()
	over := s.srv == nil || s.reading
	s.mu.Unlock()
	if over {
		return nil
	}
	if s.machine.st.quiet() {
		s.nothingOwed()
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

// nothingOwed forgets data kept for messages that are all answered. Where a server reader runs, mu is held.
func (s *session) nothingOwed() {
	s.sent = 0
	s.machine.nothingOwed()
}

// suspend arranges for the session to continue, with the server connection, when the client or the server sends
// something. The session stays in memory, without its stack and buffers.
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

// call resumes a suspended session, because the server has sent something. It runs as a fiber of their loop.
func (s *session) call() {
	if s.asleep {
		s.called = true
		_ = s.c.Conn.SetReadDeadline(unixPast)
	}
}

// wakeUp undoes suspend.
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

// clearDeadline removes a deadline of the client that was to end a wait, unless the wait must end for another reason,
// too.
func (s *session) clearDeadline() {
	_ = s.c.Conn.SetReadDeadline(time.Time{})
	if s.c.over(s.ctx) != nil || s.c.state.Load() == clientInterrupted {
		_ = s.c.Conn.SetReadDeadline(unixPast)
	}
}
