package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// unixPast is a deadline that has passed.
var unixPast = time.Unix(1, 0)

// session is a client of a Postgres backend: a machine that decides, and the straight-line code that executes its
// actions. Its goroutine reads the client, and in the common case the server too: it sends the client's request and
// reads until it is answered. While it waits for the client it also watches a leased server connection, see watch. When
// both sides send much (long pipelines and COPY), or where it cannot wait for two connections at once, a second
// goroutine, the server reader, reads the server.
type session struct {
	b   *Postgres
	c   *Client
	ctx context.Context
	x   fastPath // next to the fields that it uses

	cancelMu  sync.Mutex // not held across I/O
	canceled  bool       // a cancel request came while the fast path waited for a lease
	cut       bool       // cutOff was called
	shielded  bool       // cutOff may close target, but no cancel request may reach it
	target    *server    // the target of a cancel request; nil = none
	acquiring context.CancelFunc
	// beginsAgain means that the client's transaction begins again on another server connection: nothing may cancel that.
	beginsAgain bool
	canceling   chan struct{} // closed when the cancel request under way is done; nil = none
	hit         bool          // a cancel request was sent to target

	// mu guards everything down to the blank line, and c.Writer. It is held while writing to the client, never while
	// waiting for something to read, nor while writing to the server. Until a server reader is started only the
	// session's goroutine, or the fast path in its place, uses them.
	mu         fiber.Mutex
	machine    machine
	lease      upstream.Lease[*server]
	lingering  lingering
	srv        *server // nil = none leased
	renewing   bool    // the next takeLease replaces lease; see renew
	reading    bool
	resident   bool  // the server reader runs for as long as the lease lasts: the session's goroutine cannot watch srv
	nudged     bool  // the server reader has interrupted the wait for the client, see readerAnswered
	forwarding bool  // the session's goroutine is sending to srv
	waiting    bool  // the session's goroutine waits for the client
	learning   bool  // the session's goroutine waits for the server reader, see awaitAnswers
	broken     error // set by the server reader: the session is over
	meter      Meter

	readers        fiber.Group
	runReader      func()        // started by startServerReader
	readerActivity activity      // of the server reader's messages
	sent           int           // bytes sent to srv since it was last quiet
	leaseAt        time.Time     // for the access log
	waited         time.Duration // for the lease, for the access log
	began          time.Time     // of a session in session mode, for the access log

	waitCtx    context.Context // of acquires; ended by a cancel request
	waitCancel context.CancelFunc

	resumed  bool // it was suspended before
	asleep   bool // it is suspended
	wasIdle  bool // the client's last message came outside every transaction
	called   bool // the server sent something while the session was suspended
	returned bool // the session ended in order; after a panic its state is in doubt
	worker   worker
	leasedAt time.Duration // by clock
	seldom   uint8         // 2 = the session resumed after a long idle time, 1 = and one request came since, 0 = neither

	serverPID uint32 // session mode: the process ID that the client got, see Proxy.alias; 0 = its own
}

// suspended is the state of a suspended session, in Client.Session. For a session without statements, Client.Session
// has only the handle of the view.
type suspended struct {
	view unique.Handle[clientView]
	clientStatements
	lingering lingering
	clientValues
}

// keptState returns the state that is kept while the session is suspended.
func (s *session) keptState() any {
	m := &s.machine
	s.c.keepSequenceLeases(m.sequenceLeases)
	view := unique.Make(m.clientView)
	if m.none() && s.lingering.place.None() {
		return view
	}
	return &suspended{view: view, clientStatements: m.clientStatements, lingering: s.lingering, clientValues: m.clientValues}
}

// restore takes back the state that keptState returned.
func (s *session) restore(rest any) {
	s.resumed = true
	s.machine.sequenceLeases = s.c.sequenceLeaseCount()
	last := s.c.activity.n.Load() >> 1
	if last == 0 || s.c.proxy.ticks.now.Load()-last >= seldomAfter {
		s.seldom = 2
	}
	switch r := rest.(type) {
	case unique.Handle[clientView]:
		s.machine.clientView = r.Value()
	case *suspended:
		s.machine.clientView, s.machine.clientStatements, s.machine.clientValues = r.view.Value(), r.clientStatements, r.clientValues
		s.lingering = r.lingering
	}
}

// works holds unused work structures. Each loop keeps one at hand, so that the next request on that loop finds it in
// the processor's cache.
var works struct {
	atHand [64]struct {
		atomic.Pointer[work]
		_ [cacheLine - 8]byte
	}
	pool sync.Pool
}

// cacheLine is the size of a cache line, in bytes.
const cacheLine = 64

