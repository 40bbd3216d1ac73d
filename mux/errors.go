package mux

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/headpond/headpond/mux/frame"
)

// The errors of this package, to be tested with [errors.Is]. Operations return an [*Error] that
// wraps one of them and names the place.
var (
	// ErrClosed: this side closed the channel (or that direction of it) before.
	ErrClosed = fmt.Errorf("mux: channel closed: %w", net.ErrClosed)
	// ErrPeerClosed: the other side reads no more from this channel.
	ErrPeerClosed = errors.New("mux: the other side stopped receiving")
	// ErrReset: the other side reset the channel; see [ResetError].
	ErrReset = errors.New("mux: channel reset")
	// ErrRefused: the other side did not take the channel, of which nothing was
	// used, or for now the session.
	ErrRefused = errors.New("mux: refused")
	// ErrSessionClosed: this side closed the session, or the other one normally (Drain,
	// or Close while no channel was open): nothing was lost.
	ErrSessionClosed = fmt.Errorf("mux: session closed: %w", net.ErrClosed)
	// ErrSessionLost: the connection ended or failed, and the session with it, or the other side
	// closed the session over open channels. Data on its way may be lost. See [LostError] for a
	// resumable session.
	ErrSessionLost = errors.New("mux: session lost")
	// ErrResumed: the connection given to Server belongs to an existing session, which continues on
	// it. There is nothing to do.
	ErrResumed = errors.New("mux: session resumed")
	// ErrNotResumed: a session that could be resumed has lost its connection, and no other
	// connection took it on: not in time, or the process at the other side is a new one.
	ErrNotResumed = errors.New("mux: not resumed")
	// ErrBackpressure: the message would have to wait, and was not to: TrySend found no credit
	// or no room, or more is not acknowledged than Resume.Buffer holds and
	// Resume.Backpressure is set. Nothing was sent.
	ErrBackpressure = errors.New("mux: sending would have to wait")
	// ErrDraining: one side takes no new channels in this session. Open channels continue; open new
	// ones in another session, as a [Dialer] does.
	ErrDraining = errors.New("mux: session is draining")
	// ErrDeadPeer: the other side has been silent for longer than the keep-alive allows.
	ErrDeadPeer = errors.New("mux: the other side is silent")
	// ErrProtocol: the other side violated the protocol.
	ErrProtocol = errors.New("mux: protocol violated")
	// ErrTooLarge: a message is over the sender's or the receiver's MaxMessage.
	ErrTooLarge = errors.New("mux: message too large")
	// ErrShortBuffer: the message is larger than ReceiveInto's buffer; it stays queued.
	ErrShortBuffer = errors.New("mux: buffer shorter than the message")
	// ErrTooManyChannels: the other side does not allow more open or unaccepted channels, their
	// windows would not fit in SessionWindow, or too many were opened and closed
	// without the connection taking it; the error says which, and there was no room before
	// the context of Open ended.
	ErrTooManyChannels = errors.New("mux: too many channels")
	// ErrHandshake: the handshake failed.
	ErrHandshake = errors.New("mux: handshake failed")
	// ErrDenied: authentication or authorization failed, here or there.
	ErrDenied = errors.New("mux: denied")
	// ErrConfig: a Config or an option is not usable.
	ErrConfig = errors.New("mux: invalid configuration")
)

// Error is a failed operation on a channel or session.
type Error struct {
	Op      string // "send", "receive", "open", …
	Channel uint32 // number on the wire; 0: the session
	Name    string // the name the channel was opened with
	Err     error
	retry   bool
}

// Error describes the failure in one line.
func (e *Error) Error() string {
	where := ""
	if e.Channel != 0 {
		where = " on channel " + strconv.FormatUint(uint64(e.Channel), 10)
		if e.Name != "" {
			where += " " + strconv.Quote(e.Name)
		}
	}
	return e.Op + where + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether a deadline or a context's end was the cause.
func (e *Error) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}

// Temporary is part of net.Error.
func (e *Error) Temporary() bool { return e.Timeout() }

var _ net.Error = (*Error)(nil)

// SafeToRetry reports whether the operation that failed with err had no effect at
// the other side and never will: a message that was not sent whole, a channel that
// was refused. If it is false the effect is unknown.
func SafeToRetry(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.retry
}

