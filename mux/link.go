package mux

import (
	"crypto/tls"
	"net"
)

// link is a connection under a session. The session's lock guards everything
// but conn and raw.
type link struct {
	conn       net.Conn
	raw        *rawWriter    // nil: writing may block
	lost       bool          // the session has given it up and closed it
	users      int           // goroutines that read or write it now
	over       chan struct{} // closed when it is lost and nobody uses it any more
	readerDone chan struct{}

	// Of a session that can be resumed: frames without a number, written before
	// the next that have one, from off on.
	lead []byte
	off  int
}

// newLink makes one with its reader as user.
func newLink(conn net.Conn) *link {
	return &link{conn: conn, raw: newRawWriter(conn), users: 1, over: make(chan struct{}), readerDone: make(chan struct{})}
}

// leave ends one use of l. mu is held.
func (s *Session) leave(l *link) {
	if l.users--; l.users == 0 && l.lost {
		close(l.over)
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
