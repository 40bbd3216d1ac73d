package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
)

// freshFor is how long an idle server connection is assumed to be alive without a check, which costs a system call.
const freshFor = time.Millisecond

// maxStale bounds the dead connections that are discarded for one lease. After a restart of the server a whole pool
// may be dead.
const maxStale = 1000

var (
	// errCanceled means that the client's cancel request came while it waited for a lease.
	errCanceled = errors.New("canceled while waiting for a server connection")
	// errSettings is wrapped by errors of the server about a client's settings.
	errSettings = errors.New("the server refuses a setting of the client")
)

// acquire leases a server connection that is alive and has the client's settings. msg is the client's message that
// will be judged next, nil if there is none: if it is short, the settings may be sent together with it, in a replay.
func (s *session) acquire(msg *message) error {
	var asked time.Time
	s.leaseAt = time.Time{}
	if s.c.AccessLog() {
		asked = time.Now()
	}
	start := s.meter.asked
	if start == 0 {
		start = clock()
	}
	if err := s.acquireAlive(); err != nil {
		return err
	}
	s.leased()
	if s.meter.asked > 0 || s.c.Mode == Session { // otherwise the lease is for a login
		s.meter.shard.Observe(timeWaits, s.leasedAt-start)
	}
	if !asked.IsZero() {
		s.leaseAt = time.Now()
		s.waited = s.leaseAt.Sub(asked)
	}
	if s.machine.buffersStuck(&s.srv.serverState) {
		return s.renew(msg)
	}
	return s.agree(msg)
}

// agree gives the server connection the client's settings, or arranges that msg takes them there.
func (s *session) agree(msg *message) error {
	if s.srv.shared && s.machine.mode == Session {
		s.srv.flags |= leftAnything
	}
	if msg != nil && msg.size() <= maxPeek && !s.machine.inSync() && s.machine.planReplay() {
		return nil
	}
	return s.sync()
}

// acquireAlive gets a lease of a server connection that is alive.
func (s *session) acquireAlive() error {
	for range maxStale {
		if err := s.takeLease(); err != nil {
			return err
		}
		s.leasedAt = clock()
		if (s.srv.hasUnread() || s.leasedAt-s.srv.idleAt > freshFor) && !s.srv.alive() || !s.checked() {
			s.discard()
			continue
		}
		s.srv.raw.Adopt() // after alive: Adopt forgets what has arrived until the loop looks again
		return nil
	}
	return s.allDeadError()
}

// leased starts the session's work with a newly leased server connection.
func (s *session) leased() {
	s.machine.begin(&s.srv.serverState)
	s.sent, s.resident = 0, false
}

func (s *session) allDeadError() error {
	return fmt.Errorf("upstream %q: %w", s.b.cfg.Name, errAllDead)
}

var errAllDead = errors.New("every server connection was dead")

// discard closes the leased server connection.
func (s *session) discard() {
	s.endCancels()
	s.machine.loseDefinition()
	s.machine.vacated()
	s.machine.unpin()
	s.lease.Discard()
	s.srv, s.machine.server = nil, nil
}

// beginWait begins a wait that ends with the returned context, which cancel and cutOff end, until acquiring is nil again. It ends at
// once if a cancel request came before, or an operator has killed the session, when there was nothing to end yet.
func (s *session) beginWait() context.Context {
	if s.waitCtx == nil || s.waitCtx.Err() != nil { // a context lasts until it is canceled
		parent := s.ctx
		if s.x.parker.TryParker != nil {
			parent = pool.WithParker(parent, &s.x.parker)
		}
		s.waitCtx, s.waitCancel = context.WithCancel(parent)
	}
	s.cancelMu.Lock()
	defer s.cancelMu.Unlock()
	s.acquiring = s.waitCancel
	if s.canceled || s.c.killed() {
		s.canceled = false
		s.waitCancel()
	}
	return s.waitCtx
}

// takeLease gets a lease. The client can cancel the wait.
func (s *session) takeLease() error {
	if !s.x.pending.Begun() {
		s.x.parker.kind = s.machine.kindOf()
	}
	ctx := s.beginWait()
	lease, err := s.obtain(ctx)
	s.cancelMu.Lock()
	s.acquiring = nil
	if err == nil {
		s.lease, s.srv = lease, lease.Value()
		s.noteHeld(s.srv)
	}
	s.cancelMu.Unlock()
	switch {
	case err != nil && ctx.Err() != nil && s.c.over(s.ctx) == nil:
		return errCanceled
	case err == nil && s.c.over(s.ctx) != nil: // cutOff may have come before target was set
		s.discard()
		return s.c.over(s.ctx)
	}
	return err
}

