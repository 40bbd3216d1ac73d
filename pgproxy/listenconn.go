package pgproxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/pgwire"
)

// listenConn is one listening connection of a backend. After it has failed, clients that LISTEN later get another
// one. Two goroutines belong to it: one reads, and one sends commands, each time for all requests that sessions have
// made meanwhile.
type listenConn struct {
	b       *Postgres
	srv     *server
	boot    string        // when the server started, which identifies it; "" = unknown
	fence   string        // the channel of the fences
	over    chan struct{} // closed once the connection has failed or is no longer needed
	answers chan error    // the result of the command under way; has room for one
	busy    atomic.Bool   // a command is under way
	waiting atomic.Int64  // bytes of notifications in all mailboxes, each notification counted once
	room    chan struct{} // gets a value when a full mailbox has been emptied; has room for one
	asked   chan struct{} // gets a value when there are requests; has room for one
	ahead   int           // bytes read since the last pause; the reading goroutine's
	lastID  uint64        // the last fence's number; the commanding goroutine's

	mu       sync.Mutex // held for a few instructions, locked before a subscription's
	failed   error      // nil = the connection works
	requests []*fenceRequest
	passing  *fencing                              // the fence under way
	channels map[string]map[*subscription]struct{} // the channels that the server listens to, and their clients
	emptied  map[string]struct{}                   // those of channels that have lost all their clients
	users    map[*subscription]struct{}
	unused   bool // there were no users at the last check, and no request since
}

// A fence is a notification that the listening connection itself sends, on a channel of the gateway. Notifications
// have the same order on all connections: what comes before the fence on one of them comes before it on every other.
// One fence serves all sessions that wait for one. Other programs may learn the channel's name; the fence is the
// notification that has the process ID of the listening connection.
type fencing struct {
	payload string
	of      []*fenceRequest
	come    bool
}

// fenceRequest asks for a fence at which the listening connection takes over from a server connection, or the
// reverse.
type fenceRequest struct {
	sub       *subscription
	park      bool       // the listening connection takes over, from the fence on
	channels  []string   // the channels to listen to if park is set
	abandoned bool       // the session no longer waits for the request; guarded by listenConn.mu
	payload   string     // the fence's payload; set before done gets its value
	done      chan error // gets the request's result; has room for one
}

// finish gives the session the result of the request.
func (r *fenceRequest) finish(err error) {
	select {
	case r.done <- err:
	default:
	}
}

var (
	// errUnneeded ends a listening connection that nobody needs.
	errUnneeded = errors.New("no client listens")
	// errTooManyChannels means that clients listen to too many channels for one connection.
	errTooManyChannels = errors.New("too many channels")
	// errNoFence means that a fence did not arrive in time.
	errNoFence = errors.New("the server did not deliver a fence notification")
	// errAbandoned means that a session stopped waiting for its request.
	errAbandoned = errors.New("the session does not wait any more")
)

// bootSQL asks when the server started, in microseconds.
const bootSQL = "SELECT 'boot', (pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8"

// bootOf returns the server's start from the rows of bootSQL, "" if it is not among them.
func bootOf(rows []pgwire.Param) string {
	for _, p := range rows {
		if p.Name == "boot" {
			return p.Value
		}
	}
	return ""
}

// listenSettings sets the listening connection's settings, whatever the role or the operator has configured: the
// connection is idle for long, and a fence must not wait for a standby. Nor must it wait long for the lock on
// notifications, which all databases of a server share, and which a commit holds while it waits for a standby:
// newListenConn sets lock_timeout separately.
const listenSettings = "SELECT '', pg_catalog.set_config(s.name, v.value, false) FROM pg_catalog.pg_settings AS s, (VALUES ('statement_timeout', '0'), " +
	"('transaction_timeout', '0'), ('idle_session_timeout', '0'), ('synchronous_commit', 'off'), " +
	"('default_transaction_isolation', 'read committed'), ('default_transaction_read_only', 'off')) AS v (name, value) " +
	"WHERE s.name OPERATOR(pg_catalog.=) v.name"

// newListenConn connects, logs in, and starts the connection's two goroutines.
func newListenConn(ctx context.Context, b *Postgres, endpoint string) (*listenConn, error) {
	srv, err := b.connect(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	name := make([]byte, 16)
	_, _ = rand.Read(name) // Read never fails
	l := &listenConn{
		b: b, srv: srv, fence: "headpond_" + hex.EncodeToString(name), over: make(chan struct{}), answers: make(chan error, 1),
		room: make(chan struct{}, 1), asked: make(chan struct{}, 1), channels: map[string]map[*subscription]struct{}{},
		emptied: map[string]struct{}{}, users: map[*subscription]struct{}{},
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.raw.SetDeadline(unixPast) })
	err = srv.exec(listenSettings)
	if err == nil {
		err = srv.exec(fmt.Sprintf("SET lock_timeout = %d", b.listening.patient().lock.Milliseconds()))
	}
	if err == nil {
		var rows []pgwire.Param
		if rows, err = srv.settingRows(bootSQL); err == nil || ordinary(err) {
			l.boot, err = bootOf(rows), nil
		}
	}
	if err == nil {
		err = srv.exec("LISTEN " + l.fence)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = srv.conn.Close()
		return nil, fmt.Errorf("PostgreSQL server %s: %w", endpoint, err)
	}
	go l.guard(l.read)
	go l.guard(l.serve)
	return l, nil
}

