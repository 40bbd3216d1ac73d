package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
)

// Sizes of the cancel keys we give out, in bytes.
const (
	keySize30 = 4
	keySize32 = 32
)

// maxPreambles bounds the SSLRequest and GSSENCRequest packets before the StartupMessage: a client
// may send one of each.
const maxPreambles = 2

// How long a client that was refused, or whose session was ended, has to read why, and what it may have sent by then, in bytes.
const (
	lingerTime  = time.Second
	lingerBytes = 16 << 20
)

// startup is a connection before it is a Client.
type startup struct {
	proxy    *Proxy
	set      *settings
	accepted *listener.Conn
	conn     fiber.Stream // accepted, or TLS over it
	r        *pgwire.Reader
	w        *pgwire.Writer
	tls      *fiber.TLSConn         // conn, if it is TLS; else nil
	binding  []byte                 // for channel binding; nil = there is none
	startup  *pgwire.StartupMessage // nil = not yet, or there is a login
	packet   string                 // that startup was in
	login    *Login                 // of others that sent the same packet; nil = there was none
	secret   *loginSecret           // what the client has proven to know, if its backend needs that

	stop   context.CancelFunc // ends what the login waits for
	mu     sync.Mutex         // held for a few instructions
	killed bool               // an operator has ended the login
	client *Client            // that the login has made; nil = not yet
}

// log returns a logger with the client's attributes so far.
func (g *startup) log() *slog.Logger { return g.proxy.srv.Logger().With(g.who()...) }

// who identifies the client, as far as it is known.
func (g *startup) who() []any {
	args := []any{"client", g.conn.RemoteAddr().String()}
	if g.login != nil {
		return append(args, "user", g.login.User, "database", g.login.Database, "application_name", g.login.ApplicationName)
	} else if g.startup != nil {
		return append(args, "user", g.startup.Get("user"), "database", g.startup.Get("database"),
			"application_name", g.startup.Get("application_name"))
	}
	return args
}

// ServeConn serves one client; it implements listener.Handler.
func (p *Proxy) ServeConn(ctx context.Context, conn *listener.Conn) {
	// The stack below a session is kept small, and keeps nothing of the startup: there are many
	// clients, and most of them are idle.
	if c := p.startup(ctx, conn); c != nil {
		c.carry(ctx, conn)
	}
}

// startup returns the client that has been authenticated, nil if there is none: it was refused,
// has gone, or was a cancel request.
func (p *Proxy) startup(ctx context.Context, conn *listener.Conn) *Client {
	set := p.settings.Load()
	g := &startup{proxy: p, set: set, accepted: conn, conn: conn, r: pgwire.NewReader(conn), w: pgwire.NewWriter(conn)}
	authenticated := false
	defer func() {
		if !authenticated {
			_ = g.conn.Close()
		}
	}()
	_ = conn.SetDeadline(time.Now().Add(set.LoginTimeout))
	c, err := g.run(ctx)
	if err == errKilled { //nolint:errorlint // as run returned it
		return nil // it is counted, and its connection closed
	}
	if err != nil {
		g.refused(err)
		return nil
	}
	if c == nil {
		return nil
	}
	_ = g.conn.SetDeadline(time.Time{})
	authenticated = true
	p.cutting.Do(func() { context.AfterFunc(ctx, p.cutOff) }) // the context of all sessions
	if c.over(ctx) != nil {
		c.cutOff() // registered too late for that, or its deadline was cleared
	}
	if c.logs(ctx, slog.LevelDebug) {
		c.Logger().Debug("client connected", "mode", c.Mode.String())
	}
	return c
}

// endStartup ends what startup began.
func (p *Proxy) endStartup(c *Client) {
	c.OnCancel(nil)
	c.Writer.Release()
	c.Reader.Release()
	p.unregister(c)
	if c.maySend() {
		c.flags.Or(clientOver)
		_ = c.Conn.SetDeadline(time.Now().Add(lingerTime))
		linger(c.Conn, lingerBytes)
	}
	_ = c.Conn.Close()
}

// endOf returns the kind of a session's end. Clients that vanish, and a server that is down, end thousands of sessions, and the
// log must not omit for them what ends others.
func endOf(err error) string {
	if _, ok := errors.AsType[*backendError](err); ok {
		return "server"
	}
	if errors.Is(err, errClientGone) || errors.Is(err, errClientWrite) {
		return "client"
	}
	return ""
}

