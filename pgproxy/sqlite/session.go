package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// Bounds of the memory that one client can make the backend keep.
const (
	maxStatements = 1000
	maxPortals    = 100
	keptMessages  = 4        // a client's statements take at most this many times Config.MaxMessage; its portals' parameters too
	maxSmall      = 64 << 10 // statements and portals up to this many bytes are not counted; their number is bounded
)

// busyAnswers is how many answers to other clients, between two to this one, show that many clients send at once.
const busyAnswers = 4

// session is the session of one client. Serve's goroutine owns it, except for guard, which cancel
// requests use from other goroutines.
type session struct {
	b     *Backend
	c     *pgproxy.Client
	ctx   context.Context // carries parker as pool.Parker
	guard guard
	meter pgproxy.Meter

	parker            *connParker
	settings, initial map[string]string
	before, later     map[string]string // see changing; nil if nothing changed
	statements        map[string]*prepared
	portals           map[string]*portal

	block, failed bool // in a transaction block; failed in it
	mode          txMode
	asked         modes // set by the block's BEGIN and SET TRANSACTION
	savepoints    []string
	pinned        *handle // the transaction's connection
	schemaChanged bool

	skipping   bool // after an error in the extended protocol: skip messages until Sync
	limited    bool // a read deadline is set for the current message
	idle       bool // nothing is outstanding: the session could end here
	row, cell  []byte
	large      []large     // values of the current row that are sent from SQLite's memory
	running    bool        // a statement runs
	sending    bool        // the client has a time limit for reading
	readers    int         // readers that the session holds
	shared     *handle     // the reader that open portals share, see sharedReader
	sharedGen  uint64      // the schema's generation in the snapshot of shared
	lastAnswer uint64      // Backend.answers at its last answer
	shortened  atomic.Bool // the client's limit was shortened and it has taken nothing since

	// Reused for every request, so that sending them allocates nothing.
	readyMessage    pgwire.ReadyForQuery
	completeMessage pgwire.CommandComplete
}

// Causes of an interrupted statement or session.
var (
	errCanceled    = sqlError(pgwire.StateQueryCanceled, "canceling statement due to user request")
	errTimeout     = sqlError(pgwire.StateQueryCanceled, "canceling statement due to statement timeout")
	errClientGone  = errors.New("sqlite: client is gone")
	errIdleTooLong = errors.New("sqlite: idle in transaction for too long")
)

func (s *session) serve() error {
	defer s.releaseAll()
	s.c.OnCancel(func(context.Context) { s.guard.interrupt(errCanceled) })
	defer s.c.OnCancel(nil)
	defer context.AfterFunc(s.ctx, s.guard.endSession)()
	defer s.guard.close()
	s.c.Writer.SetDest(bounded{s})
	defer s.c.Writer.SetDest(s.c.Conn)
	s.sendStartup()
	for {
		h, err := s.next()
		if err == nil {
			err = s.dispatch(h)
		}
		if err != nil {
			return s.finish(err)
		}
	}
}

// releaseAll releases all connections of the session.
func (s *session) releaseAll() {
	s.endBlock()
	_ = s.unpin(false)
	s.closePortals(true)
}

// finish ends the session because of err. It releases the connections before it sends the last
// message: the client may not be reading.
func (s *session) finish(err error) error {
	s.guard.release()
	s.releaseAll()
	_ = s.c.Conn.SetWriteDeadline(time.Now().Add(s.b.cfg.StallTimeout))
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, errClientGone) && s.ctx.Err() == nil:
		s.c.CountError(listener.ReasonClientGone)
		return nil
	case errors.Is(err, pgproxy.ErrDraining):
		return s.c.Goodbye()
	case s.ctx.Err() != nil:
		return s.c.Goodbye()
	case errors.Is(err, errIdleTooLong):
		s.c.CountError(listener.ReasonTimeout)
		return s.c.Fatal("25P03", "terminating connection due to idle-in-transaction timeout",
			"Commit or roll back; an open transaction keeps others from writing.")
	case errors.Is(err, pgwire.ErrLength), errors.Is(err, pgwire.ErrMalformed):
		s.c.CountError(listener.ReasonProtocol)
		return errors.Join(err, s.c.Fatal(pgwire.StateProtocolViolation, err.Error(), ""))
	}
	return err
}

