package fiber

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
)

// StreamOf returns c if it is a Stream, and makes it one otherwise, in this one place for all kinds of connections:
//
//   - One of package net does what its socket can. What may wait in it does so on a goroutine when a fiber calls (see Block),
//     which costs some microseconds, as in any connection that is not known, such as one of net.Pipe.
//   - One with the methods ReadParked and WriteParked of package mux's streams lets fibers wait by their Parker. Its other methods
//     must not wait.
//   - One over a connection of an engine, as its method NetConn tells, waits by that.
//
// Of c's own methods CloseWrite, SetLinger, SetKeepAlive, SyscallConn, ReadFrom, and, as a stream of package mux has
// them, Quiet with Ended and PeerClosed are used if there are any. NetConn of the result is c.
func StreamOf(c net.Conn) Stream {
	if s, ok := c.(Stream); ok {
		return s
	}
	if p, ok := c.(parking); ok {
		return &parked{adapted: adapted{Conn: c, direct: true}, conn: p}
	}
	return &adapted{Conn: c, direct: below[Stream](c) != nil}
}

// below returns the first of the connections underneath c that is a T.
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

// adapted is a connection that is no engine's.
type adapted struct {
	NoLoop
	net.Conn
	direct bool        // it does not hold the loop of a fiber that waits in it
	breaks atomic.Bool // Close does, without a goodbye
	look   *socketLook // of State; nil = nobody has asked
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

// blocked is a function of its own because what its closure captures is allocated.
func blocked(op func([]byte) (int, error), p []byte) (n int, err error) {
	Block(func() { n, err = op(p) })
	return n, err
}

// ReadFrom lets io.Copy use what the connection has (sendfile, splice).
func (w *adapted) ReadFrom(r io.Reader) (n int64, err error) {
	if w.waits() {
		return io.Copy(struct{ io.Writer }{w}, r)
	}
	return io.Copy(w.Conn, r)
}

func (w *adapted) Close() (err error) {
	c := io.Closer(w.Conn)
	if w.breaks.Load() {
		c = below[lingering](w.Conn)
	}
	if w.waits() {
		Block(func() { err = c.Close() })
		return err
	}
	return c.Close()
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

// lingering is a connection that can be broken.
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
		w.breaks.Store(seconds == 0)
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
		spliced = nil // and so is the splicing, which would wait
		dst = struct{ net.Conn }{dst}
	}
	return copyHolding(w, dst, moved, spliced)
}

func (w *adapted) State() State {
	if t, ok := w.Conn.(teller); ok {
		return stateOf(t)
	}
	if w.look == nil {
		w.look = newSocketLook(w)
	}
	return w.look.now()
}

func (w *adapted) Ended() bool { return w.State() == Dead }

// PeerClosed keeps nothing, for whoever reads may call State.
func (w *adapted) PeerClosed() bool {
	if t, ok := w.Conn.(teller); ok {
		return t.PeerClosed()
	}
	return !newSocketLook(w).now().Fit()
}

// teller is a connection that knows by itself what has arrived on it.
type teller interface {
	Quiet() bool // open, and nothing to read
	Ended() bool // ended by the peer, or broken, and nothing to read before that
	PeerClosed() bool
}

func stateOf(t teller) State {
	switch {
	case t.Quiet():
		return Silent
	case t.Ended():
		return Dead
	case t.PeerClosed():
		return Closing
	}
	return Pending
}

// socketLook looks at one socket again and again.
type socketLook struct {
	raw   syscall.RawConn // nil if it cannot be asked
	peek  func(fd uintptr)
	state State // that peek found, or what is known without
}

func newSocketLook(c syscall.Conn) *socketLook {
	l := &socketLook{}
	raw, err := c.SyscallConn()
	switch {
	case !canPeek || errors.Is(err, errors.ErrUnsupported):
		l.state = Unknown
	case err != nil: // it is closed
		l.state = Dead
	default:
		l.raw = raw
		l.peek = func(fd uintptr) { l.state = peek(fd) }
	}
	return l
}

func (l *socketLook) now() State {
	if l.raw != nil && l.raw.Control(l.peek) != nil { // it is closed
		return Dead
	}
	return l.state
}

// parking is a connection whose waiting callers park.
type parking interface {
	net.Conn
	ReadParked(p []byte, by interface {
		Park(ctx context.Context) error
		Unpark()
	}) (int, error)
	WriteParked(p []byte, by interface {
		Park(ctx context.Context) error
		Unpark()
	}) (int, error)
}

// parked is one of these.
type parked struct {
	adapted
	conn   parking
	rd, wr atomic.Pointer[Parker] // of the fiber that read, or wrote, last
}

func (w *parked) Read(p []byte) (n int, err error) {
	by := parkerOf(&w.rd)
	if by == nil {
		return w.conn.Read(p)
	}
	n, err = w.conn.ReadParked(p, by)
	w.rd.Store(by)
	return n, err
}

func (w *parked) Write(p []byte) (n int, err error) {
	by := parkerOf(&w.wr)
	if by == nil {
		return w.conn.Write(p)
	}
	n, err = w.conn.WriteParked(p, by)
	w.wr.Store(by)
	return n, err
}

// ReadFrom writes as Write does.
func (w *parked) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{w}, r) }

func (w *parked) CopyTo(dst net.Conn, moved, _ func(int)) (readErr, writeErr error) {
	return Copy(w, dst, moved)
}

// parkerOf takes the caller's Parker out of its place, or makes one; nil on a goroutine.
func parkerOf(place *atomic.Pointer[Parker]) *Parker {
	if !onFiber() {
		return nil
	}
	if p := place.Swap(nil); p != nil && p.mine() {
		return p
	}
	return NewParker()
}
