package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// Each replaced server connection costs the server a login: a process, which reads its caches anew. renewalsAtOnce is
// how many a backend may replace at once, the connections of several usual pools, and renewalEvery how often one more
// after those: the server can spare a few logins a second. Beyond that clients see what others have left.
const (
	renewalsAtOnce = 100
	renewalEvery   = 200 * time.Millisecond
)

// renewals bounds the replaced server connections of a backend, with all its pairs: the logins are the same server's. Any
// goroutine may use it.
type renewals struct {
	full    atomic.Int64 // when renewalsAtOnce will be possible again, by clock
	refused atomic.Bool  // there were too many, and that has been logged
}

// tryTake counts one, and reports whether it is possible now.
func (r *renewals) tryTake(now time.Duration) bool {
	for {
		full := r.full.Load()
		next := max(full, int64(now)) + int64(renewalEvery)
		if next-int64(now) > renewalsAtOnce*int64(renewalEvery) {
			return false
		}
		if r.full.CompareAndSwap(full, next) {
			return true
		}
	}
}

// renew gives the lease another server connection, which has nothing that other clients have left for good: an idle one,
// or a new one in place of the present one. If the client's transaction has begun, it begins again there. If too many
// server connections have been replaced lately, the lease keeps its own. msg is as in acquire. After an error there is no
// lease.
func (s *session) renew(msg *message) error {
	m := &s.machine
	if err := s.stopReading(); err != nil {
		return err
	}
	if m.progress == onlyBegun && m.st.tx == pgwire.TxActive {
		return s.renewBegun()
	}
	switch {
	case s.swapForClean():
	case !s.mayRenew():
		m.declineReplacement()
	default:
		if err := s.replace(); err != nil {
			return err
		}
	}
	return s.agree(msg)
}

// mayRenew counts a replaced server connection. The first time that there are too many, the log says so. While the pool
// opens none, a client that merely reads keeps its own.
func (s *session) mayRenew() bool {
	if !s.machine.buffersStuck(&s.srv.serverState) && !s.lease.Replaceable() {
		return false
	}
	if s.b.renewals.tryTake(clock()) {
		return true
	}
	if !s.b.renewals.refused.Swap(true) {
		s.c.Logger().Warn("clients read names of custom settings that others have made, or set temp_buffers, more often than server connections can be replaced for it: "+
			"they may see what other clients have left", "upstream", s.b.cfg.Name)
	}
	return false
}

// stopReading ends the server reader of a lease in which everything is answered.
func (s *session) stopReading() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interruptServerReader()
	return s.broken
}

// swapForClean exchanges the leased server connection, on which nothing has been done, for an idle one in which clients
// have left nothing. It returns false, and has done nothing, if there is none at hand.
func (s *session) swapForClean() bool {
	x := &s.x
	// A server reader would go on to read the other server connection, or this one for its next client.
	if s.stopReading() != nil || !s.machine.st.closed() || s.srv.w.Buffered() > 0 || s.srv.hasUnread() || s.srv.r.Left() > 0 {
		return false // the gateway, or the server, has begun something there
	}
	x.parker.kind = s.machine.kindOf()
	lease, ok := s.b.up.TryAcquireKey("", x.parker.Affinity())
	if !ok {
		return false
	}
	switch srv := lease.Value(); {
	case !srv.alive():
		lease.Discard()
		return false
	case srv.left.any():
		lease.Release()
		return false
	}
	began := s.leaseAt
	s.leaseAt = time.Time{} // the transaction is still to come
	s.release()
	s.leaseAt = began
	s.cancelMu.Lock()
	s.lease, s.srv = lease, lease.Value()
	s.noteHeld(s.srv)
	s.cancelMu.Unlock()
	s.leasedAt = clock()
	s.srv.raw.Adopt()
	s.leased()
	return true
}

