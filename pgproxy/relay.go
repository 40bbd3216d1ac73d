package pgproxy

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
)

// readerAfter is how many bytes may be on their way to a server that has not answered the first of
// them before somebody must read its answers: a server that cannot write stops reading, and
// what fits into the sockets' buffers is at least twice this.
const readerAfter = 32 << 10

// peekSize is how much of a message is looked at to understand it. Names and tags are short.
const peekSize = 1024

// fatalError is an ErrorResponse with which the server has ended a session.
type fatalError struct {
	*pgwire.ErrorResponse
	body []byte // as it came
}

func (e *fatalError) Unwrap() error { return e.ErrorResponse }

// readFatal reads the body of one and returns it as an error.
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

// backendError says that a server connection broke. The client has been told.
type backendError struct {
	endpoint string
	err      error
}

func (e *backendError) Error() string {
	return fmt.Sprintf("PostgreSQL server %s: connection lost: %v", e.endpoint, e.err)
}

func (e *backendError) Unwrap() error { return e.err }

// fromClient handles one message of the client, the header of which was read.
func (s *session) fromClient(h pgwire.Header) error {
	switch h.Type {
	case pgwire.TypeQuery, pgwire.TypeParse, pgwire.TypeBind, pgwire.TypeDescribe, pgwire.TypeExecute,
		pgwire.TypeClose, pgwire.TypeFunctionCall, pgwire.TypeSync, pgwire.TypeFlush,
		pgwire.TypeCopyData, pgwire.TypeCopyDone, pgwire.TypeCopyFail:
	default:
		return badMessage(h)
	}
	if h.Len > maxBody(h.Type) {
		return badMessage(h)
	}
	switch h.Type {
	case pgwire.TypeBind, pgwire.TypeDescribe, pgwire.TypeExecute, pgwire.TypeSync: // they belong to what came before
	default:
		s.x.likely = h.Type == pgwire.TypeQuery // and see bind and parseUnnamed
	}
	s.lockShared()
	s.meter.Asked()
	s.forwarding = s.srv != nil
	if s.reading && s.st.quiet() {
		s.nothingOwed()
	}
	done, err := false, s.broken
	if err == nil {
		done, err = s.withoutServer(h)
	}
	s.unlockShared()
	if done || err != nil {
		return err
	}
	if s.srv == nil {
		// A client that is slow to send must not hold a server connection meanwhile.
		if s.c.Reader.Buffered() < h.Len {
			if _, err := s.c.Reader.Peek(h.Len); err != nil {
				return err
			}
			s.meter.asked = clock()
		}
		if ok, err := s.leaseFor(h); !ok {
			return err
		}
		s.forwarding = true // and no server reader runs
	}
	return s.forward(h)
}

func badMessage(h pgwire.Header) error {
	return fmt.Errorf("%w: type %q with %d bytes", pgwire.ErrMalformed, h.Type, h.Len)
}

// maxBody is the largest body of a message. Servers hang up on longer ones, or answer them in a
// way of their own.
func maxBody(typ byte) int {
	switch typ {
	case pgwire.TypeSync, pgwire.TypeFlush, pgwire.TypeCopyDone:
		return 0
	case pgwire.TypeDescribe, pgwire.TypeExecute, pgwire.TypeClose, pgwire.TypeCopyFail:
		return maxSmallBody
	}
	return math.MaxInt
}

// maxSmallBody is PostgreSQL's limit for messages that are short (PQ_SMALL_MESSAGE_LIMIT without
// the length word), in bytes.
const maxSmallBody = 10000 - 4

