package listener

import (
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
)

// Conn is the connection of a session. It wraps the accepted connection, counts bytes, and has the
// addresses of the PROXY header if there was one. It may be used as a fiber.Stream or as a
// net.Conn; one goroutine may read while another writes.
type Conn struct { // 80 bytes, a size class of the allocator, because there may be very many
	stream                 // the accepted connection; reads go to source
	header   *proxyHeader  // nil = no PROXY header came, and Unread was not called
	accepted time.Duration // since began
	in, out  atomic.Uint64

	server  *Server // nil = not admitted yet
	session Session // nil = none is attached; set by the session's goroutine or fiber, under Server.mu
	flags   atomic.Uint32
	index   int32 // in Server.conns, from 1; 0 = none; guarded by Server.mu
}

// Flags of a Conn.
const (
	connClosed        uint32 = 1 << iota
	connKilled               // by an operator; with connClosed
	connAccepted             // returned by netListener.Accept; the session ends when the connection is closed
	connServing              // a session runs on it; set under Server.mu
	connSuspended            // the session is suspended, or about to return; set by its goroutine or fiber
	connCounted              // Server.sources counts it
	connResumedByCall        // suspended by SuspendUntil
	connReturned             // the Handler or Resume has returned after SuspendUntil
	connResumeCalled         // the function of SuspendUntil was called
)

func (c *Conn) is(flag uint32) bool { return c.flags.Load()&flag != 0 }

// began is when the program started.
var began = time.Now()

type stream = fiber.Stream

// proxyHeader is the contents of a PROXY header.
type proxyHeader struct {
	remote, local net.Addr     // nil = unknown, or those of the connection
	relayed       bool         // the client is not the other end of the connection
	source        fiber.Stream // bytes after the header, or of Unread, followed by the accepted connection's; nil = only the connection's
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

// Raw returns the accepted connection, preceded by the bytes that were already read from it. Report
// bytes that are read and written without c with Count. After Raw use only Close, the addresses and
// the counters of c.
func (c *Conn) Raw() fiber.Stream { return c.source() }

// Suspend implements fiber.Stream: an idle session gives up its stack. If Suspend returns true, the
// Handler (or Resume) must return at once, without closing the connection. The attached session's
// Resume is called with a new context when there is something to read, the read deadline has
// passed, or the connection was closed. Only the fiber that runs the session may call Suspend. It
// returns false if the attached session is not a Resumer, if the accepted connection is not on a
// loop of an engine, or if the connection is from Server.Listener.
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

// SuspendUntil is like Suspend, but only a call of the returned function resumes the session, so
// that other code, such as fiber.CopyThen, can read the connection meanwhile. The function must be
// called once, as the last action of a fiber on the connection's loop; the session continues on
// that fiber. It is nil where Suspend would return false.
func (c *Conn) SuspendUntil() (resume func()) {
	if !c.canSuspend() {
		return nil
	}
	c.flags.Or(connSuspended | connResumedByCall)
	return c.resumeByCall
}

// resumeByCall resumes a session that SuspendUntil has suspended. If the session's function has not
// returned yet, suspendOrEnd resumes the session then.
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

// TryReadEither implements fiber.Stream.
func (c *Conn) TryReadEither(other net.Conn, patience time.Duration) (b []byte, otherReady, over bool) {
	b, otherReady, over = c.source().TryReadEither(other, patience)
	c.in.Add(uint64(len(b)))
	return b, otherReady, over
}

// Unread returns p, the bytes that were read last, to c: the next Read returns them first. p is
// copied.
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

// WaitReadableFor implements fiber.Stream. When patience has ended, a session may Suspend.
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

// AttendThen implements fiber.Stream.
func (c *Conn) AttendThen(other net.Conn, step func() (over bool), then func(panicked any)) bool {
	return c.source().AttendThen(other, step, then)
}

// State implements fiber.Stream.
func (c *Conn) State() fiber.State { return c.source().State() }

// Ended implements fiber.Stream.
func (c *Conn) Ended() bool { return c.source().Ended() }

// Detach implements fiber.Stream.
func (c *Conn) Detach() (conn net.Conn, ahead []byte, err error) { return c.source().Detach() }

// Close closes the connection, once; later calls do nothing and return nil.
func (c *Conn) Close() error {
	was := c.flags.Or(connClosed)
	if was&connClosed != 0 {
		return nil
	}
	return c.finishClose(was)
}

// finishClose closes the accepted connection, after connClosed was added to the flags, which were was before.
func (c *Conn) finishClose(was uint32) error {
	err := c.stream.Close()
	if was&connAccepted != 0 {
		c.server.connLimit.release()
		c.server.forget(c)
	}
	return err
}

// RemoteAddr returns the client's address: the one in the PROXY header, or the peer's.
func (c *Conn) RemoteAddr() net.Addr {
	if c.header != nil && c.header.remote != nil {
		return c.header.remote
	}
	return c.stream.RemoteAddr()
}

// Client returns the client's address, and whether the client itself is the other end of the connection. addr is nil after
// a PROXY header that names no address. After one with the command LOCAL, the other end is the client.
func (c *Conn) Client() (addr net.Addr, direct bool) {
	if c.header != nil && c.header.relayed {
		return c.header.remote, false
	}
	return c.stream.RemoteAddr(), true
}

// Proxied reports whether the connection began with a PROXY header or Unread was called, so that
// bytes of it have been read.
func (c *Conn) Proxied() bool { return c.header != nil }

// LocalAddr returns the address that the client connected to: the one in the PROXY header, or the
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

// BytesIn returns the number of bytes received from the client so far.
func (c *Conn) BytesIn() uint64 { return c.in.Load() }

// BytesOut returns the number of bytes sent to the client so far.
func (c *Conn) BytesOut() uint64 { return c.out.Load() }

// Accepted returns when the connection was accepted.
func (c *Conn) Accepted() time.Time { return began.Add(c.accepted) }
