package listener

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Conn is the connection every session gets: the accepted one, with the
// addresses of the PROXY header when there was one, and counted. It is a
// net.Conn and may be used as one; like any net.Conn it may be read by one
// goroutine while another writes.
type Conn struct {
	raw      net.Conn
	remote   net.Addr // from the PROXY header; nil = raw's
	local    net.Addr
	pending  []byte // read past the PROXY header; belongs to the next Read
	accepted time.Time
	in, out  atomic.Uint64

	serving bool // a session runs on it; guarded by Server.mu
	closing sync.Once
	closed  error
	onClose func() // run once, after raw is closed
}

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
	_ syscall.Conn  = (*Conn)(nil)
)

// Raw returns the accepted connection (a *net.TCPConn or *net.UnixConn when a
// net.Listen listener accepted it) and hands over the bytes already read from
// it, which come before anything a Read of it returns. Use it where the
// concrete type matters, as for splicing; report what was copied with Count.
// After Raw only Close, the addresses and the counters of c are to be used.
func (c *Conn) Raw() (raw net.Conn, pending []byte) {
	pending, c.pending = c.pending, nil
	return c.raw, pending
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(c.pending) > 0 {
		n := copy(p, c.pending)
		c.pending = c.pending[n:]
		if len(c.pending) == 0 {
			c.pending = nil
		}
		c.in.Add(uint64(n))
		return n, nil
	}
	n, err := c.raw.Read(p)
	c.in.Add(uint64(n))
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.raw.Write(p)
	c.out.Add(uint64(n))
	return n, err
}

// ReadFrom lets io.Copy to c use what the accepted connection has (sendfile,
// splice).
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(c.raw, r)
	c.out.Add(uint64(n))
	return n, err
}

// WriteTo lets io.Copy from c use what the two connections have (splice). The
// byte counter moves at its end.
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	if pending := c.pending; len(pending) > 0 {
		n, err := w.Write(pending)
		c.pending = pending[n:]
		c.in.Add(uint64(n))
		total = int64(n)
		if err != nil {
			return total, err
		}
		c.pending = nil
	}
	n, err := io.Copy(w, c.raw)
	c.in.Add(uint64(n))
	return total + n, err
}

// CloseWrite sends a FIN and leaves the reading side open. The error is
// errors.ErrUnsupported when the accepted connection cannot.
func (c *Conn) CloseWrite() error {
	if h, ok := c.raw.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// SetLinger sets what Close does with unsent data, as net.TCPConn's does; with
// 0 Close resets the connection. It does nothing on other connections.
func (c *Conn) SetLinger(seconds int) error {
	if t, ok := c.raw.(interface{ SetLinger(int) error }); ok {
		return t.SetLinger(seconds)
	}
	return nil
}

// SyscallConn implements syscall.Conn; errors.ErrUnsupported when the accepted
// connection has none. Bytes read past the PROXY header are not seen by it.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.raw.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// Close closes the connection, once; later calls return the first one's error.
func (c *Conn) Close() error {
	c.closing.Do(func() {
		c.closed = c.raw.Close()
		if c.onClose != nil {
			c.onClose()
		}
	})
	return c.closed
}

// RemoteAddr is the client's address: the PROXY header's, or the peer's.
func (c *Conn) RemoteAddr() net.Addr {
	if c.remote != nil {
		return c.remote
	}
	return c.raw.RemoteAddr()
}

// LocalAddr is the address the client connected to: the PROXY header's, or the
// listener's.
func (c *Conn) LocalAddr() net.Addr {
	if c.local != nil {
		return c.local
	}
	return c.raw.LocalAddr()
}

// Count adds to the byte counters what was copied past Read and Write.
func (c *Conn) Count(in, out int64) {
	c.in.Add(uint64(max(in, 0)))
	c.out.Add(uint64(max(out, 0)))
}

// BytesIn is the number of bytes received from the client so far.
func (c *Conn) BytesIn() uint64 { return c.in.Load() }

// BytesOut is the number of bytes sent to the client so far.
func (c *Conn) BytesOut() uint64 { return c.out.Load() }

// Accepted is when the connection was accepted.
func (c *Conn) Accepted() time.Time { return c.accepted }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error { return c.raw.SetDeadline(t) }

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.raw.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.raw.SetWriteDeadline(t) }
