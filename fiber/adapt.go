package fiber

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"
)

// StreamOf returns c if it is a Stream, and adapts it otherwise. Only this function examines the kind of a connection:
//
//   - A connection of package net supports what its socket does. If a fiber calls a method that may wait, the method
//     runs on a goroutine (see Block), which costs some microseconds. The same holds for connections of unknown kinds,
//     such as net.Pipe's.
//   - A connection that wraps an engine's connection (its method NetConn returns it) is called directly.
//
// The methods CloseWrite, SetLinger, SetKeepAlive, SyscallConn and ReadFrom of c are used if c has them. NetConn of the
// result returns c.
func StreamOf(c net.Conn) Stream {
	if s, ok := c.(Stream); ok {
		return s
	}
	return &adapted{Conn: c, direct: below[Stream](c) != nil}
}

// below returns the first connection of type T among c and the connections that it wraps.
func below[T any](c net.Conn) (found T) {
	for c != nil {
		if t, ok := c.(T); ok {
			return t
		}
		over, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = over.NetConn()
	}
	return found
}

// adapted is a connection that does not belong to an engine.
type adapted struct {
	NoLoop
	net.Conn
	direct bool         // a fiber may wait in its methods without holding its loop
	resets atomic.Bool  // Close resets the connection
	probe  *socketProbe // used by State; nil = State was not called
}

// NetConn returns the connection that StreamOf was given.
func (w *adapted) NetConn() net.Conn { return w.Conn }

func (w *adapted) waits() bool { return !w.direct && onFiber() }

func (w *adapted) Read(p []byte) (n int, err error) {
	if w.waits() {
		return blocked(w.Conn.Read, p)
	}
	return w.Conn.Read(p)
}

func (w *adapted) Write(p []byte) (n int, err error) {
	if w.waits() {
		return blocked(w.Conn.Write, p)
	}
	return w.Conn.Write(p)
}

// blocked is a separate function because the captures of its closure are allocated.
func blocked(op func([]byte) (int, error), p []byte) (n int, err error) {
	Block(func() { n, err = op(p) })
	return n, err
}

// ReadFrom lets io.Copy use the connection's own ReadFrom (sendfile, splice).
func (w *adapted) ReadFrom(r io.Reader) (n int64, err error) {
	if w.waits() {
		return io.Copy(struct{ io.Writer }{w}, r)
	}
	return io.Copy(w.Conn, r)
}

// Close does not wait on a fiber, which may hold a lock that other fibers of its loop wait for. Instead the engine
// closes the connection on a goroutine, and logs the error.
func (w *adapted) Close() error {
	c := io.Closer(w.Conn)
	if w.resets.Load() {
		c = below[lingering](w.Conn)
	}
	if f := currentFiber(); f != nil && !w.direct {
		f.loop.engine.closeAside(c)
		return nil
	}
	return c.Close()
}

// closeAside closes c for a fiber, on a goroutine for which Engine.Close waits. A panic there would end the program, not
// a session.
func (e *Engine) closeAside(c io.Closer) {
	e.closers.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				e.cfg.Logger.Error("closing a connection panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			}
		}()
		if err := c.Close(); err != nil {
			e.cfg.Logger.Debug("closing a connection has failed", slog.Any("error", err))
		}
	})
}

// closersGrace is how long Engine.Close waits for connections of other kinds. crypto/tls takes up to 5 s to close one; a Close
// that never returns must not keep the program from ending.
var closersGrace = 10 * time.Second

// awaitClosers waits until the connections of closeAside are closed.
func (e *Engine) awaitClosers() {
	closed := make(chan struct{})
	go func() {
		e.closers.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(closersGrace):
		e.cfg.Logger.Error("connections closed by fibers are still not closed: the engine ends without waiting for them")
	}
}

func (w *adapted) CloseWrite() (err error) {
	h, ok := w.Conn.(interface{ CloseWrite() error })
	switch {
	case !ok:
		return errors.ErrUnsupported
	case w.waits():
		Block(func() { err = h.CloseWrite() })
		return err
	}
	return h.CloseWrite()
}

// lingering is a connection that Close can reset.
type lingering interface {
	io.Closer
	SetLinger(seconds int) error
}

func (w *adapted) SetLinger(seconds int) error {
	l := below[lingering](w.Conn)
	if l == nil {
		return errors.ErrUnsupported
	}
	err := l.SetLinger(seconds)
	if err == nil {
		w.resets.Store(seconds == 0)
	}
	return err
}

func (w *adapted) SetKeepAlive(on bool) error {
	if k, ok := w.Conn.(interface{ SetKeepAlive(on bool) error }); ok {
		return k.SetKeepAlive(on)
	}
	return errors.ErrUnsupported
}

func (w *adapted) SyscallConn() (syscall.RawConn, error) {
	if s, ok := w.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// Detach returns the connection that StreamOf was given.
func (w *adapted) Detach() (conn net.Conn, ahead []byte, err error) { return w.Conn, nil, nil }

func (w *adapted) CopyTo(dst net.Conn, moved, spliced func(int)) (readErr, writeErr error) {
	if w.waits() {
		spliced = nil // splicing would wait, too
		dst = struct{ net.Conn }{dst}
	}
	return copyHolding(w, dst, moved, spliced)
}

func (w *adapted) State() State {
	if w.probe == nil {
		w.probe = newSocketProbe(w)
	}
	return w.probe.now()
}

func (w *adapted) Ended() bool { return w.State() == Dead }

// PeerClosed makes its own probe, because w.probe belongs to the caller of State.
func (w *adapted) PeerClosed() bool {
	return !newSocketProbe(w).now().Fit()
}

// socketProbe gets the state of one socket, repeatedly.
type socketProbe struct {
	raw   syscall.RawConn // nil = the socket does not support it
	peek  func(fd uintptr)
	state State // result of the last peek; without raw, of every call
}

func newSocketProbe(c syscall.Conn) *socketProbe {
	l := &socketProbe{}
	raw, err := c.SyscallConn()
	switch {
	case !canPeek || errors.Is(err, errors.ErrUnsupported):
		l.state = Unknown
	case err != nil: // the connection is closed
		l.state = Dead
	default:
		l.raw = raw
		l.peek = func(fd uintptr) { l.state = peek(fd) }
	}
	return l
}

func (l *socketProbe) now() State {
	if l.raw != nil && l.raw.Control(l.peek) != nil { // the connection is closed
		return Dead
	}
	return l.state
}
