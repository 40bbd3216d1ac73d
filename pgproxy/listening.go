package pgproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// In transaction mode one server connection of a backend, the listening connection, listens for all of the backend's
// clients: see notify.go for what sessions do, listenconn.go for the connection, and subscription.go for the state of
// one client. The connection is opened when the first client listens, and closed some time after the last one has
// gone. It is in no pool.

// Bounds of channels, per client and in all. A client that exceeds one of them keeps a server connection of its own
// to listen: for each notification, a server compares the channel with all those that a connection listens to.
const (
	maxChannels    = 1000
	maxAllChannels = 10_000
)

const (
	listenTimeout   = 30 * time.Second // for the login of the listening connection, and for one of its commands
	listenCheckTime = 30 * time.Second // between two checks of the listening connection
)

// listenPatience has the times that sessions wait for the listening connection, with a server connection leased.
type listenPatience struct {
	login time.Duration // for its login
	lock  time.Duration // for PostgreSQL's lock on notifications, with which a fence is sent
	fence time.Duration // for a fence to be sent, and then to come
}

// usualPatience is what backends use. Tests make it longer.
var usualPatience = listenPatience{login: 5 * time.Second, lock: 5 * time.Second, fence: 10 * time.Second}

// After a failure, for these times, clients keep their server connections to listen, instead of all trying again.
const (
	unfitAfterLogin = 10 * time.Second
	unfitForFences  = time.Minute // the server does not send fences, or the endpoint leads to several servers
)

// listening is the part of a backend with which its clients listen. Any goroutine may call its methods.
type listening struct {
	n     atomic.Int32 // the number of clients that listen
	unfit atomic.Int64 // until this time, by clock, clients keep their server connections to listen; 0 = they need not

	mu               sync.Mutex // held for a few instructions
	conn             *listenConn
	login            *listenLogin // under way; nil = none
	closed           bool         // no further connection will be opened
	movedAt          time.Time    // when the endpoint last led to another server; zero: never
	why              error        // why unfit is set
	refused          bool         // a login was why
	suspensionLogged bool         // a doubt has been logged since the last listening connection was opened
	clients          map[*Client]*subscription

	patience listenPatience // zero = usualPatience
}

// patient returns the times that sessions wait.
func (l *listening) patient() listenPatience {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.patience, usualPatience)
}

// listenLogin is the login of a listening connection. conn and err are set when done is closed.
type listenLogin struct {
	cancel context.CancelFunc
	done   chan struct{}
	conn   *listenConn
	err    error
}

// know registers a client that listens.
func (l *listening) know(s *subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.clients == nil {
		l.clients = map[*Client]*subscription{}
	}
	l.clients[s.c] = s
	l.n.Store(int32(len(l.clients)))
}

// forget undoes know.
func (l *listening) forget(c *Client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.clients, c)
	l.n.Store(int32(len(l.clients)))
}

// channels returns the number of channels to which a client listens by the listening connection.
func (l *listening) channels(c *Client) int {
	if l.n.Load() == 0 {
		return 0
	}
	l.mu.Lock()
	s := l.clients[c]
	l.mu.Unlock()
	if s == nil {
		return 0
	}
	_, channels := s.state()
	return len(channels)
}

// suspendListening makes clients keep their server connections to listen, for a time, because of an error. Only the
// first doubt is logged until a listening connection has been opened.
func (b *Postgres) suspendListening(why error, within time.Duration) {
	l := &b.listening
	l.mu.Lock()
	l.why, l.refused = why, within == unfitAfterLogin
	l.unfit.Store(int64(clock() + within))
	quiet := l.suspensionLogged || l.closed
	l.suspensionLogged = true
	l.mu.Unlock()
	if !quiet && b.life.Err() == nil {
		b.cfg.Logger.Warn("LISTEN pins clients to server connections for a time", "upstream", b.cfg.Name, "error", why)
	}
}

// loginWorks ends a doubt that a failed login caused: a server connection has been opened since.
func (l *listening) loginWorks() {
	if l.unfit.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused {
		l.why, l.refused = nil, false
		l.unfit.Store(0)
	}
}