// ensureWork gives the machine a work structure, which it needs while the session is not idle.
func (s *session) ensureWork() {
	if s.machine.work != nil {
		return
	}
	w := works.atHand[s.meter.index%len(works.atHand)].Swap(nil)
	if w == nil {
		w, _ = works.pool.Get().(*work)
	}
	if w == nil {
		w = new(work)
		w.st.reset()
	}
	s.machine.work = w
}

// returnWork gives the work structure back. Nothing may be owed to the client, unless the server connection is lost.
func (s *session) returnWork() {
	w := s.machine.work
	if w == nil {
		return
	}
	s.machine.work = nil
	w.toServer, w.toClient = emptied(w.toServer), emptied(w.toClient) // nothing of this client reaches another
	if !w.st.reusable() || cap(w.st.queue) > maxKeptOps {
		w.st.reset()
	}
	if !works.atHand[s.meter.index%len(works.atHand)].CompareAndSwap(nil, w) {
		works.pool.Put(w)
	}
}

func newSession(ctx context.Context, b *Postgres, c *Client) *session {
	if s, ok := c.Session.(*session); ok {
		s.wakeUp(ctx)
		return s
	}
	s := &session{b: b, c: c, ctx: ctx, meter: c.Meter()}
	s.machine = machine{shared: &b.tables, rules: &c.proxy.pins, params: c.Params, login: c.Login, client: c.number(), mode: c.Mode}
	if c.Mode == Statement {
		s.machine.mode, s.machine.single = Transaction, true
	}
	s.ensureWork()
	if c.Session != nil {
		s.restore(c.Session)
	} else {
		s.machine.reported = nothingTracked
		c.Session = (*suspended)(nil) // until the session is suspended
	}
	s.initFastPath()
	s.worker.session = s
	c.worker.Store(&s.worker)
	return s
}

// begin brings the session to its first ReadyForQuery.
func (s *session) begin() error {
	m := &s.machine
	if w := s.c.welcome.Load(); w != nil && w.baseline == s.b.baseline.list.Load() {
		m.clientView = w.view
		s.addWelcome(w.parameters, s.c.Key(), loginNotices{})
		return nil
	}
	asked := clock()
	if s.b.baseline.get() == nil {
		if err := s.acquireForLogin(); err != nil {
			return err
		}
	}
	reported := s.b.baseline.list.Load()
	baseline := *reported
	m.startupUnconfirmed = m.takeSettings(baseline)
	known := !m.startupUnconfirmed && s.srv == nil && m.mode == Transaction
	if (m.startupUnconfirmed || m.mode == Session) && s.srv == nil {
		if err := s.acquireForLogin(); err != nil {
			return err
		}
	} else if s.srv != nil {
		if err := s.sync(); err != nil {
			return err
		}
	}
	m.settingsAccepted()
	var notices loginNotices
	if s.srv != nil {
		notices = s.srv.takeNotices(asked)
	}
	switch {
	case m.mode == Session:
		baseline = s.srv.baseline
	case s.srv != nil:
		s.leaseAt = time.Time{} // the lease was not for a transaction of the client
		s.release()
	}
	key := s.c.Key()
	if m.mode == Session {
		m.pinned = true
		m.noteStartup()
		if s.serverPID = s.srv.key.ProcessID; s.serverPID != 0 { // some servers send none
			s.c.proxy.alias(s.serverPID, s.c)
			key.ProcessID = s.serverPID
		}
	}
	parameters := m.appendParameters(baseline)
	if known {
		s.c.welcome.Store(&welcome{baseline: reported, view: m.clientView, parameters: parameters})
	}
	s.addWelcome(parameters, key, notices)
	return nil
}

// acquireForLogin is acquire before the client's first request. The wait ends if the client leaves.
func (s *session) acquireForLogin() error {
	s.c.Working()
	defer s.c.activity.n.Store(0)
	return s.acquire(nil)
}

// welcome is how sessions of a Login begin in transaction mode, as long as servers report the same baseline.
type welcome struct {
	baseline   *[]pgwire.Param // what servers report, as in Postgres.baseline's list
	view       clientView
	parameters []byte // the ParameterStatus messages
}

