package sqlite

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"
)

// watchAfter is how long a statement runs before the connection is watched for
// the client's leaving: short statements are not worth it.
const watchAfter = 250 * time.Millisecond

// guard ends the statement under way for reasons from outside the session's
// goroutine. Its methods but interrupt are for that goroutine.
type guard struct {
	mu     sync.Mutex
	cancel context.CancelCauseFunc // nil while nothing runs

	limit   *time.Timer // statement_timeout
	watch   *time.Timer
	watched chan struct{} // closed when the watcher has returned
}

// interrupt cancels the statement under way, if any. Safe for every goroutine.
func (g *guard) interrupt(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cancel != nil {
		g.cancel(cause)
	}
}

func (g *guard) begin(s *session, cancel context.CancelCauseFunc) {
	g.mu.Lock()
	g.cancel = cancel
	g.mu.Unlock()
	if d := s.timeout("statement_timeout", s.b.cfg.StatementTimeout); d > 0 {
		g.limit = time.AfterFunc(d, func() { g.interrupt(errTimeout) })
	}
	watched := make(chan struct{})
	g.watched = watched
	g.watch = time.AfterFunc(watchAfter, func() { s.watchClient(watched) })
}

// watchClient waits for the client to send or to leave. It reads ahead through
// the session's Reader, which the session does not touch before guard.end.
func (s *session) watchClient(done chan<- struct{}) {
	defer close(done)
	if _, err := s.c.Reader.PeekStart(1); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		s.guard.interrupt(errClientGone)
	}
}

func (g *guard) end(s *session) {
	g.mu.Lock()
	g.cancel = nil
	g.mu.Unlock()
	if g.limit != nil {
		g.limit.Stop()
		g.limit = nil
	}
	if g.watch.Stop() {
		return
	}
	_ = s.c.Conn.SetReadDeadline(time.Unix(1, 0))
	<-g.watched
	_ = s.c.Conn.SetReadDeadline(time.Time{})
}
