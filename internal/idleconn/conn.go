package idleconn

import (
	"crypto/tls"
	"net"
	"syscall"
)

// State is what a look shows.
type State int

// The states.
const (
	Silent  State = iota // open, and nothing to read
	Pending              // something to read
	Dead                 // closed by the peer, or broken
	Unknown              // this connection does not tell
)

// Teller is a connection that knows by itself what has arrived on it, such as package fiber's: its socket does not
// show what the engine has taken already.
type Teller interface {
	Quiet() bool // open, and nothing to read
}

// Raw is a connection that can be read without waiting, for TLS to stand on or by itself. It belongs to whoever
// reads it; Close and what else a net.Conn allows may be called from elsewhere.
type Raw struct {
	net.Conn
	teller  Teller          // nil if the connection is none
	socket  syscall.RawConn // nil if it is not a socket
	control func(fd uintptr)
	secure  *tls.Conn // nil without TLS
	records records   // of TLS
	emptied bool      // TLS has nothing left of what was read: Look has seen it
	polling bool      // Read returns errWouldBlock instead of waiting

	dst []byte // of the read under way
	n   int
	err error
}

// New takes c over.
func New(c net.Conn) *Raw {
	r := &Raw{Conn: c}
	r.teller, _ = c.(Teller)
	if sc, ok := c.(syscall.Conn); ok {
		if socket, err := sc.SyscallConn(); err == nil {
			r.socket = socket
		}
	}
	r.control = func(fd uintptr) { r.n, r.err = pollRead(fd, r.dst) }
	return r
}

// Client makes r a TLS connection, once, before anything was read from it. From then on r is for looking and closing
// only.
func (r *Raw) Client(cfg *tls.Config) *tls.Conn {
	r.secure = tls.Client(r, cfg)
	return r.secure
}

// NetConn returns the connection underneath.
func (r *Raw) NetConn() net.Conn { return r.Conn }

// Look reads one byte into p without waiting; took says that it did. Under TLS that is a byte of its contents: TLS's
// own messages, such as the session tickets a server sends whenever it likes, are dealt with and do not count, and a
// record that has arrived in part is Pending.
func (r *Raw) Look(p *[1]byte) (state State, took bool) {
	switch {
	case r.teller != nil:
		if (r.secure == nil || r.emptied) && r.teller.Quiet() {
			return Silent, false
		}
	case r.socket == nil || !canPoll:
		return Unknown, false
	}
	r.polling = true
	var n int
	var err error
	if r.secure != nil {
		n, err = r.secure.Read(p[:])
	} else {
		n, err = r.Read(p[:])
	}
	r.polling = false
	switch {
	case n > 0:
		return Pending, true
	case err != errWouldBlock: //nolint:errorlint // crypto/tls returns it as it is
		return Dead, false
	case !r.records.whole():
		return Pending, false
	}
	r.emptied = true
	return Silent, false
}

// Read waits for bytes unless Look is looking.
func (r *Raw) Read(p []byte) (int, error) {
	n, err := r.read(p)
	if n > 0 && r.secure != nil {
		r.emptied = false
		r.records.pass(p[:n])
	}
	return n, err
}

func (r *Raw) read(p []byte) (int, error) {
	switch {
	case !r.polling:
		return r.Conn.Read(p)
	case r.teller == nil:
		r.dst = p
		err := r.socket.Control(r.control)
		r.dst = nil
		if err != nil {
			return 0, err
		}
		return r.n, r.err
	case r.teller.Quiet():
		return 0, errWouldBlock
	}
	return r.Conn.Read(p) // does not wait: something has arrived
}

// wouldBlock is a net.Error that crypto/tls does not take for the end of the connection.
type wouldBlock struct{}

var errWouldBlock error = wouldBlock{}

var _ net.Error = wouldBlock{}

func (wouldBlock) Error() string   { return "nothing to read yet" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }
