package pgproxy

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the notifications that wait for clients. A client with more than maxMailbox waiting bytes is ended. While
// more than maxMailboxes bytes wait for all clients, each notification counted once, the client with the most bytes
// is ended. While more than slowMailbox bytes wait for one client, the gateway reads notifications more slowly, to
// give that client time: paceBytes in each paceTime, if the client reads nothing. So a client that reads 20 MiB a
// second is never ended, and a client that does not read delays the others by three seconds in all.
const (
	slowMailbox  = 4 << 20
	maxMailbox   = 64 << 20
	maxMailboxes = 256 << 20
	paceBytes    = 1 << 20
	paceTime     = 50 * time.Millisecond
)

// errDeaf ends a client that does not read its notifications.
var errDeaf = errors.New("the client does not read its notifications")

// note is a notification that waits for clients, which share it.
type note struct {
	raw     []byte // the message; not changed
	conn    *listenConn
	holders atomic.Int32
}

// drop ends the reference of one holder.
func (n *note) drop() {
	if n.holders.Add(-1) == 0 {
		n.conn.waiting.Add(int64(-len(n.raw)))
	}
}

// subscription has the channels to which a client in transaction mode listens by the listening connection, and the
// notifications that the client has not received yet. It is kept while the session is suspended.
type subscription struct {
	c *Client

	mu       sync.Mutex // held for a few instructions
	conn     *listenConn
	channels []string      // in order
	from     *fenceRequest // notifications after its fence are for the client; nil = the fence has passed
	until    *fenceRequest // notifications after its fence are not for the client; nil = no end yet
	off      bool          // until has passed, or the subscription is over
	mailbox  []*note
	taken    []*note // taken from the mailbox, and being written to the client
	size     int     // bytes of mailbox and taken
	over     error   // why the client no longer listens, which it must be told; nil = it listens
	waiting  bool    // the session waits for its client, and can be woken
	woken    bool    // the session was woken, by a deadline
}

// starts begins to listen by conn, from the fence of r on.
func (s *subscription) starts(conn *listenConn, r *fenceRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.channels, s.from, s.until, s.off = conn, r.channels, r, nil, false
}

// stops ends listening at the fence of r.
func (s *subscription) stops(r *fenceRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = r
}

// passed notes that the fence of r has passed.
func (s *subscription) passed(r *fenceRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r {
	case s.from:
		s.from = nil
	case s.until:
		s.until, s.off = nil, true
	}
}

// abandoned withdraws a request. It reports whether the request had no effect.
func (s *subscription) abandoned(r *fenceRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == r {
		s.until = nil
	}
	return !s.off
}

// receive adds a notification to the mailbox. It reports whether so much waits for the client that reading should
// slow down.
func (s *subscription) receive(n *note) (full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from != nil || s.off || s.over != nil {
		return false
	}
	n.holders.Add(1)
	s.mailbox = append(s.mailbox, n)
	if s.size += len(n.raw); s.size > maxMailbox {
		s.endOverflowedLocked()
		return false
	}
	s.endWait()
	return s.size > slowMailbox
}

// pendingBytes returns how many bytes wait for the client, 0 if it no longer listens.
func (s *subscription) pendingBytes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return 0
	}
	return s.size
}

// empty drops the notifications in the mailbox. mu is held.
func (s *subscription) empty() {
	for _, n := range s.mailbox {
		n.drop()
		s.size -= len(n.raw)
	}
	s.mailbox = nil
}

// endOverflowed ends the client because too much waits for it. It reports whether that made room.
func (s *subscription) endOverflowed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return false
	}
	s.endOverflowedLocked()
	return true
}

// endOverflowedLocked is endOverflowed. mu is held.
func (s *subscription) endOverflowedLocked() {
	s.empty()
	s.forget() // the session would only do it later
	s.over = errDeaf
	_ = s.c.Conn.SetWriteDeadline(unixPast) // the session may be writing to the client
	s.endWait()
}

// lost notes that the listening connection is gone. It reports whether the client used it.
func (s *subscription) lost(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.off {
		return false // the client has a server connection that listens
	}
	if s.over == nil {
		s.over = err
	}
	s.off = true
	s.endWait()
	return true
}

// errStranded ends a client whose server connection was discarded while that connection listened for it.
var errStranded = errors.New("the server connection that listened for the client is gone")

// stranded notes that the session has no server connection. If the listening connection does not listen for the
// client either, that ends the session.
func (s *subscription) stranded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.off && s.over == nil {
		s.over = errStranded
	}
}

// endWait ends the session's wait for its client. mu is held.
func (s *subscription) endWait() {
	if s.waiting && !s.woken {
		s.woken = true
		_ = s.c.Conn.SetReadDeadline(unixPast)
	}
}

// wait prepares the session's wait for its client. False means that the client has something to receive first.
func (s *subscription) wait() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = len(s.mailbox) == 0 && s.over == nil
	return s.waiting
}

// waited notes that the wait is over. woken means that the client's read deadline was set to end it.
func (s *subscription) waited() (woken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	woken = s.woken
	s.waiting, s.woken = false, false
	return woken
}

// takePending returns the notifications for the client, and why there will be no more, if so. The caller writes them
// and then calls written.
func (s *subscription) takePending() (messages []*note, over error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken, s.mailbox = s.mailbox, nil
	return s.taken, s.over
}

// written drops the notifications that take returned.
func (s *subscription) written() {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.size
	if s.forget(); was > slowMailbox {
		select {
		case s.conn.room <- struct{}{}:
		default:
		}
	}
}

// forget is written without a signal that there is room. mu is held.
func (s *subscription) forget() {
	for _, n := range s.taken {
		n.drop()
		s.size -= len(n.raw)
	}
	s.taken = nil
}

// ended returns why the client no longer listens, which it must be told; nil if it listens.
func (s *subscription) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// end ends the subscription for good. It may be called more than once.
func (s *subscription) end() {
	s.mu.Lock()
	conn := s.conn
	s.off = true
	s.empty()
	s.mu.Unlock()
	s.written()
	if conn != nil {
		conn.remove(s)
	}
}

// state returns the channels that the client listens to, and the listening connection.
func (s *subscription) state() (conn *listenConn, channels []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn, s.channels
}
