package sqlite

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/pool"
)

const (
	// crowdedAfter is how long a session waits for a connection before those that hold one are
	// hurried, and how long until they are again.
	crowdedAfter = time.Second
	// crowdedPart is the part of Config.StallTimeout that a client has for taking its next rows while
	// others wait for its connection: 5 seconds by default.
	crowdedPart = 12
)

// crowd knows the sessions that write to their clients: each has connections for as long as its client likes.
type crowd struct {
	mu      sync.Mutex // held while a deadline is set, which does not wait
	senders map[*session]held
}

// held is the connection that a session has while it writes to its client.
type held struct{ writer, reader bool }

// add says that s writes to its client while it has connections, until remove.
func (c *crowd) add(s *session, h held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.senders == nil {
		c.senders = make(map[*session]held)
	}
	c.senders[s] = h
}

func (c *crowd) remove(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.senders, s)
}

// bounded is the client, to which a session writes. While a statement runs, which holds a
// connection or will need one, and while the session holds a connection between statements, the
// client has Config.StallTimeout to take something.
type bounded struct{ s *session }

// Write implements io.Writer.
func (b bounded) Write(p []byte) (int, error) {
	s := b.s
	if !s.sending && (s.running || s.holds()) {
		s.sending = true
		s.hurried.Store(false)
		_ = s.c.Conn.SetWriteDeadline(time.Now().Add(s.b.cfg.StallTimeout))
		if s.ctx.Err() != nil { // the deadline before may have been that of a kill or a drain
			return 0, context.Cause(s.ctx)
		}
		write := s.pinned != nil && s.pinned.write
		s.b.crowd.add(s, held{writer: write, reader: s.readers > 0 || !write})
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
		s.b.crowd.remove(s)
		_ = s.c.Conn.SetWriteDeadline(time.Time{})
	}
}

// patient is a session's wait for a connection: only then are holders hurried.
type patient struct {
	b     *Backend
	write bool          // it waits for the writer
	ready chan struct{} // capacity 1
}

var _ pool.Parker = (*patient)(nil)

func newPatient(b *Backend) *patient { return &patient{b: b, ready: make(chan struct{}, 1)} }

// Park implements pool.Parker.
func (p *patient) Park(ctx context.Context) error {
	defer p.b.waiting(p.write)()
	select {
	case <-p.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unpark implements pool.Parker.
func (p *patient) Unpark() { p.ready <- struct{}{} }

// waiting says that a session waits for a connection, until the returned function is called.
func (b *Backend) waiting(write bool) (over func()) {
	var done atomic.Bool
	var hurry func()
	hurry = func() {
		if !done.Load() {
			b.crowd.hurry(write, b.cfg.StallTimeout/crowdedPart)
			time.AfterFunc(crowdedAfter, hurry)
		}
	}
	t := time.AfterFunc(crowdedAfter, hurry)
	return func() {
		done.Store(true)
		t.Stop()
	}
}

// hurry gives the clients that have not taken a row, or sent data of a COPY, since the last time little time to do so.
func (c *crowd) hurry(write bool, limit time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s, h := range c.senders {
		if (write && h.writer || !write && h.reader) && !s.hurried.Swap(true) {
			s.guard.hurry(limit)
		}
	}
}
