package pgproxy

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// fastPath is the machine's driver on the loop: it forwards one request and its reply after the other while the
// session's fiber is parked (see fiber.Stream's Attend), if requests arrive complete and replies arrive in one piece.
// Many clients send nearly only such requests, and the fast path needs no buffers for them. The rules about messages are
// the machine's. The fast path leaves work of more than one step (a message that has to wait, an answer in pieces,
// every error) to the session. It is a part of its session, and keeps its fields close together.
type fastPath struct {
	client  fiber.Stream // nil = the fast path is not possible for the client
	srv     *server      // the leased connection, not yet the session's; nil = none
	parker  affineParker
	stage   stage
	late    bool                      // the client was idle for long, or the server spoke first: the session waits
	likely  bool                      // the last request could have taken the fast path
	took    bool                      // a request has come, and the session must serve it
	held    uint8                     // bytes of request that wait for a lease; 0 = the client's Reader has them
	began   time.Duration             // when the request came, by clock
	pending upstream.Pending[*server] // an acquire under way, which session.takeLease can continue
	lease   upstream.Lease[*server]   // of srv
	request [maxHeld]byte
	step    func() (over bool) // session.stepFastPath, made once
	cancel  func()             // session.cancelWait, made when it is first needed
}

// maxHeld is the length of the longest request that waits for a lease without a buffer, in bytes.
const maxHeld = 152

// stage is the event that the fast path waits for.
type stage byte

const (
	fromClient stage = iota
	forLease
	fromServer
	fromClientLeased // as fromClient, while the client has a server connection: within a transaction, or because it keeps it
)

// initFastPath finds out whether the client can use the fast path.
func (s *session) initFastPath() {
	x := &s.x
	parker, parks := pool.ParkerOf(s.ctx).(pool.TryParker)
	if !parks {
		return
	}
	x.parker = newAffineParker(parker)
	if !s.c.isTLS() && s.c.Conn.Loop() != 0 {
		x.client, x.step, x.likely = s.c.Conn, s.stepFastPath, true
	}
}

// serveFast lets the loop serve the client for as long as possible, from a stage on that waits for the client. Afterwards
// the session may have a server connection with a request under way. An error is the end of the session.
func (s *session) serveFast(from stage) error {
	x := &s.x
	if x.client == nil || !x.likely || s.c.Reader.Buffered() > 0 {
		return nil
	}
	if err := s.c.Writer.Flush(); err != nil {
		return err
	}
	s.c.Writer.Release()
	s.c.Reader.Release()
	x.stage, x.late = from, false
	if !x.client.Attend(x.step) {
		x.client = nil
	}
	return nil
}

// canContinueFast reports whether the fast path can serve the client's next request on the leased server connection.
func (s *session) canContinueFast() bool {
	x, srv := &s.x, s.srv
	return x.client != nil && x.likely && !x.late && s.c.Reader.Buffered() == 0 && !s.reading && !s.resident && s.leaseAt.IsZero() &&
		s.machine.staysLeased() && srv.tls == nil && srv.raw.Loop() == x.client.Loop() && !srv.hasUnread() && srv.r.Left() == 0
}

// observe looks at a client's message that the session handles, to guess whether the next request can take the fast
// path. first means that nothing is owed to the client.
func (x *fastPath) observe(h pgwire.Header, first bool) {
	if h.Type == pgwire.TypeSync {
		return
	}
	fits := h.Len <= maxFast && (extendedOps[h.Type] != 0 || first && h.Type == pgwire.TypeQuery)
	x.likely = fits && (first || x.likely)
}

// stepFastPath continues until the fast path has to wait, or is over.
func (s *session) stepFastPath() (over bool) {
	for {
		var waits bool
		switch s.x.stage {
		case fromClient:
			waits, over = s.ask()
		case forLease:
			waits, over = s.checkLease()
		case fromServer:
			waits, over = s.receiveAnswer()
		case fromClientLeased:
			waits, over = s.askLeased()
		}
		if waits || over {
			return over
		}
	}
}

