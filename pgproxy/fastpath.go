package pgproxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// fastPath forwards one self-contained request and its reply on the loop, while the session's fiber is
// parked (see fiber.Conn.Attend): a Query; Bind, Execute and Sync for a prepared statement that the
// server connection has; or those behind a Parse of the unnamed statement; if the request is a
// transaction by itself and the reply comes in one piece. That is nearly every request of many clients,
// and needs neither buffers nor the state machine. Everything else, and every error, is left to the
// session as it stands: the fast path handles no errors. It is a part of its session, and keeps what it
// uses close together.
type fastPath struct {
	client    fiber.Stream // nil = the client cannot have it
	srv       *server      // nil = none is leased; session.srv is nil meanwhile
	parker    pool.TryParker
	stage     stage
	late      bool                      // the client was idle for long
	likely    bool                      // the last request was of a kind below
	took      bool                      // a request has come, and is the session's
	kind      kind                      // of the request
	describes bool                      // the request asks for the columns, too
	same      bool                      // its text is that of the client's unnamed statement
	held      uint8                     // bytes of request that wait for a lease; 0 = they are in the client's Reader
	st        *statement                // that a request of kind executes is for
	on        *serverStatement          // the server's that serves it
	text      []byte                    // that a request of kind parses parses, unless it is the same; room for the next one
	began     time.Duration             // when the request came, by clock
	pending   upstream.Pending[*server] // an acquire under way, also for session.takeLease
	lease     upstream.Lease[*server]   // of srv
	request   [maxHeld]byte
	step      func() (over bool) // session.stepFastPath, and
	cancel    func()             // session.cancelWait, made once
}

// maxHeld is how long a request may be so that it needs no buffer while it waits, in bytes.
const maxHeld = 152

// stage is what the fast path waits for.
type stage byte

const (
	fromClient stage = iota
	forLease
	fromServer
	left // it is over, and something is under way: see errUnderWay
)

// kind is what a request consists of.
type kind byte

const (
	simple   kind = iota // Query
	executes             // Bind, perhaps Describe, Execute and Sync
	parses               // Parse of the unnamed statement, and these
)

// errUnderWay means that there is no message of the client to be handled: its request is on its way, or is
// answered, and the server connection not given back yet.
var errUnderWay = errors.New("a request is under way")

// initFastPath sees whether the client can have it.
func (s *session) initFastPath() {
	x := &s.x
	parker, parks := pool.ParkerOf(s.ctx).(pool.TryParker)
	if parks && s.plain() && s.c.Conn.Loop() != 0 && s.c.Mode == Transaction {
		x.client, x.parker, x.step, x.cancel, x.likely = s.c.Conn, parker, s.stepFastPath, s.cancelWait, true
	}
}

// serveFast lets the loop serve the client for as long as it can. An error is the end of the session, or
// errUnderWay.
func (s *session) serveFast() error {
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
	switch {
	case !x.client.Attend(x.step):
		x.client = nil
	case x.stage == left:
		return errUnderWay
	}
	return nil
}

