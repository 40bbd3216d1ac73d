package fiber

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// Stream is a connection with everything that a session does with one. The connections of all engines are Streams, and
// so is a TLSConn; StreamOf adapts any other connection. A method that a connection does not support returns the result
// in its comment, so that no caller has to know the kind of its connection.
//
// Any goroutine or fiber may call a method unless its comment says otherwise. Methods "for the one user" of a connection must not be
// called while another fiber or goroutine reads it.
type Stream interface {
	net.Conn
	syscall.Conn // the error is errors.ErrUnsupported where there is no socket

	// WaitReadable returns when a Read would not wait, so that a reader need not hold a buffer while it waits; or with an error,
	// as Read's, of the deadline or Close. The error is errors.ErrUnsupported where that cannot be waited for.
	WaitReadable() error
	// WaitReadableFor is WaitReadable for at least patience; ready is false when that time has passed.
	WaitReadableFor(patience time.Duration) (ready bool, err error)
	// WaitEither is WaitReadableFor for two connections at once, for their one user: it reports which of them can be read. A patience
	// of 0 is unlimited. The error is errors.ErrUnsupported, at once, unless both connections live on the caller's loop.
	WaitEither(other net.Conn, patience time.Duration) (ready, otherReady bool, err error)
	// OnReadable runs fn, once, as soon as a Read would not wait, so that no stack is held meanwhile; nil cancels it. It is
	// for the one user, on the connection's loop; elsewhere, and where there is no loop, it does nothing and returns false.
	OnReadable(fn func()) bool
	// Suspend lets the one user return from its fiber and be called anew as soon as there is something to read, so that an idle
	// session has neither stack nor buffers. It returns false where nobody would call; see package listener's Conn.Suspend, which can.
	Suspend() bool

	// CopyTo copies received data to dst until one of them ends: readErr is the error of receiving, io.EOF at the end
	// of the stream; otherwise writeErr is the error of dst. moved is called with the size of every piece, in bytes,
	// and spliced, unless nil, with the size of those that were moved within the kernel. They must neither wait nor end
	// their goroutine.
	CopyTo(dst net.Conn, moved, spliced func(n int)) (readErr, writeErr error)

	// CloseWrite sends the end of the stream after the written data; reading is still possible. The error is
	// errors.ErrUnsupported for streams that can only end in both directions.
	CloseWrite() error
	// SetLinger(0) makes Close reset the connection, without TLS's close_notify, so that the peer does not take a part
	// of the stream for the whole. The error is errors.ErrUnsupported where that is not possible.
	SetLinger(seconds int) error
	// SetKeepAlive turns TCP keep-alive on or off. The error is errors.ErrUnsupported for connections without it.
	SetKeepAlive(on bool) error

	// State reports what could be read, without waiting and without reading. It is for the one user of the connection.
	State() State
	// Ended is State() == Dead, at less cost.
	Ended() bool
	// PeerClosed reports that the peer has ended its stream, or broken the connection, whether or not data before that is unread.
	// It may be called while another fiber or goroutine reads. It is false where that is not known.
	PeerClosed() bool

	// Sent reports whether the socket has taken a byte of the data written since MarkSent, or still may. A
	// message that is queued for the end of the tick when the peer's reset arrives never leaves the process, although Write has
	// returned its length. So once the connection is closed because of that error, false means that the message may be sent again on
	// another connection, even if it is not idempotent. Sent is true where that is not known.
	MarkSent()
	Sent() bool
	// Acked returns how many bytes the peer's system has acknowledged, and whether those are all that were written. It finds out
	// whether a slow peer takes data, while the socket's buffer is full: n grows with each acknowledgement, and only its growth has a
	// meaning. For a stream of package mux, n is what the peer's application lets this side send. Where it is not known, n stays
	// 0 and all is true: Linux tells it, of TCP.
	Acked() (n uint64, all bool)

	// Attend has the connection's loop call step in place of the calling fiber, until step returns true; see [Conn.Attend]. It returns
	// false, without a call of step, unless the caller is a fiber of that loop. TryRead and TryWrite are for such a step.
	Attend(step func() (over bool)) bool
	TryRead(patience time.Duration) (b []byte, over bool)
	TryWrite(p []byte) (n int)

	// Loop is the number of the loop that the connection lives on, from 1, which no other loop of the process has; 0 = none.
	Loop() int
	// Go runs fn as a fiber of that loop, or as a goroutine.
	Go(fn func())
	// Adopt moves the connection to the loop of the fiber that calls it, its one user, if that is possible now.
	Adopt()
	// Detach turns the connection into one of package net, for its one user, which must not use this one afterwards.
	// ahead is received data that was not read; the caller owns it. The error is errors.ErrUnsupported where that is
	// not possible; then nothing has changed.
	Detach() (conn net.Conn, ahead []byte, err error)
}