// sendStartup sends the messages of the startup that come before the first ReadyForQuery.
func (s *session) sendStartup() {
	for _, p := range s.c.Params {
		if err := s.set(p.Name, p.Value); err != nil {
			s.notice(pgwire.StateWarning, err.Error())
		}
	}
	s.initial, s.before = maps.Clone(s.settings), nil
	for _, name := range reported {
		s.c.Writer.Send(&pgwire.ParameterStatus{Name: name, Value: s.settings[strings.ToLower(name)]})
	}
	key := s.c.Key()
	s.c.Writer.Send(&key)
	s.ready()
}

func (s *session) ready() {
	status := s.status()
	s.readyMessage.Status = status
	s.c.Writer.Send(&s.readyMessage)
	s.meter.Ready(status, false)
	s.idle = status == pgwire.TxIdle && !s.holds() // a cursor WITH HOLD keeps its connection outside transactions
}

// next waits for the next message. The wait is limited while the session holds a connection.
func (s *session) next() (pgwire.Header, error) {
	if s.ctx.Err() != nil { // the deadlines set at the end of ctx may have been cleared since
		return pgwire.Header{}, context.Cause(s.ctx)
	}
	if s.idle {
		s.yieldToOthers()
		return s.c.NextIdle()
	}
	if s.c.Reader.HasMessage() {
		return s.c.Reader.Next()
	}
	if err := s.c.Writer.Flush(); err != nil {
		return pgwire.Header{}, errClientGone
	}
	if !s.holds() {
		return s.c.NextInTransaction()
	}
	limit := s.timeout("idle_in_transaction_session_timeout", s.b.cfg.IdleInTransaction)
	if err := s.limitRead(time.Now().Add(limit)); err != nil {
		return pgwire.Header{}, err
	}
	s.limited = true
	h, err := s.c.NextInTransaction()
	if err == nil && h.Len > minBodyRate {
		err = s.limitRead(time.Now().Add(limit + time.Duration(h.Len/minBodyRate)*time.Second))
	}
	return h, s.idleError(err)
}

// yieldToOthers lets other ready sessions run before this one flushes its answer, if many clients send at once. The
// answers then reach the sockets close together, and a client process with many connections wakes up once for all of
// them.
func (s *session) yieldToOthers() {
	now := s.b.answers.Add(1)
	if now-s.lastAnswer >= busyAnswers && !s.c.Reader.HasMessage() {
		runtime.Gosched()
	}
	s.lastAnswer = now
}

// limitRead sets the read deadline; the zero time means none. It returns an error if the session has ended, because the
// call may just have replaced the deadline set by a kill or a drain.
func (s *session) limitRead(until time.Time) error {
	if err := s.c.Conn.SetReadDeadline(until); err != nil {
		return errClientGone
	}
	return context.Cause(s.ctx)
}

// minBodyRate is the slowest rate, in bytes per second, at which the rest of a long message may
// arrive while the session holds a connection.
const minBodyRate = 64 << 10

// idleError replaces a read timeout by errIdleTooLong.
func (s *session) idleError(err error) error {
	if s.limited && errors.Is(err, os.ErrDeadlineExceeded) {
		return errIdleTooLong
	}
	return err
}

// body reads or skips the message's body and ends the time limit set by next.
func (s *session) body(skip bool) (body []byte, err error) {
	if skip {
		err = s.c.Reader.Skip()
	} else {
		body, err = s.c.Reader.Body()
	}
	err = s.idleError(err)
	if s.limited {
		s.limited = false
		err = errors.Join(err, s.limitRead(time.Time{}))
	}
	return body, err
}

// holds reports whether the session holds a connection between statements.
func (s *session) holds() bool {
	if s.pinned != nil {
		return true
	}
	for _, p := range s.portals {
		if p.run != nil {
			return true
		}
	}
	return false
}

