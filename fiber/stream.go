package fiber

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// Stream is a connection with everything that a session does with one. Every engine's connections are Streams, and so is a
// TLSConn; StreamOf makes one of any other connection. What a Stream cannot do it says in the one way that the method names, so
// that no caller has to ask what kind of connection it has.
//
// A method may be called from anywhere unless it says otherwise. Those that are for the one user of a connection must not be
// called while somebody else reads it.
type Stream interface {
	net.Conn
	syscall.Conn // the error is errors.ErrUnsupported where there is no socket

	// WaitReadable returns when a Read would not wait, so that a reader need not hold a buffer while it waits; or with an error,
	// as Read's, of the deadline or Close. The error is errors.ErrUnsupported where that cannot be waited for.
	WaitReadable() error
	// WaitReadableFor is WaitReadable for as long as patience lasts, and some time more; ready is false when it has ended.
	WaitReadableFor(patience time.Duration) (ready bool, err error)
	// WaitEither is WaitReadableFor for two connections at once, for their one user: it tells which of them can be read. 0 is for
	// ever. The error is errors.ErrUnsupported, and nothing was waited for, unless both live on the caller's loop.
	WaitEither(other net.Conn, patience time.Duration) (ready, otherReady bool, err error)
	// OnReadable has fn run, once, as soon as a Read would not wait, so that nobody's stack waits for it; nil takes that back. It is
	// for the one user, on the connection's loop; false, and nothing happens, elsewhere and where there is no loop.
	OnReadable(fn func()) bool

	// CopyTo moves what is received to dst until one of them ends: readErr is why the receiving did, io.EOF at the end of the
	// stream; else writeErr is why dst did. moved is told of every piece, and spliced, if it is not nil, of those that were moved
	// within the kernel. They must neither wait nor end their goroutine.
	CopyTo(dst net.Conn, moved, spliced func(n int)) (readErr, writeErr error)

	// CloseWrite sends the end of the stream after what was written; reading goes on. The error is errors.ErrUnsupported where a
	// stream ends in both directions only.
	CloseWrite() error
	// SetLinger(0) makes Close break the connection, without TLS's close_notify, so that the peer does not take what it has got for
	// everything. The error is errors.ErrUnsupported where that is not possible.
	SetLinger(seconds int) error
	// SetKeepAlive has the system look for a peer that says nothing, or not. The error is errors.ErrUnsupported where there is no
	// such thing.
	SetKeepAlive(on bool) error

	// State looks at what could be read, without waiting and taking nothing. It is for the one user.
	State() State
	// Ended is State() == Dead, for less where that is the only question.
	Ended() bool
	// PeerClosed reports that the peer has sent its end, or broken the connection, whether or not something before that is unread.
	// Somebody may be reading. It is false where that is not known.
	PeerClosed() bool

	// MarkSent begins anew what Sent tells of: whether the socket has taken a byte of what was written since, or still may. A
	// message that is queued for the end of the tick when the peer's reset arrives never leaves the process, although Write has
	// returned its length: once the connection is closed for that error, false says that the message may be sent again on another
	// connection, whatever it means. It is true where that is not known.
	MarkSent()
	Sent() bool

	// Attend has the connection's loop call step in the stead of the calling fiber, until it is over; see [Conn.Attend]. False, and
	// step was not called, where the caller is no fiber of that loop. TryRead and TryWrite are for such a step.
	Attend(step func() (over bool)) bool
	TryRead(patience time.Duration) (b []byte, over bool)
	TryWrite(p []byte) (n int)

	// Loop is the number of the loop that the connection lives on, from 1, which no other loop of the process has; 0 = none.
	Loop() int
	// Go runs fn as a fiber of that loop, or as a goroutine.
	Go(fn func())
	// Adopt moves the connection to the loop of the fiber that calls it, its one user, if that is possible now.
	Adopt()
	// Detach makes the connection one of package net, for its one user, who then has no use for this one. ahead was received and
	// not read. The error is errors.ErrUnsupported where that is not possible: the connection is what it was.
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
	Unknown              // open as far as is known: the connection does not tell what has arrived
)

// Fit reports whether a connection that nobody has used yet can be given to somebody: it is open as far as is known. What
// has arrived on it, such as the greeting of a server that speaks first, is for them.
func (s State) Fit() bool { return s != Closing && s != Dead }

// Idle reports whether a connection that was used can be given to somebody: as far as is known it is open, and nothing has
// arrived on it that nobody asked for.
func (s State) Idle() bool { return s == Silent || s == Unknown }

// LoopOf is Loop of a connection that may be no Stream: the Place of a pool of connections that several loops use (see package
// pool).
func LoopOf(c net.Conn) int {
	if s, ok := c.(Stream); ok {
		return s.Loop()
	}
	return 0
}

// NoLoop is what a connection that lives on no loop answers to a Stream's questions about loops and sockets: a type that embeds
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
