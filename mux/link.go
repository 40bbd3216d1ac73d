package mux

import (
	"crypto/tls"
	"net"
	"time"
)

// link is a connection under a session. The session's lock guards everything
// but conn and raw.
type link struct {
	conn       net.Conn
	raw        *rawWriter    // nil: writing may block
	lost       bool          // the session has given it up and closed it
	broken     bool          // writing failed: nothing is written any more, and the reader sees what had come
	grace      *time.Timer   // how long it may take to
	users      int           // goroutines that read or write it now
	over       chan struct{} // closed when it is lost and nobody uses it any more
	readerDone chan struct{}

	// Reading; see reader.go.
	in      *intake
	heard   uint64        // in.got at the last tick of keep-alive
	rawIn   *rawReader    // nil: there is Read only
	reading bool          // somebody is at it
	ended   error         // why there is nothing more to read
	turn    chan struct{} // tells the reader to look whether it is its turn
	overdue bool          // nobody has read for standby
	standby time.Duration // how long that is now
	watched bool          // idle runs
	turns   uint64        // how often nobody was reading
	seen    uint64        // turns when idle was set
	idle    *time.Timer

	// Of a session that can be resumed: frames without a number, written before
	// the next that have one, from off on.
	lead []byte
	off  int
}

// detach takes a connection of an I/O engine (package fiber) from its loop, where each
// operation of a session's goroutines would be a trip; others it returns as they are.
// ahead is what was read of it already. Whoever calls it holds no lock.
func detach(conn net.Conn) (plain net.Conn, ahead []byte) {
	if d, ok := conn.(interface {
		Detach() (net.Conn, []byte, error)
	}); ok {
		if plain, ahead, err := d.Detach(); err == nil {
			return plain, ahead
		}
	}
	return conn, nil // an error is met again
}

// newLink makes one with its reader as user, and what was read already.
func newLink(conn net.Conn, ahead []byte) *link {
	l := &link{
		conn: conn, raw: newRawWriter(conn), rawIn: newRawReader(conn), users: 1,
		over: make(chan struct{}), readerDone: make(chan struct{}), turn: make(chan struct{}, 1),
	}
	l.in = &intake{l: l, buf: make([]byte, max(readSize, len(ahead)))}
	l.in.w = copy(l.in.buf, ahead)
	l.in.more = l.in.w > 0
	return l
}

// leave ends one use of l. mu is held.
func (s *Session) leave(l *link) {
	if l.users--; l.users == 0 && l.lost {
		close(l.over)
	}
}

// mute tells whether nothing can be written now. mu is held.
func (s *Session) mute() bool { return s.dead || s.link == nil || s.link.broken }

// broke stops writing to l, which failed with err. What the other side sent may
// be there nevertheless, its farewell at the end, which tells a session that is
// over from one that goes on with another connection: the reader takes it up to
// the end of the connection, which is near, or CloseTimeout. mu is held.
func (s *Session) broke(l *link, err error) {
	switch {
	case l.lost || l.broken:
	case s.core.err != nil:
		s.lose(l, err)
	default:
		l.broken = true
		l.grace = time.AfterFunc(s.cfg.CloseTimeout, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if !l.lost {
				s.lose(l, err)
			}
		})
		l.wakeReader()
	}
}

// closeNow closes the connection without TLS's farewell, which may block.
func closeNow(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		t.NetConn().Close()
		return
	}
	conn.Close()
}
