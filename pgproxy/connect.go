package pgproxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unique"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/internal/tlsclient"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// server is a connection to a PostgreSQL server. It belongs to one session at a time, or to the pool.
type server struct {
	conn fiber.Stream   // with TLS, if that is used
	raw  fiber.Stream   // without TLS
	tls  *fiber.TLSConn // conn, if TLS is used; else nil
	r    *pgwire.Reader
	w    *pgwire.Writer
	key  pgwire.BackendKeyData
	serverState
	shared bool          // used in transaction mode: it may have state that no flag tells of
	idleAt time.Duration // when it was opened, or released last, by clock

	notices   *loginNotices // of the login; nil = none, or they are for no client
	notified  []byte        // notifications that came while collects was set
	collects  bool          // notifications are kept: the client may turn out to listen
	heldSince uint32        // a tick; as statement, guarded by cancelMu of the session that has the connection
	statement []byte        // the beginning of the last statement, if it is to be shown

	// cancelInDoubt means that a cancel request was sent which the server may not have handled yet: it might hit the
	// next statement.
	cancelInDoubt atomic.Bool
	// removed means that the connection was closed while leased, because its endpoint was removed.
	removed atomic.Bool
}

// errRemoved ends a server connection whose endpoint has been removed.
var errRemoved = errors.New("its endpoint has been removed")

// interrupt ends the lease of a server connection, whatever the session does. Other goroutines call it.
func (s *server) interrupt() {
	s.removed.Store(true)
	_ = s.raw.Close()
}

// sessionFlags are the session-state flags: state that a client may have left in a server connection in transaction
// mode.
type sessionFlags byte

const (
	leftSettings sessionFlags = 1 << iota // SET, RESET
	leftListen
	leftPrepare  // PREPARE by SQL
	leftCursor   // maybe WITH HOLD
	leftAnything // state that only DISCARD ALL removes
)

// started is the time at which clock was 0.
var started = time.Now()

// clock returns the time since started. It costs half of time.Now.
func clock() time.Duration { return time.Since(started) }

// connect opens a connection and authenticates.
func connect(ctx context.Context, cfg *PostgresConfig, endpoint string) (*server, error) {
	raw, err := cfg.dial(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	s := newServer(raw, endpoint)
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	err = s.login(ctx, cfg)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = s.conn.Close()
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, context.DeadlineExceeded) && isTimeout(err):
			begun := isStall(err)
			if err = fmt.Errorf("it accepted the connection and did not answer in time: %w", cause); begun {
				err = waitError{err}
			}
		case cause != nil:
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return nil, fmt.Errorf("PostgreSQL server %s: %w", endpoint, err)
	}
	return s, nil
}

// connect opens a connection as the pool does. A pair uses its secret of the moment, also if that is changed while a login
// with an older one fails.
func (b *Postgres) connect(ctx context.Context, endpoint string) (*server, error) {
	if b.pair == nil {
		return connect(ctx, b.login(), endpoint)
	}
	for {
		cfg := *b.login()
		cfg.secret = b.secret.Load()
		s, err := connect(ctx, &cfg, endpoint)
		switch {
		case err == nil:
			b.opened.Store(true)
			b.of.stalls.completed(endpoint)
			return s, nil
		case !pairsOwn(err) || isStall(err) && b.stalled(endpoint):
			return nil, err
		case b.secret.Load() == cfg.secret || ctx.Err() != nil:
			return nil, pairError{err}
		}
	}
}

func newServer(conn net.Conn, endpoint string) *server {
	raw := fiber.StreamOf(conn)
	return &server{conn: raw, raw: raw, serverState: serverState{endpoint: endpoint, peer: peerOf(conn, endpoint)}}
}

