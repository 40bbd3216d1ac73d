package pgproxy

import (
	"errors"

	"github.com/headpond/headpond/listener"
)

// clientConn is a client's connection with what the engine's connections can do: wait until
// there is something to read, so that no buffer is held meanwhile.
type clientConn struct {
	*listener.Conn
	wait    interface{ WaitReadable() error } // nil = it cannot
	pending []byte                            // read past the PROXY header; belongs to the next Read
}

func newClientConn(c *listener.Conn) *clientConn {
	raw, pending := c.Raw()
	w, _ := raw.(interface{ WaitReadable() error })
	return &clientConn{Conn: c, wait: w, pending: pending}
}

// Read implements net.Conn.
func (c *clientConn) Read(p []byte) (int, error) {
	if len(c.pending) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.pending)
	if c.pending = c.pending[n:]; len(c.pending) == 0 {
		c.pending = nil
	}
	c.Count(int64(n), 0)
	return n, nil
}

// WaitReadable returns when a Read would not wait. It wraps errors.ErrUnsupported where that is
// not known.
func (c *clientConn) WaitReadable() error {
	switch {
	case len(c.pending) > 0:
		return nil
	case c.wait == nil:
		return errors.ErrUnsupported
	}
	return c.wait.WaitReadable()
}
