package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
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

// session is a client of a Postgres backend. Its goroutine reads the client, and in the common
// case the server too: it sends what the client asked and reads until that is answered. While it
// waits for the client it watches a leased server connection as well, see watch. Where both sides
// have much to say (long pipelines and COPY), and where it cannot wait for two connections at once,
// a second goroutine, the server reader, reads the server.
type session struct {
	b     *Postgres
	c     *Client
	ctx   context.Context
	*work // nil while the session is idle
	clientView
	x fastPath // and what that needs is near

	cancelMu  sync.Mutex // not held across I/O
	canceled  bool       // a cancel request came while the fast path waits for a lease
	cut       bool       // cutOff was called
	target    *server    // what a cancel request is sent to; nil = nothing
	acquiring context.CancelFunc
	canceling chan struct{} // closed when the cancel request under way is done; nil = none

	// mu guards everything down to the blank line while the server reader runs, and c.Writer. It is held
	// while writing to the client, never while waiting for something to read, nor while writing
	// to the server.
	mu         fiber.Mutex // and st
	lease      upstream.Lease[*server]
	srv        *server // nil = none leased
	reading    bool
	resident   bool  // the server reader runs for as long as the lease lasts: the session's goroutine cannot watch srv
	nudged     bool  // the server reader has ended the session's wait for the client, see readerAnswered
	forwarding bool  // the session's goroutine is sending to srv
	waiting    bool  // the session's goroutine waits for the client
	learning   bool  // the session's goroutine waits for the server reader, see learn and finish
	partial    bool  // a message to the client is written in part
	broken     error // set by the server reader: the session is over

	readers    fiber.Group
	runReader  func()    // what startServerReader starts
	readerTurn turn      // of what the server reader reads
	both       bool      // a server reader may be running: mu is needed. The session's goroutine's
	pinned     bool      // session mode: the lease lasts as long as the session
	began      time.Time // of a session in session mode, for the access log
	unsure     bool      // no server has seen the client's settings: half a DateStyle adds to what was set before

	waitCtx    context.Context // of acquires; ended by a cancel request
	waitCancel context.CancelFunc

	clientStatements
	prepared bool // a named statement, since the server connection was leased
	resumed  bool // it was suspended before
	asleep   bool // it is suspended
	called   bool // the server spoke meanwhile
	returned bool // it ends in order: a panic leaves it in doubt
	worker   worker

	meter    Meter         // guarded as st is
	leasedAt time.Duration // by clock
}

// clientView is what a client has set. Idle clients with the same settings share it.
type clientView struct {
	reported    unique.Handle[trackedParams] // the client's values of the parameters servers report
	settingsKey string                       // those of others, in one string; see keyOf
	plan        unique.Handle[string]        // the settings that give texts their meaning
}

// clientStatements are a client's prepared statements.
type clientStatements struct {
	doubtful  map[string]bool // names the client may or may not think it has; nil = none
	stmts     map[string]*statement
	stmtBytes int
	unnamed   unnamed
}

// none reports whether nothing is lost without them.
func (s *clientStatements) none() bool {
	return len(s.doubtful) == 0 && len(s.stmts) == 0 && s.stmtBytes == 0 && s.unnamed.id == 0
}

// suspended is the state of a suspended session, in Client.Session. Without statements that is
// the view alone, a pointer.
type suspended struct {
	view unique.Handle[clientView]
	clientStatements
}

// keptState returns the state that is kept while the session is suspended.
func (s *session) keptState() any {
	view := unique.Make(s.clientView)
	if s.none() {
		return view
	}
	return &suspended{view: view, clientStatements: s.clientStatements}
}

// restore is the reverse of keptState.
func (s *session) restore(rest any) {
	s.resumed = true
	switch r := rest.(type) {
	case unique.Handle[clientView]:
		s.clientView = r.Value()
	case *suspended:
		s.clientView, s.clientStatements = r.view.Value(), r.clientStatements
	}
}

