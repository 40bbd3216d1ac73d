package pgproxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/headpond/headpond/internal/idleconn"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// express is the way of a Query, or of Bind, Execute and Sync for a prepared statement that the server
// connection has, if that is a transaction by itself, and of its answer if that comes in one piece: what
// nearly all requests of many clients are. The loop takes them over, see fiber.Conn.Attend, while the
// session's fiber is parked; buffers, work and state machine are not needed. Anything else, and whatever
// goes wrong, is left to the session, as it is: express knows no errors. It is a part of its session, with
// what it needs of that near to it.
type express struct {
	client    listener.Attendable // nil = the client cannot have it
	srv       *server             // nil = none is leased; session.srv is nil meanwhile
	parker    pool.TryParker
	stage     stage
	late      bool                      // the client was idle for long
	likely    bool                      // the last request was a Query, or for a prepared statement
	took      bool                      // a request has come, and is the session's
	describes bool                      // the request asks for the columns, too
	held      uint8                     // bytes of request that wait for a lease; 0 = they are in the client's Reader
	st        *statement                // that the request executes; nil = it is a Query
	pending   upstream.Pending[*server] // an acquire under way, also for session.lock
	lease     upstream.Lease[*server]   // of srv
	request   [maxHeld]byte
	counted   *listener.Conn
	step      func() (over bool) // session.express, and
	cancel    func()             // session.cancelWait, made once
}

// maxHeld is how long a request may be so that it needs no buffer while it waits, in bytes.
const maxHeld = 152

// stage is what express waits for.
type stage byte

const (
	fromClient stage = iota
	forLease
	fromServer
	left // it is over, and something is under way: see errUnderWay
)

// errUnderWay means that there is no message of the client to be handled: its request is on its way, or is
// answered, and the server connection not given back yet.
var errUnderWay = errors.New("a request is under way")

// canExpress sees whether the client can have it.
func (s *session) canExpress() {
	x := &s.x
	conn, ok := s.c.Conn.(*listener.Conn)
	parker, parks := pool.ParkerOf(s.ctx).(pool.TryParker)
	if !ok || !parks || s.c.Mode != Transaction {
		return
	}
	if x.client = conn.Attendable(); x.client != nil {
		x.counted, x.parker, x.step, x.cancel, x.likely = conn, parker, s.express, s.cancelWait, true
	}
}

// expressly lets the loop serve the client for as long as it can. An error is the end of the session, or
// errUnderWay.
func (s *session) expressly() error {
	x := &s.x
	if x.client == nil || !x.likely || s.c.Reader.Buffered() > 0 {
		return nil
	}
	if err := s.c.Writer.Flush(); err != nil {
		return err
	}
	s.c.Writer.Release()
	s.c.Reader.Release()
	x.stage, x.late = fromClient, false
	if x.client.Attend(x.step) && x.stage == left {
		return errUnderWay
	}
	return nil
}

// express goes on until there is something to wait for, or it is over.
func (s *session) express() (over bool) {
	for {
		var waits bool
		switch s.x.stage {
		case fromClient:
			waits, over = s.ask()
		case forLease:
			waits, over = s.leaseComes()
		case fromServer:
			waits, over = s.answered()
		}
		if waits || over {
			return over
		}
	}
}

// ask waits for the client's next request and sends it on.
func (s *session) ask() (waits, over bool) {
	c, x := s.c, &s.x
	c.state.Store(clientIdle)
	if c.isDraining() || c.AccessLog() {
		return false, true
	}
	b, over := x.client.TryRead(c.patience())
	if len(b) == 0 {
		x.late = over
		return !over, over
	}
	x.counted.Count(int64(len(b)), 0)
	x.took = c.state.CompareAndSwap(clientIdle, clientBusy)
	if !x.took || !s.takes(b) {
		c.Reader.Unread(b)
		return false, true
	}
	c.Working()
	lease, pending, leased := s.b.up.Begin(x.parker)
	if leased {
		x.lease, x.srv = lease, lease.Value()
		s.cancelMu.Lock()
		s.target = x.srv
		cut := s.cut
		s.cancelMu.Unlock()
		return false, s.send(b, cut)
	}
	if x.pending = pending; !pending.Queued() {
		c.Reader.Unread(b)
		return false, s.giveUp()
	}
	if len(b) <= maxHeld {
		x.held = uint8(copy(x.request[:], b))
	} else {
		c.Reader.Unread(b)
	}
	s.cancelMu.Lock()
	s.acquiring = x.cancel
	s.cancelMu.Unlock()
	x.stage = forLease
	return false, false
}

// takes reports whether b is one whole request of which a session need not know, and notes what it asks.
func (s *session) takes(b []byte) bool {
	n := messageSize(b)
	switch s.x.st = nil; {
	case n == 0:
		return false
	case b[0] == pgwire.TypeQuery:
		return n == len(b) && s.unnamed.id == 0 && (len(s.stmts) == 0 || !mentionsDeallocate(b[5:]))
	case b[0] == pgwire.TypeBind:
		return s.executes(b[5:n], b[n:])
	}
	return false
}

