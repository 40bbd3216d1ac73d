package fiber

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
)

// Wrap makes a connection that is no engine's, such as a stream of a multiplexed session or a
// net.Pipe, usable on a fiber: what may wait in it does so on a goroutine (see Block), which costs
// some microseconds a call on a fiber and nothing elsewhere; or by a Parker, where c has the
// methods ReadParked and WriteParked of package mux's streams, and its Close does not wait. It
// returns a connection of an engine, and TLS over one, as it is. The result's CloseWrite returns
// errors.ErrUnsupported where c has none; its NetConn returns c.
func Wrap(c net.Conn) net.Conn {
	for inner := c; inner != nil; {
		switch t := inner.(type) {
		case interface{ Adopt() }, *wrapped, *parked: // an engine's
			return c
		case interface{ NetConn() net.Conn }:
			inner = t.NetConn()
		default:
			inner = nil
		}
	}
	if p, ok := c.(parking); ok {
		return &parked{wrapped: wrapped{c}, conn: p}
	}
	return &wrapped{c}
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
	wrapped
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

func (w *parked) Close() error { return w.conn.Close() }

func (w *parked) CloseWrite() error {
	if h, ok := w.conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// wrapped is a connection whose waiting is done on goroutines.
type wrapped struct {
	net.Conn
}

// NetConn returns the connection underneath.
func (w *wrapped) NetConn() net.Conn { return w.Conn }

func (w *wrapped) Read(p []byte) (n int, err error) {
	Block(func() { n, err = w.Conn.Read(p) })
	return n, err
}

func (w *wrapped) Write(p []byte) (n int, err error) {
	Block(func() { n, err = w.Conn.Write(p) })
	return n, err
}

func (w *wrapped) Close() (err error) {
	Block(func() { err = w.Conn.Close() })
	return err
}

// CloseWrite closes the writing half.
func (w *wrapped) CloseWrite() (err error) {
	h, ok := w.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	Block(func() { err = h.CloseWrite() })
	return err
}

// SetLinger makes Close send a reset, as far as the connection underneath knows one.
func (w *wrapped) SetLinger(seconds int) error {
	if l, ok := w.Conn.(interface{ SetLinger(int) error }); ok {
		return l.SetLinger(seconds)
	}
	return errors.ErrUnsupported
}
