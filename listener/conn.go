package listener

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

// Conn is the connection every session gets: the accepted one, with the
// addresses of the PROXY header when there was one, and counted. It is a
// net.Conn and may be used as one; like any net.Conn it may be read by one
// goroutine while another writes.
type Conn struct { // of 80 bytes, one of the allocator's sizes: there may be very many
	raw      net.Conn
	header   *proxyHeader  // nil = none came, and nothing was unread
	accepted time.Duration // since began
	in, out  atomic.Uint64

	server *Server               // that it was admitted to; nil = not yet
	resume func(context.Context) // goes on with a suspended session; nil = it is not
	closed atomic.Bool
	handed bool // by a netListener: its session ends with Close

	serving bool  // a session runs on it; guarded by Server.mu
	place   int32 // in Server.conns, from 1; 0 = none; guarded by Server.mu
}

// began is when the program did.
var began = time.Now()

// proxyHeader is what a PROXY header said.
type proxyHeader struct {
	remote, local net.Addr
	pending       []byte // read past the header, or given back; belongs to the next Read
}

// pending returns what was read past the PROXY header and not used yet.
func (c *Conn) pending() []byte {
	if c.header == nil {
		return nil
	}
	return c.header.pending
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
	if c.header != nil {
		pending, c.header.pending = c.header.pending, nil
	}
	return c.raw, pending
}

// waiter is a connection of an engine's loop; see fiber.Conn.
type waiter interface {
	WaitReadable() error
	WaitReadableFor(patience time.Duration) (ready bool, err error)
	OnReadable(fn func()) bool
}

// Suspend lets a session that is idle for long take no stack: when it returns true, the Handler
// (or the resume that runs) is to return at once, without closing the connection, and resume is
// called, with a context of its own, as soon as there is something to read, the read deadline has
// passed or the connection was closed. What was said of ServeConn then goes for resume. It is for
// the fiber that runs the session; false where the accepted connection is none of an engine's
// loop, or has unread bytes after its PROXY header.
func (c *Conn) Suspend(resume func(context.Context)) bool {
	if _, ok := c.raw.(waiter); !ok || c.server == nil || c.handed || len(c.pending()) > 0 {
		return false
	}
	c.resume = resume
	return true
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if pending := c.pending(); len(pending) > 0 {
		n := copy(p, pending)
		if c.header.pending = pending[n:]; n == len(pending) {
			c.header.pending = nil
		}
		c.in.Add(uint64(n))
		return n, nil
	}
	n, err := c.raw.Read(p)
	c.in.Add(uint64(n))
	return n, err
}

// Unread gives back the bytes that were read last: the next Read begins with them. p is copied.
func (c *Conn) Unread(p []byte) {
	header := proxyHeader{}
	if c.header != nil {
		header = *c.header
	}
	header.pending = append(slices.Clone(p), header.pending...)
	c.header = &header
	c.in.Add(-uint64(len(p)))
}

// WaitReadable returns when a Read would not wait, so that nobody need hold a buffer meanwhile. The
// error is errors.ErrUnsupported where the accepted connection is none of an engine's loop.
func (c *Conn) WaitReadable() error {
	if len(c.pending()) > 0 {
		return nil
	}
	w, ok := c.raw.(waiter)
	if !ok {
		return errors.ErrUnsupported
	}
	return w.WaitReadable()
}

// WaitReadableFor is WaitReadable for as long as patience lasts, and some time more; ready is
// false when it has ended. See Suspend for what to do then.
func (c *Conn) WaitReadableFor(patience time.Duration) (ready bool, err error) {
	if len(c.pending()) > 0 {
		return true, nil
	}
	w, ok := c.raw.(waiter)
	if !ok {
		return false, errors.ErrUnsupported
	}
	return w.WaitReadableFor(patience)
}

// WaitEither waits until a Read of c, or one of other, would not wait; see fiber.Conn. The error is
// errors.ErrUnsupported where not both connections are an engine's and of one loop.
func (c *Conn) WaitEither(other net.Conn, patience time.Duration) (ready, otherReady bool, err error) {
	if len(c.pending()) > 0 {
		return true, false, nil
	}
	w, ok := c.raw.(interface {
		WaitEither(other net.Conn, patience time.Duration) (ready, otherReady bool, err error)
	})
	if !ok {
		return false, false, errors.ErrUnsupported
	}
	return w.WaitEither(other, patience)
}

// Attendable is a connection of an engine's loop that can be attended; see fiber.Conn.
type Attendable interface {
	net.Conn
	Attend(step func() (over bool)) bool
	TryRead(patience time.Duration) (b []byte, over bool)
	TryWrite(p []byte) (n int)
	Beside(other net.Conn) bool
}

// Attendable returns the accepted connection for Attend; nil where it is none of an engine's loop, or has
// unread bytes after its PROXY header. Report what is read and written past c with Count.
func (c *Conn) Attendable() Attendable {
	if a, ok := c.raw.(Attendable); ok && len(c.pending()) == 0 {
		return a
	}
	return nil
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
	if pending := c.pending(); len(pending) > 0 {
		n, err := w.Write(pending)
		c.header.pending = pending[n:]
		c.in.Add(uint64(n))
		total = int64(n)
		if err != nil {
			return total, err
		}
		c.header.pending = nil
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

// Close closes the connection, once; later calls do nothing and return nil.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	err := c.raw.Close()
	if c.handed {
		c.server.gate.leave()
		c.server.forget(c)
	}
	return err
}

// RemoteAddr is the client's address: the PROXY header's, or the peer's.
func (c *Conn) RemoteAddr() net.Addr {
	if c.header != nil && c.header.remote != nil {
		return c.header.remote
	}
	return c.raw.RemoteAddr()
}

// Proxied reports whether the connection began with a PROXY header, or Unread was
// called: then it has been read from.
func (c *Conn) Proxied() bool { return c.header != nil }

// LocalAddr is the address the client connected to: the PROXY header's, or the
// listener's.
func (c *Conn) LocalAddr() net.Addr {
	if c.header != nil && c.header.local != nil {
		return c.header.local
	}
	return c.raw.LocalAddr()
}

// Count adds to the byte counters what was copied past Read and Write.
func (c *Conn) Count(in, out int64) {
	if in > 0 {
		c.in.Add(uint64(in))
	}
	if out > 0 {
		c.out.Add(uint64(out))
	}
}

// BytesIn is the number of bytes received from the client so far.
func (c *Conn) BytesIn() uint64 { return c.in.Load() }

// BytesOut is the number of bytes sent to the client so far.
func (c *Conn) BytesOut() uint64 { return c.out.Load() }

// Accepted is when the connection was accepted.
func (c *Conn) Accepted() time.Time { return began.Add(c.accepted) }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error { return c.raw.SetDeadline(t) }

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.raw.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.raw.SetWriteDeadline(t) }
