package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/traffic"
	"github.com/headpond/headpond/upstream"
)

// Backend serves authenticated clients. NewPostgres makes one for PostgreSQL servers, package pgproxy/sqlite one for
// an SQLite file. Methods may be called from any goroutine.
//
// A Backend that wraps another one has a method Unwrap() Backend, by which the proxy finds a *Postgres.
type Backend interface {
	// Serve runs the client's session until the client disconnects (nil), ctx ends, or something fails.
	// AuthenticationOk has been added to c.Writer and not been flushed. Serve sends ParameterStatus, BackendKeyData
	// (c.Key()), ReadyForQuery and everything after. After the call the proxy closes the connection; Serve need not.
	// If Serve returns ErrSuspended, the session is not over, and Serve is called again: see Client.Session.
	Serve(ctx context.Context, c *Client) error
	// Status returns the upstream's state for metrics and the dashboard.
	Status() upstream.Status
	// Name returns the name of the upstream, as in Status.
	Name() string
	// Drain closes the backend's resources once they are unused. Sessions must have been drained
	// before.
	Drain(ctx context.Context) error
}

// postgresOf returns the Postgres that a backend is, or that it wraps; nil = none.
func postgresOf(b Backend) *Postgres {
	for b != nil {
		switch of := b.(type) {
		case *Postgres:
			return of
		case interface{ Unwrap() Backend }:
			b = of.Unwrap()
		default:
			return nil
		}
	}
	return nil
}

// asClient reports whether the gateway logs in to servers as the client's user.
func (l *Login) asClient() bool {
	b := postgresOf(l.backend)
	return b != nil && b.cfg.LoginAs == AsClient
}

// checkNames refuses names that a server would cut off: it would take the client for another user than the one that has
// been authenticated.
func (l *Login) checkNames() error {
	if !l.asClient() || len(l.User) <= maxUserName && len(l.Database) <= maxUserName {
		return nil
	}
	return &refusal{code: pgwire.StateInvalidAuthorization, reason: listener.ReasonProtocol,
		message: fmt.Sprintf("the name of the user or database is longer than %d bytes", maxUserName)}
}

// ErrDraining is returned by Client.NextIdle when the session is to end because the proxy is draining, or because the
// client was idle for longer than Config.ClientIdleTimeout. The client has not been informed; Client.Goodbye does that.
var ErrDraining = errors.New("pgproxy: draining")

// ErrSuspended is returned by Client.NextIdle when the client has been idle for a while; see
// Client.Session.
var ErrSuspended = errors.New("pgproxy: session suspended")

// Client is an authenticated client's connection. It belongs to Backend.Serve until that
// returns, and unless said otherwise to one goroutine at a time.
type Client struct { // 80 bytes, one of the allocator's sizes: there may be very many
	Conn   fiber.Stream   // for deadlines and addresses; reads and writes go through Reader and Writer
	Reader *pgwire.Reader // reads ahead; new after ErrSuspended
	Writer *pgwire.Writer // buffers; Flush before waiting for the client; new after ErrSuspended
	*Login
	// Session is the backend's state, nil at first. It is kept while the session of an idle client gives up its stack,
	// Reader and Writer. Unless Session is nil, NextIdle may return ErrSuspended. Serve must then return that error
	// unchanged and at once. When there is something to read, Serve is called again, possibly on another goroutine,
	// and begins with NextIdle.
	Session any

	worker   atomic.Pointer[worker] // nil = nothing runs for the client
	id       uint32                 // the process ID that the client gets; the key in Proxy.clients
	state    atomic.Int32           // one of the constants from clientBusy on
	activity activity
	flags    atomic.Uint32
}

// The flags of a Client.
const (
	clientTLS      = 1 << iota // received bytes may be a part of a TLS record
	clientKilled               // an operator has ended the session
	clientCounted              // Proxy.counts has the client
	clientToldLast             // Goodbye has set the deadline of the last message
	clientLeft                 // the client has left, and its server connection has not answered in time
	clientTold                 // the client was told why its session ends
	clientOver                 // the session is over, and waits for its client to close: see linger

	sequenceLeases = 8 // from this bit on, flags has machine.sequenceLeases while the session is suspended
)

// keepSequenceLeases keeps machine.sequenceLeases, modulo 2^24, while the session is suspended. Only the session calls
// it.
func (c *Client) keepSequenceLeases(drawn uint32) {
	c.flags.Add(drawn<<sequenceLeases - c.flags.Load()>>sequenceLeases<<sequenceLeases)
}

// sequenceLeaseCount returns what keepSequenceLeases has kept.
func (c *Client) sequenceLeaseCount() uint32 { return c.flags.Load() >> sequenceLeases }

func (c *Client) isTLS() bool  { return c.flags.Load()&clientTLS != 0 }
func (c *Client) killed() bool { return c.flags.Load()&clientKilled != 0 }

// timedOut reports whether the session is to end because the client was idle for too long.
func (c *Client) timedOut() bool { return c.state.Load() == clientTimedOut }

// interrupted reports whether the wait of an idle client is over, and the session with it.
func (c *Client) interrupted() bool { return c.state.Load() == clientInterrupted || c.timedOut() }

// becomeIdle notes that the session waits at a boundary. It returns false if the session was interrupted there.
func (c *Client) becomeIdle() bool {
	return c.state.CompareAndSwap(clientBusy, clientIdle) || c.state.Load() == clientIdle
}

// Login has a client's startup parameters. Clients with the same parameters, which have proven the same secret, share one:
// it must not be changed.
type Login struct {
	User, Database string
	// Params are the parameters of the startup message that are settings: all but user, database, replication and
	// protocol options. Those in "options" are among them, one by one.
	Params []pgwire.Param
	// ApplicationName is the application_name given at startup.
	ApplicationName string
	// Replication is "true" or "database" for a replication connection, else "". A Backend without replication refuses
	// such a client.
	Replication string
	Mode        Mode

	proxy   *Proxy
	backend Backend
	packet  string // startup packet; "" = the next client with the same one does not share the Login
	keySize int    // bytes of the key for cancel requests
	traffic *traffic.Cell
	welcome atomic.Pointer[welcome] // of a Postgres backend; nil = not known yet
	// secret is what the clients have proven to know, for a Postgres backend with AsClient; nil = nothing.
	secret *loginSecret
	pair   uint64 // number of the one that all sessions of the clients are in; 0 = none was. Guarded by the backend's pairs.mu
}

// worker is the work that runs for a client. A cancel request ends it.
type worker struct {
	onCancel func(ctx context.Context) // as set by Client.OnCancel
	onKill   func(error)               // ends the context of Client.Killable; nil = there is none
	session  *session                  // the session of a Postgres backend, instead of onCancel
}

func (w *worker) cancel(ctx context.Context) {
	switch {
	case w.session != nil:
		w.session.cancel(ctx)
	case w.onCancel != nil:
		w.onCancel(ctx)
	}
}

// States of a Client with regard to a drain. Only an idle client is interrupted, by a read deadline.
const (
	clientBusy int32 = iota
	clientIdle
	clientInterrupted
	clientOpen     // a drain waits for a client that holds something: see NextInTransaction
	clientTimedOut // interrupted, because it was idle for too long
)

// Draining returns a channel that is closed when the proxy begins to drain.
func (c *Client) Draining() <-chan struct{} { return c.proxy.srv.Draining() }

// CountError adds one to the listener's errors of a reason, one of package listener's Reason constants.
func (c *Client) CountError(reason string) { c.proxy.srv.CountError(reason) }

// AccessLog reports whether Access writes anything.
func (c *Client) AccessLog() bool { return c.proxy.srv.AccessLog() }

// Access writes a line to the access log, if that is on, for one session or transaction. It adds the client's
// address, user, database and application_name.
func (c *Client) Access(ctx context.Context, attrs ...slog.Attr) {
	if !c.proxy.srv.AccessLog() {
		return
	}
	c.proxy.srv.Access(ctx, append(c.attrs(), attrs...)...)
}

// attrs identify the client.
func (c *Client) attrs() []slog.Attr {
	return []slog.Attr{
		slog.String("client", c.Conn.RemoteAddr().String()), slog.String("user", c.User),
		slog.String("database", c.Database), slog.String("application_name", c.ApplicationName),
	}
}

// Logger returns a logger that adds the client's address, user, database and application_name.
func (c *Client) Logger() *slog.Logger { return slog.New((*clientLog)(c)) }

// warnLimited logs a warning about the client's session. A server that is down fails thousands of clients a second, so the
// listener logs as many lines of msg and about as of a Report; with an access log all, because that has no line about what failed.
// about is what a cause is: the upstream and the class of the SQLSTATE; no text of a client's, as each is kept.
func (c *Client) warnLimited(msg, about string, args ...any) {
	if c.AccessLog() {
		c.Logger().Warn(msg, args...)
		return
	}
	var all []any
	for _, a := range c.attrs() {
		all = append(all, a)
	}
	c.proxy.srv.LogLimited(msg+" "+about, slog.LevelWarn, msg, append(all, args...)...)
}

// logs reports whether the log has lines of a level. Most gateways log nothing about a client that comes and goes, and need
// not make the line's attributes.
func (c *Client) logs(ctx context.Context, level slog.Level) bool {
	return c.proxy.srv.Logger().Enabled(ctx, level)
}

// clientLog is the handler of a Client's Logger. It makes the attributes only when a line is written: most clients
// never log one, and each would hold some hundred bytes for them.
type clientLog Client

var _ slog.Handler = (*clientLog)(nil)

func (l *clientLog) base() slog.Handler { return l.proxy.srv.Logger().Handler() }

func (l *clientLog) with() slog.Handler { return l.base().WithAttrs((*Client)(l).attrs()) }

// Enabled implements slog.Handler.
func (l *clientLog) Enabled(ctx context.Context, level slog.Level) bool {
	return l.base().Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (l *clientLog) Handle(ctx context.Context, r slog.Record) error { return l.with().Handle(ctx, r) }

// WithAttrs implements slog.Handler.
func (l *clientLog) WithAttrs(attrs []slog.Attr) slog.Handler { return l.with().WithAttrs(attrs) }

// WithGroup implements slog.Handler.
func (l *clientLog) WithGroup(name string) slog.Handler { return l.with().WithGroup(name) }

// OnCancel sets the function to call when this client's CancelRequest arrives, nil = none. fn is
// called from another goroutine, at any time until OnCancel is called again or Serve returns,
// possibly after the statement in question has ended.
func (c *Client) OnCancel(fn func(ctx context.Context)) {
	var kill func(error)
	if w := c.worker.Load(); w != nil {
		kill = w.onKill
	}
	if fn == nil && kill == nil {
		c.worker.Store(nil)
		return
	}
	c.worker.Store(&worker{onCancel: fn, onKill: kill})
}

// Current returns the Backend that a client of the same database gets now: another one than the session's after an Update of
// the Proxy, nil if there is none.
func (c *Client) Current() Backend { return c.proxy.settings.Load().backend(c.Database) }

// Working marks that the session waits for something other than the client. If the client
// disconnects meanwhile, the function of OnCancel is called. Done ends it.
func (c *Client) Working() { c.activity.set(c.proxy.ticks.now.Load(), true) }

// Done ends the mark of Working. The time for which the client is idle begins.
func (c *Client) Done() { c.activity.set(c.proxy.ticks.now.Load(), false) }

// NextIdle waits for the next message at a boundary where the session could end: no transaction is open, and
// everything is answered. It first flushes Writer if no message has arrived, and gives buffers back during the wait.
// It returns ErrDraining when the session is to end there, and may return ErrSuspended when the client sends nothing for a
// while: see Session.
func (c *Client) NextIdle() (pgwire.Header, error) {
	if c.activity.n.Load() != 0 {
		c.Done() // what the backend has done for the client may have taken long
	}
	return c.nextIdle(c.patience())
}

// nextIdle is NextIdle with the time after which the session is suspended.
func (c *Client) nextIdle(wait time.Duration) (pgwire.Header, error) {
	if c.Reader.HasMessage() && !c.ends() {
		return c.Reader.Next()
	}
	if err := c.Writer.Flush(); err != nil {
		return pgwire.Header{}, err
	}
	c.Writer.Release()
	c.Reader.Release()
	if !c.becomeIdle() || c.ends() {
		return pgwire.Header{}, ErrDraining
	}
	if c.Session != nil && c.suspend(wait) {
		return pgwire.Header{}, ErrSuspended
	}
	h, err := c.Reader.Next()
	if !c.state.CompareAndSwap(clientIdle, clientBusy) {
		return pgwire.Header{}, ErrDraining
	}
	if err == nil {
		c.Done()
	}
	return h, err
}

// patience is how long an idle client's session keeps its stack; firstPatience is for a client that has made no
// request yet: many clients may log in at once and then be idle, and the memory of stacks is never freed entirely.
const (
	patience      = 100 * time.Millisecond
	firstPatience = 5 * time.Millisecond
)

// patience returns how long the client's session keeps its stack now.
func (c *Client) patience() time.Duration {
	if c.activity.n.Load() == 0 {
		return firstPatience
	}
	return patience
}

// suspend waits for the client. If the wait takes longer than wait, it arranges for Serve to continue the session,
// and returns true. Otherwise the data or error is still unread.
func (c *Client) suspend(wait time.Duration) bool {
	if c.Reader.Buffered() > 0 {
		return false
	}
	if ready, err := c.Conn.WaitReadableFor(wait); ready || err != nil || !c.Conn.Suspend() {
		return false
	}
	c.Reader, c.Writer = nil, nil
	return true
}

// resume continues a suspended session. accepted is Conn, or the connection below Conn's TLS.
func (c *Client) resume(ctx context.Context, accepted *listener.Conn) {
	c.Reader, c.Writer = pgwire.NewReader(c.Conn), pgwire.NewWriter(c.Conn)
	c.carry(ctx, accepted)
}

// carry runs the session until it ends or is suspended.
func (c *Client) carry(ctx context.Context, accepted *listener.Conn) {
	suspended := false
	defer func() {
		if !suspended {
			c.proxy.endStartup(c)
		}
	}()
	err := c.backend.Serve(ctx, c)
	if suspended = err == ErrSuspended; !suspended { //nolint:errorlint // Serve returns it as it is
		c.logEnd(ctx, err, accepted)
	}
}

// ends reports whether the session is to end at its next boundary: the proxy drains, or the client was idle for too long.
func (c *Client) ends() bool { return c.timedOut() || c.proxy.isDraining() }

func (p *Proxy) isDraining() bool { return p.srv.IsDraining() }

// interrupt ends the wait of an idle client. Any goroutine may call it, once Draining is closed.
func (c *Client) interrupt() {
	if c.state.CompareAndSwap(clientIdle, clientInterrupted) {
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// cutOff makes everything that the session waits for fail, after the session's context has ended. Any goroutine may
// call it.
func (c *Client) cutOff() {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	c.cutOffLocked()
}

// cutOffLocked is cutOff with Proxy.mu held. A last message that is under way has its own time.
func (c *Client) cutOffLocked() {
	if c.flags.Load()&clientToldLast == 0 {
		_ = c.Conn.SetDeadline(unixPast)
	} else {
		_ = c.Conn.SetReadDeadline(unixPast)
	}
	if w := c.worker.Load(); w != nil && w.session != nil {
		w.session.cutOff()
	}
}

// Goodbye sends the client its last message: that the gateway is shutting down, an operator has ended the session (57P01),
// or the client was idle for too long (57P05). It flushes, and does not wait for a client that does not read. It also works for
// a client that is cut off.
func (c *Client) Goodbye() error {
	c.proxy.mu.Lock()
	c.flags.Or(clientToldLast)
	_ = c.Conn.SetWriteDeadline(time.Now().Add(goodbyeTime))
	c.proxy.mu.Unlock()
	c.Writer.Retry() // cutOff may have ended the write of an answer
	switch {
	case c.killed():
		return c.Fatal(pgwire.StateAdminShutdown, killedText, "")
	case c.timedOut():
		return c.Fatal(pgwire.StateIdleSessionTimeout, "terminating connection due to idle-session timeout", "")
	}
	return c.Fatal(pgwire.StateAdminShutdown, "headpond is shutting down", "Connect again.")
}

// killedText is PostgreSQL's message for clients whose sessions an operator ends.
const killedText = "terminating connection due to administrator command"

// goodbyeTime bounds Goodbye. The listener resets the connections of sessions that are cut off soon after.
const goodbyeTime = 100 * time.Millisecond

// maySend reports whether a client that was told why its session ends may be sending something: see linger. Of an idle client that
// has sent nothing a drain must not wait for the reaction.
func (c *Client) maySend() bool {
	return c.flags.Load()&clientTold != 0 && (!c.interrupted() || c.Reader.Buffered() > 0 || !c.Conn.State().Idle())
}

// Error adds an ErrorResponse that does not end the session; hint may be empty. It does not flush, and the caller has
// to send ReadyForQuery.
func (c *Client) Error(code, message, hint string) {
	c.CountSQLState(code)
	c.Writer.Send(errorResponse(pgwire.SeverityError, code, message, hint))
}

// Fatal adds an ErrorResponse that ends the session, and flushes; hint may be empty.
func (c *Client) Fatal(code, message, hint string) error {
	c.flags.Or(clientTold)
	c.CountSQLState(code)
	c.Writer.Send(errorResponse(pgwire.SeverityFatal, code, message, hint))
	return c.Writer.Flush()
}

func errorResponse(severity, code, message, hint string) *pgwire.ErrorResponse {
	return &pgwire.ErrorResponse{
		Severity: severity, SeverityUnlocalized: severity, Code: code, Message: message, Hint: hint,
	}
}

// Mode says how long a client keeps a server connection.
type Mode int

// The modes. Statement is like Transaction, also in what pins clients (OnState), but the session ends when the client begins
// a transaction block.
const (
	Transaction Mode = iota // until the transaction ends, or while state pins the client: see OnState; the default
	Session                 // until the client disconnects
	Statement               // as Transaction, and transaction blocks are refused
)

// String returns "transaction", "session" or "statement".
func (m Mode) String() string {
	switch m {
	case Session:
		return "session"
	case Statement:
		return "statement"
	}
	return "transaction"
}
