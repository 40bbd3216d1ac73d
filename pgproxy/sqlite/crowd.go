package sqlite

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// crowdedAfter is how long a session waits for a connection before those that hold one are
	// hurried, and how long until they are again.
	crowdedAfter = time.Second
	// crowdedPart is the part of Config.StallTimeout that a client has for taking its next rows while
	// others wait for its connection: 5 seconds by default.
	crowdedPart = 12
)

// crowd knows the sessions that send rows: each holds a connection for as long as its client likes.
type crowd struct {
	mu      sync.Mutex // held while a deadline is set, which does not wait
	senders map[*session]bool
}

// sending says that s sends rows of a connection, until the returned function is called.
func (c *crowd) sending(s *session, write bool) (over func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.senders == nil {
		c.senders = make(map[*session]bool)
	}
	c.senders[s] = write
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.senders, s)
	}
}

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

// hurry gives the clients that have not taken a row since the last time little time to do so.
func (c *crowd) hurry(write bool, limit time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s, holdsWriter := range c.senders {
		if holdsWriter == write && !s.hurried.Swap(true) {
			_ = s.c.Conn.SetWriteDeadline(time.Now().Add(limit))
		}
	}
}