// peerOf returns the address that a connection to an endpoint leads to. The name of a host may lead to several servers, and
// several names to one. The address of a connection through a tunnel names the tunnel, too.
func peerOf(conn net.Conn, endpoint string) unique.Handle[string] {
	if addr := conn.RemoteAddr(); addr != nil {
		return unique.Make(addr.Network() + " " + addr.String())
	}
	return unique.Make(endpoint)
}

// releaseBuffers gives the buffers back. The connection will be idle.
func (s *server) releaseBuffers() {
	s.r.Release()
	s.w.Release()
}

func (cfg *PostgresConfig) dial(ctx context.Context, endpoint string) (net.Conn, error) {
	if cfg.Dial != nil {
		return cfg.Dial(ctx, endpoint)
	}
	return netaddr.Dial(ctx, endpoint)
}

// login authenticates on a new connection, and reads up to the first ReadyForQuery.
func (s *server) login(ctx context.Context, cfg *PostgresConfig) error {
	if cfg.TLS != nil {
		if err := s.startTLS(ctx, cfg.TLS); err != nil {
			return err
		}
	}
	s.r, s.w = pgwire.NewReader(s.conn), pgwire.NewWriter(s.conn)
	s.stmts.limit = cfg.StatementCache
	if s.stmts.limit == 0 {
		s.stmts.limit = DefaultStatementCache
	}
	m := pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: cfg.User}, {Name: "database", Value: cfg.DBName}}}
	m.Params = append(m.Params, cfg.Params...)
	s.w.Send(&m)
	if err := s.w.Flush(); err != nil {
		return err
	}
	err := s.authenticate(cfg)
	if err == nil {
		if err = s.readBaseline(); isTimeout(err) {
			err = waitError{err}
		}
	}
	if cfg.LoginAs == AsUpstream {
		s.notices = nil // they are about the gateway's user
	}
	if m, ok := err.(*pgwire.ErrorResponse); ok { //nolint:errorlint // as readError returned it
		return &loginError{ErrorResponse: m, as: cfg.LoginAs}
	}
	return err
}

// waitError is the end of the time for a login that the server has begun and not completed, as while another program locks
// the database. PostgreSQL says whether it accepts a password only when it has the database.
type waitError struct{ error }

func (e waitError) Unwrap() error { return e.error }

// isStall reports whether err is a waitError.
func isStall(err error) bool {
	_, is := errors.AsType[waitError](err)
	return is
}

// loginError is a server's error at login. Clients that wait for the same login share it.
type loginError struct {
	*pgwire.ErrorResponse
	as       LoginAs
	gateways bool // the error is the gateway's, see credentials.refusal
}

func (e *loginError) Unwrap() error { return e.ErrorResponse }

// startTLS asks the server for TLS, and fails if the server refuses.
func (s *server) startTLS(ctx context.Context, cfg *tls.Config) error {
	if _, err := s.raw.Write((&pgwire.SSLRequest{}).Append(nil)); err != nil {
		return err
	}
	var answer [1]byte // only one byte: the next ones belong to TLS
	if _, err := s.raw.Read(answer[:]); err != nil {
		return err
	}
	if answer[0] != 'S' {
		return errNoTLS
	}
	t := fiber.TLSClient(s.raw, tlsclient.ForPostgres(cfg, s.endpoint))
	if err := t.HandshakeContext(ctx); err != nil {
		return err
	}
	s.conn, s.tls = t, t
	return nil
}

var errNoTLS = errors.New("it does not offer TLS: enable ssl there, or remove tls from the upstream")