// cutOff closes the leased server connection, or ends the wait for one. Other goroutines call it.
func (s *session) cutOff() {
	s.cancelMu.Lock()
	defer s.cancelMu.Unlock()
	s.cut = true
	switch {
	case s.target != nil:
		_ = s.target.raw.Close()
	case s.acquiring != nil:
		s.acquiring()
	}
}

// endCancels puts the server connection out of the reach of cancel requests and of cutOff. It returns once no cancel
// request is running. False means that no other client may get the connection: a cancel request did not end in time
// and might hit it, or cutOff has closed it.
func (s *session) endCancels() bool {
	s.cancelMu.Lock()
	s.target, s.shielded = nil, false
	done, cut := s.canceling, s.cut
	s.cancelMu.Unlock()
	if done == nil {
		return !cut
	}
	ended := false
	fiber.Block(func() {
		timer := time.NewTimer(cancelTimeout)
		defer timer.Stop()
		select {
		case <-done:
			ended = true
		case <-timer.C:
		}
	})
	return ended && !cut
}

// shield puts the server connection out of the reach of cancel requests as endCancels does, but not of cutOff: the gateway asks
// the server something on its own, and the server may not answer.
func (s *session) shield() {
	s.endCancels()
	s.cancelMu.Lock()
	defer s.cancelMu.Unlock()
	if s.target, s.shielded = s.srv, true; s.cut {
		_ = s.target.raw.Close()
	}
}

// cancelTimeout bounds how long a release waits for a cancel request under way.
const cancelTimeout = 5 * time.Second

// cancel implements Client.OnCancel: it forwards the request to the server connection that the client has leased at
// this moment, or ends the wait for one. Other goroutines call it.
func (s *session) cancel(ctx context.Context) {
	s.cancelMu.Lock()
	srv := s.target
	if srv == nil || s.shielded || s.canceling != nil || s.beginsAgain {
		if s.acquiring != nil && !s.beginsAgain { // otherwise the session would end
			s.acquiring()
		}
		s.cancelMu.Unlock()
		return
	}
	done := make(chan struct{})
	s.canceling, s.hit = done, true
	s.cancelMu.Unlock()
	if err := sendCancel(ctx, s.b.login(), srv); err != nil {
		srv.cancelInDoubt.Store(true)
		s.c.Logger().Warn("cancel request failed", "endpoint", srv.endpoint, "error", err)
	}
	s.cancelMu.Lock()
	s.canceling = nil
	s.cancelMu.Unlock()
	close(done)
}

// sync gives the server connection the client's settings if they differ, in one round trip.
func (s *session) sync() error {
	m := &s.machine
	m.replay = false
	if m.inSync() {
		return nil
	}
	srv := s.srv
	if srv.flags&leftAnything != 0 {
		if err := srv.wipeLeft(resetTimeout); err != nil {
			s.discard()
			return fmt.Errorf("PostgreSQL server %s: DISCARD ALL: %w", srv.endpoint, err)
		}
	}
	sql := m.syncSQL()
	if sql == "" {
		return nil
	}
	_ = srv.conn.SetDeadline(time.Now().Add(requestTimeout))
	err, first := error(nil), m.encodingSQL(sql)
	for n := 0; n == 0 || canceled(err) && !s.wasCanceled() && n <= maxAttempts; n++ { // by the previous client's statement_timeout
		if err = nil; first != "" {
			err = srv.exec(first)
		}
		if err == nil {
			err = srv.exec(sql)
		}
	}
	_ = srv.conn.SetDeadline(time.Time{})
	if said, ok := errors.AsType[*pgwire.ErrorResponse](err); ok && !said.Fatal() {
		srv.flags |= leftSettings // the old settings are still there: nothing was done
		srv.unnamed = 0
		s.release()
		return fmt.Errorf("%w: %w", errSettings, err)
	}
	if err != nil {
		s.discard()
		return fmt.Errorf("PostgreSQL server %s: settings: %w", srv.endpoint, err)
	}
	m.applied()
	return nil
}

// wasCanceled reports whether a cancel request was sent to the server connection since it was leased.
func (s *session) wasCanceled() bool {
	s.cancelMu.Lock()
	defer s.cancelMu.Unlock()
	return s.hit
}

// requestTimeout bounds a request of the gateway's own on a client's server connection, such as the settings that are
// applied before its statement, or the check for session state behind it. A server that stalls, for example while its
// disk does, must not cost the client its session: a direct connection only waits. Health checks find one that hangs.
const requestTimeout = time.Minute

// maxAttempts bounds how often such a request is sent again after the server has canceled it: with a statement_timeout of a
// millisecond, for some seconds.
const maxAttempts = 1000

// checkTimeout bounds a request on a server connection of which nothing is lost if it is closed.
const checkTimeout = 10 * time.Second

// exec runs a string of SQL for its effects. It returns the server's error once the server is ready again.
func (s *server) exec(sql string) error { return s.query(sql, nil) }