// ask waits for the client's next request and sends it on.
func (s *session) ask() (waits, over bool) {
	c, x := s.c, &s.x
	if !c.becomeIdle() || c.ends() || c.AccessLog() {
		return false, true
	}
	b, over := x.client.TryRead(s.idlePatience())
	if len(b) == 0 {
		x.late = over
		return !over, over
	}
	s.asks()
	x.took = c.state.CompareAndSwap(clientIdle, clientBusy)
	needs, later := false, false
	if x.took && isRequest(b) {
		needs, later = s.needsServer(&b)
	}
	if !needs {
		s.unread(b)
		return false, true
	}
	c.Working()
	x.began = clock()
	x.parker.kind = s.machine.kindOf()
	lease, pending, leased := s.beginLease(b, later)
	if leased {
		x.lease, x.srv, s.leasedAt = lease, lease.Value(), x.began
		s.cancelMu.Lock()
		s.noteHeld(x.srv)
		cut := s.cut
		s.cancelMu.Unlock()
		return false, s.send(b, cut)
	}
	if x.pending = pending; !pending.Queued() {
		c.Reader.Unread(b)
		return false, s.giveUp()
	}
	s.returnWork()
	if len(b) <= maxHeld {
		x.held = uint8(copy(x.request[:], b))
	} else {
		c.Reader.Unread(b)
	}
	if x.cancel == nil {
		x.cancel = s.cancelWait
	}
	s.cancelMu.Lock()
	s.acquiring = x.cancel
	s.cancelMu.Unlock()
	x.stage = forLease
	return false, false
}

// askLeased waits for the client's next request while it has a server connection, and sends it on. It leaves whatever the
// server sends meanwhile to the session.
func (s *session) askLeased() (waits, over bool) {
	c, x := s.c, &s.x
	drains := s.machine.st.tx == pgwire.TxIdle // a drain ends the client instead of waiting for it
	if drains && c.state.CompareAndSwap(clientBusy, clientIdle) && c.ends() {
		c.interrupt()
	}
	b, spoke, over := x.client.TryReadEither(s.srv.conn, patience)
	if len(b) == 0 {
		x.late = over || spoke
		return !x.late, x.late
	}
	if drains && !c.state.CompareAndSwap(clientIdle, clientBusy) || !isRequest(b) {
		s.unread(b)
		return false, true
	}
	s.meter.Asked()
	c.Working()
	return false, s.forwardRequest(b)
}

// isRequest reports whether b is one whole request: a Query, or messages of the extended protocol up to their Sync.
func isRequest(b []byte) bool {
	n := messageSize(b)
	if n == 0 || len(b) > maxFast {
		return false
	}
	if b[0] == pgwire.TypeQuery {
		return n == len(b)
	}
	for n > 0 && extendedOps[b[0]] != 0 {
		b = b[n:]
		n = messageSize(b)
	}
	return n > 0 && n == len(b) && b[0] == pgwire.TypeSync
}

// needsServer reports whether the first thing that a request needs is a server connection, and whether parseLater may
// do without one. Otherwise it has removed the first message from b if the machine answers that one, and the session
// handles what remains.
func (s *session) needsServer(b *[]byte) (needs, later bool) {
	s.ensureWork()
	n := messageSize(*b)
	act, err := s.machine.clientMessage(messageOf((*b)[:n]))
	if err == nil && act.do == take {
		s.writeMachineMessages()
		*b = (*b)[n:]
	}
	return err == nil && act.do == lease, act.later
}

// beginLease begins an acquire. It leases an idle server connection, or does nothing, for a request that parseLater may
// answer: once it waits in the queue it waits for its turn.
func (s *session) beginLease(request []byte, later bool) (l upstream.Lease[*server], w upstream.Pending[*server], leased bool) {
	if l, leased = s.resume(messageOf(request[:messageSize(request)])); leased {
		return l, w, true
	}
	if later {
		l, leased = s.b.up.TryAcquireKey("", s.x.parker.Affinity())
		return l, w, leased
	}
	return s.b.up.Begin(&s.x.parker)
}

// unread returns received bytes to the client's Reader, for the session.
func (s *session) unread(b []byte) {
	if len(b) > 0 {
		s.c.Reader.Unread(b)
	}
}

