package sqlite

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/pool"
)

const (
	// contendedAfter is how long a session waits for a connection before the sessions that hold one
	// get a shorter limit, and how often that is repeated.
	contendedAfter = time.Second
	// contendedPart divides Config.StallTimeout: the time a client has to take its next rows while other sessions wait
	// for the connection. 5 seconds by default.
	contendedPart = 12
)

// senderList lists the sessions that send to their clients while they hold a connection. A client that reads slowly
// keeps its session on this list.
type senderList struct {
	mu      sync.Mutex // may be held while a deadline is set: that does not block
	senders map[*session]held
}

// held says which connections a session holds while it sends.
type held struct{ writer, reader bool }

// add lists s as a sender that holds h, until remove.
func (c *senderList) add(s *session, h held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.senders == nil {
		c.senders = make(map[*session]held)
	}
	c.senders[s] = h
}

func (c *senderList) remove(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.senders, s)
}

// bounded writes to a session's client. The client must read something within Config.StallTimeout
// while a statement runs or the session holds a connection between statements.
type bounded struct{ s *session }

// Write implements io.Writer.
func (b bounded) Write(p []byte) (int, error) {
	s := b.s
	if !s.sending && (s.running || s.holds()) {
		s.sending = true
		s.shortened.Store(false)
		_ = s.c.Conn.SetWriteDeadline(time.Now().Add(s.b.cfg.StallTimeout))
		if s.ctx.Err() != nil { // the call above may have replaced the deadline of a kill or a drain
			return 0, context.Cause(s.ctx)
		}
		write := s.pinned != nil && s.pinned.write
		s.b.senders.add(s, held{writer: write, reader: s.readers > 0 || !write})
	}
	n, err := s.c.Conn.Write(p)
	if !s.running {
		s.stopSending()
	}
	return n, err
}

// stopSending ends the client's time limit for reading.
func (s *session) stopSending() {
	if s.sending {
		s.sending = false
		s.b.senders.remove(s)
		_ = s.c.Conn.SetWriteDeadline(time.Time{})
	}
}

// connParker parks a session that waits for a connection. While it is parked, the holders of
// connections get a shorter limit.
type connParker struct {
	b     *Backend
	write bool          // for the writer, not a reader
	ready chan struct{} // capacity 1
}

var _ pool.Parker = (*connParker)(nil)

func newParker(b *Backend) *connParker { return &connParker{b: b, ready: make(chan struct{}, 1)} }

// Park implements pool.Parker.
func (p *connParker) Park(ctx context.Context) error {
	defer p.b.waiting(p.write)()
	select {
	case <-p.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unpark implements pool.Parker.
func (p *connParker) Unpark() { p.ready <- struct{}{} }

// waiting shortens the limits of holders while a session waits for a connection. The caller calls
// over when the wait ends.
func (b *Backend) waiting(write bool) (over func()) {
	var done atomic.Bool
	var shorten func()
	shorten = func() {
		if !done.Load() {
			b.senders.shortenLimits(write, b.cfg.StallTimeout/contendedPart)
			time.AfterFunc(contendedAfter, shorten)
		}
	}
	t := time.AfterFunc(contendedAfter, shorten)
	return func() {
		done.Store(true)
		t.Stop()
	}
}

// shortenLimits gives the clients of sessions that hold such a connection limit to take a row or to send data of a
// COPY, unless they have done so since the last call.
func (c *senderList) shortenLimits(write bool, limit time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s, h := range c.senders {
		if (write && h.writer || !write && h.reader) && !s.shortened.Swap(true) {
			s.guard.shortenLimit(limit)
		}
	}
}
