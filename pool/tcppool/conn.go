package tcppool

import (
	"errors"
	"net"
	"time"
)

// Conn is a connection lent by a Dialer, a net.Conn until Release or Close.
// Either ends the loan; every later call does nothing and returns
// net.ErrClosed, so that `defer c.Close()` and Release go together, and the
// connection's next borrower is never affected. Do not copy a Conn: the copy is one
// whose loan is over.
type Conn struct {
	loans *loans // the Conn's place in which is the number of the loan
}

// loan returns the link that is lent and the number of the loan, from 1.
func (c *Conn) loan() (*link, uint64) {
	return c.loans.link, c.loans.number(c)
}

func (c *Conn) link() *link { return c.loans.link }

// NetConn returns the underlying connection, as Config.Dial made it or, with Config.TLS,
// a *fiber.TLSConn: to get its state or to set permanent options. Its reads and writes
// go unnoticed, so do not Release after one; and it must not be used when the loan is
// over.
func (c *Conn) NetConn() net.Conn { return c.link().Conn }

// LocalAddr returns the connection's own address.
func (c *Conn) LocalAddr() net.Addr { return c.link().LocalAddr() }

// RemoteAddr returns the server's address.
func (c *Conn) RemoteAddr() net.Addr { return c.link().RemoteAddr() }

var _ net.Conn = (*Conn)(nil)

// begin counts an operation, unless the loan is over.
func (c *Conn) begin() bool {
	k, number := c.loan()
	for {
		s := k.state.Load()
		if s>>loanShift != number {
			return false
		}
		if k.state.CompareAndSwap(s, (s+1)|used) {
			return true
		}
	}
}

// finish ends an operation and sets flags. After the end of the loan it does nothing: a link with an operation under way
// at that moment is not kept.
func (c *Conn) finish(err error, flags uint64) {
	if err != nil {
		flags |= broken
	}
	k, number := c.loan()
	for {
		s := k.state.Load()
		if s>>loanShift != number || k.state.CompareAndSwap(s, (s-1)|flags) {
			return
		}
	}
}

// end ends the loan and returns the state before; false = it is over already.
func (c *Conn) end() (before uint64, ok bool) {
	k, number := c.loan()
	for {
		s := k.state.Load()
		if s>>loanShift != number {
			return 0, false
		}
		if k.state.CompareAndSwap(s, (number+1)<<loanShift) {
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
	n, err := c.link().Read(b)
	c.finish(err, 0)
	return n, err
}

// Write writes as net.Conn does. Any error rules out keeping the connection.
func (c *Conn) Write(b []byte) (int, error) {
	if !c.begin() {
		return 0, c.over("write")
	}
	n, err := c.link().Write(b)
	c.finish(err, 0)
	return n, err
}

// CloseWrite closes the sending direction, if the connection supports that; the
// connection is not kept afterwards.
func (c *Conn) CloseWrite() error {
	if !c.begin() {
		return c.over("close write of")
	}
	err := c.link().stream.CloseWrite()
	if errors.Is(err, errors.ErrUnsupported) {
		c.finish(nil, 0)
		return &net.OpError{Op: "close write of", Net: "tcppool", Addr: c.RemoteAddr(), Err: net.UnknownNetworkError("no half-close")}
	}
	c.finish(err, broken)
	return err
}

// SetDeadline sets both deadlines; Release undoes them.
func (c *Conn) SetDeadline(t time.Time) error { return c.set(c.link().SetDeadline, t) }

// SetReadDeadline sets the read deadline; Release undoes it.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.set(c.link().SetReadDeadline, t) }

// SetWriteDeadline sets the write deadline; Release undoes it.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.set(c.link().SetWriteDeadline, t) }

func (c *Conn) set(f func(time.Time) error, t time.Time) error {
	if !c.begin() {
		return c.over("set deadline of")
	}
	err := f(t)
	c.finish(err, timed)
	return err
}

// Reused reports whether the connection had been lent before: a first
// request that gets no answer may then be worth a retry on a new one.
func (c *Conn) Reused() bool {
	_, number := c.loan()
	return number > 1
}

// Release states that the exchange is complete and gives the connection back.
// It is kept if no operation is under way or has failed, and nothing more has
// arrived; otherwise it is closed. A connection that was not used goes back as it is,
// and is examined before it is lent again. The result reports whether it was fit to be
// kept (false, too, if the loan was over).
func (c *Conn) Release() (kept bool) {
	state, ok := c.end()
	if !ok {
		return false
	}
	k := c.link()
	if !k.reusable(state) {
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
	c.link().lease.Discard()
	return nil
}

func (c *Conn) over(op string) error {
	return &net.OpError{Op: op, Net: "tcppool", Addr: c.RemoteAddr(), Err: net.ErrClosed}
}
