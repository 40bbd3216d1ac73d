package sqlite

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"zombiezen.com/go/sqlite"
)

// watchAfter is how long a statement runs before the connection is watched for a disconnect of the
// client. Most statements end earlier and need no watch.
const watchAfter = 250 * time.Millisecond

// guard interrupts the running statement on a cancel request, a timeout, a disconnect of the client
// or the end of the session. Only interrupt, endSession, shortenLimit and watchClient may be called from any goroutine;
// the other methods belong to the session's goroutine.
type guard struct {
	s *session

	mu          sync.Mutex   // held for a few instructions
	ctx         *statement   // nil while nothing runs
	conn        *sqlite.Conn // the connection that the statement runs on
	interrupted bool         // Interrupt(conn) was called and Resume(conn) was not
	watched     chan struct{}
	reading     bool // the session reads from the client while the statement runs, see takeReader
	closing     bool // the session is ending and sets its own deadlines

	limit *time.Timer // statement_timeout

	// watch runs watchClient, watchAfter after it was set. A statement sets it unless it is still set from
	// an earlier one; watchClient then sets it again for the current statement. So short statements rarely
	// touch the timer.
	watch       *time.Timer
	watchSet    bool   // the timer is set or watchClient is running
	number      uint64 // statements begun so far
	watchNumber uint64 // number when the watch was set
}

// statement is the context of one statement. Done makes its channel when it is first called.
type statement struct {
	context.Context // of the session
	mu              sync.Mutex
	done            chan struct{}
	cause           error
}

// Done implements context.Context.
func (c *statement) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.cause != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *statement) Err() error {
	if c.ended() != nil {
		return context.Canceled
	}
	return nil
}

// ended returns the cause that ended the statement, nil if there is none.
func (c *statement) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// end ends the context with a cause. Later calls do nothing.
func (c *statement) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = cause
		if c.done != nil {
			close(c.done)
		}
	}
}

// interrupt cancels the running statement, if any. It may be called from any goroutine.
func (g *guard) interrupt(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil {
		return
	}
	g.ctx.end(cause)
	if g.conn != nil && !g.interrupted {
		g.interrupted = true
		g.s.b.db.Interrupt(g.conn)
	}
	if g.reading {
		_ = g.s.c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// endSession interrupts the statement and every wait of the session, after the session's context has ended. Deadlines
// set by the context's end may have been replaced meanwhile; see session.limitRead. It may be called from any
// goroutine.
func (g *guard) endSession() {
	g.interrupt(context.Cause(g.s.ctx))
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closing {
		_ = g.s.c.Conn.SetDeadline(time.Unix(1, 0))
	}
}

// release stops endSession from changing deadlines.
func (g *guard) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closing = true
}

// begin begins a statement and returns its context.
func (g *guard) begin() *statement {
	ctx := &statement{Context: g.s.ctx}
	if g.s.ctx.Err() != nil {
		ctx.end(context.Cause(g.s.ctx))
	}
	g.mu.Lock()
	g.ctx = ctx
	g.number++
	if !g.watchSet {
		g.setWatch()
	}
	g.mu.Unlock()
	if d := g.s.timeout("statement_timeout", g.s.b.cfg.StatementTimeout); d > 0 {
		g.limit = time.AfterFunc(d, func() { g.interrupt(errTimeout) })
	}
	return ctx
}

// setWatch starts the timer of watchClient. g.mu is held.
func (g *guard) setWatch() {
	g.watchSet, g.watchNumber = true, g.number
	if g.watch == nil {
		g.watch = time.AfterFunc(watchAfter, g.watchClient)
	} else {
		g.watch.Reset(watchAfter)
	}
}

// watchClient waits until the client sends something or disconnects, if the statement for which the watch
// was set still runs. It peeks at the session's Reader, which the session does not touch before
// guard.end.
func (g *guard) watchClient() {
	g.mu.Lock()
	g.watchSet = false
	if g.ctx == nil {
		g.mu.Unlock()
		return
	}
	if g.watchNumber != g.number || g.reading {
		g.setWatch()
		g.mu.Unlock()
		return
	}
	g.watched = make(chan struct{})
	defer close(g.watched)
	g.watchSet = true // until end
	g.mu.Unlock()
	if _, err := g.s.c.Reader.PeekStart(1); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		g.interrupt(errClientGone)
	}
}

// use records that the running statement uses conn from now on. It returns the cause if the
// statement has already been interrupted.
func (g *guard) use(conn *sqlite.Conn) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil {
		return nil
	}
	if err := g.ctx.ended(); err != nil {
		return err
	}
	g.conn = conn
	return nil
}

// drop records that no statement uses conn any more. Without it a late interrupt would hit the
// connection's next statement.
func (g *guard) drop(conn *sqlite.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conn != conn {
		return
	}
	g.conn = nil
	if g.interrupted {
		g.interrupted = false
		g.s.b.db.Resume(conn)
	}
}

// end ends the statement and returns the cause if it was interrupted.
func (g *guard) end() error {
	if g.limit != nil {
		g.limit.Stop()
		g.limit = nil
	}
	g.mu.Lock()
	ctx, conn, watched := g.ctx, g.conn, g.watched
	g.ctx, g.watched = nil, nil
	if watched != nil {
		g.watchSet = false
	}
	g.mu.Unlock()
	if conn != nil {
		g.drop(conn)
	}
	g.endWatch(watched)
	return ctx.ended()
}

// endWatch makes watchClient return and waits for it; watched is its's channel, nil if it is not
// reading.
func (g *guard) endWatch(watched chan struct{}) {
	if watched != nil {
		_ = g.s.c.Conn.SetReadDeadline(time.Unix(1, 0))
		<-watched
		_ = g.s.c.Conn.SetReadDeadline(time.Time{})
	}
}

// takeReader lets the session use its Reader while a statement runs, until giveReader.
func (g *guard) takeReader() {
	g.mu.Lock()
	watched := g.watched
	g.reading, g.watched = true, nil
	if watched != nil {
		g.setWatch()
	}
	g.mu.Unlock()
	g.endWatch(watched)
}

// giveReader lets watchClient use the session's Reader again.
func (g *guard) giveReader() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reading = false
	_ = g.s.c.Conn.SetReadDeadline(time.Time{})
}

// readWithin limits the time in which the client must send something. It returns the cause if the statement was
// interrupted, which also ends a read in progress.
func (g *guard) readWithin(limit time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.ctx.ended(); err != nil {
		return err
	}
	return g.s.c.Conn.SetReadDeadline(time.Now().Add(limit))
}

// shortenLimit limits the time in which the client must read what is sent, or send something if the session is reading.
// It may be called from any goroutine.
func (g *guard) shortenLimit(limit time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.s.ctx.Err() != nil { // the session is ending; keep its deadlines
		return
	}
	if g.ctx == nil || !g.reading {
		_ = g.s.c.Conn.SetWriteDeadline(time.Now().Add(limit))
	} else if g.ctx.ended() == nil {
		_ = g.s.c.Conn.SetReadDeadline(time.Now().Add(limit))
	}
}

// close stops the watch.
func (g *guard) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.watch != nil {
		g.watch.Stop()
	}
}