// messageSize is how many bytes the first message of b has; 0 = it is not there as a whole.
func messageSize(b []byte) int {
	if len(b) < headerSize {
		return 0
	}
	size := uint64(binary.BigEndian.Uint32(b[1:])) + 1
	if size < headerSize || size > uint64(len(b)) {
		return 0
	}
	return int(size)
}

// executes reports whether Bind of a body, and the messages behind it, execute a prepared statement of which
// there is nothing to find out. The portal has no name.
func (s *session) executes(bind, rest []byte) bool {
	x := &s.x
	portal, name, _, err := pgwire.BindNames(bind)
	if err != nil || len(portal) > 0 || len(name) == 0 || len(name) > peekSize-2 { // as bind sees them
		return false
	}
	st := s.stmts[string(name)]
	if st == nil || st.plan != s.plan || st.sweeps || len(bind)+len(rest)+len(st.name) > maxRenamed {
		return false
	}
	rest, x.describes = bytes.CutPrefix(rest, describePortal)
	if x.describes && st.columns.Load() == 0 { // they are to be remembered
		return false
	}
	if rest, ok := bytes.CutPrefix(rest, executePortal); !ok || len(rest) < 4 || !bytes.Equal(rest[4:], syncMessage) { // 4 bytes are the limit of rows
		return false
	}
	x.st = st
	return true
}

// maxRenamed is how long a request may be so that it fits into a Writer under the server's name of its statement, in bytes.
const maxRenamed = 15 << 10

// What follows Bind, for the portal without a name.
var (
	describePortal = []byte{pgwire.TypeDescribe, 0, 0, 0, 6, pgwire.ObjectPortal, 0}
	executePortal  = []byte{pgwire.TypeExecute, 0, 0, 0, 9, 0}
	syncMessage    = []byte{pgwire.TypeSync, 0, 0, 0, 4}
)

// cancelWait ends the wait for a lease. Another goroutine's; cancelMu is held.
func (s *session) cancelWait() {
	s.canceled = true
	if p, ok := s.x.parker.(interface{ Nudge() }); ok {
		p.Nudge()
	}
}

// leaseComes waits for the lease.
func (s *session) leaseComes() (waits, over bool) {
	x := &s.x
	ready, granted := false, false
	s.cancelMu.Lock()
	canceled, cut := s.canceled, s.cut
	if !canceled && !cut {
		ready, granted = x.pending.Ready()
	}
	if granted {
		x.lease, _ = x.pending.Wait(s.ctx) // not at all, and without an error
		x.srv = x.lease.Value()
		s.acquiring, s.target = nil, x.srv
	}
	s.cancelMu.Unlock()
	switch {
	case granted:
		return false, s.sendHeld(cut)
	case canceled, cut, ready:
		s.unhold()
		return false, s.giveUp()
	}
	return true, false
}

// sendHeld sends the request that waited.
func (s *session) sendHeld(cut bool) (over bool) {
	if n := s.x.held; n > 0 {
		s.x.held = 0
		return s.send(s.x.request[:n], cut)
	}
	over = s.send(s.c.Reader.Run(func(byte, []byte) bool { return true }), cut)
	s.c.Reader.Release()
	return over
}

// unhold puts the request that waited into the client's Reader.
func (s *session) unhold() {
	if n := s.x.held; n > 0 {
		s.x.held = 0
		s.c.Reader.Unread(s.x.request[:n])
	}
}

// giveUp leaves the request, which is in the client's Reader, to the session, with what was leased or begun.
func (s *session) giveUp() (over bool) {
	s.c.Done()
	return true
}

// send sends a request if the server connection that was leased is as the client needs it.
func (s *session) send(b []byte, cut bool) (over bool) {
	x := &s.x
	if cut || !s.fits() || x.st != nil && !x.srv.stmts.has(x.st) {
		s.c.Reader.Unread(b)
		return s.giveUp()
	}
	if x.st != nil {
		return s.sendRenamed(b)
	}
	x.srv.unnamed = 0 // a Query destroys it
	if n := x.srv.plain.TryWrite(b); n < len(b) {
		_, _ = s.leave(true).w.Write(b[n:]) // which has room for it
		return true
	}
	x.stage = fromServer
	return false
}

