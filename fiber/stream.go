package fiber

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// Stream is a connection with all operations that sessions use. The connections of all engines are Streams, and so is a
// TLSConn; StreamOf adapts any other connection. A method that a connection does not support returns the result given
// in its comment, so that callers need not know the kind of their connection.
//
// Any goroutine or fiber may call a method unless its comment says otherwise. Methods "for the one user" of a
// connection must not be called while another fiber or goroutine reads from it.
type Stream interface {
	net.Conn
	syscall.Conn // the error is errors.ErrUnsupported if there is no socket

	// WaitReadable returns when a Read would not wait, so that a reader holds no buffer while it waits. Like Read it
	// returns an error after the deadline or Close. The error is errors.ErrUnsupported if the connection cannot wait
	// without a Read.
	WaitReadable() error
	// WaitReadableFor is WaitReadable with a time limit: ready is false if nothing became readable
	// within the time patience. The wait may be somewhat longer.
	WaitReadableFor(patience time.Duration) (ready bool, err error)
	// WaitEither is WaitReadableFor for two connections at once, for their one user: it reports which of them can be
	// read. A patience of 0 is unlimited. If the connections do not both live on the caller's loop, it returns
	// errors.ErrUnsupported at once.
	WaitEither(other net.Conn, patience time.Duration) (ready, otherReady bool, err error)
	// OnReadable runs fn, once, as soon as a Read would not wait, so that no stack is held meanwhile; nil cancels it.
	// It is for the one user, on the connection's loop. Elsewhere, and without a loop, it does nothing and returns
	// false.
	OnReadable(fn func()) bool
	// Suspend lets the one user return from its fiber, so that an idle session has neither a stack
	// nor buffers. The user is called again when there is something to read. Suspend returns false
	// if nothing would call the user again. Package listener's Conn implements it.
	Suspend() bool

	// CopyTo copies received data to dst until one of the connections ends. readErr is the error of receiving, io.EOF
	// at the end of the stream; otherwise writeErr is the error of dst. It calls moved with the size of every piece, in
	// bytes, and spliced, unless nil, with the size of pieces moved within the kernel. These functions must neither
	// wait nor end their goroutine.
	CopyTo(dst net.Conn, moved, spliced func(n int)) (readErr, writeErr error)

	// CloseWrite sends the end of the stream after the written data; reading remains possible. The error is
	// errors.ErrUnsupported for streams that can only end in both directions at once.
	CloseWrite() error
	// SetLinger(0) makes Close reset the connection, without TLS's close_notify, so that the peer does not take a part
	// of the stream for the whole. The error is errors.ErrUnsupported if the connection cannot be reset.
	SetLinger(seconds int) error
	// SetKeepAlive turns TCP keep-alive on or off. The error is errors.ErrUnsupported for connections without it.
	SetKeepAlive(on bool) error

	// State reports what could be read, without waiting and without reading. It is for the one user of the connection.
	State() State
	// Ended is State() == Dead, at less cost.
	Ended() bool
	// PeerClosed reports whether the peer has ended its stream or broken the connection, even if data before that is
	// unread. It may be called while another fiber or goroutine reads. It is false if this is not known.
	PeerClosed() bool

	// Sent reports whether the socket has accepted, or may still accept, a byte of the data written since MarkSent.
	// Write may return the length of a message that waits for the end of the tick; if the peer's reset arrives first,
	// the message never leaves the process. So once the connection is closed after such an error, false means that the
	// message can be sent again on another connection, even if it is not idempotent. Sent is true if this is not known.
	MarkSent()
	Sent() bool
	// Acked returns how many bytes the peer's system has acknowledged, and whether these are all that were written. It
	// shows whether a slow peer reads while the socket's buffer is full: n grows with each acknowledgement, and only
	// its growth has a meaning. For a stream of package mux, n is the number of bytes that the peer's application
	// allows this side to send. If this is not known (only Linux knows it, for TCP), n stays 0 and all is true.
	Acked() (n uint64, all bool)

	// Attend makes the connection's loop call step in place of the calling fiber, until step returns true; see
	// [Conn.Attend]. Unless the caller is a fiber of that loop, it returns false without calling step. TryRead,
	// TryReadEither and TryWrite are for use in step.
	Attend(step func() (over bool)) bool
	// AttendThen is Attend without a fiber; see [Conn.AttendThen].
	AttendThen(other net.Conn, step func() (over bool), then func(panicked any)) bool
	TryRead(patience time.Duration) (b []byte, over bool)
	TryReadEither(other net.Conn, patience time.Duration) (b []byte, otherReady, over bool)
	TryWrite(p []byte) (n int)

	// Loop returns the number of the connection's loop, from 1 and unique in the process; 0 = none.
	Loop() int
	// Go runs fn as a fiber of that loop, or as a goroutine without one.
	Go(fn func())
	// Adopt moves the connection to the loop of the calling fiber, its one user, if that is possible now.
	Adopt()
	// Detach turns the connection into one of package net, for its one user, which must not use this one afterwards.
	// ahead is received data that was not read; it belongs to the caller. The error is errors.ErrUnsupported if this is
	// not possible; then nothing has changed.
	Detach() (conn net.Conn, ahead []byte, err error)
}

// State says what can be read from a connection.
type State int

// The states.
const (
	Silent  State = iota // open, and nothing to read
	Pending              // there is something to read
	Closing              // there is something to read, followed by the end: closed by the peer, or broken
	Dead                 // closed by the peer, or broken, with nothing to read
	Unknown              // not known to be closed; this kind of connection does not show received data without a read
)

// Fit reports whether an unused connection can be handed out: it is not known to be closed. Data that has arrived on
// it, such as the greeting of a server that speaks first, is for its user.
func (s State) Fit() bool { return s != Closing && s != Dead }

// Idle reports whether a used connection can be handed out again: it is not known to be closed, and no unexpected data
// has arrived on it.
func (s State) Idle() bool { return s == Silent || s == Unknown }

// LoopOf is Loop for a connection that may not be a Stream. Pools whose connections live on several loops use it for
// their affinity (see package pool).
func LoopOf(c net.Conn) int {
	if s, ok := c.(Stream); ok {
		return s.Loop()
	}
	return 0
}

// NoLoop implements the methods of Stream that are about loops and sockets, for connections with neither. A type is a
// Stream if it embeds NoLoop and has the methods of net.Conn, State, Ended, PeerClosed, CopyTo and CloseWrite.
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

// AttendThen returns false.
func (NoLoop) AttendThen(net.Conn, func() bool, func(any)) bool { return false }

// TryRead has nothing to wait for.
func (NoLoop) TryRead(time.Duration) (b []byte, over bool) { return nil, true }

// TryReadEither has nothing to wait for.
func (NoLoop) TryReadEither(net.Conn, time.Duration) (b []byte, otherReady, over bool) {
	return nil, false, true
}

// TryWrite accepts nothing.
func (NoLoop) TryWrite([]byte) int { return 0 }

// Loop returns 0.
func (NoLoop) Loop() int { return 0 }

// Go runs fn as a goroutine.
func (NoLoop) Go(fn func()) { go fn() }

// Adopt does nothing.
func (NoLoop) Adopt() {}

// Detach is not supported.
func (NoLoop) Detach() (net.Conn, []byte, error) { return nil, nil, errors.ErrUnsupported }
