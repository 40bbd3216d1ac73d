package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// sendTimeout is how long a client may take to receive an answer: its rows are in memory until then.
const sendTimeout = time.Minute

// sendBytes is about how many bytes of rows are encoded at once.
const sendBytes = 256 << 10

// session is a client's session. It is also what is kept while the session is suspended. The session's own goroutine or
// fiber uses it; others only send to cancel.
type session struct {
	c     *pgproxy.Client
	ctx   context.Context // ends when the session is to end; of this part of the session
	meter pgproxy.Meter

	statements map[string]*prepared // nil = none yet
	portals    map[string]*portal
	skipping   bool // after an error in the extended protocol: skip messages until Sync
	busy       bool // a message has come since the last ReadyForQuery
	// cancel has a value if a cancel request has come since the client's request began, or the client has left.
	cancel chan struct{}
}

func newSession(c *pgproxy.Client) *session {
	return &session{c: c, meter: c.Meter(), cancel: make(chan struct{}, 1)}
}

// The errors that end a session, besides those of the connection.
var (
	errOver     = errors.New("console: the session is over")
	errCanceled = failed(pgwire.StateQueryCanceled, "", "canceling command due to user request")
)

// parameters are what the console reports about itself, after the version.
var parameters = []pgwire.ParameterStatus{
	{Name: "server_version", Value: emulated + "/bouncer"}, {Name: "client_encoding", Value: "UTF8"}, {Name: "server_encoding", Value: "UTF8"},
	{Name: "DateStyle", Value: "ISO"}, {Name: "TimeZone", Value: "GMT"}, {Name: "integer_datetimes", Value: "on"},
	{Name: "standard_conforming_strings", Value: "on"}, {Name: "is_superuser", Value: "on"},
}

// serve runs a new or resumed session to its end or suspension.
func (s *session) serve(ctx context.Context, resumed bool) error {
	ctx, end := s.c.Killable(ctx)
	defer end()
	s.ctx = ctx
	s.c.OnCancel(func(context.Context) {
		select {
		case s.cancel <- struct{}{}:
		default: // there is one already
		}
	})
	defer s.c.OnCancel(nil)
	s.c.Reader.MaxBody = maxMessage
	if !resumed {
		for i := range parameters {
			s.c.Writer.Send(&parameters[i])
		}
		key := s.c.Key()
		s.c.Writer.Send(&key)
		s.ready()
	}
	return s.ended(s.loop())
}

func (s *session) loop() error {
	for {
		if err := context.Cause(s.ctx); err != nil {
			return err
		}
		h, err := s.c.NextIdle() // there is no transaction: the session may end, or be suspended, between any two messages
		if err == nil {
			err = s.dispatch(h)
		}
		if err != nil {
			return err
		}
	}
}

// ended handles the end of the session's loop, and informs the client.
func (s *session) ended(err error) error {
	switch {
	case err == pgproxy.ErrSuspended, errors.Is(err, io.EOF), err == errOver: //nolint:errorlint // as NextIdle and live returned them
		if err == pgproxy.ErrSuspended { //nolint:errorlint // likewise
			return err
		}
		return nil
	case errors.Is(err, pgproxy.ErrDraining), s.ctx.Err() != nil:
		return s.c.Goodbye()
	case errors.Is(err, pgwire.ErrLength), errors.Is(err, pgwire.ErrMalformed):
		s.c.CountError(listener.ReasonProtocol)
		s.limitSend()
		return errors.Join(err, s.c.Fatal(pgwire.StateProtocolViolation, err.Error(), ""))
	}
	s.c.CountError(listener.ReasonClientGone)
	return err
}

// limitSend bounds the time for sending what follows. The session's end may have set a deadline, which must not be lost.
func (s *session) limitSend() {
	_ = s.c.Conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	if s.ctx.Err() != nil {
		_ = s.c.Conn.SetWriteDeadline(time.Unix(1, 0))
	}
}