// logEnd reports how a session ended.
func (c *Client) logEnd(ctx context.Context, err error, accepted *listener.Conn) {
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		c.warnLimited("session ended", endOf(err), "error", err, "duration", time.Since(accepted.Accepted()))
	case c.logs(ctx, slog.LevelDebug):
		c.Logger().Debug("client left", "duration", time.Since(accepted.Accepted()))
	}
}

// refusal is an error for a client before its session begins.
type refusal struct {
	code    string // SQLSTATE
	message string
	hint    string
	reason  string // for CountError
	cause   error  // for the log only
}

func (r *refusal) Error() string {
	if r.cause != nil {
		return fmt.Sprintf("%s: %v", r.message, r.cause)
	}
	return r.message
}

func (r *refusal) Unwrap() error { return r.cause }

// run reads startup packets until there is an authenticated client. A nil client without an
// error means that there is nothing more to do.
func (g *startup) run(ctx context.Context) (*Client, error) {
	ctx, g.stop = context.WithCancel(ctx)
	defer g.stop()
	done, err := g.readStartup(ctx)
	switch {
	case done && err == nil:
		return nil, nil
	case !g.attach():
		return nil, errKilled
	case err != nil:
		return nil, err
	}
	if g.set.RequireTLS && g.tls == nil && g.conn.LocalAddr().Network() != "unix" {
		return nil, &refusal{code: pgwire.StateInvalidAuthorization, reason: listener.ReasonTLS,
			message: "TLS is required", hint: "Connect with sslmode=require or stricter."}
	}
	login := g.login
	if login == nil {
		if login, err = g.newLogin(); err != nil {
			return nil, err
		}
	}
	if err := g.authenticate(ctx, login); err != nil {
		return nil, err
	}
	if login.backend == nil {
		return nil, &refusal{code: pgwire.StateInvalidCatalogName, reason: listener.ReasonUnknownDatabase,
			message: fmt.Sprintf("database %q does not exist", login.Database),
			hint:    "The gateway's configuration has no such database and no \"*\"."}
	}
	if err := g.set.checkReplication(login); err != nil {
		return nil, err
	}
	if login == g.login && !login.serves(g.secret) {
		login = login.another()
	}
	if login != g.login { // only now: a refused client has no series
		login.secret, login.traffic = g.secret, g.set.cell(g.proxy, login.User, login.Database)
		g.set.logins.keep(login)
	}
	c := &Client{Conn: g.conn, Reader: g.r, Writer: g.w, Login: login}
	if g.tls != nil {
		c.flags.Store(clientTLS)
	}
	if err := g.proxy.register(c, g.set); err != nil {
		return nil, err
	}
	g.handOver(c)
	g.accepted.Attach((*entry)(c)) // true as before: a kill closes no connection any more
	return c, nil
}

// newLogin takes the StartupMessage apart, and tells a client that asks for more than protocol 3.2 what it gets.
func (g *startup) newLogin() (*Login, error) {
	m := g.startup
	user, database := m.Get("user"), m.Get("database")
	if user == "" {
		return nil, &refusal{code: pgwire.StateInvalidAuthorization, reason: listener.ReasonProtocol,
			message: "no PostgreSQL user name specified in startup packet"}
	}
	if database == "" {
		database = user
	}
	params, err := settingsOf(m)
	if err != nil {
		return nil, err
	}
	if err := checkSessionParams(g.set.Mode, params); err != nil {
		return nil, err
	}
	replication, err := replicationOf(m)
	if err != nil {
		return nil, err
	}
	size := keySize30
	if m.Version >= pgwire.Version32 {
		size = keySize32
	}
	login := &Login{
		User: shared(user), Database: shared(database), Params: params,
		ApplicationName: shared(m.Get("application_name")), Replication: replication, Mode: g.set.Mode,
		proxy: g.proxy, backend: g.set.backendFor(database, replication), keySize: size,
	}
	if err := login.checkNames(); err != nil {
		return nil, err
	}
	if n := negotiation(m); n != nil {
		g.w.Send(n) // the next client with the same packet must get it, too
	} else if len(g.packet) <= maxLoginPacket {
		login.packet = g.packet
	}
	return login, nil
}

// another returns a Login with the same parameters.
func (l *Login) another() *Login {
	return &Login{
		User: l.User, Database: l.Database, Params: l.Params, ApplicationName: l.ApplicationName, Replication: l.Replication, Mode: l.Mode,
		proxy: l.proxy, backend: l.backend, packet: l.packet, keySize: l.keySize,
	}
}