// withoutServer handles what needs no server connection. mu is held.
func (s *session) withoutServer(h pgwire.Header) (done bool, err error) {
	r := s.c.Reader
	switch h.Type {
	case pgwire.TypeCopyData, pgwire.TypeCopyDone, pgwire.TypeCopyFail:
		if s.srv == nil || !s.st.copyIn && s.st.empty() {
			return true, r.Skip() // the rest of a COPY that failed; servers ignore it too
		}
	case pgwire.TypeQuery:
		if s.c.Mode == Transaction && s.between() {
			return s.deallocate(h)
		}
	}
	if s.srv != nil {
		return false, nil
	}
	switch {
	case h.Type == pgwire.TypeSync:
		s.st.skipping = false
		s.c.Writer.Send(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
		return true, r.Skip()
	case h.Type == pgwire.TypeFlush || s.st.skipping:
		return true, r.Skip()
	case h.Type == pgwire.TypeParse && s.c.Mode == Transaction:
		return s.parseLater(h)
	}
	return false, nil
}

// leaseFor leases a server connection for a message. When there is none, the client is told, and
// what it sends up to the end of its request is dropped: false.
func (s *session) leaseFor(h pgwire.Header) (bool, error) {
	s.c.Working()
	err := s.acquire()
	s.c.Done()
	if err == nil {
		return true, nil
	}
	return false, s.notLeased(h, err)
}

// notLeased tells the client that there is no server connection for a message.
func (s *session) notLeased(h pgwire.Header, err error) error {
	if s.c.over(s.ctx) != nil {
		return err
	}
	m := s.leaseError(err)
	s.c.Logger().Warn("no server connection", "upstream", s.b.cfg.Name, "sqlstate", m.Code, "error", err)
	if m.Code != pgwire.StateQueryCanceled && s.b.retired.Load() || errors.Is(err, pool.ErrClosed) {
		return errRetired
	}
	s.c.CountSQLState(m.Code)
	s.c.Writer.Send(m)
	s.st.reset()
	if h.Type == pgwire.TypeQuery || h.Type == pgwire.TypeFunctionCall {
		s.c.Writer.Send(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
	} else {
		s.st.skipping = true
	}
	return s.c.Reader.Skip()
}

// forward sends one message on, in the form the server connection needs.
func (s *session) forward(h pgwire.Header) error {
	if err := s.pace(h.Len + headerSize); err != nil {
		return err
	}
	if err := s.arrive(min(h.Len, maxPeek)); err != nil {
		return err
	}
	if s.c.showsStatements() {
		if err := s.showMessage(h); err != nil {
			return err
		}
	}
	if s.c.Mode == Transaction {
		switch h.Type {
		case pgwire.TypeQuery:
			if err := s.deallocateInTurn(h); err != nil {
				return err
			}
		case pgwire.TypeExecute:
			if rejected, err := s.notUnlike(); rejected || err != nil {
				return err
			}
			if err := s.deallocateBy(h); err != nil {
				return err
			}
		case pgwire.TypeParse:
			return s.parse(h)
		case pgwire.TypeBind:
			return s.bind(h)
		case pgwire.TypeDescribe:
			return s.describe()
		case pgwire.TypeClose:
			return s.closeObject()
		}
	}
	s.note(h.Type)
	return s.raw(h)
}

// maxOwed bounds the messages of one client that wait for their answers, 56 bytes each. What goes to
// a server is bounded by the sockets' buffers; what the gateway answers itself is not.
const maxOwed = 1 << 20

// errPipeline is the end of a client that has more answers to come than maxOwed.
var errPipeline = fmt.Errorf("more than %d messages wait for an answer", maxOwed)

// pace starts the server reader if what is on its way to the server becomes too much.
func (s *session) pace(n int) error {
	s.sent += n
	if s.sent <= readerAfter {
		return nil
	}
	s.lockShared()
	owed, alone := len(s.st.queue)-s.st.head, s.reading || s.st.empty() && !s.st.copyIn
	s.unlockShared()
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

// note tells the state machine of a message that goes on as it is.
func (s *session) note(typ byte) {
	s.lockShared()
	defer s.unlockShared()
	switch typ {
	case pgwire.TypeQuery:
		if !s.dropUnnamed() {
			s.st.push(op{kind: opQuery, name: s.drop})
		}
	case pgwire.TypeFunctionCall:
		s.st.push(op{kind: opFunction})
	case pgwire.TypeSync:
		s.unnamedNew, s.synced = false, len(s.pending)
		s.st.push(op{kind: opSync})
	case pgwire.TypeParse:
		s.st.push(op{kind: opParse})
	case pgwire.TypeBind:
		s.st.push(op{kind: opBind})
	case pgwire.TypeDescribe:
		s.st.push(op{kind: opDescribe})
	case pgwire.TypeExecute:
		s.st.push(op{kind: opExecute, name: s.drop, on: s.boundOn})
	case pgwire.TypeClose:
		s.st.push(op{kind: opClose})
	case pgwire.TypeCopyDone, pgwire.TypeCopyFail:
		s.st.copyDone()
	}
	s.drop = ""
}

// raw passes the message on as it is, piece by piece.
func (s *session) raw(h pgwire.Header) error {
	s.srv.w.Header(h.Type, h.Len)
	return s.rest()
}

// rest passes on what is left of the client's message.
func (s *session) rest() error {
	for {
		if err := s.arrive(min(s.c.Reader.Left(), 1)); err != nil {
			return err
		}
		chunk, err := s.c.Reader.Chunk()
		if err != nil {
			return err
		}
		if chunk == nil {
			return nil
		}
		if _, err := s.srv.w.Write(chunk); err != nil {
			return s.writeFailed(err)
		}
	}
}

func (s *session) flushServer() error {
	if err := s.srv.w.Flush(); err != nil {
		return s.writeFailed(err)
	}
	return nil
}

// writeFailed handles a server connection that cannot be written to. It may have said why. The
// session ends: a server reader gets some time to pass on what was said, and no more, for the client may
// not be reading.
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

// turn sends what was gathered for the server, and reads its answers unless the server reader does.
func (s *session) turn() error {
	if s.forwarding && s.srv != nil {
		if err := s.flushServer(); err != nil {
			return err
		}
	}
	s.lockShared()
	s.forwarding = false
	reading, broken := s.reading, s.broken
	over := reading || s.srv == nil
	if reading && !s.st.quiet() && s.readerTurn.n.Load()&1 == 0 {
		s.readerTurn.set(s.c.proxy.ticks.now.Load(), true)
	}
	s.unlockShared()
	s.both = s.both && reading
	if over || broken != nil {
		return broken
	}
	if s.st.due() {
		if over, err := s.await(); over || err != nil {
			return err
		}
	}
	s.caughtUp()
	return nil
}

// finish ends a session as a server does that reads Terminate: once all that was asked before is done.
func (s *session) finish() error {
	if err := s.turn(); err != nil {
		return err
	}
	s.lockShared()
	waits, err := s.reading && s.st.due(), s.broken
	s.forwarding = waits // so that the server reader does not give the server connection back meanwhile
	s.unlockShared()
	if !waits {
		return err
	}
	return s.catchUp()
}

// await passes on what the server is about to say.
func (s *session) await() (over bool, err error) {
	s.c.Working()
	s.srv.r.Prepare()
	for s.st.due() && !over && err == nil {
		over, err = s.fromServer()
	}
	s.c.Done()
	return over, err
}

// fromServer reads and handles one message of the server, the client's buffer being flushed
// before it has to wait. done means that the server connection is gone and the session goes on.
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

// serverFailed judges an error of reading the server and passing on what it says. Without an error the client goes on without
// its server connection.
func (s *session) serverFailed(err error, mayStay bool) error {
	var lost *backendError
	if errors.As(err, &lost) || errors.Is(err, errClientWrite) || s.c.over(s.ctx) != nil {
		return err
	}
	return s.backendGone(err, mayStay)
}

// errClientWrite marks a failure to write to the client.
var errClientWrite = errors.New("cannot write to the client")

// answer handles one message of the server, the header of which was read. Where a server reader runs, mu
// is held.
func (s *session) answer(h pgwire.Header) error {
	status := pgwire.TxStatus(0)
	switch h.Type {
	case pgwire.TypeNotificationResponse:
		if s.c.Mode == Transaction && s.srv.flags&leftListen == 0 {
			s.srv.flags |= leftListen // a function did: it was another client's
			return s.srv.r.Skip()
		}
	case pgwire.TypeReadyForQuery:
		b, err := s.srv.r.Peek(1)
		if err != nil {
			return err
		}
		if len(b) != 1 || h.Len != 1 || !pgwire.TxStatus(b[0]).Valid() {
			return fmt.Errorf("%w: ReadyForQuery", errBackendProtocol)
		}
		if status = pgwire.TxStatus(b[0]); status == pgwire.TxIdle {
			s.startOver()
		}
		if o, ok := s.st.front(); ok && o.deallocates() {
			s.notDeallocated(o.name)
		}
	case pgwire.TypeParameterStatus:
		return s.parameter()
	case pgwire.TypeCommandComplete:
		if err := s.commandDone(); err != nil {
			return err
		}
	case pgwire.TypeErrorResponse:
		if err := s.serverError(); err != nil {
			return err
		}
	case pgwire.TypeParameterDescription, pgwire.TypeRowDescription, pgwire.TypeNoData:
		if err := s.described(h); err != nil {
			return err
		}
	case pgwire.TypeParseComplete:
		s.parsed()
	}
	forward, err := s.st.answer(h.Type, status)
	if err != nil {
		return err
	}
	if h.Type == pgwire.TypeReadyForQuery {
		s.measure(status)
	}
	var instead *pgwire.ErrorResponse
	if h.Type == pgwire.TypeErrorResponse {
		s.undoUnnamed(s.st.undone)
		s.undo()
		instead = s.inPlaceOfError()
	}
	switch {
	case instead != nil:
		s.c.Writer.Send(instead)
		err = s.srv.r.Skip()
	case forward:
		err = s.toClient(h)
	default:
		err = s.srv.r.Skip()
	}
	s.sayLocal()
	if err != nil {
		return err
	}
	return s.passOn()
}

// passOn passes on what has arrived behind a message of the server and changes nothing: rows, and within the answer to Query,
// where no op ends before ReadyForQuery, also what comes before and after them. Where a server reader runs, mu is held.
func (s *session) passOn() error {
	o, ok := s.st.front()
	if !ok {
		return nil // what comes unasked makes the server connection doubtful, and must be found where it is given back
	}
	query := o.kind == opQuery && !o.deallocates() && !s.st.copyOut && !s.st.ignored
	run := s.srv.r.Run(func(typ byte, body []byte) bool {
		switch typ {
		case pgwire.TypeDataRow, pgwire.TypeCopyData:
			return true
		case pgwire.TypeRowDescription:
			return query
		case pgwire.TypeCommandComplete:
			return query && !leaves(body)
		}
		return false
	})
	if len(run) == 0 {
		return nil
	}
	if _, err := s.c.Writer.Write(run); err != nil {
		return clientWriteError(err)
	}
	return nil
}

// toClient passes the server's message on, piece by piece. The server reader lets go of mu while it waits
// for a piece: a server can stop in the middle of a message until it hears more.
func (s *session) toClient(h pgwire.Header) error {
	w, r := s.c.Writer, s.srv.r
	w.Header(h.Type, h.Len)
	s.partial = true // and stays so if the message cannot be ended
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
	s.partial = false
	return nil
}

func clientWriteError(err error) error { return fmt.Errorf("%w: %w", errClientWrite, err) }

// parameter handles a ParameterStatus: the client hears of it if it changes its view.
func (s *session) parameter() error {
	var m pgwire.ParameterStatus
	if err := s.srv.readParameter(&m); err != nil {
		return err
	}
	if i := tracked(m.Name); i >= 0 {
		view := s.reported.Value()
		if view.known[i] && view.value[i] == m.Value {
			return nil
		}
		view.value[i], view.known[i] = m.Value, true
		s.reports |= 1 << i
		s.reported = unique.Make(view)
		s.settingChanged()
		if planned(trackedNames[i]) {
			s.replan()
		}
	}
	s.c.Writer.Send(&m)
	return nil
}

// settingChanged notes that the server connection's settings are not what they were when it was
// leased, and that statements may have been prepared under these.
func (s *session) settingChanged() {
	s.srv.flags |= leftSettings
	if s.prepared {
		s.srv.flags |= leftPrepare
	}
}

// leaves reports whether the command with this tag may leave something behind. commandDone looks at no other.
func leaves(tag []byte) bool {
	return len(tag) == 0 || strings.IndexByte("SRLPD", tag[0]) >= 0 && !bytes.HasPrefix(tag, []byte("SELECT "))
}

// commandDone looks at the tag of a CommandComplete for what a client leaves behind.
func (s *session) commandDone() error {
	tag, err := s.srv.r.Peek(32)
	if err != nil || len(tag) < 3 || !leaves(tag) {
		return err
	}
	srv := s.srv
	switch tag[0] {
	case 'S':
		if bytes.Equal(tag, []byte("SET\x00")) {
			s.settingChanged()
		}
	case 'R':
		if bytes.Equal(tag, []byte("RESET\x00")) {
			s.settingChanged()
			s.reset = true
		}
	case 'L':
		if bytes.Equal(tag, []byte("LISTEN\x00")) {
			srv.flags |= leftListen
		}
	case 'P':
		if bytes.Equal(tag, []byte("PREPARE\x00")) {
			srv.flags |= leftPrepare
		}
	case 'D':
		switch {
		case bytes.Equal(tag, []byte("DECLARE CURSOR\x00")):
			srv.flags |= leftCursor
		case bytes.Equal(tag, []byte("DISCARD ALL\x00")):
			s.settingChanged()
			s.reset, s.reports = true, 1<<len(trackedNames)-1 // of all, also those for which nothing is reported
			s.deallocateAll()
		case bytes.Equal(tag, []byte("DEALLOCATE ALL\x00")):
			s.deallocateAll()
		case bytes.Equal(tag, []byte("DEALLOCATE\x00")):
			s.deallocated()
		}
	}
	return nil
}

// serverError looks at an ErrorResponse: one that ends the server connection is returned as an
// error, and not passed on yet.
func (s *session) serverError() error {
	b, err := s.srv.r.Peek(peekSize)
	if err != nil {
		return err
	}
	if bytes.Contains(b, []byte("\x00VFATAL\x00")) || bytes.Contains(b, []byte("\x00VPANIC\x00")) {
		return s.srv.readFatal()
	}
	s.countError(b)
	if s.srv.standby() && bytes.Contains(b, []byte("\x00C25006\x00")) {
		s.srv.leave = true
	}
	o, ok := s.st.front()
	if ok && o.deallocates() {
		s.notDeallocated(o.name)
	}
	switch {
	case !ok || o.on == nil:
	case o.kind == opParse || o.kind == opInjectedParse: // see undo
		o.on.text.accepted.Store(false)
	case slices.ContainsFunc(statementErrors, func(code []byte) bool { return bytes.Contains(b, code) }):
		o.on.text.accepted.Store(false)
		s.srv.stmts.retire(o.on)
	}
	return nil
}

// statementErrors begin the SQLSTATE in an ErrorResponse about a prepared statement that is perhaps not what it would be if it was
// parsed now: its plan must not change its result type; what it was planned with is gone, or has another type or name; a type
// is unknown to the system tables (XX000); a function has deallocated it. Whoever uses it next has it parsed again.
var statementErrors = [][]byte{[]byte("\x00C0A000\x00"), []byte("\x00C42"), []byte("\x00CXX"), []byte("\x00C26000\x00")}

// backendGone gives up a server connection that broke, counts, logs and tells the client. The
// client may stay if what broke was one statement by itself: nothing it sent before is undone
// without its knowledge, and nothing it sent after waits to run outside the transaction it was
// meant for. Then the result is nil.
func (s *session) backendGone(cause error, mayStay bool) error {
	cause = s.srv.whyLost(cause)
	stay := mayStay && !s.pinned && s.st.ends == 1 && len(s.st.queue)-s.st.head <= maxAlone &&
		s.st.tx == pgwire.TxIdle && !s.st.copyIn && !s.st.copyOut && !s.st.unsynced && s.c.Reader.Buffered() == 0 &&
		s.srv.r.Left() == 0
	lost := s.reportLost(cause, stay)
	if !s.st.empty() && !s.st.copyIn && s.srv.removed.Load() {
		_ = s.c.Writer.Flush()
		s.abandon()
	}
	s.st.abandon()
	s.undo()
	s.loseUnnamed()
	s.endCancels()
	if endpointFailed(cause) {
		s.lease.Fail(lost)
	} else {
		s.lease.Discard()
	}
	for _, name := range s.fresh {
		if s.doubtful == nil {
			s.doubtful = make(map[string]bool)
		}
		s.doubtful[name] = true
	}
	s.srv = nil
	s.st.reset()
	if stay {
		s.c.Writer.Send(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
		return nil
	}
	_ = s.c.Writer.Flush()
	return lost
}

// reportLost counts and logs that a server connection broke, and tells the client, unless it is
// in the middle of a message.
func (s *session) reportLost(cause error, stay bool) *backendError {
	lost := &backendError{endpoint: s.srv.endpoint, err: cause}
	s.c.CountError(listener.ReasonBackendGone)
	s.c.Logger().Warn("server connection lost", "upstream", s.b.cfg.Name, "endpoint", lost.endpoint, "error", cause, "client_stays", stay)
	if s.srv.r.Left() > 0 {
		return lost
	}
	code := sqlStateOfLost(cause)
	s.c.CountSQLState(code)
	s.lease.Traffic().Shard(s.meter.place).Add(classOf(code), 1)
	if fatal, ok := errors.AsType[*fatalError](cause); ok && !stay {
		s.c.Writer.Header(pgwire.TypeErrorResponse, len(fatal.body))
		_, _ = s.c.Writer.Write(fatal.body) // Flush tells
		return lost
	}
	severity := pgwire.SeverityFatal
	if stay {
		severity = pgwire.SeverityError
	}
	s.c.Writer.Send(errorResponse(severity, code, lostText(s.b.cfg.Name, cause), "Whether the statement took effect is not known."))
	return lost
}

// whyLost returns why a server connection broke that failed with cause. What the server said goes before the removal of its endpoint.
func (s *server) whyLost(cause error) error {
	if _, said := errors.AsType[*pgwire.ErrorResponse](cause); s.removed.Load() && !said {
		return errRemoved
	}
	return cause
}

// sqlStateOfLost is the code with which a client is told of the end of its server connection.
func sqlStateOfLost(cause error) string {
	switch m, said := errors.AsType[*pgwire.ErrorResponse](cause); {
	case said:
		return m.Code
	case errors.Is(cause, errRemoved):
		return pgwire.StateAdminShutdown
	}
	return pgwire.StateConnectionFailure
}

// endpointFailed reports whether a connection that broke says something about its server, and
// not only about the session, as idle_in_transaction_session_timeout does.
func endpointFailed(cause error) bool {
	m, ok := errors.AsType[*pgwire.ErrorResponse](cause)
	return !ok || m.Code == pgwire.StateCrashShutdown || m.Code == pgwire.StateCannotConnectNow
}

// maxAlone is how many messages one statement of the extended protocol takes: an injected Parse
// (with Close before it and after it, and Describe), Parse, Bind, Describe, Execute, Close, Sync.
const maxAlone = 10