// messageOf returns the message in b, which must be complete.
func messageOf(b []byte) message {
	return message{body: b[headerSize:], length: int32(len(b) - headerSize), typ: b[0]}
}

// messageSize returns the length of the first message in b, in bytes; 0 = the message is incomplete.
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

// maxFast is the longest request that a Writer has room for with the server's statement name in it, in bytes.
const maxFast = 15 << 10

// cancelWait ends the wait for a lease. Other goroutines call it; cancelMu is held.
func (s *session) cancelWait() {
	s.canceled = true
	if p, ok := s.x.parker.TryParker.(interface{ Nudge() }); ok {
		p.Nudge()
	}
}

// checkLease checks whether the lease has been granted.
func (s *session) checkLease() (waits, over bool) {
	x := &s.x
	ready, granted := false, false
	s.cancelMu.Lock()
	canceled, cut := s.canceled, s.cut
	if !canceled && !cut {
		ready, granted = x.pending.Ready()
	}
	if granted {
		x.lease, _ = x.pending.Wait(s.ctx) // it neither waits nor fails
		x.srv = x.lease.Value()
		s.acquiring = nil
		s.noteHeld(x.srv)
	}
	s.cancelMu.Unlock()
	switch {
	case granted:
		s.leasedAt = clock()
		return false, s.sendHeld(cut)
	case canceled, cut, ready:
		s.returnHeldRequest()
		return false, s.giveUp()
	}
	return true, false
}

// sendHeld sends the request that waited for the lease.
func (s *session) sendHeld(cut bool) (over bool) {
	if n := s.x.held; n > 0 {
		s.x.held = 0
		return s.send(s.x.request[:n], cut)
	}
	over = s.send(s.c.Reader.Run(func(byte, []byte) bool { return true }), cut)
	s.c.Reader.Release()
	return over
}

// returnHeldRequest returns the request that waited for a lease to the client's Reader.
func (s *session) returnHeldRequest() {
	if n := s.x.held; n > 0 {
		s.x.held = 0
		s.c.Reader.Unread(s.x.request[:n])
	}
}

// giveUp leaves the request, which is in the client's Reader, to the session, with the lease or the pending acquire.
func (s *session) giveUp() (over bool) {
	s.meter.asked = s.x.began
	s.c.Done()
	return true
}

// send sends a request if the leased server connection is as the client needs it.
func (s *session) send(b []byte, cut bool) (over bool) {
	x, m := &s.x, &s.machine
	fit, replay := s.leaseFits()
	if cut || !fit {
		s.c.Reader.Unread(b)
		return s.giveUp()
	}
	s.lease, s.srv = x.lease, x.srv
	x.lease, x.srv = upstream.Lease[*server]{}, nil
	s.ensureWork()
	s.leased()
	m.replay = replay
	s.leaseAt, s.meter.asked = time.Time{}, x.began
	if s.leasedAt == x.began {
		s.meter.shard.Add(atOnce, 1)
	} else {
		s.meter.shard.Observe(timeWaits, s.leasedAt-x.began)
	}
	return s.forwardRequest(b)
}

// forwardRequest sends a request to the leased server connection.
func (s *session) forwardRequest(b []byte) (over bool) {
	x, m := &s.x, &s.machine
	n, asItIs := s.judgeRequest(b)
	if n == len(b) && m.traces&called != 0 {
		asItIs = s.askBehind(b, asItIs)
	}
	s.writeMachineMessages()
	out, sent := b[:n], 0
	if !asItIs {
		out = m.toServer
	}
	if n == len(b) {
		sent = s.srv.conn.TryWrite(out)
	}
	if n == len(b) && sent == len(out) && s.c.Writer.Buffered() == 0 {
		m.toServer = emptied(m.toServer)
		x.stage = fromServer
		return false
	}
	if asItIs {
		_, _ = s.srv.w.Write(out[sent:]) // the Writer has room for it
	} else {
		m.toServer = slices.Delete(m.toServer, 0, sent)
	}
	s.unread(b[n:])
	s.handOver()
	return true
}

