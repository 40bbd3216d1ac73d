//go:build unix && storm

package gateway_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// rowState is what a client knows of a row that it has inserted.
type rowState int

const (
	rowUnknown   rowState = iota // its COMMIT had no answer
	rowCommitted                 // its COMMIT was answered
	rowAborted                   // it had an error, or was rolled back
)

// stormClient makes sessions, one after the other.
type stormClient struct {
	*storm
	id    int
	round uint64
	r     *rand.Rand
	tags  int
	rows  map[int]rowState
}

// stormSession is a connection of a client.
type stormSession struct {
	*stormClient
	conn     net.Conn
	f        *pgproto3.Frontend
	pid      uint32
	key      []byte
	settings stormSettings
	reloads  int  // when it logged in
	canceled bool // it has sent a cancel request
	tx       byte // of the last ReadyForQuery
	work     string
	trail    []string // what it did

	temp, named, sqlNamed, held, setting string // tags of its state; empty: none
	lost                                 bool   // state that pins may be gone
	listens                              bool
	heard                                map[string]bool
}

// stormAnswer is an answer up to ReadyForQuery.
type stormAnswer struct {
	rows  []string // the first column
	nulls int
	tags  []string // of CommandComplete
	copy  string
	err   *pgproto3.ErrorResponse
	types []string // of all messages
}

// errStormEnd is the end of a session.
var errStormEnd = errors.New("the session has ended")

// tag returns a new text that no other request has.
func (c *stormClient) tag() string {
	c.tags++
	return fmt.Sprintf("c%d.%d", c.id, c.tags)
}

func (c *stormClient) oneIn(n int) bool { return c.r.IntN(n) == 0 }

// session logs in, works, and leaves.
func (c *stormClient) session() {
	s := c.login()
	if s == nil {
		return
	}
	defer func() { _ = s.conn.Close() }()
	if c.oneIn(2) && s.witness() != nil {
		return
	}
	for range 4 + c.r.IntN(8) {
		if s.step() != nil {
			return
		}
	}
	s.leave()
}

// login returns a session, nil if none could be had in time.
func (c *stormClient) login() *stormSession {
	for range 300 {
		before, reloads := c.current()
		cfg, err := pgconn.ParseConfig(c.dsn())
		if err != nil {
			c.failed("%v", err)
			return nil
		}
		cfg.ConnectTimeout = 90 * time.Second
		cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c.accepted.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
		conn, err := pgconn.ConnectConfig(context.Background(), cfg)
		if err == nil {
			h, err := conn.Hijack()
			if err != nil {
				c.failed("%v", err)
				return nil
			}
			return &stormSession{stormClient: c, conn: h.Conn, f: h.Frontend, pid: h.PID, key: h.SecretKey, tx: 'I', settings: before, reloads: reloads, heard: map[string]bool{}}
		}
		e, ok := errors.AsType[*pgconn.PgError](err)
		switch {
		case ok && c.loginError(e.Code):
			c.count("login " + e.Code)
		case !ok && c.allowed("kill") && !errors.Is(err, context.DeadlineExceeded): // in the middle of the login
			c.count("login without an answer")
		default:
			c.failed("client %d: login: %v", c.id, err)
			return nil
		}
		wait(time.Duration(1+c.r.IntN(20)) * time.Millisecond)
	}
	return nil
}

// dsn is how the client logs in.
func (c *stormClient) dsn() string {
	mode := "disable"
	if c.fixed.clientTLS {
		mode = "require"
	}
	host, port, _ := net.SplitHostPort(c.fixed.listen)
	return fmt.Sprintf("host=%s port=%s user=storm%d password=pw dbname=%s sslmode=%s application_name=c%d", host, port, c.id%stormUsers, oneOf(c.r, "postgres", "other"), mode, c.id)
}

// loginError reports whether a login may fail with a SQLSTATE.
func (c *stormClient) loginError(code string) bool {
	switch code {
	case "53300", "57P01", "57P02", "57P03", "08006":
		return true
	}
	return c.allowed(code)
}

// messages sends messages and returns the answers to n Syncs and Queries.
func (s *stormSession) messages(n int, messages ...pgproto3.FrontendMessage) ([]stormAnswer, error) {
	var b []byte
	for _, m := range messages {
		b, _ = m.Encode(b)
	}
	return s.bytes(n, b)
}