// work is what a session needs while it is not idle. Idle ones share it.
type work struct {
	st         state
	fresh      []string // names of prepared statements given since the server connection was leased
	pending    []string // names of statements, clients' and servers', prepared or closed in requests not all answered
	synced     int      // those of pending before the last Sync: what came after is skipped with them, or not at all
	changes    []change // of the unnamed statement; changes[changed:] are not all answered
	changed    int
	spare      []byte            // room for the text of an unnamed statement
	unnamedNew bool              // no Sync came after the Parse of the unnamed statement
	bound      *statement        // what the last portal was made from; nil = nobody knows
	boundOn    *serverStatement  // and the server's
	portal     []byte            // its name
	unseen     *statement        // was prepared again, and nobody knows whether it is what the client was told of; nil = none
	unlike     *statement        // what was prepared again last and is not that
	sweeping   bool              // a statement that takes others away was bound since the server connection was leased
	drops      map[string]string // portals that deallocate one statement, and the name in their text
	standing   map[string]bool   // what stands for statements of the client that were not deallocated, by name
	drop       string            // the client's statements that the message about to be sent deallocates, as in op.name; "" = none
	reset      bool              // RESET or DISCARD ALL was answered since the transaction began
	reports    uint16            // of which trackedNames a value was reported since then
	out        []byte            // for the server, put together with mu held, sent without
	sent       int               // bytes sent to srv since it was last quiet
	leaseAt    time.Time         // for the access log
	waited     time.Duration     // for the lease, for the access log
}

var works = sync.Pool{New: func() any {
	w := new(work)
	w.st.reset()
	return w
}}

// lockShared locks mu where a server reader may be running, for the session's goroutine.
func (s *session) lockShared() {
	if s.both {
		s.mu.Lock()
	}
}

// unlockShared ends what lockShared began.
func (s *session) unlockShared() {
	if s.both {
		s.mu.Unlock()
	}
}

func newSession(ctx context.Context, b *Postgres, c *Client) *session {
	if s, ok := c.Session.(*session); ok {
		s.wakeUp(ctx)
		return s
	}
	s := &session{b: b, c: c, ctx: ctx, work: works.Get().(*work), meter: c.Meter()}
	if c.Session != nil {
		s.restore(c.Session)
	} else {
		s.reported = unique.Make(trackedParams{})
		c.Session = (*suspended)(nil) // until it is suspended
	}
	s.initFastPath()
	s.worker.session = s
	c.worker.Store(&s.worker)
	return s
}

// begin brings the session to its first ReadyForQuery.
func (s *session) begin() error {
	if s.b.baseline.get() == nil {
		if err := s.acquire(); err != nil {
			return err
		}
	}
	baseline := s.b.baseline.get()
	s.unsure = s.takeSettings(baseline)
	if (s.unsure || s.c.Mode == Session) && s.srv == nil {
		if err := s.acquire(); err != nil {
			return err
		}
	} else if s.srv != nil {
		if err := s.sync(); err != nil {
			return err
		}
	}
	s.sure()
	switch {
	case s.c.Mode == Session:
		baseline = s.srv.baseline
	case s.srv != nil:
		s.leaseAt = time.Time{} // it was no transaction of the client's
		s.release()
	}
	s.sendParameters(baseline)
	s.pinned = s.c.Mode == Session
	return nil
}

// takeSettings notes what the client's settings are. Without having asked a server that is
// unknown where none was asked before.
func (s *session) takeSettings(baseline []pgwire.Param) (unknown bool) {
	var view trackedParams
	var extra []pgwire.Param
	for _, p := range baseline {
		view.set(p.Name, p.Value)
	}
	for _, p := range s.c.Params {
		value, ok := s.b.accepted(p)
		unknown = unknown || !ok
		if !ok {
			value = p.Value
		}
		if i := tracked(p.Name); i >= 0 && view.known[i] {
			view.value[i] = value
		} else {
			extra = append(extra, p)
		}
	}
	s.reported = unique.Make(view)
	s.settingsKey = keyOf(extra)
	s.replan()
	return unknown
}

// sure notes that a server has the client's settings, and remembers what it made of those that were unknown.
func (s *session) sure() {
	if !s.unsure {
		return
	}
	s.unsure = false
	view := s.reported.Value()
	for _, p := range s.c.Params {
		value := p.Value
		if i := tracked(p.Name); i >= 0 && view.known[i] {
			value = view.value[i]
		}
		s.b.accept(p, value)
	}
}

// replan notes the settings under which the client's statements are prepared. Literals of some
// types are read when a statement is, so that statements are shared under equal settings only.
func (s *session) replan() {
	var b strings.Builder
	view := s.reported.Value()
	for i, name := range trackedNames {
		if planned(name) {
			b.WriteString(view.value[i])
			b.WriteByte(0)
		}
	}
	b.WriteString(s.settingsKey)
	s.plan = unique.Make(b.String())
}