// logins are the logins of clients accepted under the present settings, by startup packet: most clients of an
// application send the same one.
type logins struct {
	mu       sync.Mutex // held for a few instructions
	byPacket map[string]*Login
}

// Bounds of logins: the packets of usual clients take about 100 bytes.
const (
	maxLogins      = 1000
	maxLoginPacket = 1 << 10
)

// find returns nil if there is none.
func (l *logins) find(packet []byte) *Login {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byPacket[string(packet)]
}

func (l *logins) keep(login *Login) {
	if login.packet == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.byPacket) >= maxLogins {
		clear(l.byPacket)
	}
	l.byPacket[login.packet] = login
}

// shared returns s as many clients have it, in the same memory.
func shared(s string) string { return unique.Make(s).Value() }

// readStartup reads packets up to the StartupMessage; done means that there will be none.
func (g *startup) readStartup(ctx context.Context) (done bool, err error) {
	if err := g.directTLS(ctx); err != nil {
		return g.noStartup(err)
	}
	for range maxPreambles + 1 {
		packet, err := g.r.Startup()
		if err != nil {
			return g.noStartup(err)
		}
		if g.login = g.set.logins.find(packet); g.login != nil {
			return false, nil
		}
		m, err := pgwire.DecodeStartup(packet)
		if err != nil {
			return false, malformed(err)
		}
		switch m := m.(type) {
		case *pgwire.StartupMessage:
			g.packet, g.startup = string(packet), m
			return false, nil
		case *pgwire.CancelRequest:
			g.cancel(ctx, m)
			return true, nil
		case *pgwire.SSLRequest:
			if err := g.answerSSL(ctx); err != nil {
				return false, err
			}
		case *pgwire.GSSENCRequest:
			if _, err := g.conn.Write([]byte{'N'}); err != nil {
				return true, nil //nolint:nilerr // a client that has left is no error
			}
		}
	}
	return false, &refusal{code: pgwire.StateProtocolViolation, reason: listener.ReasonProtocol,
		message: "too many encryption requests before the startup packet"}
}

// noStartup judges an error of reading a startup packet. Probes of load balancers connect and
// leave; that is no error.
func (g *startup) noStartup(err error) (done bool, _ error) {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, pgwire.ErrLength) && g.terminated():
		return true, nil
	case errors.Is(err, pgwire.ErrLength), errors.Is(err, pgwire.ErrMalformed), errors.Is(err, io.ErrUnexpectedEOF):
		return false, malformed(err)
	}
	return false, err
}

// terminated reports whether the client sent Terminate in place of a startup packet, as node-postgres does when a program
// closes a connection right after it has begun to open it. As PostgreSQL, the gateway does not answer: an answer would be
// an error that nobody in that program handles.
func (g *startup) terminated() bool {
	const message = "X\x00\x00\x00\x04"
	first, err := g.r.PeekStart(1)
	if err != nil || first[0] != pgwire.TypeTerminate {
		return false
	}
	first, err = g.r.PeekStart(len(message))
	return err == nil && string(first) == message
}

func malformed(err error) error {
	return &refusal{code: pgwire.StateProtocolViolation, reason: listener.ReasonProtocol,
		message: "invalid startup packet", cause: err}
}

// answerSSL switches to TLS if that is configured.
func (g *startup) answerSSL(ctx context.Context) error {
	if g.set.TLS == nil || g.tls != nil {
		_, err := g.conn.Write([]byte{'N'})
		return err
	}
	if g.r.Buffered() > 0 { // unencrypted bytes must not pass for encrypted ones
		return malformed(fmt.Errorf("%w: %d bytes after SSLRequest", pgwire.ErrMalformed, g.r.Buffered()))
	}
	if _, err := g.conn.Write([]byte{'S'}); err != nil {
		return err
	}
	t, err := g.startTLS(ctx)
	if err != nil {
		return err
	}
	return g.r.SetSource(t)
}

