package fiber

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// A TLSConn's Stream methods are those of the underlying connection, except for data that crypto/tls has received
// already.

// WaitReadable waits for the connection underneath, so that a Read may still wait for the rest of a record.
func (t *TLSConn) WaitReadable() error {
	if t.Loop() != 0 && t.Buffered() {
		return nil
	}
	return t.under.WaitReadable()
}

// WaitReadableFor is Stream's; see WaitReadable.
func (t *TLSConn) WaitReadableFor(patience time.Duration) (ready bool, err error) {
	if t.Loop() != 0 && t.Buffered() {
		return true, nil
	}
	return t.under.WaitReadableFor(patience)
}

// WaitEither is Stream's; see WaitReadable.
func (t *TLSConn) WaitEither(other net.Conn, patience time.Duration) (ready, otherReady bool, err error) {
	if t.Loop() != 0 && t.Buffered() {
		return true, false, nil
	}
	return t.under.WaitEither(other, patience)
}

// OnReadable is Stream's; see WaitReadable.
func (t *TLSConn) OnReadable(fn func()) bool {
	if fn == nil || t.Loop() == 0 || !t.Buffered() {
		return t.under.OnReadable(fn)
	}
	t.Go(fn)
	return true
}

// Suspend is Stream's. It returns false while there is unread decrypted data, of which the connection below knows nothing.
func (t *TLSConn) Suspend() bool { return !t.Buffered() && t.under.Suspend() }

// CopyTo is Stream's, by reading and writing.
func (t *TLSConn) CopyTo(dst net.Conn, moved, _ func(int)) (readErr, writeErr error) {
	return Copy(t, dst, moved)
}

// State is Stream's. TLS's own messages, such as the session tickets that a server sends at any time, are handled and do
// not count; a record that has arrived in part does. Before the handshake there is always something to read.
func (t *TLSConn) State() State {
	u := t.under
	below := u.State()
	if t.handshakeDone.Load() && !t.hasPeeked && t.failed == nil {
		if u.emptied && below == Silent {
			return Silent
		}
		t.hasPeeked = t.readNow(t.peeked[:], readArrived) > 0
		if u.emptied = !t.hasPeeked && t.failed == nil && u.received.isComplete(); u.emptied {
			if below == Unknown {
				return Unknown
			}
			return Silent
		}
	}
	switch {
	case !t.hasPeeked && t.failed != nil:
		return Dead
	case t.failed != nil || !below.Fit():
		return Closing
	}
	return Pending
}

// Ended is Stream's; the peer's close_notify is its end.
func (t *TLSConn) Ended() bool { return t.State() == Dead }

// PeerClosed is the underlying connection's.
func (t *TLSConn) PeerClosed() bool { return t.under.PeerClosed() }

// SetLinger is the underlying connection's; with 0 Close sends no close_notify.
func (t *TLSConn) SetLinger(seconds int) error {
	err := t.under.SetLinger(seconds)
	if err == nil {
		t.resets.Store(seconds == 0)
	}
	return err
}

// SetKeepAlive is the underlying connection's.
func (t *TLSConn) SetKeepAlive(on bool) error { return t.under.SetKeepAlive(on) }

// SyscallConn is the underlying connection's.
func (t *TLSConn) SyscallConn() (syscall.RawConn, error) { return t.under.SyscallConn() }

// MarkSent is the underlying connection's.
func (t *TLSConn) MarkSent() { t.under.MarkSent() }

// Sent is the underlying connection's.
func (t *TLSConn) Sent() bool { return t.under.Sent() }

// Acked is the underlying connection's, and counts records.
func (t *TLSConn) Acked() (n uint64, all bool) { return t.under.Acked() }

// Loop is the underlying connection's.
func (t *TLSConn) Loop() int { return t.under.Loop() }

// Go is the underlying connection's.
func (t *TLSConn) Go(fn func()) { t.under.Go(fn) }

// Adopt moves the connection underneath.
func (t *TLSConn) Adopt() { t.under.Adopt() }

// Detach is not supported: crypto/tls keeps received data.
func (t *TLSConn) Detach() (net.Conn, []byte, error) { return nil, nil, errors.ErrUnsupported }