// suspendedBy returns why clients must keep their server connections to listen now, nil if they need not.
func (l *listening) suspendedBy() error {
	if until := l.unfit.Load(); until == 0 || clock() >= time.Duration(until) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// cannotListen returns why clients cannot use the listening connection now, nil if they can as far as is known. It is
// cheap.
func (b *Postgres) cannotListen() error {
	switch {
	case b.up.OnlyEndpoint() == "":
		return errSeveralEndpoints
	case b.retired.Load() && b.listening.working() == nil:
		return errRetired
	}
	return b.listening.suspendedBy()
}

var errSeveralEndpoints = errors.New("the upstream has several endpoints, or none")

// get returns the listening connection to an endpoint. It opens one if there is none, and waits for it until ctx
// ends. It blocks the calling goroutine.
func (l *listening) get(ctx context.Context, b *Postgres, endpoint string) (*listenConn, error) {
	l.mu.Lock()
	if conn := l.conn; conn != nil && conn.ended() == nil {
		l.mu.Unlock()
		if conn.srv.endpoint != endpoint {
			return nil, fmt.Errorf("clients listen at %s", conn.srv.endpoint)
		}
		return conn, nil
	}
	if l.closed {
		l.mu.Unlock()
		return nil, errRetired
	}
	login := l.login
	if login == nil {
		login = &listenLogin{done: make(chan struct{})}
		var loginCtx context.Context
		loginCtx, login.cancel = context.WithTimeout(context.Background(), listenTimeout) //nolint:gosec // open calls it
		l.login = login
		go l.open(loginCtx, b, endpoint, login)
	}
	l.mu.Unlock()
	select {
	case <-login.done:
		return login.conn, login.err
	case <-ctx.Done():
		err := fmt.Errorf("the login of the listening connection: %w", context.Cause(ctx))
		if errors.Is(err, context.DeadlineExceeded) {
			b.suspendListening(err, unfitAfterLogin)
		}
		return nil, err
	}
}

// open opens the listening connection. It is a goroutine.
func (l *listening) open(ctx context.Context, b *Postgres, endpoint string, login *listenLogin) {
	defer login.cancel()
	conn, err := guardedListenConn(ctx, b, endpoint)
	if err != nil {
		err = fmt.Errorf("the login of the listening connection: %w", err)
		b.suspendListening(err, unfitAfterLogin)
	}
	l.mu.Lock()
	if l.login = nil; err == nil {
		l.conn, l.suspensionLogged = conn, false
	}
	closed := l.closed
	l.mu.Unlock()
	login.conn, login.err = conn, err
	close(login.done)
	if closed && conn != nil {
		conn.closeUnneeded()
	}
}

// working returns the listening connection, nil if there is none that works.
func (l *listening) working() *listenConn {
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn == nil || conn.ended() != nil {
		return nil
	}
	return conn
}

// close ends the listening connection as soon as no client uses it. No other one will be opened.
func (l *listening) close() {
	l.mu.Lock()
	l.closed = true
	conn := l.conn
	if l.login != nil {
		l.login.cancel()
	}
	l.mu.Unlock()
	if conn != nil {
		conn.closeUnneeded()
	}
}

// isClosed reports whether close has been called.
func (l *listening) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// compare ends the listening connection if a new server connection to the same endpoint has reached another server: a
// name or an address has moved. The clients that listen are informed. If the endpoint moves again soon, it leads to
// several servers. An error means that the new connection has failed.
func (l *listening) compare(ctx context.Context, s *server) error {
	l.loginWorks()
	conn := l.working()
	if conn == nil || conn.srv.endpoint != s.endpoint || conn.boot == "" {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(unixPast) })
	rows, err := s.settingRows(bootSQL)
	if !stop() {
		return context.Cause(ctx)
	}
	if boot := bootOf(rows); boot != "" && boot != conn.boot {
		conn.moved()
	}
	if ordinary(err) || canceled(err) {
		return nil
	}
	return err
}

// moved ends the connection because its endpoint leads to another server.
func (l *listenConn) moved() {
	all := &l.b.listening
	all.mu.Lock()
	again := !all.movedAt.IsZero() && time.Since(all.movedAt) < unfitForFences
	all.movedAt = time.Now()
	all.mu.Unlock()
	if again {
		l.b.suspendListening(errMoved, unfitForFences)
	}
	l.fail(errMoved)
}

// errMoved ends a listening connection whose endpoint leads to another server.
var errMoved = errors.New("its endpoint leads to another server now")
