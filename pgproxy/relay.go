package pgproxy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// readerAfter is how many bytes may be on their way to a server that has answered none of them before the session
// must read the server's answers: a server that cannot write stops reading. The sockets' buffers hold at least twice
// this.
const readerAfter = 32 << 10

// fatalError is an ErrorResponse with which the server has ended a session.
type fatalError struct {
	*pgwire.ErrorResponse
	body []byte // as it came
}

func (e *fatalError) Unwrap() error { return e.ErrorResponse }

// readFatal reads the body of an ErrorResponse and returns it as a fatalError.
func (s *server) readFatal() error {
	body, err := s.r.Body()
	if err != nil {
		return err
	}
	fatal := &fatalError{new(pgwire.ErrorResponse), slices.Clone(body)}
	if err := fatal.Decode(body); err != nil {
		return err
	}
	return fatal
}

// backendError says that a server connection broke. The client has been informed.
type backendError struct {
	endpoint string
	err      error
}

func (e *backendError) Error() string {
	return fmt.Sprintf("PostgreSQL server %s: connection lost: %v", e.endpoint, e.err)
}

func (e *backendError) Unwrap() error { return e.err }

// fromClient handles a message of the client, of which the header was read. over means that the client has ended the
// session.
func (s *session) fromClient(h pgwire.Header) (over bool, err error) {
	if err := checkClient(h.Type, h.Len); err != nil {
		return false, err
	}
	s.mu.Lock()
	s.meter.Asked()
	s.x.observe(h, s.machine.st.empty())
	s.forwarding = s.srv != nil
	if s.reading && s.machine.st.serverSilent() {
		s.dropAnswered()
	}
	err = s.broken
	s.mu.Unlock()
	if err == nil && s.srv != nil {
		err = s.awaitMessage(h)
	}
	if err != nil {
		return false, err
	}
	msg := newMessage(h)
	if msg.body, err = s.c.Reader.Peek(s.c.Reader.Buffered()); err != nil {
		return false, err
	}
	for {
		s.mu.Lock()
		act, err := s.machine.clientMessage(msg)
		s.writeMachineMessages()
		s.mu.Unlock()
		if err == nil {
			err = s.sendOwn()
		}
		if err != nil {
			return false, err
		}
		switch act.do {
		case pass, passRest:
			return false, s.forward(msg, act)
		case take:
			return false, s.c.Reader.Skip()
		case more:
			msg.body, err = s.awaitBeginning(act.n)
		case wait:
			err = s.awaitAnswers()
		case lease:
			if done, err := s.leaseFor(&msg, act.later); done || err != nil {
				return false, err
			}
		case place:
			defer s.machine.leavePlace()
			if err = s.awaitPlace(); errors.Is(err, errCanceled) {
				return false, s.notLeased(msg.typ, err)
			}
		case adapt, renew:
			if done, err := s.adaptServer(act.do, &msg); done {
				return false, err
			}
		default:
			return true, s.finish()
		}
		if err != nil {
			return false, err
		}
	}
}

// adaptServer does what the machine asks for with adapt or renew. done means that there is no server connection for the message.
func (s *session) adaptServer(do verb, msg *message) (done bool, err error) {
	s.c.Working()
	if do == adapt {
		err = s.sync()
	} else {
		err = s.renew(msg)
	}
	s.c.Done()
	if lost := (*backendError)(nil); err == nil || errors.As(err, &lost) || errors.Is(err, errClientWrite) {
		return err != nil, err
	}
	return true, s.notLeased(msg.typ, err)
}

// awaitMessage waits for as much of a message as is examined, while a server connection is leased.
func (s *session) awaitMessage(h pgwire.Header) error {
	if err := s.pace(h.Len + headerSize); err != nil {
		return err
	}
	if err := s.awaitBytes(min(h.Len, maxPeek)); err != nil {
		return err
	}
	if s.c.showsStatements() {
		return s.showMessage(h)
	}
	return nil
}

// beginning waits for n bytes of the body of a message and returns them. It consumes the body if n is more than a
// Reader can show.
func beginning(r *pgwire.Reader, n, limit int) ([]byte, error) {
	if n <= maxPeek {
		return r.Peek(n)
	}
	r.MaxBody = limit
	return r.Body()
}

