package mux

import (
	"crypto/tls"
	"net"
	"time"

	"github.com/headpond/headpond/fiber"
)

// link is a connection under a session. The session's lock guards everything
// but conn and raw.
type link struct {
	conn       net.Conn
	raw        *rawWriter    // nil: writing may block
	lost       bool          // the session has given it up and closed it
	broken     bool          // writing failed: nothing more is written, and the reader reads to the end
	grace      *time.Timer   // how long that may take
	users      int           // goroutines that read or write it now
	over       chan struct{} // closed when it is lost and users is 0
	readerDone chan struct{}

	// Reading; see reader.go.
	in      *intake
	lastGot uint64        // in.got at the last tick of keep-alive
	rawIn   *rawReader    // nil: only conn.Read can be used
	reading bool          // a goroutine is reading
	ended   error         // why there is nothing more to read
	wake    chan struct{} // makes the session's reader check whether it should read
	overdue bool          // the connection went unread for standby
	standby time.Duration // how long that is now
	watched bool          // idle runs
	gaps    uint64        // how often reading has paused
	seen    uint64        // gaps when idle was set
	idle    *time.Timer

	// Of a session that can be resumed: frames without a number, written before
	// the next that have one, from off on.
	lead []byte
	off  int
}

// detach takes a connection of an I/O engine (package fiber) from its loop, to which each operation
// of a session's goroutines would be a trip. It returns other connections unchanged. ahead is data
// that was read from it already. The caller must hold no lock.
func detach(conn net.Conn) (plain net.Conn, ahead []byte) {
	plain, ahead, err := fiber.StreamOf(conn).Detach()
	if err != nil {
		return conn, nil // it cannot be, as one in TLS, or using conn fails too
	}
	return plain, ahead
}

// newLink makes a link with one user, its reader; ahead is data that was read already.
func newLink(conn net.Conn, ahead []byte) *link {
	l := &link{
		conn: conn, raw: newRawWriter(conn), rawIn: newRawReader(conn), users: 1,
		over: make(chan struct{}), readerDone: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	l.in = &intake{l: l, buf: make([]byte, max(readSize, len(ahead)))}
	l.in.w = copy(l.in.buf, ahead)
	l.in.more = l.in.w > 0
	return l
}

// releaseLink ends one use of l. mu is held.
func (s *Session) releaseLink(l *link) {
	if l.users--; l.users == 0 && l.lost {
		close(l.over)
	}
}

// mute reports whether nothing can be written now. mu is held.
func (s *Session) mute() bool { return s.dead || s.link == nil || s.link.broken }

// writeFailed stops writing to l, which failed with err. Frames of the other side may
// still arrive, the last of them a GoAway, which distinguishes a session that is over
// from one that resumes on another connection: the reader reads to the end of the
// connection, for CloseTimeout at most. mu is held.
func (s *Session) writeFailed(l *link, err error) {
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

// closeNow closes the connection without TLS's close_notify, which may block.
func closeNow(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		t.NetConn().Close()
		return
	}
	conn.Close()
}