// State is what could be read from a connection.
type State int

// The states.
const (
	Silent  State = iota // open, and nothing to read
	Pending              // something to read
	Closing              // something to read, and behind it the end: closed by the peer, or broken
	Dead                 // closed by the peer, or broken, with nothing to read before that
	Unknown              // open as far as is known: this kind of connection does not show arrived data without a read
)

// Fit reports whether a connection that has not been used yet can be handed out: it is open as far as is known. Data that
// has arrived on it, such as the greeting of a server that speaks first, is for its user.
func (s State) Fit() bool { return s != Closing && s != Dead }

// Idle reports whether a connection that was used before can be handed out again: as far as is known it is open, and no
// unexpected data has arrived on it.
func (s State) Idle() bool { return s == Silent || s == Unknown }

// LoopOf is Loop of a connection that may be no Stream: the Place of a pool of connections that several loops use (see package
// pool).
func LoopOf(c net.Conn) int {
	if s, ok := c.(Stream); ok {
		return s.Loop()
	}
	return 0
}

// NoLoop implements a Stream's methods about loops and sockets for connections without either: a type that embeds
// it, and has the methods of a net.Conn, State, Ended, PeerClosed, CopyTo and CloseWrite, is a Stream.
type NoLoop struct{}

// WaitReadable is not supported.
func (NoLoop) WaitReadable() error { return errors.ErrUnsupported }

// WaitReadableFor is not supported.
func (NoLoop) WaitReadableFor(time.Duration) (bool, error) { return false, errors.ErrUnsupported }

// WaitEither is not supported.
func (NoLoop) WaitEither(net.Conn, time.Duration) (ready, otherReady bool, err error) {
	return false, false, errors.ErrUnsupported
}

// OnReadable returns false.
func (NoLoop) OnReadable(func()) bool { return false }

// Suspend returns false.
func (NoLoop) Suspend() bool { return false }

// SyscallConn is not supported.
func (NoLoop) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }

// SetLinger is not supported.
func (NoLoop) SetLinger(int) error { return errors.ErrUnsupported }

// SetKeepAlive is not supported.
func (NoLoop) SetKeepAlive(bool) error { return errors.ErrUnsupported }

// MarkSent does nothing.
func (NoLoop) MarkSent() {}

// Sent returns true.
func (NoLoop) Sent() bool { return true }

// Acked is not known.
func (NoLoop) Acked() (n uint64, all bool) { return 0, true }

// Attend returns false.
func (NoLoop) Attend(func() bool) bool { return false }

// TryRead has nothing to wait for.
func (NoLoop) TryRead(time.Duration) (b []byte, over bool) { return nil, true }

// TryWrite takes nothing.
func (NoLoop) TryWrite([]byte) int { return 0 }

// Loop returns 0.
func (NoLoop) Loop() int { return 0 }

// Go runs fn as a goroutine.
func (NoLoop) Go(fn func()) { go fn() }

// Adopt does nothing.
func (NoLoop) Adopt() {}

// Detach is not supported.
func (NoLoop) Detach() (net.Conn, []byte, error) { return nil, nil, errors.ErrUnsupported }