// planned reports whether a tracked parameter can change the meaning of a text.
func planned(name string) bool {
	switch name {
	case "client_encoding", "DateStyle", "IntervalStyle", "TimeZone", "standard_conforming_strings", "search_path":
		return true
	}
	return false
}

// keyOf puts settings into one string. Neither has zeros, and names have no equals sign.
func keyOf(params []pgwire.Param) string {
	var b strings.Builder
	for _, p := range params {
		b.WriteString(p.Name)
		b.WriteByte('=')
		b.WriteString(p.Value)
		b.WriteByte(0)
	}
	return b.String()
}

// settingsOfKey undoes keyOf.
func settingsOfKey(key string) (params []pgwire.Param) {
	for setting := range strings.SplitSeq(strings.TrimSuffix(key, "\x00"), "\x00") {
		if name, value, ok := strings.Cut(setting, "="); ok {
			params = append(params, pgwire.Param{Name: name, Value: value})
		}
	}
	return params
}

// sendParameters adds everything between AuthenticationOk and the first command.
func (s *session) sendParameters(baseline []pgwire.Param) {
	w, view := s.c.Writer, s.reported.Value()
	var m pgwire.ParameterStatus
	for _, p := range baseline {
		m = pgwire.ParameterStatus(p)
		if i := tracked(p.Name); i >= 0 && view.known[i] {
			m.Value = view.value[i]
		}
		w.Send(&m)
	}
	key := s.c.Key()
	w.Send(&key)
	w.Send(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
}

// serve is the session from where it stands.
func (s *session) serve() error {
	if !s.resumed {
		s.began = time.Now()
		if err := s.begin(); err != nil && s.c.killed.Load() {
			return s.ended(err)
		} else if err != nil {
			return s.refuse(err)
		}
	}
	return s.run()
}

// run carries the session until its end.
func (s *session) run() error {
	err := s.loop()
	s.lockShared()
	if s.broken != nil {
		err = s.broken // and not what that did to the session's goroutine
	}
	s.unlockShared()
	return s.ended(err)
}

// ended judges how the loop ended, and tells the client.
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
		if !s.partial {
			_ = s.c.Goodbye()
		}
		s.mu.Unlock()
		err = fmt.Errorf("cut off: %w", s.c.over(s.ctx))
	default:
		err = s.explain(err)
	}
	if s.c.AccessLog() && s.pinned {
		s.access(s.began, "session", err)
	}
	return err
}

// errRetired ends a session for which its upstream will never have a server connection again.
var errRetired = errors.New("the upstream has been retired")

