package tcppool

import (
	"net"
	"time"
)

// Conn is a connection lent by a Dialer, a net.Conn until Release or Close.
// Either ends the loan; whatever comes after the first does nothing and
// returns net.ErrClosed, so that `defer c.Close()` and Release go together. It
// never touches the connection's next borrower.
type Conn struct {
	link   *link
	number uint64 // of the loan, from 1
}

// NetConn returns the connection below, as Config.Dial made it or, with Config.TLS,
// a *fiber.TLSConn: to ask for its state or to set what may stay set. What is read
// or written there goes unnoticed, so do not Release afterwards; and it must not be
// used when the loan is over.
func (c *Conn) NetConn() net.Conn { return c.link.Conn }

// LocalAddr returns the connection's own address.
func (c *Conn) LocalAddr() net.Addr { return c.link.LocalAddr() }

// RemoteAddr returns the server's address.
func (c *Conn) RemoteAddr() net.Addr { return c.link.RemoteAddr() }

var _ net.Conn = (*Conn)(nil)

// begin counts an operation, unless the loan is over.
func (c *Conn) begin() bool {
	for {
		s := c.link.state.Load()
		if s>>loanShift != c.number || s&ended != 0 {
			return false
		}
		if c.link.state.CompareAndSwap(s, (s+1)|used) {
			return true
		}
	}
}

// finish ends an operation. With one under way the link is not lent again, so that the state is still this loan's.
func (c *Conn) finish(err error) {
	if err != nil {
		c.link.state.Or(broken)
	}
	c.link.state.Add(^uint64(0))
}

// end ends the loan and returns the state before; false = it is over already.
func (c *Conn) end() (before uint64, ok bool) {
	for {
		s := c.link.state.Load()
		if s>>loanShift != c.number || s&ended != 0 {
			return 0, false
		}
		if c.link.state.CompareAndSwap(s, s|ended) {
			return s, true
		}
	}
}

// Read reads as net.Conn does. Any error, also io.EOF, rules out keeping the
// connection.
func (c *Conn) Read(b []byte) (int, error) {
	if !c.begin() {
		return 0, c.over("read")
	}
	n, err := c.link.Read(b)
	c.finish(err)
	return n, err
}

// Write writes as net.Conn does. Any error rules out keeping the connection.
func (c *Conn) Write(b []byte) (int, error) {
	if !c.begin() {
		return 0, c.over("write")
	}
	n, err := c.link.Write(b)
	c.finish(err)
	return n, err
}

// CloseWrite ends our half of the stream, if the connection can; the connection
// is not kept afterwards.
func (c *Conn) CloseWrite() error {
	if !c.begin() {
		return c.over("close write of")
	}
	half, ok := c.link.Conn.(interface{ CloseWrite() error })
	if !ok {
		c.finish(nil)
		return &net.OpError{Op: "close write of", Net: "tcppool", Addr: c.RemoteAddr(), Err: net.UnknownNetworkError("no half-close")}
	}
	err := half.CloseWrite()
	c.link.state.Or(broken)
	c.finish(err)
	return err
}

// SetDeadline sets both deadlines; Release undoes them.
func (c *Conn) SetDeadline(t time.Time) error { return c.set(c.link.SetDeadline, t) }

// SetReadDeadline sets the read deadline; Release undoes it.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.set(c.link.SetReadDeadline, t) }

// SetWriteDeadline sets the write deadline; Release undoes it.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.set(c.link.SetWriteDeadline, t) }

func (c *Conn) set(f func(time.Time) error, t time.Time) error {
	if !c.begin() {
		return c.over("set deadline of")
	}
	c.link.deadline.Store(true)
	err := f(t)
	c.finish(err)
	return err
}

// Reused reports whether the connection had served someone before: a first
// request that gets no answer may then be worth a retry on a fresh one.
func (c *Conn) Reused() bool { return c.number > 1 }

// Release states that the exchange is complete and gives the connection back.
// It is kept if no operation is under way or has failed, and nothing more has
// arrived; otherwise it is closed. The result says whether it was fit to be
// kept (false, too, when the loan was over).
func (c *Conn) Release() (kept bool) {
	state, ok := c.end()
	if !ok {
		return false
	}
	k := c.link
	if !k.rests(state) {
		k.lease.Discard()
		return false
	}
	k.lease.Release()
	return true
}

// Close ends the loan and closes the connection.
func (c *Conn) Close() error {
	if _, ok := c.end(); !ok {
		return c.over("close")
	}
	c.link.lease.Discard()
	return nil
}

func (c *Conn) over(op string) error {
	return &net.OpError{Op: op, Net: "tcppool", Addr: c.RemoteAddr(), Err: net.ErrClosed}
}
