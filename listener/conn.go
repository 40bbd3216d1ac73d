package listener

import (
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
)

// Conn is the connection every session gets: the accepted one, with the
// addresses of the PROXY header when there was one, and counted. It is a
// fiber.Stream and may be used as one, or as a net.Conn: it may be read by one
// goroutine while another writes.
type Conn struct { // of 80 bytes, one of the allocator's sizes: there may be very many
	stream                 // the accepted connection; see source for reading
	header   *proxyHeader  // nil = none came, and nothing was unread
	accepted time.Duration // since began
	in, out  atomic.Uint64

	server  *Server // that it was admitted to; nil = not yet
	session Session // nil = none is attached; its goroutine or fiber sets it, under Server.mu
	flags   atomic.Uint32
	index   int32 // in Server.conns, from 1; 0 = none; guarded by Server.mu
}

// Flags of a Conn.
const (
	connClosed        uint32 = 1 << iota
	connAccepted             // returned by Accept of a netListener: its session ends with Close
	connServing              // a session runs on it; set under Server.mu
	connSuspended            // the session has given up its stack; its goroutine or fiber sets it
	connCounted              // Server.sources counts it
	connResumedByCall        // suspended until the function of SuspendUntil is called
	connReturned             // the part of the session that has suspended itself so is over
	connResumeCalled         // that function was called
)

func (c *Conn) is(flag uint32) bool { return c.flags.Load()&flag != 0 }

// began is when the program started.
var began = time.Now()

type stream = fiber.Stream

// proxyHeader is the contents of a PROXY header.
type proxyHeader struct {
	remote, local net.Addr
	source        fiber.Stream // bytes after the header, or of Unread, and then the accepted connection; nil = the connection only
}

// source returns the stream that c reads.
func (c *Conn) source() fiber.Stream {
	if c.header != nil && c.header.source != nil {
		return c.header.source
	}
	return c.stream
}

var (
	_ fiber.Stream  = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
)

// Raw returns the accepted connection, with the bytes already read from it. Report bytes that are
// read and written without c by Count. After Raw use only Close, the addresses and the counters of
// c.
func (c *Conn) Raw() fiber.Stream { return c.source() }

// Suspend implements fiber.Stream: it lets an idle session give up its stack. When it returns true, the Handler (or Resume)
// must return at once, without closing the connection. As soon as there is something to read, the
// read deadline has passed or the connection was closed, Resume of the attached session, which must
// be a Resumer, is called with a new context. Only the fiber that runs the session may call
// Suspend; it returns false unless the accepted connection is on a loop of an engine.
func (c *Conn) Suspend() bool {
	if !c.canSuspend() {
		return false
	}
	c.flags.Or(connSuspended)
	return true
}

func (c *Conn) canSuspend() bool {
	_, ok := c.session.(Resumer)
	return ok && c.Loop() != 0 && !c.is(connAccepted)
}

// SuspendUntil is Suspend for a session that is resumed by the function that it returns, and by nothing else: it may have left the reading of the
// connection to others, such as fiber.CopyThen. That function must be called once, as the last thing of a fiber of the
// connection's loop, on which the session continues. It is nil where Suspend would return false.
func (c *Conn) SuspendUntil() (resume func()) {
	if !c.canSuspend() {
		return nil
	}
	c.flags.Or(connSuspended | connResumedByCall)
	return c.resumeByCall
}

// resumeByCall resumes a session suspended by SuspendUntil, or has suspendOrEnd do that.
func (c *Conn) resumeByCall() {
	if c.flags.Or(connResumeCalled)&connReturned != 0 {
		c.resume()
	}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.source().Read(p)
	c.in.Add(uint64(n))
	return n, err
}

// TryRead implements fiber.Stream.
func (c *Conn) TryRead(patience time.Duration) (b []byte, over bool) {
	b, over = c.source().TryRead(patience)
	c.in.Add(uint64(len(b)))
	return b, over
}

// Unread makes the next Read begin with p, the bytes that were read last. p is copied.
func (c *Conn) Unread(p []byte) {
	header := proxyHeader{}
	if c.header != nil {
		header = *c.header
	}
	header.source = fiber.Ahead(c.source(), slices.Clone(p))
	c.header = &header
	c.in.Add(-uint64(len(p)))
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.stream.Write(p)
	c.out.Add(uint64(n))
	return n, err
}

// TryWrite implements fiber.Stream.
func (c *Conn) TryWrite(p []byte) int {
	n := c.stream.TryWrite(p)
	c.out.Add(uint64(n))
	return n
}

// ReadFrom lets io.Copy to c use the ReadFrom of the accepted connection (sendfile, splice).
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(c.stream, r)
	c.out.Add(uint64(n))
	return n, err
}

// CopyTo implements fiber.Stream.
func (c *Conn) CopyTo(dst net.Conn, moved, spliced func(n int)) (readErr, writeErr error) {
	return c.source().CopyTo(dst, func(n int) {
		c.in.Add(uint64(n))
		moved(n)
	}, spliced)
}

// WaitReadable implements fiber.Stream.
func (c *Conn) WaitReadable() error { return c.source().WaitReadable() }

// WaitReadableFor implements fiber.Stream. See Suspend for the next step when patience has ended.
func (c *Conn) WaitReadableFor(patience time.Duration) (ready bool, err error) {
	return c.source().WaitReadableFor(patience)
}

// WaitEither implements fiber.Stream.
func (c *Conn) WaitEither(other net.Conn, patience time.Duration) (ready, otherReady bool, err error) {
	return c.source().WaitEither(other, patience)
}

// OnReadable implements fiber.Stream.
func (c *Conn) OnReadable(fn func()) bool { return c.source().OnReadable(fn) }

// Attend implements fiber.Stream.
func (c *Conn) Attend(step func() (over bool)) bool { return c.source().Attend(step) }

// State implements fiber.Stream.
func (c *Conn) State() fiber.State { return c.source().State() }

// Ended implements fiber.Stream.
func (c *Conn) Ended() bool { return c.source().Ended() }

// Detach implements fiber.Stream.
func (c *Conn) Detach() (conn net.Conn, ahead []byte, err error) { return c.source().Detach() }

// Close closes the connection, once; later calls do nothing and return nil.
func (c *Conn) Close() error {
	_, err := c.close()
	return err
}

// close is Close; open says that the connection was not closed before.
func (c *Conn) close() (open bool, err error) {
	if c.flags.Or(connClosed)&connClosed != 0 {
		return false, nil
	}
	err = c.stream.Close()
	if c.is(connAccepted) {
		c.server.connLimit.release()
		c.server.forget(c)
	}
	return true, err
}

// RemoteAddr is the client's address: the PROXY header's, or the peer's.
func (c *Conn) RemoteAddr() net.Addr {
	if c.header != nil && c.header.remote != nil {
		return c.header.remote
	}
	return c.stream.RemoteAddr()
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
	return c.stream.LocalAddr()
}

// Count adds bytes that were copied without Read and Write to the byte counters.
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
