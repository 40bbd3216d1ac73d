package pgproxy

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the notifications that wait for clients. A client for which more than maxMailbox bytes wait is ended, and so are those for which most
// waits while there are more than maxMailboxes for all, each notification counted once. While more than slowMailbox wait for one client,
// notifications are read more slowly, to give it time: paceBytes in paceTime, if it takes nothing. So a client that reads 20 MiB a second is not
// ended, whatever comes, and one that does not read delays others by three seconds in all.
const (
	slowMailbox  = 4 << 20
	maxMailbox   = 64 << 20
	maxMailboxes = 256 << 20
	paceBytes    = 1 << 20
	paceTime     = 50 * time.Millisecond
)

// errDeaf ends a client that does not read its notifications.
var errDeaf = errors.New("the client does not read its notifications")

// note is a notification that waits for clients.
type note struct {
	raw     []byte // the message, which is not changed
	conn    *listenConn
	holders atomic.Int32
}

// drop ends what one holder has with it.
func (n *note) drop() {
	if n.holders.Add(-1) == 0 {
		n.conn.waiting.Add(int64(-len(n.raw)))
	}
}

// subscription is what one client of transaction mode listens to by the listening connection, and the notifications that it has not got yet. It
// stays while the session is suspended.
type subscription struct {
	c *Client

	mu       sync.Mutex // held for a few instructions
	conn     *listenConn
	channels []string      // in order
	from     *fenceRequest // notifications are the client's behind its fence; nil = it has come
	until    *fenceRequest // they are so no more behind this one; nil = there is none
	off      bool          // it has come, or the subscription is over
	mailbox  []*note
	taken    []*note // of the mailbox: those that are being written to the client
	size     int     // bytes of both
	over     error   // the client must be told that it listens no more; nil = it does
	waiting  bool    // the session waits for its client, and may be woken
	woken    bool    // it was, by a deadline
}

// starts begins the subscription anew.
func (s *subscription) starts(conn *listenConn, r *fenceRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.channels, s.from, s.until, s.off = conn, r.channels, r, nil, false
}

// stops notes the fence behind which there is nothing more.
func (s *subscription) stops(r *fenceRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = r
}

// passed notes that a fence has come.
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

// abandoned forgets a request. It reports whether nothing has come of it.
func (s *subscription) abandoned(r *fenceRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == r {
		s.until = nil
	}
	return !s.off
}

// receive takes a notification. It reports whether more waits for the client than is good.
func (s *subscription) receive(n *note) (full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from != nil || s.off || s.over != nil {
		return false
	}
	n.holders.Add(1)
	s.mailbox = append(s.mailbox, n)
	if s.size += len(n.raw); s.size > maxMailbox {
		s.deafen()
		return false
	}
	s.wake()
	return s.size > slowMailbox
}

// full returns how many bytes wait for the client, 0 where endDeaf would make no room.
func (s *subscription) full() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return 0
	}
	return s.size
}

// empty forgets the messages. mu is held.
func (s *subscription) empty() {
	for _, n := range s.mailbox {
		n.drop()
		s.size -= len(n.raw)
	}
	s.mailbox = nil
}

// endDeaf ends a client because too much waits for it. It reports whether that makes room.
func (s *subscription) endDeaf() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return false
	}
	s.deafen()
	return true
}

// deafen is endDeaf. mu is held.
func (s *subscription) deafen() {
	s.empty()
	s.forget() // the session is about to
	s.over = errDeaf
	_ = s.c.Conn.SetWriteDeadline(unixPast) // it may be written to
	s.wake()
}

// lost notes that the listening connection is gone. It reports whether that concerns the client.
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
	s.wake()
	return true
}

// errStranded ends a client whose server connection was discarded while it listened for it.
var errStranded = errors.New("the server connection that listened for the client is gone")

// stranded notes that the session has no server connection. If the listening connection does not listen for it either, that is the end.
func (s *subscription) stranded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.off && s.over == nil {
		s.over = errStranded
	}
}

// wake ends the session's wait for its client. mu is held.
func (s *subscription) wake() {
	if s.waiting && !s.woken {
		s.woken = true
		_ = s.c.Conn.SetReadDeadline(unixPast)
	}
}

// wait is called before the session waits for its client. False means that there is something for it, and it must not wait.
func (s *subscription) wait() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = len(s.mailbox) == 0 && s.over == nil
	return s.waiting
}

// waited is called when the wait is over. woken means that the client's read deadline has been used for that.
func (s *subscription) waited() (woken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	woken = s.woken
	s.waiting, s.woken = false, false
	return woken
}

// take returns the notifications for the client, and why there will be no more if that is so. written is called once they are written.
func (s *subscription) take() (messages []*note, over error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken, s.mailbox = s.mailbox, nil
	return s.taken, s.over
}

// written forgets what take has returned.
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

// forget is written, without room for others. mu is held.
func (s *subscription) forget() {
	for _, n := range s.taken {
		n.drop()
		s.size -= len(n.raw)
	}
	s.taken = nil
}

// ended returns why the client must be told that it listens no more, nil if it does.
func (s *subscription) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// end ends the subscription for good. It may be called again.
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

// state returns what it listens to and by which connection.
func (s *subscription) state() (conn *listenConn, channels []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn, s.channels
}