// sendRenamed sends a request that executes a prepared statement, with the name that it has on servers.
func (s *session) sendRenamed(b []byte) (over bool) {
	x, w := &s.x, s.x.srv.w
	n := messageSize(b)
	rest := b[headerSize+1:] // behind the portal
	rest = rest[bytes.IndexByte(rest, 0):]
	renamed := pgwire.AppendHeader(w.AvailableBuffer(), pgwire.TypeBind, len(x.st.name)+1+len(rest)-(len(b)-n))
	renamed = append(append(append(renamed, 0), x.st.name...), rest...)
	if n := x.srv.plain.TryWrite(renamed); n < len(renamed) {
		_, _ = s.leave(true).w.Write(renamed[n:]) // which has room for it
		return true
	}
	w.Release()
	x.stage = fromServer
	return false
}

// fits reports whether srv is alive, has the client's settings, and lives on the client's loop.
func (s *session) fits() bool {
	x, srv := &s.x, s.x.srv
	if srv.plain == nil || srv.settings != s.settingsKey || srv.dirt != 0 || srv.view != s.reported || !x.client.Beside(srv.raw) {
		return false
	}
	return srv.r.Buffered() == 0 && (!x.lease.Reused() || clock()-srv.idleAt <= freshFor || srv.look() == idleconn.Silent)
}

// answered waits for the answer and passes it on.
func (s *session) answered() (waits, over bool) {
	c, x := s.c, &s.x
	b, over := x.srv.plain.TryRead(0)
	switch {
	case over:
		s.leave(true)
		return false, true
	case len(b) == 0:
		return true, false
	case !isWhole(b, x.st != nil):
		s.leave(true).r.Unread(b)
		return false, true
	}
	n := x.client.TryWrite(b)
	x.counted.Count(0, int64(n))
	if n < len(b) {
		_, _ = c.Writer.Write(b[n:]) // which has room for it
	}
	if !s.giveBack() {
		s.leave(false)
		return false, true
	}
	c.Done()
	x.stage, x.took, x.st = fromClient, false, nil
	return false, n < len(b)
}

// isWhole reports whether b is a whole answer to a Query, or to the execution of a prepared statement, after
// which the server connection is as it was.
func isWhole(b []byte, prepared bool) bool {
	for {
		n := messageSize(b)
		if n == 0 {
			return false
		}
		switch body := b[headerSize:n]; b[0] {
		case pgwire.TypeRowDescription, pgwire.TypeDataRow, pgwire.TypeEmptyQueryResponse, pgwire.TypeNoticeResponse:
		case pgwire.TypeBindComplete, pgwire.TypeNoData:
			if !prepared {
				return false
			}
		case pgwire.TypeCommandComplete:
			if leaves(body) {
				return false
			}
		case pgwire.TypeReadyForQuery:
			return len(b) == 6 && n == 6 && pgwire.TxStatus(body[0]) == pgwire.TxIdle
		default:
			return false
		}
		b = b[n:]
	}
}

// giveBack is release where there is nothing to think about.
func (s *session) giveBack() bool {
	x, srv := &s.x, s.x.srv
	s.cancelMu.Lock()
	canceling := s.canceling != nil
	if !canceling {
		s.target = nil
	}
	s.cancelMu.Unlock()
	if canceling || srv.cancelInDoubt.Load() || srv.leave {
		return false
	}
	srv.idleAt, srv.shared = clock(), true
	if !x.lease.TryRelease() {
		return false
	}
	x.lease, x.srv = upstream.Lease[*server]{}, nil
	return true
}

// leave leaves the server connection to the session, with the request if that is not answered.
func (s *session) leave(unanswered bool) *server {
	x, srv := &s.x, s.x.srv
	s.work = works.Get().(*work)
	s.lease, s.srv = x.lease, srv
	x.lease, x.srv = upstream.Lease[*server]{}, nil
	s.leaseAt = time.Time{}
	s.leased()
	switch {
	case !unanswered:
	case x.st == nil:
		s.st.push(op{kind: opQuery})
	default:
		s.bound, s.portal = x.st, s.portal[:0]
		s.st.push(op{kind: opBind, st: x.st})
		if x.describes {
			s.st.push(op{kind: opDescribe})
		}
		s.st.push(op{kind: opExecute})
		s.st.push(op{kind: opSync})
	}
	s.forwarding = true
	s.c.Done()
	x.stage = left
	return srv
}

// obtain is Acquire, or goes on with what express has begun.
func (s *session) obtain(ctx context.Context) (upstream.Lease[*server], error) {
	switch x := &s.x; {
	case x.srv != nil:
		lease := x.lease
		x.lease, x.srv = upstream.Lease[*server]{}, nil
		return lease, nil
	case x.pending.Begun():
		return x.pending.Wait(ctx)
	}
	return s.b.up.Acquire(ctx)
}

// dropBegun gives up what express has begun, or leased, and the session has not gone on with.
func (s *session) dropBegun() {
	if s.x.srv == nil && !s.x.pending.Begun() {
		return
	}
	ended, cancel := context.WithCancel(s.ctx)
	cancel()
	if lease, err := s.obtain(ended); err == nil {
		s.unlock()
		lease.Discard()
	}
}