// execAgain is exec for a statement that a client's statement_timeout, or a late cancel request, may end: it is executed again then.
func (s *server) execAgain(sql string) error {
	err := s.exec(sql)
	for n := 0; canceled(err) && n < maxAttempts; n++ {
		err = s.exec(sql)
	}
	return err
}

// query is exec for SQL that returns rows. It calls row, unless that is nil, for each one; the DataRow is valid until
// row returns.
func (s *server) query(sql string, row func(*pgwire.DataRow)) error {
	s.w.Send(&pgwire.Query{SQL: sql})
	return s.answer(row)
}

// answer sends the written messages, of which one ends with ReadyForQuery, and reads the answer as query does.
func (s *server) answer(row func(*pgwire.DataRow)) error { return s.answerWith(pgwire.TxIdle, row) }

// answerWith is answer for messages after which the server connection has another transaction status.
func (s *server) answerWith(status pgwire.TxStatus, row func(*pgwire.DataRow)) error {
	if err := s.w.Flush(); err != nil {
		return err
	}
	var failure error
	for {
		h, err := s.r.Next()
		if err != nil {
			return err
		}
		switch h.Type {
		case pgwire.TypeErrorResponse:
			failure = s.readError()
		case pgwire.TypeParameterStatus:
			if err := s.readParameter(); err != nil {
				return err
			}
		case pgwire.TypeNotificationResponse:
			if err := s.readNotification(); err != nil {
				return err
			}
		case pgwire.TypeDataRow:
			if err := s.readRow(row); err != nil {
				return err
			}
		case pgwire.TypeReadyForQuery:
			body, err := s.r.Body()
			if err != nil {
				return err
			}
			var m pgwire.ReadyForQuery
			if err := m.Decode(body); err != nil {
				return err
			}
			if m.Status != status && failure == nil {
				failure = fmt.Errorf("%w: transaction status %q", errBackendProtocol, byte(m.Status))
			}
			return failure
		}
	}
}

// readRow reads the body of a DataRow for row, which may be nil.
func (s *server) readRow(row func(*pgwire.DataRow)) error {
	if row == nil {
		return s.r.Skip()
	}
	body, err := s.r.Body()
	if err != nil {
		return err
	}
	var m pgwire.DataRow
	if err := m.Decode(body); err != nil {
		return err
	}
	row(&m)
	return nil
}

// readNotification reads the body of a NotificationResponse, and keeps the message if collects is set.
func (s *server) readNotification() error {
	body, err := s.r.Body()
	if err == nil && s.collects {
		s.notified = append(pgwire.AppendHeader(s.notified, pgwire.TypeNotificationResponse, len(body)), body...)
	}
	return err
}

// readParameter reads the body of a ParameterStatus and notes the value.
func (s *server) readParameter() error {
	var m pgwire.ParameterStatus
	body, err := s.r.Body()
	if err == nil {
		err = m.Decode(body)
	}
	if err == nil {
		s.parameter(pgwire.Param(m))
	}
	return err
}

// alive reports whether an idle server connection is alive, without asking the server. It reads messages that the
// server has sent meanwhile, such as a changed parameter.
func (s *server) alive() bool {
	state := s.readState()
	if state == fiber.Pending {
		_ = s.conn.SetReadDeadline(time.Now().Add(aliveTimeout))
		defer func() { _ = s.conn.SetReadDeadline(time.Time{}) }()
	}
	for ; state == fiber.Pending; state = s.readState() {
		h, err := s.r.Next()
		if err != nil {
			// A timeout means that there was only TLS housekeeping, unless the deadline had passed before anything was
			// read: on a busy machine the trip to the connection's loop may take that long.
			return isTimeout(err) && s.r.Buffered() == 0 && s.readState() == fiber.Silent
		}
		switch h.Type {
		case pgwire.TypeParameterStatus:
			err = s.readParameter()
		case pgwire.TypeNoticeResponse, pgwire.TypeNotificationResponse:
			err = s.r.Skip()
		default:
			return false
		}
		if err != nil {
			return false
		}
	}
	return state.Fit()
}

// hasUnread reports whether the Reader or TLS has received data of the server that has not been read.
func (s *server) hasUnread() bool {
	if s.r.Buffered() > 0 {
		return true
	}
	return s.tls != nil && s.tls.Buffered()
}

// readState returns the state of reads from the server.
func (s *server) readState() fiber.State {
	if s.hasUnread() {
		return fiber.Pending
	}
	return s.raw.State()
}

// aliveTimeout bounds the reading of messages of an idle server that have arrived already.
const aliveTimeout = 10 * time.Millisecond

// isTimeout reports whether one of the gateway's deadlines has passed. A peer whose machine is gone also causes a
// timeout (ETIMEDOUT), which is the end of the connection.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