// addWelcome adds the messages between AuthenticationOk and the first command.
func (s *session) addWelcome(parameters []byte, key pgwire.BackendKeyData, notices loginNotices) {
	w := s.c.Writer
	_, _ = w.Write(notices.before)
	_, _ = w.Write(parameters)
	w.Send(&key)
	_, _ = w.Write(notices.after)
	w.Send(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
}

// appendParameters returns the ParameterStatus messages for the client.
func (m *machine) appendParameters(baseline []pgwire.Param) (messages []byte) {
	view := m.reported.Value()
	for _, p := range baseline {
		if i := tracked(p.Name); i >= 0 && view.known[i] {
			p.Value = view.value[i]
		}
		messages = (*pgwire.ParameterStatus)(&p).Append(messages)
	}
	return messages
}

// serve runs a new or resumed session to its end or suspension.
func (s *session) serve() error {
	if !s.resumed {
		s.began = time.Now()
		if err := s.begin(); err != nil && s.c.over(s.ctx) != nil {
			return s.ended(err)
		} else if err != nil {
			return s.refuse(err)
		}
	}
	return s.run()
}

// run runs the session's loop to its end or suspension.
func (s *session) run() error {
	err := s.loop()
	s.mu.Lock()
	if s.broken != nil {
		err = s.broken // not the error that broken caused in the session's goroutine
	}
	s.mu.Unlock()
	return s.ended(err)
}

// ended handles the end of the session's loop, and informs the client.
func (s *session) ended(err error) error {
	switch {
	case err == nil:
	case err == ErrSuspended: //nolint:errorlint // as NextIdle or watch returned it
		if !s.asleep {
			s.asleep, s.c.Session = true, s.keptState()
		}
		return err
	case errors.Is(err, ErrDraining):
		s.mu.Lock()
		_ = s.c.Goodbye()
		s.mu.Unlock()
		err = nil
	case err == errRetired: //nolint:errorlint // as notLeased returned it
		err = s.c.Fatal(pgwire.StateAdminShutdown, fmt.Sprintf("upstream %q: the gateway has given it up for another", s.b.cfg.Name), "Connect again.")
	case s.c.over(s.ctx) != nil:
		s.mu.Lock()
		if !s.machine.cutShort() {
			_ = s.c.Goodbye()
		}
		s.mu.Unlock()
		err = fmt.Errorf("cut off: %w", s.c.over(s.ctx))
	default:
		err = s.explain(err)
	}
	if s.c.AccessLog() && s.machine.pinned {
		s.access(s.began, "session", err)
	}
	return err
}

// errRetired ends a session for which its upstream will never have a server connection again.
var errRetired = errors.New("the upstream has been retired")

// loop handles the client's messages one after the other.
func (s *session) loop() error {
	for {
		h, ok, err := s.next()
		if err != nil {
			return err
		}
		if ok {
			if over, err := s.fromClient(h); over || err != nil {
				if over && s.wasIdle && err == nil {
					s.returnWork()
				}
				return err
			}
		}
		if !s.c.Reader.HasMessage() {
			if err := s.exchange(); err != nil {
				return err
			}
		}
	}
}

// next waits for the client's next message. ok is false if the fast path has left a request under way.
func (s *session) next() (h pgwire.Header, ok bool, err error) {
	s.wasIdle = false
	for {
		if s.forwarding && s.c.Reader.HasMessage() {
			h, err := s.c.Reader.Next()
			return h, true, err
		}
		s.mu.Lock()
		if s.broken != nil {
			s.mu.Unlock()
			return pgwire.Header{}, false, s.broken
		}
		if s.boundary() {
			s.mu.Unlock()
			return s.idle()
		}
		if !s.reading && s.machine.due() { // the server reader has left that to the session
			s.mu.Unlock()
			if err := s.releaseIfAnswered(); err != nil {
				return pgwire.Header{}, false, err
			}
			continue
		}
		if s.srv != nil && s.canContinueFast() {
			s.mu.Unlock()
			return s.continueFast()
		}
		err := s.c.Writer.Flush()
		reading, leased := s.reading, s.srv != nil
		s.waiting = true
		s.allowDrain()
		s.mu.Unlock()
		if err != nil {
			return pgwire.Header{}, false, err
		}
		h, again, err := s.nextLeased(leased && !reading)
		if err == ErrSuspended { //nolint:errorlint // as watch returned it
			return h, false, err
		}
		again, err = s.waitEnded(again, err)
		if err == nil && !again {
			err = s.finishReaderWork()
		}
		if err != nil || !again {
			return h, true, err
		}
	}
}

// finishReaderWork completes, before the client's message that has come, the work that the server reader left to the
// session: the message overtook the server reader's nudge, and belongs to the client's next transaction.
func (s *session) finishReaderWork() error {
	s.mu.Lock()
	due := !s.reading && s.machine.due()
	s.mu.Unlock()
	if !due {
		return nil
	}
	return s.releaseIfAnswered()
}

// waitEnded notes that the wait for the client's message is over, and finds out why.
func (s *session) waitEnded(again bool, err error) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = false
	switch {
	case s.broken != nil:
		return again, s.broken
	case !s.c.state.CompareAndSwap(clientIdle, clientBusy) && s.c.interrupted():
		return again, ErrDraining
	case s.nudged:
		s.nudged = false
		s.clearDeadline()
		if isTimeout(err) && s.c.over(s.ctx) == nil {
			return true, nil
		}
	}
	if err == nil && !again {
		s.c.Done() // the client has sent something
	}
	return again, err
}