// authenticate answers the server's authentication requests until AuthenticationOk.
func (s *server) authenticate(cfg *PostgresConfig) error {
	as := credentials{cfg: cfg, secret: cfg.secret}
	step := pgwire.AuthOK // the last step of SCRAM; AuthOK = SCRAM has not begun
	asked := false
	for {
		m, err := s.authRequest()
		if asked && isTimeout(err) {
			err = waitError{err}
		}
		if err != nil {
			return err
		}
		asked = true
		if err := cmp.Or(inTurn(step, m.Kind), as.allows(m.Kind)); err != nil {
			return err
		}
		switch m.Kind {
		case pgwire.AuthOK:
			return nil
		case pgwire.AuthSASLFinal:
			err = as.scram.Verify(m.Data)
		default:
			err = s.prove(&as, m)
		}
		if err == nil {
			err = s.w.Flush()
		}
		if err != nil {
			return err
		}
		if m.Kind != pgwire.AuthCleartext && m.Kind != pgwire.AuthMD5 {
			step = m.Kind
		}
	}
}

// prove answers a request of the server's.
func (s *server) prove(as *credentials, m *pgwire.Authentication) error {
	switch m.Kind {
	case pgwire.AuthCleartext:
		password, err := as.cleartext(s.tls != nil || local(s.endpoint))
		if err == nil {
			s.w.Send(&pgwire.PasswordMessage{Password: password})
		}
		return err
	case pgwire.AuthMD5:
		answer, err := as.md5(m.Salt)
		if err == nil {
			s.w.Send(&pgwire.PasswordMessage{Password: answer})
		}
		return err
	case pgwire.AuthSASL:
		mechanism, data, err := as.begin(m.Mechanisms, s.binding())
		if err == nil {
			s.w.Send(&pgwire.SASLInitialResponse{Mechanism: mechanism, Data: data})
		}
		return err
	case pgwire.AuthSASLContinue:
		var data []byte
		var err error
		fiber.Block(func() { data, err = as.proceed(m.Data) })
		if err == nil {
			s.w.Send(&pgwire.SASLResponse{Data: data})
		}
		return err
	}
	return methodError{fmt.Errorf("it wants authentication by %s, which is not supported: use scram-sha-256, md5, password or trust", m.Kind)}
}

// binding returns the data for channel binding, nil if the connection has none.
func (s *server) binding() []byte {
	if s.tls == nil {
		return nil
	}
	return pgwire.EndPointBinding(s.tls.ConnectionState().PeerCertificates[0])
}

// inTurn checks that a server that has begun SCRAM takes each of its steps once, in order.
func inTurn(last, next pgwire.AuthKind) error {
	switch {
	case next == pgwire.AuthOK && (last == pgwire.AuthSASL || last == pgwire.AuthSASLContinue):
		return fmt.Errorf("%w: the server ended SCRAM without proving itself", pgwire.ErrAuth)
	case next == pgwire.AuthSASLContinue && last != pgwire.AuthSASL,
		next == pgwire.AuthSASLFinal && last != pgwire.AuthSASLContinue,
		next != pgwire.AuthOK && next != pgwire.AuthSASLContinue && next != pgwire.AuthSASLFinal && last != pgwire.AuthOK:
		return fmt.Errorf("%w: the server asks for %s out of order", pgwire.ErrAuth, next)
	}
	return nil
}

