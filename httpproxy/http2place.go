package httpproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
)

// h2Place is room for one request at a time on an HTTP/2 connection. To the pool and to the session that leases it, it is a connection of
// its own in HTTP/1.1: each request that is written begins a stream, and the response can be read when that has one. One fiber reads while
// another writes; what they share with the connection's is guarded by the connection's mu.
type h2Place struct {
	fiber.NoLoop
	c *h2Server

	// Guarded by c.mu.
	h2Content        // of the response
	text1     []byte // what heads are put together in
	id        uint32 // of the stream
	open      bool   // there is one
	head      bool   // it asks for a head only
	sent      bool   // the server may have seen the request
	refused   bool   // it says that it has not begun with it
	sentEnd   bool   // the request is whole
	answered  bool   // the final head has come
	ended     bool   // the response is whole
	cut       bool   // and the rest of the request is not wanted
	left      int64  // of the response's body; -1 = nobody knows
	spent     int64  // of the stream's window, not yet given back
	extra     int64  // that the window is larger than at first
	window    int64  // that the server gives besides the initial one; both together may be negative
	err       error  // the stream is over
	closed    bool
	reader    h2Waiter
	writer    h2Waiter

	// The writer's.
	req   httpwire.Request
	begun bool // the head is sent
	out   h2Outgoing
	block []byte // of fields
}

var _ fiber.Stream = (*h2Place)(nil)

var (
	// errNotBegun: no server has seen the request, so that any may be sent again.
	errNotBegun = errors.New("the server takes no more requests on this connection")
	errRefused  = fmt.Errorf("%w: it has refused the stream", errNotBegun)
	// errServerReset: the server has seen the request and does not want it.
	errServerReset = errors.New("the server has reset the stream")
	errUnfinished  = errors.New("a request before the last one has ended")
)

// Read gives the response in HTTP/1.1.
func (st *h2Place) Read(p []byte) (int, error) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	if err := st.await(); err != nil {
		return 0, err
	}
	n, content := st.text(p)
	st.spent += int64(content)
	if st.spent >= h2Window/4 {
		st.widen()
	}
	st.giveBack()
	return n, nil
}

// WaitReadable returns when a Read would not wait, so that nobody need hold a buffer meanwhile.
func (st *h2Place) WaitReadable() error {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	return st.await()
}

// await waits until there is something to read. What has come is read before an error. mu is held.
func (st *h2Place) await() error {
	for !st.closed && !st.readable() {
		switch {
		case st.err != nil:
			return st.err
		case st.ended || !st.open:
			return io.EOF
		case !st.reader.wait(&st.c.mu, st):
			return os.ErrDeadlineExceeded
		}
	}
	if st.closed {
		return net.ErrClosed
	}
	return nil
}

// look lets who waits look again.
func (st *h2Place) look() { st.c.locked(st.wake) }

// wake is called with mu held.
func (st *h2Place) wake() {
	st.reader.wake()
	st.writer.wake()
}

// widen makes the window larger of a stream whose client takes what comes. mu is held.
func (st *h2Place) widen() {
	if c := st.c; st.open && !st.ended && st.extra == 0 && c.extra < h2AllExtra && (st.chunked || st.left > h2Window) {
		st.extra = h2Extra
		c.extra += st.extra
		st.spent += st.extra
	}
}

// giveBack lets the server send again what has been taken, where that is worth a frame. mu is held.
func (st *h2Place) giveBack() {
	if st.spent < (h2Window+st.extra)/4 || st.ended || !st.open {
		return
	}
	st.c.out = appendWindow(st.c.outgoing(), st.id, st.spent)
	st.spent = 0
	st.c.writer.wake()
}

// fail ends the stream, but not a response that has come whole. mu is held.
func (st *h2Place) fail(err error) {
	if st.ended {
		st.cut = true
	} else if st.err == nil {
		st.err = err
	}
	st.wake()
}

// Write takes the request, as HTTP/1.1. n is 0 only if nothing of it can be sent any more.
func (st *h2Place) Write(p []byte) (n int, err error) {
	n, err = st.out.write(p, st.pass)
	if err != nil && st.begun {
		return max(n, 1), err
	}
	return n, err
}

// pass passes on what p begins with, and returns how much that is.
func (st *h2Place) pass(p []byte) (int, error) {
	if st.begun && !st.out.over {
		return st.out.pass(p, st)
	}
	n, err := st.req.Parse(p)
	if err != nil {
		return 0, err
	}
	st.begun = false
	return n, st.begin()
}

