package pgproxy

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/headpond/headpond/pgwire"
)

// resetTimeout bounds ROLLBACK and DISCARD ALL before a server connection is given back. Tests make it longer.
var resetTimeout = 5 * time.Second

// release returns the session's server connection to the pool if its state is known, and closes it
// otherwise. If a server reader may run, mu must be held.
func (s *session) release() {
	srv := s.srv
	s.srv = nil
	s.cancelMu.Lock()
	canceling := s.canceling != nil
	s.cancelMu.Unlock()
	if canceling {
		_ = s.c.Writer.Flush() // the client need not wait for its own cancel request
	}
	certain := s.endCancels() && !srv.cancelInDoubt.Load()
	if !certain || !s.machine.reusable() {
		s.machine.release()
		s.lease.Discard()
		return
	}
	s.machine.leaveServer()
	srv.releaseBuffers()
	srv.idleAt = clock()
	srv.shared = !s.machine.pinned
	if s.c.AccessLog() && !s.machine.pinned && !s.leaseAt.IsZero() { // the log may have been switched on meanwhile
		s.access(s.leaseAt, "transaction", nil, slog.Duration("waited", s.waited))
	}
	now := srv.idleAt
	if !s.linger(now) {
		s.lease.Release()
	}
	s.machine.forgetServer()
	if s.machine.mode == Transaction {
		s.b.learnIfDue(now)
	}
}

// close ends the session's use of a server connection in any state.
func (s *session) close() {
	if s.waitCancel != nil {
		s.waitCancel()
	}
	if s.asleep && s.srv != nil {
		return // it stays leased
	}
	s.c.worker.Store(nil)
	if s.asleep {
		return // another session reuses the stand-ins
	}
	defer s.machine.forgetStatements()
	defer s.endLingering()
	defer s.unsubscribe()
	if s.serverPID != 0 {
		s.c.proxy.unalias(s.serverPID, s.c)
	}
	s.dropBegun()
	s.stopServerReader()
	if s.srv == nil {
		return
	}
	if err := s.clean(); err != nil {
		s.c.Logger().Debug("server connection discarded", "endpoint", s.srv.endpoint, "error", err)
		m := &s.machine
		if lost := (*backendError)(nil); !m.st.empty() && !m.st.copyIn && (!errors.As(s.broken, &lost) || s.srv.removed.Load()) {
			s.abandon()
		}
		m.forgetUnanswered()
		s.discard()
		return
	}
	s.release()
}

// abandon cancels the statement of a client that has gone: a server does not notice the closed
// connection before the statement ends.
func (s *session) abandon() {
	ctx, stop := context.WithTimeout(context.Background(), lingerTime)
	defer stop()
	if err := sendCancel(ctx, s.b.login(), s.srv); err != nil {
		s.c.Logger().Debug("cancel of an abandoned statement failed", "endpoint", s.srv.endpoint, "error", err)
	}
}

// errRemains means that the client may have left state that DISCARD ALL does not undo.
var errRemains = errors.New("its client may have left state there that DISCARD ALL does not undo")

// errInDoubt and errPanicked mean that the next message of a server connection is unknown.
var (
	errInDoubt  = errors.New("its client left while it was busy")
	errPanicked = errors.New("its session panicked")
)

// clean makes the server connection fit for another client: it ends a transaction, and in
// session mode everything else the client left.
func (s *session) clean() error {
	srv := s.srv
	if !s.returned {
		return errPanicked
	}
	torn := s.c.Reader.Left() > 0 // the server may wait for the rest of the client's last message
	if torn || !s.machine.st.clean() || srv.r.Buffered() > 0 || srv.r.Left() > 0 || srv.w.Buffered() > 0 || len(s.machine.toServer) > 0 || srv.cancelInDoubt.Load() {
		return errInDoubt
	}
	if s.machine.pinned && srv.mustClose {
		return errRemains
	}
	_ = srv.conn.SetDeadline(time.Now().Add(resetTimeout))
	if s.machine.st.tx != pgwire.TxIdle {
		if err := srv.exec("ROLLBACK"); err != nil {
			return err
		}
		s.machine.st.tx = pgwire.TxIdle
	}
	s.machine.outdate()
	left := s.machine.traces | srv.pins
	srv.mustClose = srv.mustClose || left&(indelible|lasting|traceSpoils) != 0
	if (s.machine.pinned || left != 0) && !srv.mustClose {
		if err := srv.wipe(); err != nil {
			return err
		}
	}
	return srv.conn.SetDeadline(time.Time{})
}

// wipe undoes all state that clients left in a server connection. RESET comes first: where
// transactions are deferrable by default, DISCARD ALL would wait for other transactions.
func (s *server) wipe() error {
	if strings.Contains(s.settings, "default_transaction_deferrable=") {
		if err := s.execAgain("RESET ALL"); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := s.execAgain("DISCARD ALL"); err != nil {
		return err
	}
	if time.Since(began) >= time.Millisecond { // the client's statement_timeout may have passed at the very end: it fails the next statement then
		if err := s.execAgain(";"); err != nil {
			return err
		}
	}
	s.wiped()
	s.shared = false
	return nil
}

// wipeLeft is wipe with a time limit.
func (s *server) wipeLeft(within time.Duration) error {
	_ = s.conn.SetDeadline(time.Now().Add(within))
	err := s.wipe()
	if err == nil {
		err = s.conn.SetDeadline(time.Time{})
	}
	return err
}

// wiped notes that DISCARD ALL has been done.
func (s *serverState) wiped() {
	s.stmts.clear()
	s.flags, s.settings, s.unnamed, s.sequencesOf, s.underClientName = 0, "", 0, sequenceUse{}, nil
}

// stopServerReader ends the server reader of a session whose client has left. A server reader in the middle of an answer
// leaves the connection in doubt.
func (s *session) stopServerReader() {
	// The server reader may be writing, with mu held, to a client that does not read.
	_ = s.c.Conn.SetWriteDeadline(time.Now().Add(lingerTime))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.srv != nil {
		s.interruptServerReader()
		return
	}
	s.mu.Unlock()
	s.readers.Wait()
	s.mu.Lock()
}

// interruptServerReader ends the server reader, if one runs, wherever it waits for the server. mu is held, but not while this
// waits.
func (s *session) interruptServerReader() {
	srv := s.srv
	if s.reading {
		s.forwarding = true // so that the server reader does not give the server connection, with this deadline, to another client
		_ = srv.conn.SetReadDeadline(unixPast)
	}
	s.mu.Unlock()
	s.readers.Wait()
	_ = srv.conn.SetReadDeadline(time.Time{})
	s.mu.Lock()
}