// replace closes the leased server connection and leases a new one, which takes its place in the pool.
func (s *session) replace() error {
	m, left := &s.machine, s.srv.left.names
	s.endCancels()
	m.loseDefinition()
	m.unpin()
	m.forgetServer()
	s.srv = nil
	s.renewing = true
	err := s.acquireAlive()
	s.renewing = false
	if err != nil {
		return err
	}
	s.leased()
	m.declineReplacement()
	return s.learnGiven(left)
}

// learnGiven asks a new server connection which of some names it has from the beginning: to replace another server
// connection for these would be in vain. It costs a round trip, and the new connection has cost several.
func (s *session) learnGiven(names []remnant) error {
	srv := s.srv
	if len(names) == 0 || srv.left.any() {
		return nil
	}
	var sql strings.Builder
	sep := "SELECT n, pg_catalog.current_setting(n, true) FROM (VALUES "
	for _, n := range names {
		if isASCII(n.name) {
			sql.WriteString(sep + "(" + quote(n.name) + ")")
			sep = ","
		}
	}
	if sql.Len() == 0 {
		return nil
	}
	sql.WriteString(") AS v (n)")
	_ = srv.conn.SetDeadline(time.Now().Add(requestTimeout))
	rows, err := srv.settingRows(sql.String())
	srv.unnamed = 0
	_ = srv.conn.SetDeadline(time.Time{})
	if err != nil && !ordinary(err) {
		s.discard()
		return fmt.Errorf("PostgreSQL server %s: %w", srv.endpoint, err)
	}
	for _, row := range rows {
		s.machine.shared.given.add(row.Name)
	}
	return nil
}

// replaceLease replaces the lease, or gets another one if that is not possible.
func (s *session) replaceLease(ctx context.Context) (lease upstream.Lease[*server], err error) {
	s.renewing = false
	old := s.lease
	fiber.Block(func() { lease, err = old.Replace(ctx) })
	if err == nil || ctx.Err() != nil {
		return lease, err
	}
	return s.b.up.Acquire(ctx)
}

// renewBegun is renew for a client whose transaction has begun. There is no way back for it: an error ends the session.
func (s *session) renewBegun() error {
	m := &s.machine
	if !s.mayRenew() {
		m.declineReplacement()
		return nil
	}
	begin := string(m.opened)
	s.noteBeginAgain(true)
	defer s.noteBeginAgain(false)
	err := s.replace()
	if err == nil {
		err = s.sync()
	}
	if err == nil {
		if err = s.srv.begin(begin); err != nil {
			err = fmt.Errorf("PostgreSQL server %s: %w", s.srv.endpoint, err)
			s.discard()
		}
	}
	if err != nil {
		return s.lostBegun(err)
	}
	m.st.tx = pgwire.TxActive
	return nil
}

// noteBeginAgain notes that the client's transaction begins on another server connection, or has begun there.
func (s *session) noteBeginAgain(begins bool) {
	s.cancelMu.Lock()
	s.beginsAgain = begins
	s.cancelMu.Unlock()
}

// begin begins a transaction by a client's own statement.
func (s *server) begin(sql string) error {
	_ = s.conn.SetDeadline(time.Now().Add(requestTimeout))
	s.w.Send(&pgwire.Query{SQL: sql})
	err := s.answerWith(pgwire.TxActive, nil)
	s.unnamed = 0
	if ended := s.conn.SetDeadline(time.Time{}); err == nil {
		err = ended
	}
	return err
}

// lostBegun ends the session of a client whose transaction could not begin again on another server connection.
func (s *session) lostBegun(err error) error {
	if s.c.over(s.ctx) != nil {
		return err
	}
	s.c.CountError(listener.ReasonBackendGone)
	s.c.warnLimited("no server connection to begin the client's transaction on", s.b.cfg.Name, "upstream", s.b.cfg.Name, "error", err)
	_ = s.c.Fatal(pgwire.StateConnectionFailure, unavailableText(s.b.cfg.Name, err), "The transaction has done nothing. Connect again.")
	return &backendError{endpoint: s.lease.Endpoint(), err: errors.Join(errNotBegun, err)}
}

// errNotBegun means that a transaction could not begin again.
var errNotBegun = errors.New("the client's transaction could not begin on another server connection")