// local reports whether data for an endpoint stays on this machine.
func local(endpoint string) bool {
	if strings.HasPrefix(endpoint, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(endpoint)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// authRequest reads the next Authentication message.
func (s *server) authRequest() (*pgwire.Authentication, error) {
	for {
		h, err := s.r.Next()
		if err != nil {
			return nil, err
		}
		switch h.Type {
		case pgwire.TypeAuthentication:
			body, err := s.r.Body()
			if err != nil {
				return nil, err
			}
			m := new(pgwire.Authentication)
			return m, m.Decode(body)
		case pgwire.TypeErrorResponse:
			return nil, s.readError()
		case pgwire.TypeNoticeResponse:
			if err := s.readNotice(h.Len); err != nil {
				return nil, err
			}
		case pgwire.TypeNegotiateProtocolVersion:
		default:
			return nil, fmt.Errorf("%w: type %q during authentication", errBackendProtocol, h.Type)
		}
	}
}

// readError reads the body of an ErrorResponse and returns it as an error.
func (s *server) readError() error {
	body, err := s.r.Body()
	if err != nil {
		return err
	}
	m := new(pgwire.ErrorResponse)
	if err := m.Decode(body); err != nil {
		return err
	}
	return m
}

// readBaseline reads the messages after AuthenticationOk.
func (s *server) readBaseline() error {
	for {
		h, err := s.r.Next()
		if err != nil {
			return err
		}
		switch h.Type {
		case pgwire.TypeErrorResponse:
			return s.readError()
		case pgwire.TypeNoticeResponse:
			if err := s.readNotice(h.Len); err != nil {
				return err
			}
			continue
		}
		body, err := s.r.Body()
		if err != nil {
			return err
		}
		switch h.Type {
		case pgwire.TypeReadyForQuery:
			s.releaseBuffers()
			s.idleAt = clock()
			if s.notices != nil {
				s.notices.at = s.idleAt
			}
			s.view = unique.Make(s.params)
			return nil
		case pgwire.TypeParameterStatus:
			var m pgwire.ParameterStatus
			if err := m.Decode(body); err != nil {
				return err
			}
			s.params.set(m.Name, m.Value)
			s.baseline = append(s.baseline, pgwire.Param(m))
		case pgwire.TypeBackendKeyData:
			if err := s.key.Decode(body); err != nil {
				return err
			}
			s.key.Key = append([]byte(nil), s.key.Key...)
			s.pid = s.key.ProcessID
		}
	}
}

// closeServer sends Terminate, and closes the connection.
func closeServer(s *server) {
	_ = s.conn.SetDeadline(time.Now().Add(closeTimeout))
	s.w.Send(&pgwire.Terminate{})
	_ = s.w.Flush()
	_ = s.conn.Close()
}

// closeTimeout bounds closeServer, because the connection may be dead.
const closeTimeout = 100 * time.Millisecond

// sendCancel asks the server to cancel the statement of a connection. It waits until the server closes the request's
// connection, which shows that the request has been handled.
func sendCancel(ctx context.Context, cfg *PostgresConfig, s *server) error {
	raw, err := cfg.dial(ctx, s.address())
	if err != nil {
		return err
	}
	defer raw.Close()
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c := newServer(raw, s.endpoint)
	if cfg.TLS != nil {
		if err := c.startTLS(ctx, cfg.TLS); err != nil {
			return err
		}
	}
	m := pgwire.CancelRequest{ProcessID: s.key.ProcessID, Key: s.key.Key}
	if _, err := c.conn.Write(m.Append(nil)); err != nil {
		return err
	}
	var b [1]byte
	_, _ = c.conn.Read(b[:]) // the end of the connection, by EOF or reset
	return ctx.Err()
}

// address returns the server's own address: the endpoint's name may stand for several servers.
func (s *server) address() string {
	host, port, err := net.SplitHostPort(s.endpoint)
	if tcp, ok := s.raw.RemoteAddr().(*net.TCPAddr); ok && err == nil && net.ParseIP(host) == nil && strconv.Itoa(tcp.Port) == port {
		return tcp.String()
	}
	return s.endpoint
}

// Probe returns a health check that connects and authenticates as User, and then disconnects. Without a User it only
// connects, by TCP. With AsClient, a server that has no connection left for User is healthy: clients have filled it.
func Probe(cfg PostgresConfig) upstream.Probe {
	if cfg.User == "" {
		return upstream.TCPProbeBy(cfg.dial)
	}
	mayBeFull := cfg.LoginAs == AsClient
	cfg = cfg.own()
	return func(ctx context.Context, endpoint string) error {
		s, err := connect(ctx, &cfg, endpoint)
		if said, ok := errors.AsType[*loginError](err); ok && mayBeFull && said.Code == pgwire.StateTooManyConnections {
			return nil
		}
		if err != nil {
			return err
		}
		closeServer(s)
		return nil
	}
}
