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

// In transaction mode one server connection of a backend listens for all of its clients, the listening connection: see notify.go for the part of
// the sessions, listenconn.go for the connection, subscription.go for what one client has with it. It is made when the first client listens, and
// closed some time after the last one has gone. It is in no pool.

// Bounds of what clients listen to. A client with more channels keeps a server connection of its own, and so does one that would be too much for
// the listening connection: for each notification, a server compares the channel with all those that a connection listens to.
const (
	maxChannels    = 1000
	maxAllChannels = 10_000
)

const (
	listenTimeout   = 30 * time.Second // for the login of the listening connection, and for one of its commands
	listenCheckTime = 30 * time.Second // between two checks of the listening connection
)

// listenPatience is how long sessions wait for the listening connection, with a server connection leased.
type listenPatience struct {
	login time.Duration // for its login
	lock  time.Duration // for PostgreSQL's lock on notifications, with which a fence is sent
	fence time.Duration // for a fence to be sent, and then to come
}

// usualPatience is that of backends. Tests make it longer.
var usualPatience = listenPatience{login: 5 * time.Second, lock: 5 * time.Second, fence: 10 * time.Second}

// After a failure clients keep their server connections to listen for a time, in place of all trying again.
const (
	unfitAfterLogin = 10 * time.Second
	unfitForFences  = time.Minute // the server does not send fences, or the endpoint leads to several servers
)

// listening is what a backend's clients listen with. Any goroutine may call its methods.
type listening struct {
	n     atomic.Int32 // clients that listen
	unfit atomic.Int64 // until when, by clock, clients keep their server connections to listen; 0 = they need not

	mu      sync.Mutex // held for a few instructions
	conn    *listenConn
	login   *listenLogin // under way; nil = none
	closed  bool         // there will be no further connection
	movedAt time.Time    // when the endpoint led to another server; zero: never
	why     error        // of unfit
	refused bool         // that was the login
	told    bool         // the log has been told of a doubt since a listening connection was opened last
	clients map[*Client]*subscription

	patience listenPatience // zero = usualPatience
}

// patient returns how long sessions wait.
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

// know notes a client that listens.
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

// channels returns the number of channels that a client listens to by the listening connection.
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

// doubt has clients keep their server connections to listen for a time, because of an error. The log tells of the first one until a listening
// connection has been opened.
func (b *Postgres) doubt(why error, within time.Duration) {
	l := &b.listening
	l.mu.Lock()
	l.why, l.refused = why, within == unfitAfterLogin
	l.unfit.Store(int64(clock() + within))
	told := l.told || l.closed
	l.told = true
	l.mu.Unlock()
	if !told && b.life.Err() == nil {
		b.cfg.Logger.Warn("LISTEN pins clients to server connections for a time", "upstream", b.cfg.Name, "error", why)
	}
}

// loginWorks ends the doubt that comes of a login: a server connection has been opened since.
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

// doubted returns why clients keep their server connections to listen, nil if they need not.
func (l *listening) doubted() error {
	if until := l.unfit.Load(); until == 0 || clock() >= time.Duration(until) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// cannotListen returns why no client can listen by the listening connection now, as far as is known, nil if they can. It is cheap.
func (b *Postgres) cannotListen() error {
	switch {
	case b.up.OnlyEndpoint() == "":
		return errSeveralEndpoints
	case b.retired.Load() && b.listening.standing() == nil:
		return errRetired
	}
	return b.listening.doubted()
}

var errSeveralEndpoints = errors.New("the upstream has several endpoints, or none")

// get returns the listening connection to an endpoint, for which it may wait, to ctx's end. It blocks.
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
			b.doubt(err, unfitAfterLogin)
		}
		return nil, err
	}
}

// open makes the listening connection. It is a goroutine.
func (l *listening) open(ctx context.Context, b *Postgres, endpoint string, login *listenLogin) {
	defer login.cancel()
	conn, err := guardedListenConn(ctx, b, endpoint)
	if err != nil {
		err = fmt.Errorf("the login of the listening connection: %w", err)
		b.doubt(err, unfitAfterLogin)
	}
	l.mu.Lock()
	if l.login = nil; err == nil {
		l.conn, l.told = conn, false
	}
	closed := l.closed
	l.mu.Unlock()
	login.conn, login.err = conn, err
	close(login.done)
	if closed && conn != nil {
		conn.closeUnneeded()
	}
}

// standing returns the listening connection, nil if there is none.
func (l *listening) standing() *listenConn {
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn == nil || conn.ended() != nil {
		return nil
	}
	return conn
}

// close has the listening connection end when no client listens. There will be no other one.
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

// compare ends the listening connection if a new server connection to the same endpoint is to another server: a name or an address has
// moved. Clients that listen are told. If that happens again soon, the endpoint leads to several servers. An error means that the new connection
// has failed.
func (l *listening) compare(ctx context.Context, s *server) error {
	l.loginWorks()
	conn := l.standing()
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
		l.b.doubt(errMoved, unfitForFences)
	}
	l.fail(errMoved)
}

// errMoved ends a listening connection whose endpoint leads to another server.
var errMoved = errors.New("its endpoint leads to another server now")
