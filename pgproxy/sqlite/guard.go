package sqlite

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"zombiezen.com/go/sqlite"
)

// watchAfter is how long a statement runs, at least, before the connection is watched for
// the client's leaving: short statements are not worth it.
const watchAfter = 250 * time.Millisecond

// guard ends the statement under way for reasons from outside the session's
// goroutine. Its methods but interrupt and look are for that goroutine.
type guard struct {
	s *session

	mu      sync.Mutex   // held for a few instructions
	ctx     *statement   // nil while nothing runs
	conn    *sqlite.Conn // which the statement uses
	hit     bool         // conn was interrupted
	watched chan struct{}
	reading bool // the session reads from the client while the statement runs, see takeReader
	left    bool // the session says farewell: its deadlines are its own

	limit *time.Timer // statement_timeout

	// watch calls look. It is set when a statement begins, unless it still is from an earlier one,
	// of which then it finds the end: so short statements share it.
	watch  *time.Timer
	set    bool
	number uint64 // of statements
	looked uint64 // the statement that ran when the watch was set
}

// statement is the context of one statement. It makes a channel only for those who want
// to wait for its end.
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

// ended returns why the statement has to end, or nil.
func (c *statement) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// end gives the reason. The first one counts.
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

// interrupt cancels the statement under way, if any. Safe for every goroutine.
func (g *guard) interrupt(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil {
		return
	}
	g.ctx.end(cause)
	if g.conn != nil && !g.hit {
		g.hit = true
		g.s.b.db.Interrupt(g.conn)
	}
	if g.reading {
		_ = g.s.c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// cut ends the statement under way and whatever the session waits for, its context having ended. The deadlines that
// ended the wait before may have been replaced meanwhile; see session.limitRead. Called from any goroutine.
func (g *guard) cut() {
	g.interrupt(context.Cause(g.s.ctx))
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.left {
		_ = g.s.c.Conn.SetDeadline(time.Unix(1, 0))
	}
}

// release keeps cut from setting deadlines.
func (g *guard) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = true
}

// begin begins a statement, whose context it returns.
func (g *guard) begin() *statement {
	ctx := &statement{Context: g.s.ctx}
	if g.s.ctx.Err() != nil {
		ctx.end(context.Cause(g.s.ctx))
	}
	g.mu.Lock()
	g.ctx = ctx
	g.number++
	if !g.set {
		g.setWatch()
	}
	g.mu.Unlock()
	if d := g.s.timeout("statement_timeout", g.s.b.cfg.StatementTimeout); d > 0 {
		g.limit = time.AfterFunc(d, func() { g.interrupt(errTimeout) })
	}
	return ctx
}

// setWatch makes look look at the statement under way. The lock is held.
func (g *guard) setWatch() {
	g.set, g.looked = true, g.number
	if g.watch == nil {
		g.watch = time.AfterFunc(watchAfter, g.look)
	} else {
		g.watch.Reset(watchAfter)
	}
}

// look waits for the client to send or to leave, if the statement of the last look still runs. It
// reads ahead through the session's Reader, which the session does not touch before guard.end.
func (g *guard) look() {
	g.mu.Lock()
	g.set = false
	if g.ctx == nil {
		g.mu.Unlock()
		return
	}
	if g.looked != g.number || g.reading {
		g.setWatch()
		g.mu.Unlock()
		return
	}
	g.watched = make(chan struct{})
	defer close(g.watched)
	g.set = true // until end
	g.mu.Unlock()
	if _, err := g.s.c.Reader.PeekStart(1); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		g.interrupt(errClientGone)
	}
}

// use says that the statement under way runs on conn from now on. An error is the reason
// to end it.
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

// drop says that no statement that can be interrupted runs on conn any more: an interrupt
// that comes later would hit the next one.
func (g *guard) drop(conn *sqlite.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conn != conn {
		return
	}
	g.conn = nil
	if g.hit {
		g.hit = false
		g.s.b.db.Resume(conn)
	}
}

// end ends the statement and returns the reason if it was interrupted.
func (g *guard) end() error {
	if g.limit != nil {
		g.limit.Stop()
		g.limit = nil
	}
	g.mu.Lock()
	ctx, conn, watched := g.ctx, g.conn, g.watched
	g.ctx, g.watched = nil, nil
	if watched != nil {
		g.set = false
	}
	g.mu.Unlock()
	if conn != nil {
		g.drop(conn)
	}
	g.endWatch(watched)
	return ctx.ended()
}

// endWatch waits for the end of the look that has made the channel watched, if any.
func (g *guard) endWatch(watched chan struct{}) {
	if watched != nil {
		_ = g.s.c.Conn.SetReadDeadline(time.Unix(1, 0))
		<-watched
		_ = g.s.c.Conn.SetReadDeadline(time.Time{})
	}
}

// takeReader gives the session its Reader while a statement is under way, until giveReader.
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

// giveReader ends takeReader.
func (g *guard) giveReader() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reading = false
	_ = g.s.c.Conn.SetReadDeadline(time.Time{})
}

// readWithin gives the client, from which the session is about to read, a limit for sending something.
// An error is the reason to end the statement, which ends a read, too.
func (g *guard) readWithin(limit time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.ctx.ended(); err != nil {
		return err
	}
	return g.s.c.Conn.SetReadDeadline(time.Now().Add(limit))
}

// hurry gives the client a limit for taking what is sent to it, or for sending if the session reads.
// Safe for every goroutine.
func (g *guard) hurry(limit time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.s.ctx.Err() != nil { // its deadlines have passed
		return
	}
	if g.ctx == nil || !g.reading {
		_ = g.s.c.Conn.SetWriteDeadline(time.Now().Add(limit))
	} else if g.ctx.ended() == nil {
		_ = g.s.c.Conn.SetReadDeadline(time.Now().Add(limit))
	}
}

// close ends the watch for good.
func (g *guard) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.watch != nil {
		g.watch.Stop()
	}
}