// awaitBeginning is beginning for the client's message. It watches the server connection while the message arrives.
func (s *session) awaitBeginning(n int) (body []byte, err error) {
	r := s.c.Reader
	if n <= maxPeek || n > maxClientStatements || s.srv == nil {
		return beginning(r, n, maxClientStatements)
	}
	for r.Left() > 0 {
		if err := s.awaitBytes(1); err != nil {
			return nil, err
		}
		chunk, err := r.Chunk()
		if err != nil {
			return nil, err
		}
		body = append(body, chunk...)
	}
	return body, nil
}

// writeMachineMessages writes the machine's messages for the client to the client's Writer. mu is held.
func (s *session) writeMachineMessages() {
	if m := &s.machine; len(m.toClient) > 0 {
		_, _ = s.c.Writer.Write(m.toClient) // Flush reports the error
		m.toClient = emptied(m.toClient)
	}
}

// sendOwn writes the machine's messages for the server. Only the session's goroutine may call it. It heeds
// readerAfter, because the server may answer each of them at length.
func (s *session) sendOwn() error {
	m := &s.machine
	if len(m.toServer) == 0 {
		return nil
	}
	if err := s.pace(len(m.toServer)); err != nil {
		return err
	}
	_, err := s.srv.w.Write(m.toServer)
	m.toServer = emptied(m.toServer)
	if err != nil {
		return s.writeFailed(err)
	}
	return nil
}

// forward sends a judged message to the server.
func (s *session) forward(msg message, act action) error {
	w, consumed := s.srv.w, s.c.Reader.Left() == 0
	if act.do == pass {
		w.Header(msg.typ, msg.size())
	}
	if !consumed {
		s.c.Reader.Discard(act.n)
	} else if _, err := w.Write(msg.body[act.n:]); err != nil {
		return s.writeFailed(err)
	}
	for {
		if err := s.awaitBytes(min(s.c.Reader.Left(), 1)); err != nil {
			return err
		}
		chunk, err := s.c.Reader.Chunk()
		if err != nil {
			return err
		}
		if chunk == nil {
			return nil
		}
		if _, err := w.Write(chunk); err != nil {
			return s.writeFailed(err)
		}
	}
}

// leaseFor leases a server connection for a message, once it is complete: a slow client must not hold one while it
// sends. done means that the message has been answered, or that there is no server connection: the client gets an
// error, and the rest of its request is dropped.
func (s *session) leaseFor(msg *message, later bool) (done bool, err error) {
	r := s.c.Reader
	if !msg.hasBody(maxPeek) {
		if msg.body, err = r.Peek(msg.size()); err != nil {
			return false, err
		}
		s.meter.asked = clock()
	}
	if !s.x.begun() {
		if lease, ok := s.resume(*msg); ok {
			s.begunWith(lease)
		}
	}
	alone := r.Buffered() <= msg.size()+len(syncMessage) && !s.x.begun()
	if later && alone && s.answersLater(msg) {
		s.writeMachineMessages()
		return true, r.Skip()
	}
	s.c.Working()
	err = s.acquire(msg)
	if err == nil && s.machine.sub != nil {
		err = s.takeOver()
	}
	s.c.Done()
	switch {
	case err != nil && s.isOver(err), errors.Is(err, errClientWrite):
		return true, err
	case err != nil:
		return true, s.notLeased(msg.typ, err)
	}
	s.forwarding = true // and no server reader runs
	if err := s.pace(msg.size() + headerSize); err != nil || !s.c.showsStatements() {
		return false, err
	}
	return false, s.showMessage(pgwire.Header{Type: msg.typ, Len: msg.size()})
}

// answersLater answers a Parse by parseLater if every server connection is in use. Otherwise it may have leased an idle one, which acquire takes:
// another client could take that between the question and the acquire.
func (s *session) answersLater(msg *message) bool {
	x := &s.x
	x.parker.kind = s.machine.kindOf()
	lease, ok := s.b.up.TryAcquireKey("", x.parker.Affinity())
	if !ok {
		return s.b.up.AllInUse() && s.machine.parseLater(*msg)
	}
	s.begunWith(lease)
	return false
}

// begunWith makes a lease the one that the fast path has begun, and acquire takes.
func (s *session) begunWith(lease upstream.Lease[*server]) {
	x := &s.x
	x.lease, x.srv = lease, lease.Value()
	s.cancelMu.Lock()
	s.noteHeld(x.srv)
	s.cancelMu.Unlock()
}

// syncMessage is a Sync.
var syncMessage = []byte{pgwire.TypeSync, 0, 0, 0, 4}

// notLeased tells the client that there is no server connection for its message. An error is the end of the session.
func (s *session) notLeased(typ byte, err error) error {
	switch {
	case s.c.over(s.ctx) != nil:
		return err
	case errors.Is(err, errSettings) && s.machine.kept && !canceled(err): // not even the reset settings could be applied
		return fmt.Errorf("%w: %w", errSettingsKept, err)
	}
	m := s.leaseError(err)
	s.c.warnLimited("no server connection", s.cause(m.Code), "upstream", s.b.cfg.Name, "sqlstate", m.Code, "error", err)
	if m.Code != pgwire.StateQueryCanceled && s.b.retired.Load() || errors.Is(err, pool.ErrClosed) {
		return errRetired
	}
	s.c.CountSQLState(m.Code)
	s.c.Writer.Send(m)
	s.machine.unleased(typ)
	s.writeMachineMessages()
	return s.c.Reader.Skip()
}

// maxOwed bounds the messages of one client that wait for their answers; each takes 56 bytes. Sockets' buffers bound
// the messages to a server, but not those that the gateway itself answers.
const maxOwed = 1 << 20

// errPipeline ends a session with more than maxOwed messages that wait for an answer.
var errPipeline = fmt.Errorf("more than %d messages wait for an answer", maxOwed)

// pace counts n bytes for the server, and starts the server reader if too many are on their way.
func (s *session) pace(n int) error {
	s.sent += n
	if s.sent <= readerAfter {
		return nil
	}
	s.mu.Lock()
	owed, alone := s.machine.st.owed(), s.reading || s.machine.st.empty() && !s.machine.st.copyIn
	s.mu.Unlock()
	if owed > maxOwed {
		return errPipeline
	}
	if alone {
		return nil
	}
	if err := s.flushServer(); err != nil {
		return err
	}
	s.startServerReader()
	return nil
}

func (s *session) flushServer() error {
	if err := s.srv.w.Flush(); err != nil {
		return s.writeFailed(err)
	}
	return nil
}

