package httpproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/traffic"
)

// h2Place is a place for one request at a time on an HTTP/2 connection. The pool and the session treat it as a connection
// on which heads pass as fields and bodies as they are. Each head that is sent begins a stream; that
// stream's response can then be read. One fiber reads while another writes. The connection's mu guards the fields that
// they share with the connection's fibers.
type h2Place struct {
	fiber.NoLoop
	h2Sides
	c *h2Server

	// Guarded by c.mu.
	h2Content                     // of the response
	heads     []httpwire.Response // unread heads, to be completed; elements beyond the length lend their memory
	headText  []byte              // of the last of them; if there is none, unused memory
	unread    int                 // size of the heads received since none was unread
	id        uint32              // of the stream
	open      bool                // there is a stream
	head      bool                // the request asks for a head only
	sent      bool                // the server may have seen the request
	refused   bool                // the server has said that it did not process the request
	sentEnd   bool                // the request is complete
	answered  bool                // the final head has arrived
	ended     bool                // the response is complete
	cut       bool                // the server does not want the remainder of the request
	tunnels   bool                // it asks for a tunnel, or is one: see sendConnect
	left      int64               // of the response's body; -1 = unknown
	spent     int64               // of the stream's window; credit not returned yet
	extra     int64               // by how much the window was enlarged
	window    int64               // the server's, beyond the initial one; their sum may be negative
	err       error               // why the stream ended
	closed    bool
	parked    *h2Stream // its session waits for the response without a fiber; nil = none
	by        time.Time // the deadline of that wait
	news      bool      // it is in c.news

	// The writer's.
	out   h2Outgoing
	block []byte // of trailers
}

func newH2Place(c *h2Server) *h2Place {
	st := &h2Place{c: c, h2Sides: h2Sides{mu: &c.mu}}
	st.in.held = &placesHeld()[traffic.ShardOf(c.conn.Loop())%ledgerShards]
	return st
}

var _ fiber.Stream = (*h2Place)(nil)

var (
	// errNotBegun: no server has seen the request, so it may be sent again whatever its method.
	errNotBegun = errors.New("the server takes no more requests on this connection")
	errRefused  = fmt.Errorf("%w: it has refused the stream", errNotBegun)
	// errServerReset: the server saw the request and rejected it.
	errServerReset = errors.New("the server has reset the stream")
	errUnfinished  = errors.New("a request before the last one has ended")
)

// Bounds of the heads of a response.
const (
	maxUnread  = 2 * maxResponseHead // bytes of unread heads
	keptFields = 64                  // fields whose memory is kept for the next head
)

// nextHead returns where to store the next head. mu is held.
func (st *h2Place) nextHead() *httpwire.Response {
	n := len(st.heads)
	if n == cap(st.heads) {
		st.heads = append(st.heads, httpwire.Response{})
	}
	st.heads = st.heads[:n+1]
	return &st.heads[n]
}

// takeHead moves the next head to r, and reports whether there is one. The text of its fields is then in *text, unless
// more heads are unread. The former memory of *text is reused, so r must have been its only user.
func (st *h2Place) takeHead(r *httpwire.Response, text *[]byte) (bool, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.heads) == 0 || st.closed {
		return false, nil
	}
	first := &st.heads[0]
	spare := emptied(r.Fields)
	*r = httpwire.Response{Status: first.Status, Reason: first.Reason, Minor: first.Minor, Fields: first.Fields}
	*first = httpwire.Response{Fields: spare}
	if len(st.heads) > 1 {
		st.heads = slices.Delete(st.heads, 0, 1)
	} else {
		*text, st.headText = st.headText, emptiedText(*text)
		st.forgetHeads()
	}
	return true, r.Complete(st.head)
}

// forgetHeads discards all heads, but keeps the memory of one. mu is held.
func (st *h2Place) forgetHeads() {
	if cap(st.heads) == 0 {
		return
	}
	if cap(st.heads) > 1 {
		st.heads = append(st.heads[:0:1], st.heads[:1][0])
	}
	st.heads, st.unread = st.heads[:0], 0
}

// hasContent reports whether part of the body, or its end, can be read without waiting.
func (st *h2Place) hasContent() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.h2Content.readable()
}