// boundary reports whether the client is outside every transaction, and no server connection is leased. mu is held.
func (s *session) boundary() bool { return !s.reading && s.srv == nil && !s.machine.st.skipping }

// idle waits for the client's next message outside every transaction, and holds as little memory as possible
// meanwhile.
func (s *session) idle() (h pgwire.Header, ok bool, err error) {
	s.returnWork()
	s.meter.asked = 0
	s.x.took, s.wasIdle = false, true
	if s.machine.sub != nil {
		if h, err = s.idleListening(); err != ErrSuspended { //nolint:errorlint // as NextIdle returned it
			s.ensureWork()
		}
		return h, true, err
	}
	if s.machine.mode != Session {
		if err := s.serveFast(fromClient); err != nil || s.srv != nil {
			s.ensureWork()
			return pgwire.Header{}, false, err
		}
	}
	return s.idleAfterFast()
}

// idleAfterFast is what idle does once the fast path has ended without a server connection.
func (s *session) idleAfterFast() (h pgwire.Header, ok bool, err error) {
	s.wasIdle = true
	if s.x.took && s.c.Reader.Buffered() >= headerSize { // this request is served even during a drain
		s.c.Done() // as nextIdle does
		s.ensureWork()
		h, err = s.c.Reader.Next()
		return h, true, err
	}
	wait := s.idlePatience()
	if s.x.late {
		s.x.late, wait = false, 0
	}
	h, err = s.c.nextIdle(wait)
	s.asks()
	if err != ErrSuspended { //nolint:errorlint // as NextIdle returned it
		s.ensureWork()
	}
	return h, true, err
}

// continueFast lets the loop serve the client with the server connection that it has, and perhaps later others.
func (s *session) continueFast() (h pgwire.Header, ok bool, err error) {
	s.srv.releaseBuffers()
	if err := s.serveFast(fromClientLeased); err != nil || s.srv != nil {
		return h, false, err
	}
	return s.idleAfterFast()
}

// seldomAfter is one second, in ticks. A client that was idle for so long is expected to be idle again after its next
// request, so that its session is suspended early: otherwise thousands of such clients with one request after the
// other would hold their stacks at the same time.
const seldomAfter = uint32(time.Second / tick)

// idlePatience is how long the client may be idle until the session is suspended.
func (s *session) idlePatience() time.Duration {
	if s.seldom == 1 {
		return firstPatience
	}
	return s.c.patience()
}

// asks notes that the client has asked for something while it was idle.
func (s *session) asks() {
	if s.seldom > 0 {
		s.seldom--
	}
}

// headerSize is the size of a message's header, in bytes.
const headerSize = 5

// allowDrain lets a drain end a client that waits at a boundary. mu is held.
func (s *session) allowDrain() {
	if !s.waiting || s.c.state.Load() != clientBusy || !(s.srv == nil && !s.machine.st.skipping || s.machine.keepsServer() && s.machine.st.settled()) {
		return
	}
	s.c.state.Store(clientIdle)
	if s.c.ends() {
		s.c.interrupt()
	}
}

// explain judges the error that ended the loop: it counts it, sends it to the client where
// appropriate, and returns it for the log.
func (s *session) explain(err error) error {
	s.mu.Lock()
	open := s.srv != nil && !(s.machine.keepsServer() && s.machine.st.settled())
	s.mu.Unlock()
	var lost *backendError
	switch {
	case errors.As(err, &lost):
		return err // the client and the log have it already
	case errors.Is(err, pgwire.ErrLength), errors.Is(err, pgwire.ErrMalformed), errors.Is(err, pgwire.ErrTooLarge):
		return s.protocolError(pgwire.StateProtocolViolation, err)
	case errors.Is(err, errBlock):
		return s.protocolError(pgwire.StateFeatureNotSupported, err)
	case errors.Is(err, errPipeline), errors.Is(err, errSettingsKept):
		code := pgwire.StateProgramLimitExceeded
		if said, ok := errors.AsType[*pgwire.ErrorResponse](err); ok {
			code = said.Code
		}
		return s.protocolError(code, err)
	case errors.Is(err, errNotRestored):
		return s.protocolError(pgwire.StateQueryCanceled, err)
	case errors.Is(err, errChannelsLost):
		return s.protocolError(pgwire.StateConfigLimitExceeded, err)
	case errors.Is(err, io.EOF) && !open:
		return nil // without Terminate, but with nothing open
	}
	s.c.CountError(listener.ReasonClientGone)
	return fmt.Errorf("%w: %w", errClientGone, err)
}