// begin begins a stream for the request whose head has been read.
func (st *h2Place) begin() error {
	c := st.c
	st.block = append(st.block[:0], emptyTable) // which only the first one needs
	st.block = appendRequestHead(st.block, &st.req, c.g.o.scheme)
	c.mu.Lock()
	defer c.mu.Unlock()
	st.sent = false
	if st.open || st.readable() {
		return errUnfinished
	}
	if err := c.roomForHead(st); err != nil {
		return err
	}
	if err := c.begin(st); err != nil {
		return err
	}
	st.chunk, st.framing, st.last, st.held, st.chunked = 0, nil, nil, 0, false
	st.in.drop()
	st.head = string(st.req.Method) == "HEAD"
	st.open, st.sent, st.refused, st.answered, st.ended, st.cut, st.err = true, true, false, false, false, false, nil
	st.left, st.spent, st.window = 0, 0, 0
	st.begun = true
	st.out.begin(st.req.Length)
	block := st.block
	if c.began {
		block = block[1:]
	}
	c.began = true
	st.sentEnd = st.req.Length == 0
	c.out = appendBlock(c.outgoing(), block, st.id, st.sentEnd)
	c.writer.wake()
	if cap(st.block) > bufferSize {
		st.block = nil
	}
	return nil
}

// sendData implements h2Sink: it waits until the server gives room for it.
func (st *h2Place) sendData(p []byte, last bool) error {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if over, err := st.refuses(); over {
			return err
		}
		n := int(max(min(int64(len(p)), maxFrame, c.initial+st.window, c.window), 0))
		if len(c.out) >= maxOut || n == 0 && len(p) > 0 {
			if err := st.starve(); err != nil {
				return err
			}
			continue
		}
		flags := byte(0)
		if st.sentEnd = last && n == len(p); st.sentEnd {
			flags = flagEndStream
		}
		c.out = append(appendFrame(c.outgoing(), n, frameData, flags, st.id), p[:n]...)
		c.writer.wake()
		st.window -= int64(n)
		c.window -= int64(n)
		if st.sentEnd && st.ended {
			c.forget(st)
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

// sendTrailers implements h2Sink.
func (st *h2Place) sendTrailers(fields []httpwire.Field) error {
	st.block = st.block[:0]
	for i := range fields {
		st.block = appendCoded(st.block, &fields[i])
	}
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if over, err := st.refuses(); over {
		return err
	}
	c.out = appendBlock(c.outgoing(), st.block, st.id, true)
	c.writer.wake()
	if st.sentEnd = true; st.ended {
		c.forget(st)
	}
	return nil
}

// refuses reports whether the rest of the request is not to be sent; without an error because the server has answered without it. mu is
// held.
func (st *h2Place) refuses() (bool, error) {
	switch {
	case st.closed:
		return true, net.ErrClosed
	case st.cut:
		return true, nil
	}
	return st.err != nil, st.err
}

// starve waits for room. mu is held, and given up meanwhile.
func (st *h2Place) starve() error {
	st.c.starved++
	defer func() { st.c.starved-- }()
	if !st.writer.wait(&st.c.mu, st) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// State implements fiber.Stream. A place is idle between two requests if another can be begun.
func (st *h2Place) State() fiber.State {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	switch {
	case st.closed || st.c.gone || st.err != nil:
		return fiber.Dead
	case st.open || st.readable():
		return fiber.Pending
	}
	return fiber.Silent
}

// Ended implements fiber.Stream.
func (st *h2Place) Ended() bool { return st.State() == fiber.Dead }

// PeerClosed implements fiber.Stream.
func (st *h2Place) PeerClosed() bool { return st.Ended() }

// Sent implements fiber.Stream: it reports whether the server may have begun with the last request.
func (st *h2Place) Sent() bool {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	return st.sent && !st.refused
}

// CopyTo implements fiber.Stream.
func (st *h2Place) CopyTo(dst net.Conn, moved, _ func(int)) (readErr, writeErr error) {
	return fiber.Copy(st, dst, moved)
}

// CloseWrite is not supported: a request has its own end.
func (*h2Place) CloseWrite() error { return errors.ErrUnsupported }

// Close gives the place up, and resets a stream that is under way. It never waits.
func (st *h2Place) Close() error {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.closed {
		return nil
	}
	st.closed = true
	cut := st.open || st.err != nil
	if st.open {
		c.out = appendReset(c.outgoing(), st.id, codeCancel)
		c.writer.wake()
		if !c.asked.IsZero() && time.Since(c.asked) > c.g.o.pings { // nothing has been heard for as long: requests go to another connection
			c.gone = true
		}
		c.forget(st)
	}
	st.in.drop()
	st.wake()
	st.reader.stop()
	st.writer.stop()
	c.detach(cut)
	return nil
}

// LocalAddr implements net.Conn.
func (st *h2Place) LocalAddr() net.Addr { return st.c.conn.LocalAddr() }

// RemoteAddr implements net.Conn.
func (st *h2Place) RemoteAddr() net.Addr { return st.c.conn.RemoteAddr() }

// SetDeadline implements net.Conn.
func (st *h2Place) SetDeadline(t time.Time) error { return st.setDeadline(t, true, true) }

// SetReadDeadline implements net.Conn.
func (st *h2Place) SetReadDeadline(t time.Time) error { return st.setDeadline(t, true, false) }

// SetWriteDeadline implements net.Conn.
func (st *h2Place) SetWriteDeadline(t time.Time) error { return st.setDeadline(t, false, true) }

func (st *h2Place) setDeadline(t time.Time, read, write bool) error {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	if read {
		st.reader.by = t
		st.reader.wake()
	}
	if write {
		st.writer.by = t
		st.writer.wake()
	}
	return nil
}
