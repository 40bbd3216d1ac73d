package pgproxy

import (
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

// express is the way of a Query that is a transaction by itself, and of its answer if that comes in one
// piece: what nearly all requests of many clients are. The loop takes them over, see fiber.Conn.Attend,
// while the session's fiber is parked; buffers, work and state machine are not needed. Anything else, and
// whatever goes wrong, is left to the session, as it is: express knows no errors. It is a part of its
// session, with what it needs of that near to it.
type express struct {
	client  listener.Attendable // nil = the client cannot have it
	srv     *server             // nil = none is leased; session.srv is nil meanwhile
	parker  pool.TryParker
	stage   stage
	late    bool                      // the client was idle for long
	likely  bool                      // the last request was a Query
	took    bool                      // a request has come, and is the session's
	held    uint8                     // bytes of request that wait for a lease; 0 = they are in the client's Reader
	pending upstream.Pending[*server] // an acquire under way, also for session.lock
	lease   upstream.Lease[*server]   // of srv
	request [maxHeld]byte
	counted *listener.Conn
	step    func() (over bool) // session.express, and
	cancel  func()             // session.cancelWait, made once
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
	if x.client == nil || !x.likely || s.c.Reader.Buffered() > 0 || s.unnamed.id != 0 {
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

// ask waits for the client's next Query and sends it on.
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

// takes reports whether b is one whole Query, of which a session need not know.
func (s *session) takes(b []byte) bool {
	return len(b) > 5 && b[0] == pgwire.TypeQuery && uint64(binary.BigEndian.Uint32(b[1:]))+1 == uint64(len(b)) &&
		(len(s.stmts) == 0 || !mentionsDeallocate(b[5:]))
}

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
	if cut || !s.fits() {
		s.c.Reader.Unread(b)
		return s.giveUp()
	}
	x.srv.unnamed = 0 // a Query destroys it
	if n := x.srv.plain.TryWrite(b); n < len(b) {
		_, _ = s.leave(opQuery).w.Write(b[n:]) // which has room for it
		return true
	}
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
		s.leave(opQuery)
		return false, true
	case len(b) == 0:
		return true, false
	case !isWhole(b):
		s.leave(opQuery).r.Unread(b)
		return false, true
	}
	n := x.client.TryWrite(b)
	x.counted.Count(0, int64(n))
	if n < len(b) {
		_, _ = c.Writer.Write(b[n:]) // which has room for it
	}
	if !s.giveBack() {
		s.leave()
		return false, true
	}
	c.Done()
	x.stage, x.took = fromClient, false
	return false, n < len(b)
}

// isWhole reports whether b is a whole answer to a Query, after which its server connection is as it was.
func isWhole(b []byte) bool {
	for len(b) > 5 {
		size := uint64(binary.BigEndian.Uint32(b[1:])) + 1
		if size < 5 || size > uint64(len(b)) {
			return false
		}
		switch body := b[5:size]; b[0] {
		case pgwire.TypeRowDescription, pgwire.TypeDataRow, pgwire.TypeEmptyQueryResponse, pgwire.TypeNoticeResponse:
		case pgwire.TypeCommandComplete:
			if leaves(body) {
				return false
			}
		case pgwire.TypeReadyForQuery:
			return len(b) == 6 && size == 6 && pgwire.TxStatus(body[0]) == pgwire.TxIdle
		default:
			return false
		}
		b = b[size:]
	}
	return false
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

// leave leaves the server connection to the session, with what it has not answered.
func (s *session) leave(unanswered ...opKind) *server {
	x, srv := &s.x, s.x.srv
	s.work = works.Get().(*work)
	s.lease, s.srv = x.lease, srv
	x.lease, x.srv = upstream.Lease[*server]{}, nil
	s.leaseAt = time.Time{}
	s.leased()
	for _, kind := range unanswered {
		s.st.push(op{kind: kind})
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