// loop handles one message after the other.
func (s *session) loop() error {
	for {
		h, err := s.next()
		if err == errUnderWay { //nolint:errorlint // as idle returned it
			if err := s.turn(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if h.Type == pgwire.TypeTerminate {
			return s.finish()
		}
		if err := s.fromClient(h); err != nil {
			return err
		}
		if !s.c.Reader.HasMessage() {
			if err := s.turn(); err != nil {
				return err
			}
		}
	}
}

// next waits for the client's next message.
func (s *session) next() (pgwire.Header, error) {
	for {
		if s.forwarding && s.c.Reader.HasMessage() {
			return s.c.Reader.Next()
		}
		s.lockShared()
		if s.broken != nil {
			s.unlockShared()
			return pgwire.Header{}, s.broken
		}
		if !s.reading && s.srv == nil && !s.st.skipping {
			s.unlockShared()
			return s.idle()
		}
		err := s.c.Writer.Flush()
		reading, leased := s.reading, s.srv != nil
		s.waiting = true
		s.allowDrain()
		s.unlockShared()
		s.both = s.both && reading
		if err != nil {
			return pgwire.Header{}, err
		}
		h, again, err := s.nextLeased(leased && !reading)
		if err == ErrSuspended { //nolint:errorlint // as watch returned it
			return h, err
		}
		s.lockShared()
		s.waiting = false
		switch {
		case s.broken != nil:
			err = s.broken
		case !s.c.state.CompareAndSwap(clientIdle, clientBusy) && s.c.state.Load() == clientInterrupted:
			err = ErrDraining
		case s.nudged:
			s.nudged = false
			s.clearDeadline()
			if isTimeout(err) && s.c.over(s.ctx) == nil {
				again, err = true, nil
			}
		}
		s.unlockShared()
		if err != nil || !again {
			return h, err
		}
	}
}

// idle waits for the client's next message outside every transaction, and holds as little as can
// be meanwhile.
func (s *session) idle() (pgwire.Header, error) {
	s.st.reset()
	works.Put(s.work)
	s.work, s.meter.asked = nil, 0
	s.x.took = false
	err := s.serveFast()
	switch {
	case err == errUnderWay: //nolint:errorlint // as serveFast returned it
		return pgwire.Header{}, err
	case err != nil:
		s.work = works.Get().(*work)
		return pgwire.Header{}, err
	}
	if s.x.took && s.c.Reader.Buffered() >= headerSize { // it is served, drain or not
		s.work = works.Get().(*work)
		return s.c.Reader.Next()
	}
	wait := s.c.patience()
	if s.x.late {
		s.x.late, wait = false, 0
	}
	h, err := s.c.nextIdle(wait)
	if err == ErrSuspended { //nolint:errorlint // that is what it returns
		return h, err
	}
	s.work = works.Get().(*work)
	return h, err
}

// headerSize is that of a message, in bytes.
const headerSize = 5

// allowDrain makes a client that waits at a boundary one that a drain may end. mu is held.
func (s *session) allowDrain() {
	if !s.waiting || s.c.state.Load() != clientBusy || !(s.srv == nil && !s.st.skipping || s.pinned && s.st.settled()) {
		return
	}
	s.c.state.Store(clientIdle)
	if s.c.isDraining() {
		s.c.interrupt()
	}
}

// explain judges the error that ended the loop: it counts it, tells the client where there is
// something to tell, and returns it for the log.
func (s *session) explain(err error) error {
	s.mu.Lock()
	open := s.srv != nil && !(s.pinned && s.st.settled())
	s.mu.Unlock()
	var lost *backendError
	switch {
	case errors.As(err, &lost):
		return err // told already
	case errors.Is(err, pgwire.ErrLength), errors.Is(err, pgwire.ErrMalformed), errors.Is(err, pgwire.ErrTooLarge):
		return s.protocolError(pgwire.StateProtocolViolation, err)
	case errors.Is(err, errPipeline):
		return s.protocolError(pgwire.StateProgramLimitExceeded, err)
	case errors.Is(err, io.EOF) && !open:
		return nil // without Terminate, but with nothing open
	}
	s.c.CountError(listener.ReasonClientGone)
	return fmt.Errorf("client gone: %w", err)
}

// protocolError tells the client what it did wrong, unless it is in the middle of a message.
func (s *session) protocolError(code string, err error) error {
	s.c.CountError(listener.ReasonProtocol)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.partial {
		_ = s.c.Fatal(code, err.Error(), "")
	}
	return err
}

// refuse ends a session that could not begin, with a line in the log.
func (s *session) refuse(err error) error {
	m := s.leaseError(err)
	s.c.CountSQLState(m.Code)
	s.c.Logger().Warn("client refused", "upstream", s.b.cfg.Name, "sqlstate", m.Code, "error", err)
	m.Severity, m.SeverityUnlocalized = pgwire.SeverityFatal, pgwire.SeverityFatal
	s.c.Writer.Send(m)
	_ = s.c.Conn.SetDeadline(time.Now().Add(lingerTime))
	if s.c.Writer.Flush() == nil {
		linger(s.c.Conn)
	}
	return nil // the log has it
}

// leaseError makes an error of acquire one for the client, and counts it.
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
	case isServer && errors.Is(err, errSettings):
		reason = listener.ReasonProtocol
		s.c.CountError(reason)
		return m
	default:
		if said := saidAtLogin(err); said != nil {
			s.c.CountError(reason)
			return said
		}
	}
	s.c.CountError(reason)
	return errorResponse(pgwire.SeverityError, code, message, hint)
}

// access writes the line of a transaction or session.
func (s *session) access(start time.Time, what string, err error, more ...slog.Attr) {
	attrs := append([]slog.Attr{slog.String("status", what), slog.Duration("duration", time.Since(start)),
		slog.String("upstream", s.b.cfg.Name)}, more...)
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	s.c.Access(s.ctx, attrs...)
}