// dispatch handles one message. A returned error ends the session.
func (s *session) dispatch(h pgwire.Header) error {
	switch h.Type {
	case pgwire.TypeCopyData, pgwire.TypeCopyDone, pgwire.TypeCopyFail: // left over from a failed COPY
		_, err := s.body(true)
		return err
	}
	s.idle = false
	if s.skipping && h.Type != pgwire.TypeSync && h.Type != pgwire.TypeTerminate {
		_, err := s.body(true)
		return err
	}
	if h.Type == pgwire.TypeTerminate {
		return io.EOF
	}
	s.meter.Asked()
	switch h.Type {
	case pgwire.TypeQuery, pgwire.TypeExecute:
		s.meter.Query()
	}
	body, err := s.body(false)
	if errors.Is(err, pgwire.ErrTooLarge) {
		err = sqlError(pgwire.StateProgramLimitExceeded, "message of %d bytes is over the limit of %d", h.Len, s.c.Reader.MaxBody)
		err = s.fail(err, h.Type != pgwire.TypeQuery)
		if err == nil && h.Type == pgwire.TypeQuery {
			s.ready()
		}
		return err
	}
	if err != nil {
		return err
	}
	switch h.Type {
	case pgwire.TypeQuery:
		return s.query(body)
	case pgwire.TypeSync:
		return s.sync()
	case pgwire.TypeFlush:
		return s.flush()
	case pgwire.TypeFunctionCall:
		if err := s.fail(unsupported("the function call message"), false); err != nil {
			return err
		}
		s.ready()
		return nil
	}
	return s.extended(h.Type, body)
}

func (s *session) flush() error {
	if err := s.c.Writer.Flush(); err != nil {
		return errClientGone
	}
	return nil
}

// fail sends err to the client and marks the transaction failed. A returned error ends the session.
func (s *session) fail(err error, skip bool) error {
	s.skipping = skip
	if cause := context.Cause(s.ctx); cause != nil || errors.Is(err, errClientGone) {
		return errClientGone
	}
	if errors.Is(err, pgwire.ErrMalformed) || errors.Is(err, pgwire.ErrLength) || errors.Is(err, errIdleTooLong) {
		return err
	}
	s.abort()
	resp := toResponse(err)
	s.c.CountSQLState(resp.Code)
	if reason := reasonOf(resp.Code); reason != "" {
		s.c.CountError(reason)
		s.c.Logger().Error("sqlite statement failed", "reason", reason, "path", s.b.cfg.Path, "sqlstate", resp.Code, "error", err)
	} else if resp.Code == pgwire.StateTooManyConnections {
		s.c.CountError(listener.ReasonPoolExhausted)
	}
	s.c.Writer.Send(&resp.ErrorResponse)
	return nil
}

func (s *session) notice(state, msg string) {
	n := pgwire.NoticeResponse{ErrorResponse: sqlError(state, "%s", msg).ErrorResponse}
	n.Severity, n.SeverityUnlocalized = pgwire.SeverityWarning, pgwire.SeverityWarning
	s.c.Writer.Send(&n)
}

// query runs the statements of a simple query, outside a block in one implicit transaction.
func (s *session) query(body []byte) error {
	var m pgwire.Query
	if err := m.Decode(body); err != nil {
		return err
	}
	s.closePortal("")
	delete(s.statements, "")
	err := s.guarded(func(ctx context.Context) error { return s.simpleQuery(ctx, m.SQL) })
	if err == nil {
		err = s.endImplicit(true)
	}
	if err != nil {
		if err := s.fail(err, false); err != nil {
			return err
		}
	}
	s.ready()
	return nil
}

func (s *session) simpleQuery(ctx context.Context, sql string) error {
	statements, err := splitStatements(sql)
	if err != nil {
		return err
	}
	if len(statements) == 0 {
		s.c.Writer.Send(&pgwire.EmptyQueryResponse{})
	}
	for i, src := range statements {
		p, err := prepare(src, nil)
		if err == nil {
			err = s.runSimple(ctx, p, len(statements) == 1, i == len(statements)-1)
		}
		if err != nil {
			return shiftPosition(err, sql, src)
		}
	}
	return nil
}

func (s *session) sync() error {
	s.skipping = false
	if err := s.endImplicit(true); err != nil {
		if err := s.fail(err, false); err != nil {
			return err
		}
	}
	s.ready()
	return nil
}

// guarded runs fn with the context of a statement. A cancel request, the statement timeout, a
// disconnect of the client or the end of the session cancels it.
func (s *session) guarded(fn func(ctx context.Context) error) error {
	s.running = true
	err := fn(s.guard.begin())
	s.running = false
	s.stopSending()
	if cause := s.guard.end(); err != nil && cause != nil {
		return cause
	}
	return err
}

func protocolError(format string, args ...any) error {
	return sqlError(pgwire.StateProtocolViolation, "%s", fmt.Sprintf(format, args...))
}