func (s *stormSession) bytes(n int, b []byte) ([]stormAnswer, error) {
	_ = s.conn.SetDeadline(time.Now().Add(90 * time.Second))
	if _, err := s.conn.Write(b); err != nil { // the end is to be read
		if errors.Is(err, context.DeadlineExceeded) {
			s.wrong("hangs while it sends")
		}
	}
	var answers []stormAnswer
	for range n {
		a, err := s.answer()
		if err != nil {
			return answers, err
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// answer reads up to ReadyForQuery, or CopyInResponse.
func (s *stormSession) answer() (a stormAnswer, err error) {
	for {
		m, err := s.f.Receive()
		if err != nil {
			return a, s.ended(a, err)
		}
		a.types = append(a.types, fmt.Sprintf("%T", m))
		switch m := m.(type) {
		case *pgproto3.DataRow:
			if len(m.Values) == 0 || m.Values[0] == nil {
				a.nulls++
				a.rows = append(a.rows, "")
			} else {
				a.rows = append(a.rows, string(m.Values[0]))
			}
		case *pgproto3.CommandComplete:
			a.tags = append(a.tags, string(m.CommandTag))
		case *pgproto3.CopyData:
			a.copy += string(m.Data)
		case *pgproto3.CopyInResponse:
			return a, nil
		case *pgproto3.ErrorResponse:
			copied := *m
			if a.err != nil && m.Severity != "FATAL" {
				s.wrong("two errors in an answer: %s, %s", a.err.Code, m.Code)
			}
			a.err = &copied
			s.checkError(&copied)
		case *pgproto3.NotificationResponse:
			s.notified(m)
		case *pgproto3.ReadyForQuery:
			s.tx = m.TxStatus
			return a, nil
		case *pgproto3.ParameterStatus, *pgproto3.NoticeResponse, *pgproto3.ParseComplete, *pgproto3.BindComplete, *pgproto3.CloseComplete, *pgproto3.NoData, *pgproto3.RowDescription, *pgproto3.ParameterDescription, *pgproto3.PortalSuspended, *pgproto3.EmptyQueryResponse, *pgproto3.CopyOutResponse, *pgproto3.CopyDone:
		default:
			s.wrong("unexpected message %T", m)
		}
	}
}

// ended notes the end of the session.
func (s *stormSession) ended(a stormAnswer, err error) error {
	ne, isNet := errors.AsType[net.Error](err)
	switch {
	case isNet && ne.Timeout():
		s.wrong("hangs: no answer within 90s; sessions: %+v", s.gw.Sessions())
	case a.err != nil && a.err.Severity == "FATAL":
		s.count("FATAL " + a.err.Code)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isNet:
		s.wrong("the connection ends without an error: %v, after %v", err, a.types)
	default:
		s.wrong("it gets no message of the protocol: %v", err)
	}
	return errStormEnd
}

// checkError: only documented errors.
func (s *stormSession) checkError(e *pgproto3.ErrorResponse) {
	s.count(e.Severity + " " + e.Code)
	switch e.Code {
	case "53300", "57P01", "57P02", "57P03", "08006":
		return
	case "57014":
		if s.canceled || strings.Contains(e.Message, "statement timeout") && s.allowed("timeout") || strings.Contains(e.Message, "COPY from stdin failed") {
			return
		}
	case "22012", "25P02": // what it asks for
		return
	case "53400", "0A000":
		s.lost = true
		return
	case "55P03":
		if s.listens {
			return
		}
	default:
		if s.allowed(e.Code) {
			return
		}
		if s.mayLose() && (e.Code == "42P01" || e.Code == "34000" || e.Code == "26000") {
			return
		}
	}
	s.wrong("%s %s: %s (%s)", e.Severity, e.Code, e.Message, e.Hint)
}

// mayLose reports whether state that pins may be gone.
func (s *stormSession) mayLose() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = s.lost || s.unpinned >= s.reloads
	return s.lost
}

// fault reports whether the error is one of the server or the gateway, after which the fate of an autocommit is unknown.
func fault(e *pgproto3.ErrorResponse) bool {
	switch e.Code {
	case "57P01", "57P02", "57P03", "08006", "57P05", "25P03":
		return true
	}
	return false
}

// wrong reports a failure.
func (s *stormSession) wrong(format string, args ...any) {
	s.failed("client %d, %v, pid %d, in %s, after %v, settings %+v: %s", s.id, s.conn.LocalAddr(), s.pid, s.work, s.trail, s.settings, fmt.Sprintf(format, args...))
}

// one sends messages with one ReadyForQuery.
func (s *stormSession) one(messages ...pgproto3.FrontendMessage) (stormAnswer, error) {
	answers, err := s.messages(1, messages...)
	if err != nil {
		return stormAnswer{}, err
	}
	return answers[0], nil
}

func (s *stormSession) query(format string, args ...any) (stormAnswer, error) {
	return s.one(&pgproto3.Query{String: fmt.Sprintf(format, args...)})
}

// want compares an answer with the rows that it must have if it is no error.
func (s *stormSession) want(a stormAnswer, rows ...string) {
	got := strings.Join(a.rows, "|")
	want := strings.Join(rows, "|")
	if a.err != nil {
		if !strings.HasPrefix(want, got) {
			s.wrong("got %.200q before an error, want %.200q", got, want)
		}
		return
	}
	if got != want {
		s.wrong("got %.200q, want %.200q", got, want)
	}
}

// notified checks a notification.
func (s *stormSession) notified(m *pgproto3.NotificationResponse) {
	own := fmt.Sprintf("storm%d", s.id)
	if !s.listens || m.Channel != own || !strings.HasPrefix(m.Payload, "to"+own+".") {
		s.wrong("notification %q on %q", m.Payload, m.Channel)
	}
	if s.heard[m.Payload] {
		s.wrong("notification %q comes twice", m.Payload)
	}
	s.heard[m.Payload] = true
}

// cancel sends a cancel request.
func (s *stormSession) cancel() {
	s.canceled = true
	conn, err := net.Dial("tcp", s.fixed.listen)
	if err != nil {
		s.wrong("cancel: %v", err)
		return
	}
	s.accepted.Add(1)
	packet := binary.BigEndian.AppendUint32(nil, uint32(12+len(s.key))) //nolint:gosec // it is short
	packet = binary.BigEndian.AppendUint32(packet, 80877102)
	packet = binary.BigEndian.AppendUint32(packet, s.pid)
	_, _ = conn.Write(append(packet, s.key...))
	_ = conn.SetDeadline(time.Now().Add(90 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		s.wrong("cancel: %v", err)
	}
	_ = conn.Close()
}

// witness: it sees the state of nobody else.
func (s *stormSession) witness() error {
	s.work = "witness"
	a, err := s.query(`select concat_ws('|', nullif(current_setting('storm.tag', true), ''), current_setting('work_mem'), to_regclass('pg_temp.storm_temp'),
		(select count(*) from pg_prepared_statements), (select count(*) from pg_cursors), (select count(*) from pg_listening_channels()), (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
		current_setting('application_name'), current_user = session_user)`)
	if err == nil {
		s.want(a, fmt.Sprintf("4MB|0|0|0|0|c%d|t", s.id))
	}
	return err
}

// checkRows compares the table with what the client knows.
func (c *stormClient) checkRows() {
	counts := map[int]int{}
	c.direct(func(conn *pgx.Conn) error {
		clear(counts)
		rows, err := conn.Query(context.Background(), "select n, count(*) from storm_rows where round = $1 and client = $2 group by n", c.round, c.id)
		if err != nil {
			return err
		}
		var n, count int
		_, err = pgx.ForEachRow(rows, []any{&n, &count}, func() error { counts[n] = count; return nil })
		return err
	})
	for n, state := range c.rows {
		if count := counts[n]; count > 1 || state == rowCommitted && count != 1 || state == rowAborted && count != 0 {
			c.failed("client %d: row %d is there %d times, and its state is %d", c.id, n, count, state)
		}
		delete(counts, n)
	}
	if len(counts) > 0 {
		c.failed("client %d: rows that it has not inserted: %v", c.id, counts)
	}
}