var errClientGone = errors.New("client gone")

// protocolError sends the client a protocol error, unless a message to it is incomplete.
func (s *session) protocolError(code string, err error) error {
	s.c.CountError(listener.ReasonProtocol)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.machine.cutShort() {
		_ = s.c.Fatal(code, err.Error(), "")
	}
	return err
}

// refuse ends a session that could not begin, with a line in the log.
func (s *session) refuse(err error) error {
	m := s.leaseError(err)
	s.c.CountSQLState(m.Code)
	s.c.warnLimited("client refused", s.cause(m.Code), "upstream", s.b.cfg.Name, "sqlstate", m.Code, "error", err)
	m.Severity, m.SeverityUnlocalized = pgwire.SeverityFatal, pgwire.SeverityFatal
	s.c.Writer.Send(m)
	_ = s.c.Conn.SetDeadline(time.Now().Add(lingerTime))
	if s.c.Writer.Flush() == nil {
		linger(s.c.Conn, pgwire.MaxStartup)
	}
	return nil // the log has it
}

// cause returns what lines about a SQLSTATE have in common, see warnLimited.
func (s *session) cause(code string) string { return s.b.cfg.Name + " " + errorClasses[classOf(code)] }

// leaseError converts an error of acquire to one for the client, and counts it.
func (s *session) leaseError(err error) *pgwire.ErrorResponse {
	code, hint, reason := pgwire.StateConnectionFailure, hintTrouble, listener.ReasonUpstreamUnavailable
	message := unavailableText(s.b.cfg.Name, err)
	m, isServer := errors.AsType[*pgwire.ErrorResponse](err)
	switch {
	case errors.Is(err, errCanceled):
		return errorResponse(pgwire.SeverityError, pgwire.StateQueryCanceled,
			"canceling statement due to user request (while waiting for a server connection)", "")
	case upstream.Exhausted(err):
		code, reason = pgwire.StateTooManyConnections, listener.ReasonPoolExhausted
		message = exhaustedText(s.b.cfg.Name, err)
		hint = "Raise max_size, acquire_timeout or max_waiters of the pool, or make transactions shorter."
	case errors.Is(err, pool.ErrClosed):
		code, message = pgwire.StateAdminShutdown, fmt.Sprintf("upstream %q: the gateway shuts down or has given it up", s.b.cfg.Name)
		hint = "Connect again."
	case errors.Is(err, errPairs):
		code, reason, message = pgwire.StateTooManyConnections, listener.ReasonPoolExhausted, fmt.Sprintf("upstream %q: %v", s.b.cfg.Name, err)
		hint = "Connect later, or raise max_pairs of the upstream."
	case errors.Is(err, errNotHandedOver):
		if code = pgwire.StateNotInPrerequisiteState; isServer {
			code = m.Code
		}
		message = fmt.Sprintf("upstream %q: notifications cannot be handed over to a server connection: %s", s.b.cfg.Name, noServerReason(err))
		hint = "Try again. The session listens as before."
	case isServer && errors.Is(err, errSettings):
		reason = listener.ReasonProtocol
		s.c.CountError(reason)
		return m
	default:
		if said := loginErrorOf(err); said != nil {
			if errors.Is(err, upstream.ErrTenant) { // the client chose the database: that does not mean that the server is in trouble
				switch said.Code {
				case pgwire.StateInvalidCatalogName:
					reason = listener.ReasonUnknownDatabase
				case pgwire.StateInsufficientPrivilege:
					reason = listener.ReasonAuthFailed
				}
			}
			if reason == listener.ReasonUpstreamUnavailable && !isFailure(said.Code) { // the gateway's own login is refused
				s.c.countFailure()
			}
			s.c.CountError(reason)
			return said
		}
	}
	s.c.CountError(reason)
	return errorResponse(pgwire.SeverityError, code, message, hint)
}

// access writes the access log's line of a transaction or session.
func (s *session) access(start time.Time, what string, err error, more ...slog.Attr) {
	attrs := append([]slog.Attr{slog.String("status", what), slog.Duration("duration", time.Since(start)),
		slog.String("upstream", s.b.cfg.Name)}, more...)
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	s.c.Access(s.ctx, attrs...)
}