// dispatch handles one message. A returned error ends the session.
func (s *session) dispatch(h pgwire.Header) error {
	switch h.Type {
	case pgwire.TypeTerminate:
		return io.EOF
	case pgwire.TypeCopyData, pgwire.TypeCopyDone, pgwire.TypeCopyFail:
		return s.c.Reader.Skip()
	}
	if s.skipping && h.Type != pgwire.TypeSync {
		return s.c.Reader.Skip()
	}
	if !s.busy { // a cancel request that came before is not for this request
		s.busy = true
		select {
		case <-s.cancel:
		default:
		}
	}
	s.meter.Asked()
	if h.Type == pgwire.TypeQuery || h.Type == pgwire.TypeExecute {
		s.meter.Query()
	}
	body, err := s.c.Reader.Body()
	if errors.Is(err, pgwire.ErrTooLarge) {
		if err := s.c.Reader.Skip(); err != nil {
			return err
		}
		s.limitSend()
		return s.failMessage(h.Type, failed(pgwire.StateProgramLimitExceeded, "", "message of %d bytes is over the console's limit of %d", h.Len, maxMessage))
	}
	if err != nil {
		return err
	}
	s.limitSend()
	switch h.Type {
	case pgwire.TypeQuery:
		return s.query(body)
	case pgwire.TypeSync:
		s.skipping, s.portals = false, nil // a Sync ends the transaction, and with it the portals
		s.ready()
		return nil
	case pgwire.TypeFlush:
		return s.c.Writer.Flush()
	case pgwire.TypeFunctionCall:
		return s.failMessage(pgwire.TypeQuery, failed(pgwire.StateFeatureNotSupported, "", "the console has no functions"))
	}
	return s.failMessage(h.Type, s.extended(h.Type, body))
}

// failMessage reports an error of a message, nil = none. It returns errors that end the session.
func (s *session) failMessage(typ byte, err error) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*commandError](err)
	if !ok {
		return err
	}
	s.c.Error(e.code, e.message, e.hint)
	if s.skipping = typ != pgwire.TypeQuery; !s.skipping {
		s.ready()
	}
	return nil
}

func (s *session) ready() {
	s.c.Writer.Send(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
	s.meter.Ready(pgwire.TxIdle, false)
	s.busy = false
}

// query runs the commands of a simple query, up to the first that fails.
func (s *session) query(body []byte) error {
	var m pgwire.Query
	if err := m.Decode(body); err != nil {
		return err
	}
	delete(s.statements, "")
	list, err := split(m.SQL)
	if err == nil && len(list) == 0 {
		s.c.Writer.Send(&pgwire.EmptyQueryResponse{})
	}
	for i := 0; i < len(list) && err == nil; i++ {
		var r *result
		if r, err = s.run(&list[i]); err == nil {
			err = s.send(r)
		}
	}
	if err != nil {
		return s.failMessage(pgwire.TypeQuery, err)
	}
	s.ready()
	return nil
}

// stopped returns an error if nothing more of a request is to be run: it was canceled, or the session is to end at once.
// A drain lets the client's request finish.
func (s *session) stopped() error {
	select {
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	case <-s.cancel:
		return errCanceled
	default:
		return nil
	}
}

// send sends the answer to a command of a simple query.
func (s *session) send(r *result) error {
	s.sendNotices(r)
	if r.columns != nil {
		s.c.Writer.Send(&pgwire.RowDescription{Fields: r.fields(nil)})
		if err := s.sendRows(r, r.rows, nil); err != nil {
			return err
		}
	}
	s.c.Writer.Send(&pgwire.CommandComplete{Tag: r.tag})
	return nil
}

func (s *session) sendNotices(r *result) {
	for i := range r.notices {
		s.c.Writer.Send(&pgwire.NoticeResponse{ErrorResponse: r.notices[i]})
	}
}

// sendRows sends rows of a result. There may be very many, so they are encoded off the loop.
func (s *session) sendRows(r *result, rows []row, formats []int16) error {
	for len(rows) > 0 {
		var encoded []byte
		fiber.Block(func() {
			n := 0
			for ; n < len(rows) && len(encoded) < sendBytes; n++ {
				encoded = r.appendRow(encoded, rows[n], formats)
			}
			rows = rows[n:]
		})
		s.limitSend()
		if _, err := s.c.Writer.Write(encoded); err != nil {
			return fmt.Errorf("send rows: %w", err)
		}
	}
	return nil
}
