package fiber

import (
	"net"
	"slices"
	"time"
)

// Ahead returns a Stream that reads bytes first and then s. It is for connections of which some
// bytes have been read before they are passed to their user. The Stream owns bytes. If bytes is
// empty, Ahead returns s.
func Ahead(s Stream, bytes []byte) Stream {
	if len(bytes) == 0 {
		return s
	}
	return &ahead{Stream: s, bytes: bytes}
}

// ahead is the Stream of Ahead. Once bytes are read, its methods only call those of the embedded Stream.
type ahead struct {
	Stream
	bytes []byte // used by the reader only
}

// written returns the connection that c writes to. It does not touch bytes, because reader and writer may be two
// fibers.
func written(c net.Conn) net.Conn {
	for {
		a, ok := c.(*ahead)
		if !ok {
			return c
		}
		c = a.Stream
	}
}

// unwrapAhead returns the connection below c, as long as no bytes are to be read first.
func unwrapAhead(c net.Conn) net.Conn {
	for {
		a, ok := c.(*ahead)
		if !ok || len(a.bytes) > 0 {
			return c
		}
		c = a.Stream
	}
}

func (a *ahead) Read(p []byte) (int, error) {
	if len(a.bytes) == 0 {
		return a.Stream.Read(p)
	}
	return a.take(p), nil
}

func (a *ahead) take(p []byte) int {
	n := copy(p, a.bytes)
	if a.bytes = a.bytes[n:]; len(a.bytes) == 0 {
		a.bytes = nil
	}
	return n
}

func (a *ahead) WaitReadable() error {
	if len(a.bytes) > 0 {
		return nil
	}
	return a.Stream.WaitReadable()
}

func (a *ahead) WaitReadableFor(patience time.Duration) (ready bool, err error) {
	if len(a.bytes) > 0 {
		return true, nil
	}
	return a.Stream.WaitReadableFor(patience)
}

func (a *ahead) WaitEither(other net.Conn, patience time.Duration) (ready, otherReady bool, err error) {
	if len(a.bytes) > 0 {
		return true, false, nil
	}
	return a.Stream.WaitEither(other, patience)
}

func (a *ahead) OnReadable(fn func()) bool {
	if fn == nil || len(a.bytes) == 0 || a.Loop() == 0 {
		return a.Stream.OnReadable(fn)
	}
	a.Go(fn)
	return true
}

func (a *ahead) Suspend() bool { return len(a.bytes) == 0 && a.Stream.Suspend() }

func (a *ahead) CopyTo(dst net.Conn, moved, spliced func(int)) (readErr, writeErr error) {
	if len(a.bytes) > 0 {
		n, err := dst.Write(a.bytes)
		a.bytes = nil
		if moved(n); err != nil {
			return nil, err
		}
	}
	return a.Stream.CopyTo(dst, moved, spliced)
}

func (a *ahead) State() State {
	state := a.Stream.State()
	switch {
	case len(a.bytes) == 0:
	case state.Fit():
		return Pending
	default:
		return Closing
	}
	return state
}

func (a *ahead) Ended() bool { return len(a.bytes) == 0 && a.Stream.Ended() }

func (a *ahead) Attend(step func() (over bool)) bool {
	return len(a.bytes) == 0 && a.Stream.Attend(step)
}

func (a *ahead) AttendThen(other net.Conn, step func() (over bool), then func(panicked any)) bool {
	return len(a.bytes) == 0 && a.Stream.AttendThen(other, step, then)
}

func (a *ahead) Detach() (net.Conn, []byte, error) {
	conn, more, err := a.Stream.Detach()
	if err != nil {
		return nil, nil, err
	}
	more = slices.Concat(a.bytes, more)
	a.bytes = nil
	return conn, more, nil
}
