package idleconn

import (
	"net"
	"syscall"
)

// State is what a look shows.
type State int

// The states.
const (
	Silent  State = iota // open, and nothing to read
	Pending              // something to read
	Closing              // something to read, and behind it the end: closed by the peer, or broken
	Dead                 // closed by the peer, or broken, with nothing to read before that
	Unknown              // this connection does not tell
)

// Teller is a connection that knows by itself what has arrived on it: package fiber's, whose socket does not show what
// the engine has taken already, and its TLSConn.
type Teller interface {
	Quiet() bool // open, and nothing to read
	Ended() bool // ended by the peer, or broken, and nothing to read before that
	// PeerClosed is Ended, whether there is something to read before that or not.
	PeerClosed() bool
}

// Fit reports whether a connection that nobody has used yet can be given to somebody: it is open as far as is known. What
// has arrived on it, such as the greeting of a server that speaks first, is for them.
func (s State) Fit() bool { return s != Closing && s != Dead }

// Looker looks at one connection. It is for that connection's one user, and not for during a Read.
type Looker struct {
	teller Teller          // nil if the connection is none
	socket syscall.RawConn // nil if it is not a socket that can be asked
	blind  bool            // that nothing has come is not known
	peek   func(fd uintptr)
	state  State // that peek found
}

// New returns a Looker for c.
func New(c net.Conn) *Looker {
	l := &Looker{}
	if l.teller, _ = c.(Teller); l.teller != nil {
		// TLS knows what it has received, but not whether more could be known of what is underneath.
		if t, ok := c.(interface{ NetConn() net.Conn }); ok {
			l.blind = New(t.NetConn()).blind
		}
		return l
	}
	sc, ok := c.(syscall.Conn)
	if ok && canPeek {
		if socket, err := sc.SyscallConn(); err == nil {
			l.socket = socket
			l.peek = func(fd uintptr) { l.state = peek(fd) }
		}
	}
	l.blind = l.socket == nil
	return l
}

// Look tells, without waiting, what could be read. It takes nothing.
func (l *Looker) Look() State {
	state := Silent
	switch {
	case l.teller != nil:
		state = tell(l.teller)
	case l.socket != nil:
		if state = Dead; l.socket.Control(l.peek) == nil { // it is not closed
			state = l.state
		}
	}
	if state == Silent && l.blind {
		return Unknown
	}
	return state
}

func tell(t Teller) State {
	switch {
	case t.Quiet():
		return Silent
	case t.Ended():
		return Dead
	case t.PeerClosed():
		return Closing
	}
	return Pending
}