// ResetError is why a channel ended early. It wraps ErrReset.
type ResetError struct {
	Code   frame.Code
	Reason string
	Remote bool // the other side did it

	draining bool // it was not taken because the other side drains
}

// Error describes the reset in one line.
func (e *ResetError) Error() string {
	by := "by this side"
	if e.Remote {
		by = "by the other side"
	}
	s := "mux: channel reset " + by + ": " + e.Code.String()
	if e.Reason != "" {
		s += ": " + strconv.Quote(e.Reason)
	}
	return s
}

// Unwrap makes errors.Is(err, ErrReset) true, and ErrRefused or ErrTooLarge by the code; ErrDraining
// if the channel was opened while the other side began to drain.
func (e *ResetError) Unwrap() []error {
	if e.draining {
		return []error{ErrReset, ErrRefused, ErrDraining}
	}
	switch e.Code {
	case frame.CodeRefused:
		return []error{ErrReset, ErrRefused}
	case frame.CodeTooLarge:
		return []error{ErrReset, ErrTooLarge}
	case frame.CodeProtocol, frame.CodeFlow:
		return []error{ErrReset, ErrProtocol}
	}
	return []error{ErrReset}
}

// protocolError is a violation by the other side that ends the session.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// GoAwayError is why the other side ended the session. It wraps ErrSessionLost,
// and ErrDenied, ErrRefused, ErrHandshake or ErrProtocol by the code.
type GoAwayError struct {
	Code   frame.Code
	Reason string
}

// Error describes it in one line.
func (e *GoAwayError) Error() string {
	s := "mux: the other side ended the session: " + e.Code.String()
	if e.Reason != "" {
		s += ": " + strconv.Quote(e.Reason)
	}
	return s
}

// Unwrap makes errors.Is work as the type says.
func (e *GoAwayError) Unwrap() []error {
	switch e.Code {
	case frame.CodeDenied:
		return []error{ErrSessionLost, ErrDenied}
	case frame.CodeRefused:
		return []error{ErrSessionLost, ErrRefused}
	case frame.CodeVersion:
		return []error{ErrSessionLost, ErrHandshake}
	case frame.CodeProtocol, frame.CodeFlow, frame.CodeFlood:
		return []error{ErrSessionLost, ErrProtocol}
	}
	return []error{ErrSessionLost}
}

// Refusal is an error for Config.Authorize that refuses the other side for now:
// the other side gets the reason, with [frame.CodeRefused], and may try again. On
// both sides the error of Client or Server wraps ErrRefused.
type Refusal struct {
	Reason string // for people; about 1000 bytes of it are sent
}

// Error is the reason.
func (r *Refusal) Error() string { return "mux: refused: " + r.Reason }

// Unwrap makes errors.Is(err, ErrRefused) true.
func (r *Refusal) Unwrap() error { return ErrRefused }

// LostError says why a resumable session was lost, and which data of this side was not
// acknowledged: that data may or may not have reached the other side. It wraps ErrSessionLost.
type LostError struct {
	Err            error
	Unacknowledged []Unacknowledged // by channel; messages whose Send failed are not among them
}

// Unacknowledged is the data of a channel that was sent and not acknowledged.
type Unacknowledged struct {
	Channel  uint32 // number on the wire
	Name     string // the channel's, unless it was over long before
	ID       ID
	Stream   bool
	Messages int    // the number of last messages; 0 for a stream
	Bytes    uint64 // payload
}

// Error describes it in one line.
func (e *LostError) Error() string {
	if len(e.Unacknowledged) == 0 {
		return e.Err.Error()
	}
	messages, bytes := 0, uint64(0)
	for _, u := range e.Unacknowledged {
		messages += u.Messages
		bytes += u.Bytes
	}
	return fmt.Sprintf("%v (not acknowledged: messages: %d, bytes: %d, on channels: %d)", e.Err, messages, bytes, len(e.Unacknowledged))
}

// Unwrap returns the cause.
func (e *LostError) Unwrap() error { return e.Err }

// refused reports whether err means that the other side did not use the channel.
func refused(err error) bool { return errors.Is(err, ErrRefused) }