// startTLS is the server's side of a handshake.
func (g *startup) startTLS(ctx context.Context) (*fiber.TLSConn, error) {
	t := fiber.TLSServer(g.conn, g.set.TLS)
	shown := new(served)
	if err := t.HandshakeContext(context.WithValue(ctx, servedKey{}, shown)); err != nil {
		if g.attach() { // otherwise an operator has ended it
			g.proxy.srv.CountError(listener.ReasonTLS)
		}
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	if shown.certificate != nil {
		g.binding = shown.certificate.binding
	}
	g.tls, g.conn = t, t
	g.w.SetDest(t)
	return t, nil
}

// A client that begins with TLS (sslnegotiation=direct, from PostgreSQL 17 on) must name the protocol, so that no
// protocol can be taken for another.
const (
	tlsHandshake = 0x16 // the type of the first record; a startup packet of that length would be over pgwire.MaxStartup
	alpnProtocol = "postgresql"
)

// directTLS switches to TLS if the client began with it.
func (g *startup) directTLS(ctx context.Context) error {
	if g.set.TLS == nil {
		return nil
	}
	first, err := g.r.PeekStart(1)
	if err != nil || first[0] != tlsHandshake {
		return err
	}
	if first, err = g.r.PeekStart(g.r.Buffered()); err != nil {
		return err
	}
	g.accepted.Unread(first)
	t, err := g.startTLS(ctx)
	if err != nil {
		return err
	}
	g.r = pgwire.NewReader(t)
	if t.ConnectionState().NegotiatedProtocol != alpnProtocol {
		g.proxy.srv.CountError(listener.ReasonTLS)
		return fmt.Errorf("TLS without the protocol (ALPN) %q", alpnProtocol)
	}
	return nil
}

// negotiation returns what a client that asks for more than protocol 3.2 gets, nil if it does not.
func negotiation(m *pgwire.StartupMessage) *pgwire.NegotiateProtocolVersion {
	n := &pgwire.NegotiateProtocolVersion{Version: min(m.Version, pgwire.Version32)}
	for _, p := range m.Params {
		if strings.HasPrefix(p.Name, "_pq_.") {
			n.Options = append(n.Options, p.Name)
		}
	}
	if m.Version <= pgwire.Version32 && len(n.Options) == 0 {
		return nil
	}
	return n
}

// refused reports to client, log and counters why there is no session.
func (g *startup) refused(err error) {
	srv := g.proxy.srv
	if g.wasKilled() {
		g.log().Info("login ended by an operator")
		g.tell(&refusal{code: pgwire.StateAdminShutdown, message: killedText})
		return
	}
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		reason := listener.ReasonClientGone
		if ne, isNet := errors.AsType[net.Error](err); isNet && ne.Timeout() {
			reason = listener.ReasonTimeout
		}
		srv.CountError(reason)
		g.log().Info("client gone before its session began", "error", err)
		return
	}
	srv.CountError(r.reason)
	if !srv.AccessLog() || r.reason == listener.ReasonRateLimited {
		srv.LogLimited(r.reason, slog.LevelWarn, "client refused", append(g.who(), "sqlstate", r.code, "error", err)...)
	} else {
		g.log().Warn("client refused", "sqlstate", r.code, "error", err)
	}
	g.tell(r)
}

// tell sends a refusal to the client.
func (g *startup) tell(r *refusal) {
	_ = g.conn.SetDeadline(time.Now().Add(lingerTime))
	g.w.Retry() // a kill ends writes, too
	g.w.Send(errorResponse(pgwire.SeverityFatal, r.code, r.message, r.hint))
	if g.w.Flush() == nil {
		linger(g.conn, pgwire.MaxStartup)
	}
}

// linger waits until a client that was told why it is disconnected has closed its end, and drops up to most bytes that it
// sends: closing with unread input resets the connection, and destroys the message. The deadline is set already.
func linger(conn fiber.Stream, most int) {
	_ = conn.CloseWrite()
	var dropped []byte // none while the client sends nothing
	for most > 0 {
		if err := conn.WaitReadable(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return
		}
		if dropped == nil {
			dropped = make([]byte, 4<<10)
		}
		n, err := conn.Read(dropped)
		if err != nil {
			return
		}
		most -= n
	}
}

// RejectConn sends a client beyond the connection limit the reason, after its startup packet. A cancel request is not
// limited: it may make room.
func (p *Proxy) RejectConn(conn *listener.Conn, reason error) {
	g := &startup{proxy: p, set: p.settings.Load(), accepted: conn, conn: conn, r: pgwire.NewReader(conn), w: pgwire.NewWriter(conn)}
	done, err := g.readStartup(context.Background())
	if _, refused := errors.AsType[*refusal](err); done || err != nil && !refused {
		return
	}
	hint := "Raise max_conns of the listener, or connect later."
	if errors.Is(reason, listener.ErrSourceFull) {
		hint = "Close some of them, or raise max_connections_per_source of the listener."
	}
	g.w.Send(errorResponse(pgwire.SeverityFatal, pgwire.StateTooManyConnections, fmt.Sprintf("too many connections: %v", reason), hint))
	_ = g.w.Flush()
}