// writeFailed handles a failed write to the server, which may have sent the reason. The session ends. A server reader
// gets a limited time to pass the reason on, because the client may not be reading.
func (s *session) writeFailed(err error) error {
	_ = s.c.Conn.SetWriteDeadline(time.Now().Add(lingerTime))
	_ = s.srv.conn.SetReadDeadline(time.Now().Add(lingerTime))
	s.mu.Lock()
	if s.reading {
		s.mu.Unlock()
		s.readers.Wait()
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	_ = s.srv.conn.SetReadDeadline(unixSoon())
	for {
		h, readErr := s.srv.r.Next()
		if readErr != nil {
			break
		}
		if h.Type == pgwire.TypeErrorResponse {
			err = s.srv.readFatal()
			break
		}
	}
	return s.backendGone(err, false)
}

// exchange sends gathered messages to the server, and reads the answers unless the server reader does.
func (s *session) exchange() error {
	if s.forwarding && s.srv != nil {
		s.mu.Lock()
		s.machine.askBehind()
		s.writeMachineMessages() // the fast path may have left messages, also for the server
		s.mu.Unlock()
		err := s.sendOwn()
		if err == nil {
			err = s.flushServer()
		}
		if err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.forwarding = false
	broken := s.broken
	over := s.reading || s.srv == nil
	if s.reading && !s.machine.st.serverSilent() && s.readerActivity.n.Load()&1 == 0 {
		s.readerActivity.set(s.c.proxy.ticks.now.Load(), true)
	}
	s.mu.Unlock()
	if over || broken != nil {
		return broken
	}
	if s.machine.st.due() {
		if over, err := s.await(); over || err != nil {
			return err
		}
	}
	return s.releaseIfAnswered()
}

// finish ends the session after Terminate. As a server does, it first completes all earlier requests.
func (s *session) finish() error {
	if err := s.exchange(); err != nil {
		return err
	}
	s.mu.Lock()
	waits, err := s.reading && s.machine.st.due(), s.broken
	s.forwarding = waits // so that the server reader does not give the server connection back meanwhile
	s.mu.Unlock()
	if !waits {
		return err
	}
	return s.awaitAnswers()
}

// awaitAnswers waits for the answers to earlier messages.
func (s *session) awaitAnswers() error {
	s.srv.w.Send(&pgwire.Flush{})
	if err := s.flushServer(); err != nil {
		return err
	}
	s.c.Working()
	defer s.c.Done()
	s.mu.Lock()
	reading := s.reading
	s.learning = reading && !s.machine.canJudgeAgain()
	waits := s.learning || !reading
	s.mu.Unlock()
	for !reading && !s.machine.canJudgeAgain() {
		if _, err := s.fromServer(); err != nil {
			return err
		}
	}
	if waits {
		s.readers.Wait() // the server reader has ended, or soon will
		s.learning = false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine.waited()
	if s.machine.refusedReplay && s.broken == nil && s.srv != nil && s.machine.over() {
		if s.reading {
			s.interruptServerReader() // it would go on to read another client's answers
		}
		if s.broken != nil {
			return s.broken
		}
		s.release() // the message goes to another server connection, for which it may have to wait
		return s.c.Writer.Flush()
	}
	return s.broken
}

// await passes the server's messages on while more are due.
func (s *session) await() (over bool, err error) {
	s.c.Working()
	s.srv.r.Prepare()
	for s.machine.st.due() && !over && err == nil {
		over, err = s.fromServer()
	}
	s.c.Done()
	return over, err
}

// fromServer reads and handles one message of the server. It flushes the client's Writer before it waits. done means
// that the server connection is gone and the session continues.
func (s *session) fromServer() (done bool, err error) {
	r := s.srv.r
	if !r.HasMessage() && s.c.Writer.Buffered() > 0 {
		if err := s.c.Writer.Flush(); err != nil {
			return false, err
		}
	}
	h, err := r.Next()
	if err == nil {
		err = s.answer(h)
	}
	if err == nil {
		return false, nil
	}
	err = s.serverFailed(err, true)
	return err == nil, err
}

// serverFailed handles an error that came while the server's messages were read and passed on. A nil result means
// that the session continues without the server connection.
func (s *session) serverFailed(err error, mayStay bool) error {
	var lost *backendError
	if errors.As(err, &lost) || errors.Is(err, errClientWrite) || errors.Is(err, errBlock) || s.c.over(s.ctx) != nil {
		return err
	}
	return s.backendGone(err, mayStay)
}

// errBlock ends a session in statement mode that has begun a transaction block.
var errBlock = errors.New("transaction blocks are not allowed in statement mode")

// errClientWrite marks a failure to write to the client.
var errClientWrite = errors.New("cannot write to the client")

// answer handles a message of the server, of which the header was read. mu is held if a server reader runs.
func (s *session) answer(h pgwire.Header) error {
	m, r := &s.machine, s.srv.r
	own := m.answersOwn()
	msg := newMessage(h)
	act := action{do: more, n: min(h.Len, r.Buffered())}
	for act.do == more {
		var err error
		if msg.body, err = beginning(r, act.n, pgwire.DefaultMaxBody); err == nil {
			act, err = m.serverMessage(msg)
		}
		if errors.Is(err, errUnclear) {
			return cmp.Or(r.Skip(), err) // the client gets an error in place of the message
		}
		if err != nil {
			return err
		}
	}
	if !own {
		s.count(msg, act)
	}
	s.writeMachineMessages()
	var err error
	switch act.do {
	case pass:
		err = s.toClient(msg)
	case fatal:
		err = s.srv.readFatal()
	case refuse:
		if err = r.Skip(); err == nil {
			err = errBlock
		}
	default:
		err = r.Skip()
	}
	if err != nil {
		return err
	}
	m.sendLocalAnswers()
	s.writeMachineMessages()
	return s.passOn()
}

// passOn passes on received messages of the server that change nothing. mu is held if a server reader runs.
func (s *session) passOn() error {
	inQuery, ok := s.machine.inQuery()
	if !ok {
		return nil
	}
	run := s.srv.r.Run(func(typ byte, body []byte) bool { return unchanging(inQuery, typ, body) })
	if len(run) == 0 {
		return nil
	}
	if _, err := s.c.Writer.Write(run); err != nil {
		return clientWriteError(err)
	}
	return nil
}

// toClient passes the server's message on, piece by piece. The server reader unlocks mu while it waits for a piece: a
// server can stop in the middle of a message until it receives more.
func (s *session) toClient(msg message) error {
	w, r, m := s.c.Writer, s.srv.r, &s.machine
	w.Header(msg.typ, msg.size())
	m.partial = true // and stays so if the message cannot be completed
	if r.Left() == 0 {
		_, _ = w.Write(msg.body) // Flush reports the error
	}
	for r.Left() > 0 {
		waits := s.reading && r.Buffered() == 0
		if waits {
			s.mu.Unlock()
		}
		chunk, err := r.Chunk()
		if waits {
			s.mu.Lock()
		}
		if err != nil {
			return err
		}
		if _, err := w.Write(chunk); err != nil {
			return clientWriteError(err)
		}
	}
	m.partial = false
	return nil
}

func clientWriteError(err error) error { return fmt.Errorf("%w: %w", errClientWrite, err) }

// backendGone gives up a broken server connection, and counts, logs and informs the client. The client may stay if
// only one statement outside a transaction was lost: no earlier work is undone without its knowledge, and no later
// message can run outside its transaction. In this case the result is nil.
func (s *session) backendGone(cause error, mayStay bool) error {
	m := &s.machine
	cause = s.srv.lossReason(cause)
	// A client's message that was sent in part belongs to a request that can no longer be answered.
	atBoundary := s.c.Reader.Buffered() == 0 && s.c.Reader.Left() == 0
	stay := mayStay && m.lostAtMostOne() && atBoundary && s.srv.r.Left() == 0
	lost := s.reportLost(cause, stay)
	if !m.st.empty() && !m.st.copyIn && s.srv.removed.Load() {
		_ = s.c.Writer.Flush()
		s.abandon()
	}
	m.lost()
	s.endCancels()
	if endpointFailed(cause) {
		s.lease.Fail(lost)
	} else {
		s.lease.Discard()
	}
	s.srv = nil
	if stay {
		s.c.Writer.Send(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
		return nil
	}
	_ = s.c.Writer.Flush()
	return lost
}

// reportLost counts and logs that a server connection broke, and informs the client, unless the client has received
// only a part of a message.
func (s *session) reportLost(cause error, stay bool) *backendError {
	lost, code := &backendError{endpoint: s.srv.endpoint, err: cause}, sqlStateOfLost(cause)
	s.c.CountError(listener.ReasonBackendGone)
	s.c.warnLimited("server connection lost", s.cause(code), "upstream", s.b.cfg.Name, "endpoint", lost.endpoint, "error", cause, "client_stays", stay)
	if s.srv.r.Left() > 0 || stay && s.machine.st.erred { // a request has one error only: the server has undone it
		return lost
	}
	if !stay {
		s.c.flags.Or(clientTold)
	}
	s.c.CountSQLState(code)
	if code == pgwire.StateAdminShutdown && !errors.Is(cause, errRemoved) { // a server that shuts down takes transactions with it
		s.c.countFailure()
	}
	s.countAt([]byte(code))
	if fatal, ok := errors.AsType[*fatalError](cause); ok && !stay {
		s.c.Writer.Header(pgwire.TypeErrorResponse, len(fatal.body))
		_, _ = s.c.Writer.Write(fatal.body) // Flush reports the error
		return lost
	}
	severity := pgwire.SeverityFatal
	if stay {
		severity = pgwire.SeverityError
	}
	s.c.Writer.Send(errorResponse(severity, code, lostText(s.b.cfg.Name, cause), "Whether the statement took effect is not known."))
	return lost
}

// lossReason returns why a server connection broke, given the error that showed it. The server's error takes precedence
// over the removal of its endpoint.
func (s *server) lossReason(cause error) error {
	if _, said := errors.AsType[*pgwire.ErrorResponse](cause); s.removed.Load() && !said {
		return errRemoved
	}
	return cause
}

// sqlStateOfLost returns the SQLSTATE of the client's error about a lost server connection.
func sqlStateOfLost(cause error) string {
	switch m, said := errors.AsType[*pgwire.ErrorResponse](cause); {
	case said:
		return m.Code
	case errors.Is(cause, errRemoved):
		return pgwire.StateAdminShutdown
	}
	return pgwire.StateConnectionFailure
}

// endpointFailed reports whether the end of a connection says something about the server, and not only about the
// session as with idle_in_transaction_session_timeout, or about what the client has sent.
func endpointFailed(cause error) bool {
	m, ok := errors.AsType[*pgwire.ErrorResponse](cause)
	if !ok {
		return !errors.Is(cause, errUnclear)
	}
	return m.Code == pgwire.StateCrashShutdown || m.Code == pgwire.StateCannotConnectNow
}

// maxAlone is how many messages one statement of the extended protocol takes: an injected Parse (with Close before it
// and after it, and Describe), Parse, Bind, Describe, Execute, Close, Sync.
const maxAlone = 10
