package tunnel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"

	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// The errors of this package, to be tested with [errors.Is]. Those about a
// connection are wrapped in an [*Error].
var (
	// ErrConfig: a configuration, rule or target that cannot be used.
	ErrConfig = errors.New("tunnel: invalid configuration")
	// ErrClosed: this side drains the tunnel or has closed it.
	ErrClosed = fmt.Errorf("tunnel: closed: %w", net.ErrClosed)
	// ErrNotConnected: there is no session with the other side now.
	ErrNotConnected = errors.New("tunnel: not connected")
	// ErrRefused: the far side's policy does not allow the target. Nothing was
	// dialled.
	ErrRefused = errors.New("tunnel: refused by the far side's policy")
	// ErrUnreachable: the far side could not connect to the target.
	ErrUnreachable = errors.New("tunnel: the far side cannot connect")
	// ErrBusy: one of the sides has as many streams open as it allows.
	ErrBusy = errors.New("tunnel: too many streams")
	// ErrBroken: the connection at the other end of the tunnel broke. It wraps ECONNRESET, the error of a broken
	// connection without a tunnel.
	ErrBroken = fmt.Errorf("tunnel: the connection at the other end broke: %w", syscall.ECONNRESET)
	// ErrProtocol: the other side is no tunnel, or one that does not keep to the
	// package comment.
	ErrProtocol = errors.New("tunnel: protocol violated")
)

// Error says which connection through which tunnel failed, and why.
type Error struct {
	Tunnel string // Config.Tunnel, or the peer's name
	Target string
	Err    error
}

// Error describes the failure in one line.
func (e *Error) Error() string {
	return "tunnel " + strconv.Quote(e.Tunnel) + ": " + e.Target + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether a deadline was the cause.
func (e *Error) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}

// Temporary is part of net.Error.
func (e *Error) Temporary() bool { return e.Timeout() }

var _ net.Error = (*Error)(nil)

// Codes of resets, see the package comment.
const (
	codeRefused     = 1
	codeUnreachable = 2
	codeBusy        = 3
	codeBroken      = 4
)

// codes are the errors the codes stand for.
var codes = map[frame.Code]error{
	frame.CodeApplication + codeRefused:     ErrRefused,
	frame.CodeApplication + codeUnreachable: ErrUnreachable,
	frame.CodeApplication + codeBusy:        ErrBusy,
	frame.CodeApplication + codeBroken:      ErrBroken,
	frame.CodeRefused:                       ErrBusy,
}

// explain turns an error of mux into this package's, if there is a corresponding one.
func explain(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if reset, ok := errors.AsType[*mux.ResetError](err); ok {
		meaning := codes[reset.Code]
		switch {
		case meaning == nil || !reset.Remote:
			return err
		case reset.Reason == "":
			return meaning
		}
		return fmt.Errorf("%w: %s", meaning, reset.Reason)
	}
	switch {
	case errors.Is(err, mux.ErrTooManyChannels):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	case errors.Is(err, mux.ErrPeerClosed):
		return fmt.Errorf("%w (%w)", syscall.EPIPE, err)
	}
	return err
}

// maxReason bounds the reason of a reset, which may be a foreign text.
const maxReason = 400

// reset informs the other side why there is no connection, or why it ended.
func reset(st *mux.Stream, err error) {
	code := uint16(codeUnreachable)
	switch {
	case errors.Is(err, ErrRefused):
		code = codeRefused
	case errors.Is(err, ErrBusy):
		code = codeBusy
	case errors.Is(err, ErrBroken):
		code = codeBroken
	}
	st.Reset(code, clip(reason(err)))
}

// reason returns the text for the other side, without the errors that the code already represents.
func reason(err error) string {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.why
	}
	return err.Error()
}

// refusal is an error with a code and a reason.
type refusal struct {
	kind error
	why  string
}

func (r *refusal) Error() string { return r.kind.Error() + ": " + r.why }
func (r *refusal) Unwrap() error { return r.kind }

func refuse(kind error, format string, args ...any) error {
	return &refusal{kind, fmt.Sprintf(format, args...)}
}

func clip(s string) string {
	if len(s) > maxReason {
		return s[:maxReason] + "…"
	}
	return s
}
