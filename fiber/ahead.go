package fiber

import (
	"net"
	"slices"
	"time"
)

// Ahead returns s with bytes to be read before what s receives, which belong to it from then on: what was read of a connection
// that somebody else is to go on with. Without any it returns s.
func Ahead(s Stream, bytes []byte) Stream {
	if len(bytes) == 0 {
		return s
	}
	return &ahead{Stream: s, bytes: bytes}
}

// ahead is a connection of which something was read and given back. Once that is read again it is what it embeds, but for one
// call more.
type ahead struct {
	Stream
	bytes []byte // the reader's
}

// written returns the connection that takes what is written to c. It does not look at what is to be read first, which is the
// reader's, who may be somebody else.
func written(c net.Conn) net.Conn {
	for {
		a, ok := c.(*ahead)
		if !ok {
			return c
		}
		c = a.Stream
	}
}

// bare returns the connection that c is once what was given back is read: what is waited for is the same.
func bare(c net.Conn) net.Conn {
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

func (a *ahead) Detach() (net.Conn, []byte, error) {
	conn, more, err := a.Stream.Detach()
	if err != nil {
		return nil, nil, err
	}
	more = slices.Concat(a.bytes, more)
	a.bytes = nil
	return conn, more, nil
}