// stepFastPath goes on until there is something to wait for, or it is over.
func (s *session) stepFastPath() (over bool) {
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
	x.took = c.state.CompareAndSwap(clientIdle, clientBusy)
	if !x.took || !s.takes(b) {
		c.Reader.Unread(b)
		return false, true
	}
	c.Working()
	x.began = clock()
	lease, pending, leased := s.b.up.Begin(x.parker)
	if leased {
		x.lease, x.srv, s.leasedAt = lease, lease.Value(), x.began
		s.cancelMu.Lock()
		s.held(x.srv)
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
	x, n := &s.x, messageSize(b)
	if n == 0 {
		return false
	}
	switch body, rest := b[headerSize:n], b[n:]; b[0] {
	case pgwire.TypeQuery:
		x.kind = simple
		return len(rest) == 0 && (len(s.stmts) == 0 || !mentionsDeallocate(body))
	case pgwire.TypeBind:
		x.kind = executes
		portal, name, _, err := pgwire.BindNames(body)
		return err == nil && len(portal) == 0 && s.knowsAll(name) && x.runs(rest) &&
			!(x.describes && x.st.columns == 0) && // they are to be remembered
			len(b)+maxServerName <= maxRenamed
	case pgwire.TypeParse:
		x.kind = parses
		n := messageSize(rest)
		if n == 0 || rest[0] != pgwire.TypeBind || len(body) == 0 || body[0] != 0 || len(body) > largeUnnamed || sweeps(body[1:]) {
			return false
		}
		portal, name, _, err := pgwire.BindNames(rest[headerSize:n])
		return err == nil && len(portal) == 0 && len(name) == 0 && x.runs(rest[n:])
	}
	return false
}

// knowsAll reports whether there is nothing to find out about the prepared statement of a name.
func (s *session) knowsAll(name []byte) bool {
	if len(name) == 0 || len(name) > peekSize-2 { // as bind sees it
		return false
	}
	st := s.stmts[string(statementKey(name))]
	s.x.st = st
	return st != nil && st.plan == s.plan && !st.sweeps
}

// runs reports whether messages execute the portal without a name, and do nothing else; perhaps they
// describe it before.
func (x *fastPath) runs(b []byte) bool {
	b, x.describes = bytes.CutPrefix(b, describePortal)
	b, ok := bytes.CutPrefix(b, executePortal)
	return ok && len(b) >= 4 && bytes.Equal(b[4:], syncMessage) // 4 bytes are the limit of rows
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
		s.acquiring = nil
		s.held(x.srv)
	}
	s.cancelMu.Unlock()
	switch {
	case granted:
		s.leasedAt = clock()
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
	s.meter.asked = s.x.began
	s.c.Done()
	return true
}

// send sends a request if the server connection that was leased is as the client needs it.
func (s *session) send(b []byte, cut bool) (over bool) {
	x := &s.x
	if cut || !s.fits() || x.kind == executes && !x.served() {
		s.c.Reader.Unread(b)
		return s.giveUp()
	}
	if s.leasedAt == x.began {
		s.meter.shard.Add(atOnce, 1)
	} else {
		s.meter.shard.Observe(timeWaits, s.leasedAt-x.began)
	}
	if s.c.showsStatements() {
		s.showRequest(b)
	}
	switch x.kind {
	case simple:
		x.srv.unnamed = 0 // it destroys it
	case executes:
		return s.sendRenamed(b)
	case parses:
		s.keepText(b[headerSize+1 : messageSize(b)])
	}
	if n := x.srv.conn.TryWrite(b); n < len(b) {
		_, _ = s.leave(true).w.Write(b[n:]) // which has room for it
		return true
	}
	x.stage = fromServer
	return false
}

// served finds the server's statement that serves the client's.
func (x *fastPath) served() bool {
	x.on = x.srv.stmts.use(x.st)
	return x.on != nil
}

// keepText keeps the text of the unnamed statement that a request is about to make.
func (s *session) keepText(text []byte) {
	x := &s.x
	if x.same = s.unnamed.text != nil && bytes.Equal(text, s.unnamed.text); x.same {
		return
	}
	if n := cap(x.text); n < len(text) || n > 2*len(text)+smallUnnamed {
		x.text = make([]byte, 0, len(text))
	}
	x.text = append(x.text[:0], text...)
}

// unnamedChanged notes what an answered request has made of the unnamed statement.
func (s *session) unnamedChanged() {
	x, old := &s.x, s.unnamed.text
	switch {
	case x.kind == simple && s.unnamed.id != 0:
		s.unnamed = unnamed{}
	case x.kind != parses:
		return
	case x.same:
		s.unnamed.id, s.unnamed.once, old = lastChange.Add(1), true, nil
	default:
		s.unnamed = unnamed{id: lastChange.Add(1), once: true, text: x.text}
		x.text = nil
	}
	if n := cap(old); n > cap(x.text) && n <= largeUnnamed {
		x.text = old
	}
	x.srv.unnamed = s.unnamed.id
}

// sendRenamed sends a request that executes a prepared statement, with the name that it has on servers.
func (s *session) sendRenamed(b []byte) (over bool) {
	x, w := &s.x, s.x.srv.w
	n := messageSize(b)
	rest := b[headerSize+1:] // behind the portal
	rest = rest[bytes.IndexByte(rest, 0):]
	renamed := pgwire.AppendHeader(w.AvailableBuffer(), pgwire.TypeBind, len(x.on.name)+1+len(rest)-(len(b)-n))
	renamed = append(append(append(renamed, 0), x.on.name...), rest...)
	if n := x.srv.conn.TryWrite(renamed); n < len(renamed) {
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
	if srv.tls != nil || srv.settings != s.settingsKey || srv.flags != 0 || srv.view != s.reported || srv.raw.Loop() != x.client.Loop() {
		return false
	}
	return srv.r.Buffered() == 0 && (!x.lease.Reused() || s.leasedAt-srv.idleAt <= freshFor || srv.look() == fiber.Silent)
}

// answered waits for the answer and passes it on.
func (s *session) answered() (waits, over bool) {
	c, x := s.c, &s.x
	b, over := x.srv.conn.TryRead(0)
	switch {
	case over:
		s.leave(true)
		return false, true
	case len(b) == 0:
		return true, false
	case !x.isWhole(b):
		s.leave(true).r.Unread(b)
		return false, true
	}
	s.unnamedChanged()
	n := x.client.TryWrite(b)
	if n < len(b) {
		_, _ = c.Writer.Write(b[n:]) // which has room for it
	}
	now := clock()
	s.measureFast(now)
	if !s.giveBack(now) {
		s.leave(false)
		return false, true
	}
	c.Done()
	x.stage, x.took, x.st, x.on = fromClient, false, nil, nil
	return false, n < len(b)
}

// isWhole reports whether b is a whole answer to the request, after which the server connection is as it was, but
// for the unnamed statement.
func (x *fastPath) isWhole(b []byte) bool {
	for {
		n := messageSize(b)
		if n == 0 {
			return false
		}
		switch body := b[headerSize:n]; b[0] {
		case pgwire.TypeRowDescription, pgwire.TypeDataRow, pgwire.TypeEmptyQueryResponse, pgwire.TypeNoticeResponse:
		case pgwire.TypeBindComplete, pgwire.TypeNoData:
			if x.kind == simple {
				return false
			}
		case pgwire.TypeParseComplete:
			if x.kind != parses {
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
func (s *session) giveBack(now time.Duration) bool {
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
	srv.idleAt, srv.shared = now, true
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
	if unanswered {
		s.meter.asked = x.began
		s.owe()
	}
	s.forwarding = true
	s.c.Done()
	x.stage = left
	return srv
}

// owe notes the request that the server has not answered, as forward would have.
func (s *session) owe() {
	x := &s.x
	switch x.kind {
	case simple:
		if !s.dropUnnamed() {
			s.st.push(op{kind: opQuery})
		}
		return
	case executes:
		s.bound, s.boundOn = x.st, x.on
	case parses:
		id, _ := s.change(op{kind: opParse}, true)
		if x.same {
			x.text = append(x.text[:0], s.unnamed.text...) // for undo has that, too
		}
		s.unnamed, s.srv.unnamed = unnamed{id: id, once: true, text: x.text}, id
		x.text = nil
	}
	s.portal, x.st, x.on = s.portal[:0], nil, nil
	s.st.push(op{kind: opBind, st: s.bound, on: s.boundOn})
	if x.describes {
		s.st.push(op{kind: opDescribe})
	}
	s.st.push(op{kind: opExecute, on: s.boundOn})
	s.st.push(op{kind: opSync})
}

// obtain is Acquire, or goes on with what the fast path has begun.
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

// dropBegun gives up what the fast path has begun, or leased, and the session has not gone on with.
func (s *session) dropBegun() {
	if s.x.srv == nil && !s.x.pending.Begun() {
		return
	}
	ended, cancel := context.WithCancel(s.ctx)
	cancel()
	if lease, err := s.obtain(ended); err == nil {
		s.endCancels()
		lease.Discard()
	}
}