// bodyEnd implements carrying.
func (st *h2Place) bodyEnd(dst []httpwire.Field) ([]httpwire.Field, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.readToEnd(dst)
}

// readable reports whether there is something to read. mu is held.
func (st *h2Place) readable() bool { return len(st.heads) > 0 || st.h2Content.readable() }

// Read reads the response's body. The caller has taken its head.
func (st *h2Place) Read(p []byte) (int, error) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	if err := st.await(); err != nil {
		return 0, err
	}
	n := st.get(p)
	st.spent += int64(n)
	if st.spent >= h2Window/4 {
		st.widen()
	}
	st.returnCredit()
	return n, nil
}

// WaitReadable returns when a Read would not wait. The caller need not hold a buffer meanwhile.
func (st *h2Place) WaitReadable() error {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	return st.await()
}

// WaitReadableFor implements fiber.Stream.
func (st *h2Place) WaitReadableFor(patience time.Duration) (ready bool, err error) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	return st.reader.within(patience, st.await)
}

// OnReadable implements fiber.Stream.
func (st *h2Place) OnReadable(fn func()) bool {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	ready := st.closed || st.readable() || st.err != nil || st.ended || !st.open
	return st.Loop() != 0 && st.reader.call(ready, st.mu, st.Go, fn)
}

// Loop implements fiber.Stream.
func (st *h2Place) Loop() int { return st.c.conn.Loop() }

// Go implements fiber.Stream.
func (st *h2Place) Go(fn func()) { st.c.conn.Go(fn) }

// await waits until there is something to read. Received data is read before an error. mu is held.
func (st *h2Place) await() error {
	for !st.closed && !st.readable() {
		switch {
		case st.err != nil:
			return st.err
		case st.ended || !st.open:
			return io.EOF
		case !st.reader.wait(st.mu):
			return os.ErrDeadlineExceeded
		}
	}
	if st.closed {
		return net.ErrClosed
	}
	return nil
}

// widen enlarges the window of a stream whose client reads what arrives. mu is held.
func (st *h2Place) widen() {
	if c := st.c; st.open && !st.ended && st.extra == 0 && c.extra < h2AllExtra && (st.lengthless || st.left > h2Window) {
		st.extra = h2Extra
		c.extra += st.extra
		st.spent += st.extra
	}
}

// returnCredit returns credit for read bytes to the server, if it is worth a frame. mu is held.
func (st *h2Place) returnCredit() {
	if st.spent < (h2Window+st.extra)/4 || st.ended || !st.open {
		return
	}
	st.c.out = appendWindow(st.c.outgoing(), st.id, st.spent)
	st.spent = 0
	st.c.writer.wake()
}

// fail ends the stream, but keeps a complete response. mu is held.
func (st *h2Place) fail(err error) {
	if st.ended {
		st.cut = true
	} else if st.err == nil {
		st.err = err
	}
	st.wake()
}

// Write sends a part of the request's body, which ends by its length or with sendEnd. n is never 0 with an error: the server
// may have seen the request.
func (st *h2Place) Write(p []byte) (n int, err error) {
	if n, err = st.out.write(p, st); err != nil {
		return max(n, 1), err
	}
	return n, nil
}

// sendEnd sends the last part of a body without a length, and its trailers.
func (st *h2Place) sendEnd(p []byte, trailers []httpwire.Field) error {
	return st.out.end(p, trailers, st)
}

// sendHead begins a stream for a request. block holds its fields without emptyTable; head: the request asks for a head
// only; length is that of its body. After an error no server has seen the request. later: the caller has it flushed; see
// h2Server.flushAhead.
func (st *h2Place) sendHead(block []byte, head bool, length int64, later bool) error {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	st.sent = false
	if st.open || st.readable() {
		return errUnfinished
	}
	if later { // the caller has checked that there is space
		if st.closed {
			return net.ErrClosed
		}
	} else if err := c.roomForHead(st); err != nil {
		return err
	}
	if err := c.begin(st); err != nil {
		return err
	}
	st.clear()
	st.head = head
	st.open, st.sent, st.refused, st.answered, st.ended, st.cut, st.err = true, true, false, false, false, false, nil
	st.left, st.spent, st.window = 0, 0, 0
	st.out.begin(length)
	if c.began { // only the first block sets the table's size
		block = block[1:]
	}
	c.began = true
	st.sentEnd = length == 0
	c.out = appendBlock(c.outgoing(), block, st.id, st.sentEnd)
	if !later {
		c.writer.wake()
	}
	return nil
}