// guard runs one of the connection's goroutines. A panic there ends the connection.
func (l *listenConn) guard(part func()) {
	defer func() {
		if p := recover(); p != nil {
			l.b.logListenPanic(p)
			l.fail(errListenPanic)
		}
	}()
	part()
}

// guardedListenConn is newListenConn. It returns errListenPanic after a panic.
func guardedListenConn(ctx context.Context, b *Postgres, endpoint string) (l *listenConn, err error) {
	defer func() {
		if p := recover(); p != nil {
			b.logListenPanic(p)
			l, err = nil, errListenPanic
		}
	}()
	return newListenConn(ctx, b, endpoint)
}

// logListenPanic logs a panic. A deferred function calls it, so that the stack is that of the panic.
func (b *Postgres) logListenPanic(p any) {
	b.cfg.Logger.Error("panic of the listening connection", "upstream", b.cfg.Name, "panic", p, "stack", string(debug.Stack()))
}

var errListenPanic = errors.New("the listening connection panicked")

// ended returns why the connection has ended, nil if it works.
func (l *listenConn) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// ask makes a request; r.done gets the result.
func (l *listenConn) ask(r *fenceRequest) error {
	r.done = make(chan error, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return l.failed
	}
	l.unused = false
	l.requests = append(l.requests, r)
	select {
	case l.asked <- struct{}{}:
	default:
	}
	return nil
}

// await waits for the result of a request. It blocks the calling goroutine.
func (l *listenConn) await(ctx context.Context, r *fenceRequest) error {
	patience := l.b.listening.patient().fence
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return fmt.Errorf("%w within %v", errNoFence, patience)
	}
}

// abandon withdraws a request. It reports whether the request had no effect: the subscription is as before.
func (l *listenConn) abandon(r *fenceRequest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.abandoned = true
	return r.sub.abandoned(r)
}

// serve sends commands for the sessions' requests, until the connection ends. It is a goroutine.
func (l *listenConn) serve() {
	ticker := time.NewTicker(listenCheckTime)
	defer ticker.Stop()
	for {
		select {
		case <-l.over:
			return
		case <-l.asked:
			l.handle()
		case <-ticker.C:
			l.check()
		}
	}
}

// check closes the connection if it is unused or leads to another endpoint than the clients'. Otherwise it ends
// listening to channels without clients, which also shows whether the connection works.
func (l *listenConn) check() {
	l.mu.Lock()
	unneeded := l.unused && len(l.users) == 0
	l.unused = len(l.users) == 0
	gone := l.unwantedChannels(nil)
	l.mu.Unlock()
	switch {
	case unneeded:
		l.closeUnused()
		return
	case l.b.up.OnlyEndpoint() != l.srv.endpoint:
		l.fail(errRemoved)
		return
	}
	if l.command(l.listenSQL(gone, nil)) == nil {
		l.mu.Lock()
		l.unlistened(gone)
		l.mu.Unlock()
	}
}

// handle serves the pending requests, at most maxBatch at once.
func (l *listenConn) handle() {
	l.mu.Lock()
	batch := l.requests
	l.requests = nil
	if len(batch) > maxBatch {
		batch, l.requests = batch[:maxBatch:maxBatch], batch[maxBatch:]
		select {
		case l.asked <- struct{}{}:
		default:
		}
	}
	l.mu.Unlock()
	if batch = l.listen(batch); len(batch) > 0 {
		l.pass(batch)
	}
}

// maxBatch bounds the requests that one fence serves.
const maxBatch = 1000

// listen makes the server listen to the channels of the requests that park, and no longer to channels without
// clients. It returns the requests that need a fence, and finishes the others.
func (l *listenConn) listen(batch []*fenceRequest) (rest []*fenceRequest) {
	l.mu.Lock()
	gone, fresh, rest := l.plan(batch)
	l.mu.Unlock()
	var err error
	if sql := l.listenSQL(gone, fresh); sql != "" {
		if err = l.command(sql); refused(err) { // somebody canceled it, and nothing was done
			err = l.command(sql)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		err = l.failed
	}
	if err == nil {
		l.unlistened(gone)
		for _, name := range fresh {
			l.channels[name] = map[*subscription]struct{}{}
			l.emptied[name] = struct{}{} // in case the session has gone meanwhile
		}
	}
	return l.admit(rest, err)
}

// plan returns the channels that no client needs any more, the channels that the requests add, and the requests for
// which there is room. It finishes the other requests. mu is held.
func (l *listenConn) plan(batch []*fenceRequest) (gone, fresh []string, rest []*fenceRequest) {
	wanted, added := map[string]struct{}{}, map[string]struct{}{}
	for _, r := range batch {
		for _, name := range r.channels {
			wanted[name] = struct{}{}
		}
	}
	gone = l.unwantedChannels(wanted)
	for _, r := range batch {
		names := slices.DeleteFunc(slices.Clone(r.channels), func(name string) bool {
			_, is := added[name]
			return is || l.channels[name] != nil
		})
		switch {
		case r.abandoned:
			r.finish(errAbandoned)
			continue
		case len(names) > 0 && len(l.channels)-len(gone)+len(fresh)+len(names) > maxAllChannels:
			r.finish(errTooManyChannels)
			continue
		}
		for _, name := range names {
			added[name] = struct{}{}
		}
		fresh, rest = append(fresh, names...), append(rest, r)
	}
	return gone, fresh, rest
}

// unwantedChannels returns the channels without clients, except for the wanted ones. mu is held.
func (l *listenConn) unwantedChannels(wanted map[string]struct{}) (names []string) {
	for name := range l.emptied {
		switch _, is := wanted[name]; {
		case len(l.channels[name]) > 0:
			delete(l.emptied, name)
		case !is:
			names = append(names, name)
		}
	}
	return names
}

// unlistened notes that the server no longer listens to some channels. mu is held.
func (l *listenConn) unlistened(names []string) {
	for _, name := range names {
		delete(l.channels, name)
		delete(l.emptied, name)
	}
}

// listenSQL returns the SQL that ends listening to the channels gone, and begins it for the channels fresh.
func (l *listenConn) listenSQL(gone, fresh []string) string {
	var b strings.Builder
	for _, name := range gone {
		b.WriteString("UNLISTEN " + identifierOf(name) + ";")
	}
	for _, name := range fresh {
		b.WriteString("LISTEN " + identifierOf(name) + ";")
	}
	return b.String()
}

// admit starts what the requests ask for, up to the fence; if LISTEN has failed, only those that do not need it. It
// returns the requests that need a fence, and finishes the others. mu is held.
func (l *listenConn) admit(batch []*fenceRequest, failure error) (rest []*fenceRequest) {
	for _, r := range batch {
		switch {
		case r.abandoned:
			r.finish(errAbandoned)
			continue
		case failure != nil && (r.park || l.failed != nil):
			r.finish(failure)
			continue
		case r.park:
			l.removeSubscription(r.sub)
			for _, name := range r.channels {
				l.channels[name][r.sub] = struct{}{}
			}
			l.users[r.sub] = struct{}{}
			r.sub.starts(l, r)
		default:
			r.sub.stops(r)
		}
		rest = append(rest, r)
	}
	return rest
}

// pass sends a fence, and finishes the requests with the result.
func (l *listenConn) pass(batch []*fenceRequest) {
	l.lastID++
	f := &fencing{payload: strconv.FormatUint(l.lastID, 10), of: batch}
	l.mu.Lock()
	l.passing = f
	l.mu.Unlock()
	err := l.command("NOTIFY " + l.fence + ",'" + f.payload + "'")
	l.mu.Lock()
	l.passing = nil
	come := f.come
	l.mu.Unlock()
	if err == nil && !come {
		err = errNoFence
		l.b.suspendListening(err, unfitForFences)
	}
	for _, r := range batch {
		r.payload = f.payload
		r.finish(err)
	}
}

// command runs SQL of the gateway's, and waits for the result.
func (l *listenConn) command(sql string) error {
	l.busy.Store(true)
	defer l.busy.Store(false)
	if err := l.ended(); err != nil {
		return err
	}
	_ = l.srv.conn.SetWriteDeadline(time.Now().Add(listenTimeout))
	l.srv.w.Send(&pgwire.Query{SQL: sql})
	if err := l.srv.w.Flush(); err != nil {
		l.fail(err)
		return err
	}
	timer := time.NewTimer(listenTimeout)
	defer timer.Stop()
	select {
	case err := <-l.answers:
		return err
	case <-l.over:
		return l.ended()
	case <-timer.C:
		err := fmt.Errorf("the server has not answered %.40q in %v", sql, listenTimeout)
		l.fail(err)
		return err
	}
}

// read handles the server's messages, until the connection ends. It is a goroutine.
func (l *listenConn) read() {
	var failure error // of the command under way
	for {
		h, err := l.srv.r.Next()
		var body []byte
		if err == nil {
			body, err = l.srv.r.Body()
		}
		if err != nil {
			l.fail(err)
			return
		}
		switch h.Type {
		case pgwire.TypeNotificationResponse:
			var m pgwire.NotificationResponse
			if err = m.Decode(body); err == nil {
				l.notified(&m, body)
			}
		case pgwire.TypeErrorResponse:
			said := &fatalError{new(pgwire.ErrorResponse), slices.Clone(body)}
			if err = said.Decode(body); err == nil && said.Fatal() {
				err = said
			}
			failure = said
		case pgwire.TypeReadyForQuery:
			select {
			case l.answers <- failure:
			default:
				err = errBackendProtocol
			}
			failure = nil
		}
		if err != nil {
			l.fail(err)
			return
		}
	}
}

// notified gives a notification to the clients that listen to its channel. It does not keep body.
func (l *listenConn) notified(m *pgwire.NotificationResponse, body []byte) {
	l.mu.Lock()
	if m.Channel == l.fence {
		if f := l.passing; f != nil && m.ProcessID == l.srv.pid && m.Payload == f.payload && !f.come {
			f.come = true
			for _, r := range f.of {
				r.sub.passed(r)
			}
		}
		l.mu.Unlock()
		return
	}
	users := slices.Collect(maps.Keys(l.channels[m.Channel])) // they are woken without mu: there may be thousands
	l.mu.Unlock()
	if len(users) == 0 {
		return
	}
	n := &note{raw: append(pgwire.AppendHeader(make([]byte, 0, headerSize+len(body)), pgwire.TypeNotificationResponse, len(body)), body...), conn: l}
	n.holders.Store(1)
	l.waiting.Add(int64(len(n.raw)))
	full := false
	for _, s := range users {
		full = s.receive(n) || full
	}
	n.drop()
	if full {
		l.pace(len(n.raw))
	}
	for l.waiting.Load() > maxMailboxes && l.endFullest() {
	}
}

// pace slows down reading while a client has much to read, so that a client that reads gets all of a burst.
func (l *listenConn) pace(n int) {
	if l.ahead += n; l.ahead < paceBytes || l.busy.Load() {
		return
	}
	l.ahead = 0
	timer := time.NewTimer(paceTime)
	defer timer.Stop()
	select {
	case <-l.room:
	case <-l.over:
	case <-timer.C:
	}
}

// endFullest ends the client with the most bytes waiting for it. It reports whether there was one.
func (l *listenConn) endFullest() bool {
	l.mu.Lock()
	users := slices.Collect(maps.Keys(l.users))
	l.mu.Unlock()
	var fullest *subscription
	most := 0
	for _, s := range users {
		if n := s.pendingBytes(); n > most {
			fullest, most = s, n
		}
	}
	return fullest != nil && fullest.endOverflowed()
}

// fail ends the connection, and informs the clients that listen by it.
func (l *listenConn) fail(err error) {
	l.mu.Lock()
	if l.failed != nil {
		l.mu.Unlock()
		return
	}
	l.failed = err
	close(l.over)
	users, requests := slices.Collect(maps.Keys(l.users)), l.requests
	l.requests = nil
	clear(l.users)
	clear(l.channels)
	clear(l.emptied)
	l.mu.Unlock()
	_ = l.srv.conn.Close()
	informed := 0
	for _, s := range users {
		if s.lost(err) {
			informed++
		}
	}
	for _, r := range requests {
		r.finish(err)
	}
	if informed > 0 {
		l.b.cfg.Logger.Warn("listening connection lost", "upstream", l.b.cfg.Name, "endpoint", l.srv.endpoint, "error", err, "clients", informed)
	}
}

// closeUnused ends the connection unless somebody uses it.
func (l *listenConn) closeUnused() {
	l.mu.Lock()
	unused := len(l.users) == 0 && len(l.requests) == 0
	l.mu.Unlock()
	if unused { // a session that comes now gets errUnneeded, and tries again
		l.fail(errUnneeded)
	}
}

// closeUnneeded is closeUnused if the backend will open no other listening connection.
func (l *listenConn) closeUnneeded() {
	if l.b.listening.isClosed() {
		l.closeUnused()
	}
}

// removeSubscription removes a subscription from its channels and from the users. mu is held.
func (l *listenConn) removeSubscription(s *subscription) {
	_, channels := s.state()
	for _, name := range channels {
		users := l.channels[name]
		if delete(users, s); users != nil && len(users) == 0 {
			l.emptied[name] = struct{}{}
		}
	}
	delete(l.users, s)
}

// remove removes a subscription that is over.
func (l *listenConn) remove(s *subscription) {
	l.mu.Lock()
	l.removeSubscription(s)
	last := len(l.users) == 0
	l.mu.Unlock()
	if last {
		l.closeUnneeded()
	}
}

// identifierOf quotes a name for SQL.
func identifierOf(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
