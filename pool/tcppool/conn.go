package tcppool

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/internal/idleconn"
	"github.com/headpond/headpond/pool"
)

// Conn is a connection lent by a Dialer, a net.Conn until Release or Close.
// Either ends the loan; whatever comes after the first does nothing and
// returns net.ErrClosed, so that `defer c.Close()` and Release go together. It
// never touches the connection's next borrower.
type Conn struct {
	inner    // its addresses are those of the Conn
	lease    pool.Lease[net.Conn]
	state    atomic.Int64 // operations under way, plus the flags
	deadline atomic.Bool  // one was set and has to be undone
}

type inner = net.Conn

// NetConn returns the connection below, as Config.Dial made it or, with Config.TLS,
// a *fiber.TLSConn: to ask for its state or to set what may stay set. What is read
// or written there goes unnoticed, so do not Release afterwards; and it must not be
// used when the loan is over.
func (c *Conn) NetConn() net.Conn { return c.inner }

// Flags in Conn.state, above any number of operations.
const (
	ended  = 1 << 40 // the loan is over
	broken = 1 << 41 // a Read or Write has failed
)

var _ net.Conn = (*Conn)(nil)

// begin counts an operation, unless the loan is over.
func (c *Conn) begin() bool {
	if c.state.Add(1)&ended != 0 {
		c.state.Add(-1)
		return false
	}
	return true
}

func (c *Conn) finish(err error) {
	if err != nil {
		c.state.Or(broken)
	}
	c.state.Add(-1)
}

// Read reads as net.Conn does. Any error, also io.EOF, rules out keeping the
// connection.
func (c *Conn) Read(b []byte) (int, error) {
	if !c.begin() {
		return 0, c.over("read")
	}
	n, err := c.inner.Read(b)
	c.finish(err)
	return n, err
}

// Write writes as net.Conn does. Any error rules out keeping the connection.
func (c *Conn) Write(b []byte) (int, error) {
	if !c.begin() {
		return 0, c.over("write")
	}
	n, err := c.inner.Write(b)
	c.finish(err)
	return n, err
}

// CloseWrite ends our half of the stream, if the connection can; the connection
// is not kept afterwards.
func (c *Conn) CloseWrite() error {
	if !c.begin() {
		return c.over("close write of")
	}
	half, ok := c.inner.(interface{ CloseWrite() error })
	if !ok {
		c.finish(nil)
		return &net.OpError{Op: "close write of", Net: "tcppool", Addr: c.RemoteAddr(), Err: net.UnknownNetworkError("no half-close")}
	}
	err := half.CloseWrite()
	c.state.Or(broken)
	c.finish(err)
	return err
}

// SetDeadline sets both deadlines; Release undoes them.
func (c *Conn) SetDeadline(t time.Time) error { return c.set(c.inner.SetDeadline, t) }

// SetReadDeadline sets the read deadline; Release undoes it.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.set(c.inner.SetReadDeadline, t) }

// SetWriteDeadline sets the write deadline; Release undoes it.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.set(c.inner.SetWriteDeadline, t) }

func (c *Conn) set(f func(time.Time) error, t time.Time) error {
	if !c.begin() {
		return c.over("set deadline of")
	}
	c.deadline.Store(true)
	err := f(t)
	c.finish(err)
	return err
}

// Reused reports whether the connection had served someone before: a first
// request that gets no answer may then be worth a retry on a fresh one.
func (c *Conn) Reused() bool { return c.lease.Reused() }

// Release states that the exchange is complete and gives the connection back.
// It is kept if no operation is under way or has failed, and nothing more has
// arrived; otherwise it is closed. The result says whether it was fit to be
// kept (false, too, when the loan was over).
func (c *Conn) Release() (kept bool) {
	before := c.state.Or(ended)
	if before&ended != 0 {
		return false
	}
	if before != 0 || !c.calm() || look(c.inner) != idleconn.Silent {
		c.lease.Discard()
		return false
	}
	c.lease.Release()
	return true
}

// calm undoes the deadlines.
func (c *Conn) calm() bool {
	return !c.deadline.Load() || c.inner.SetDeadline(time.Time{}) == nil
}

// Close ends the loan and closes the connection.
func (c *Conn) Close() error {
	if c.state.Or(ended)&ended != 0 {
		return c.over("close")
	}
	c.lease.Discard()
	return nil
}

func (c *Conn) over(op string) error {
	return &net.OpError{Op: op, Net: "tcppool", Addr: c.RemoteAddr(), Err: net.ErrClosed}
}