// sendConnect is sendHead for an extended CONNECT. If the server's answer is positive, the place is the tunnel's end.
func (st *h2Place) sendConnect(block []byte) error {
	st.c.mu.Lock()
	st.tunnels = true
	st.c.mu.Unlock()
	return st.sendHead(block, false, endless, false)
}

// takesConnect reports whether the server takes extended CONNECTs.
func (st *h2Place) takesConnect() bool {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	return st.c.connects
}

// sendData implements h2Sink. It waits for the server's window.
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
			if err := st.awaitSpace(); err != nil {
				return err
			}
			continue
		}
		st.appendData(p[:n], last && n == len(p))
		c.writer.wake()
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

// sendAtOnce sends the whole body of the request, whose head has been sent, if that needs no waiting. The caller has it
// flushed; see h2Server.flushAhead.
func (st *h2Place) sendAtOnce(body []byte) bool {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if over, _ := st.refuses(); over || len(c.out) >= maxOut || int64(len(body)) > min(maxFrame, c.initial+st.window, c.window) {
		return false
	}
	st.out.begin(0)
	st.appendData(body, true)
	return true
}

// appendData appends a DATA frame to the outgoing frames, which have space; last ends the request. mu is held.
func (st *h2Place) appendData(p []byte, last bool) {
	c, n, flags := st.c, len(p), byte(0)
	if st.sentEnd = last; last {
		flags = flagEndStream
	}
	c.out = append(appendFrame(outFor(c.outgoing(), frameHead+n), n, frameData, flags, st.id), p...)
	st.window -= int64(n)
	c.window -= int64(n)
	if last && st.ended {
		c.forget(st)
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

// refuses reports whether the remainder of the request must not be sent. The error is nil if the server has answered without
// it. mu is held.
func (st *h2Place) refuses() (bool, error) {
	switch {
	case st.closed:
		return true, net.ErrClosed
	case st.cut && st.tunnels:
		return true, errServerReset
	case st.cut:
		return true, nil
	case st.err == nil && st.c.sendErr != nil:
		return true, lost(st.c.sendErr)
	}
	return st.err != nil, st.err
}

// awaitSpace waits for window or buffer space. mu is held, and released meanwhile.
func (st *h2Place) awaitSpace() error {
	st.c.blocked++
	defer func() { st.c.blocked-- }()
	if !st.writer.wait(st.mu) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// State implements fiber.Stream. Between requests a place is idle if another can begin.
func (st *h2Place) State() fiber.State {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	switch {
	case st.closed || st.c.closing || st.err != nil:
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

// Sent implements fiber.Stream: it reports whether the server may have seen the last request.
func (st *h2Place) Sent() bool {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	return st.sent && !st.refused
}

// CopyTo implements fiber.Stream.
func (st *h2Place) CopyTo(dst net.Conn, moved, _ func(int)) (readErr, writeErr error) {
	return fiber.Copy(st, dst, moved)
}

// CloseWrite ends this side of a tunnel. Otherwise it is not supported: a request ends with its body.
func (st *h2Place) CloseWrite() error {
	st.mu.Lock()
	tunnels := st.tunnels
	st.mu.Unlock()
	if !tunnels {
		return errors.ErrUnsupported
	}
	return st.sendData(nil, true)
}

// Close releases the place, and resets a stream that has not ended. It never waits.
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
		if c.waiting || !c.asked.IsZero() && time.Since(c.asked) > c.g.o.pings { // the server has been silent for as long: new requests use another connection
			c.closing = true
		}
		c.forget(st)
	}
	st.clear() // also the end: a reader must not take the part that it has read for the whole
	st.heads, st.headText = nil, nil
	st.wake()
	st.stop()
	c.detach(cut)
	return nil
}

// LocalAddr implements net.Conn.
func (st *h2Place) LocalAddr() net.Addr { return st.c.conn.LocalAddr() }

// RemoteAddr implements net.Conn.
func (st *h2Place) RemoteAddr() net.Addr { return st.c.conn.RemoteAddr() }