// askBehind adds a question behind a request, see machine.askBehind. The result says whether the request still is to be sent
// unchanged.
func (s *session) askBehind(b []byte, asItIs bool) bool {
	m := &s.machine
	behind := len(m.toServer)
	if !m.askBehind() {
		return asItIs
	}
	if asItIs {
		m.toServer = slices.Insert(m.toServer, behind, b...)
	}
	return false
}

// maxGathered is how many bytes judgeRequest gathers before it leaves the remaining messages to the session, which
// writes as it goes: each Bind may need the text of a statement that takes megabytes.
const maxGathered = 64 << 10

// judgeRequest makes the machine judge the messages of a request, as many as possible without waiting. These take n
// bytes. asItIs means that they are to be sent unchanged; otherwise the machine's toServer has what is to be sent.
func (s *session) judgeRequest(b []byte) (n int, asItIs bool) {
	m, shows := &s.machine, s.c.showsStatements()
	asItIs = true
	for n < len(b) && len(m.toServer) <= maxGathered {
		size := messageSize(b[n:])
		msg := messageOf(b[n : n+size])
		if shows {
			s.showBody(msg.typ, msg.body)
		}
		act, err := m.clientMessage(msg)
		if err != nil || act.do == wait || act.do == adapt || act.do == renew || act.do == place {
			break // the machine has not changed: the session judges it again
		}
		if asItIs && (act.do != pass || len(m.toServer) > 0) {
			asItIs = false
			m.toServer = slices.Insert(m.toServer, 0, b[:n]...)
		}
		switch {
		case asItIs || act.do == take:
		case act.do == pass:
			m.toServer = append(m.toServer, b[n:n+size]...)
		default:
			m.toServer = append(m.toServer, msg.body[act.n:]...)
		}
		n += size
	}
	return n, asItIs
}

// leaseFits reports whether the leased connection is alive and need not be checked, lives on the client's loop, and has
// the client's settings, or gets them by a replay.
func (s *session) leaseFits() (fit, replay bool) {
	x, srv, m := &s.x, s.x.srv, &s.machine
	if srv.tls != nil || srv.raw.Loop() != x.client.Loop() || s.lingering.due {
		return false, false
	}
	if srv.settings != m.settingsKey || srv.flags != 0 || srv.view != m.reported {
		if replay = m.replays(&srv.serverState); !replay {
			return false, false
		}
	}
	fit = srv.r.Buffered() == 0 && (s.leasedAt-srv.idleAt <= freshFor || srv.readState() == fiber.Silent)
	return fit, replay
}

// receiveAnswer receives the answer, and passes it on.
func (s *session) receiveAnswer() (waits, over bool) {
	c, x, srv := s.c, &s.x, s.srv
	b, over := srv.conn.TryRead(0)
	switch {
	case over:
		s.handOver()
		return false, true
	case len(b) == 0:
		return true, false
	}
	out, n, now := s.judgeAnswer(b)
	done, stays, asks := s.machine.over(), s.machine.staysLeased(), s.machine.st.answersQuestion()
	if n < len(b) || !done && !stays && !asks || len(s.machine.toClient) > 0 {
		_, _ = c.Writer.Write(out) // the Writer has room for it; exchange, which may wait for room, sends the machine's messages behind it
		if n < len(b) {
			srv.r.Unread(b[n:])
		}
		s.handOver()
		return false, true
	}
	sent := x.client.TryWrite(out)
	if sent < len(out) {
		_, _ = c.Writer.Write(out[sent:])
	}
	switch {
	case asks && sent == len(out): // the client has its answer
		return false, false
	case asks:
		s.handOver()
		return false, true
	case stays:
		s.dropAnswered()
		x.stage = fromClientLeased
	case s.releaseIfDone(now):
		x.stage, x.took = fromClient, false
	default:
		s.handOver()
		return false, true
	}
	c.Done()
	return false, sent < len(out)
}

// judgeAnswer makes the machine judge a server's messages, up to the first one that the fast path does not handle.
// out has the messages for the client, and is a part of b, within which messages are moved over those that are not
// for the client. n is the length in bytes of all judged messages. now is when the request was done, by clock; 0 =
// unknown.
func (s *session) judgeAnswer(b []byte) (out []byte, n int, now time.Duration) {
	m := &s.machine
	n = s.skipReplay(b)
	if m.st.replaying() {
		return nil, n, 0
	}
	from, end := n, n // of out in b
	inQuery, _ := m.inQuery()
	asks := m.st.answersQuestion()
	for n < len(b) {
		size := messageSize(b[n:])
		if size == 0 {
			break
		}
		msg := messageOf(b[n : n+size])
		if asks || !unchanging(inQuery, msg.typ, msg.body) {
			if !asks && !m.passesUnchanged(msg.typ, msg.body) && !m.restates(msg.typ) {
				break
			}
			act, err := m.serverMessage(msg)
			if err != nil {
				break // the session gets the same error
			}
			if act.do == take {
				if n += size; end == from {
					from, end = n, n
				}
				continue
			}
			if msg.typ == pgwire.TypeReadyForQuery {
				now = s.measure(m.st.tx)
			}
			m.sendLocalAnswers()
			asks = m.st.answersQuestion()
		}
		if end += size; end < n+size {
			copy(b[end-size:end], b[n:n+size])
		}
		n += size
		if m.st.empty() || len(m.toClient) > 0 {
			break
		}
	}
	return b[from:end], n, now
}

// skipReplay makes the machine judge the server's answer to the replay, but for messages that change nothing, and
// returns the answer's length in bytes.
func (s *session) skipReplay(b []byte) (n int) {
	for m := &s.machine; m.st.replaying() && n < len(b); {
		size := messageSize(b[n:])
		if size == 0 || b[n] == pgwire.TypeErrorResponse || b[n] == pgwire.TypeNotificationResponse {
			break
		}
		if b[n] != pgwire.TypeBindComplete && b[n] != pgwire.TypeDataRow {
			if _, err := m.serverMessage(messageOf(b[n : n+size])); err != nil {
				break // the session gets the same error
			}
		}
		n += size
	}
	return n
}

// releaseIfDone releases the server connection if nothing has to be waited for, and reports whether it has.
func (s *session) releaseIfDone(now time.Duration) bool {
	srv := s.srv
	s.cancelMu.Lock()
	reached := s.canceling != nil || s.cut
	if !reached {
		s.target = nil
	}
	s.cancelMu.Unlock()
	if reached || srv.cancelInDoubt.Load() || !s.machine.reusable() {
		return false
	}
	if now == 0 {
		now = clock()
	}
	srv.idleAt, srv.shared = now, true
	s.machine.leaveServer()
	if !s.linger(now) && !s.lease.TryRelease() {
		return false
	}
	s.lease, s.srv = upstream.Lease[*server]{}, nil
	s.machine.forgetServer()
	s.returnWork()
	s.b.learnIfDue(now)
	return true
}

// handOver hands the server connection and the running request to the session.
func (s *session) handOver() {
	s.forwarding = true
	s.c.Done()
}

// obtain acquires a lease, or continues the acquire that the fast path has begun.
func (s *session) obtain(ctx context.Context) (upstream.Lease[*server], error) {
	switch x := &s.x; {
	case s.renewing:
		return s.replaceLease(ctx)
	case x.srv != nil:
		lease := x.lease
		x.lease, x.srv = upstream.Lease[*server]{}, nil
		return lease, nil
	case x.pending.Begun():
		return x.pending.Wait(ctx)
	}
	return s.b.up.Acquire(ctx)
}

// begun reports whether there is a lease, or a pending acquire, for the session to continue with.
func (x *fastPath) begun() bool { return x.srv != nil || x.pending.Begun() }

// dropBegun gives up a lease or pending acquire of the fast path that the session has not taken.
func (s *session) dropBegun() {
	if !s.x.begun() {
		return
	}
	ended, cancel := context.WithCancel(s.ctx)
	cancel()
	if lease, err := s.obtain(ended); err == nil {
		s.endCancels()
		lease.Discard()
	}
}
