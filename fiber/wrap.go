package fiber

import (
	"errors"
	"net"
)

// Wrap makes a connection that is no engine's, such as a stream of a multiplexed session or a
// net.Pipe, usable on a fiber: what may wait in it does so on a goroutine (see Block), which costs
// some microseconds a call on a fiber and nothing elsewhere. It returns a connection of an engine,
// and TLS over one, as it is. The result's CloseWrite returns errors.ErrUnsupported where c has
// none; its NetConn returns c.
func Wrap(c net.Conn) net.Conn {
	for inner := c; inner != nil; {
		switch t := inner.(type) {
		case interface{ Adopt() }, *wrapped: // an engine's
			return c
		case interface{ NetConn() net.Conn }:
			inner = t.NetConn()
		default:
			inner = nil
		}
	}
	return &wrapped{c}
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
