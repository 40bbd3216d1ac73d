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
	"github.com/headpond/headpond/pool/httppool"
)

// h2Stream is one request of an HTTP/2 connection and its response. The session sees it as a connection on which this
// one request came in HTTP/1.1. One fiber reads while another writes; the connection's mu guards the fields that they
// share with the connection's fiber.
type h2Stream struct {
	fiber.NoLoop
	h       *http2
	id      uint32
	head    bool          // it asks for a head only
	timeout time.Duration // that its client gives the exchange; 0 = none

	start []byte // the request's head in HTTP/1.1, which serve takes
	about about  // has its own mutex

	// Guarded by h.mu.
	h2Content       // of the request
	left      int64 // of the body with a length
	spent     int64 // of the stream's window, not yet given back
	extra     int64 // that the window is larger than at first
	active    bool  // it counts as h.active
	ended     bool  // the client has sent all
	err       error // it is over
	window    int64 // that the client gives besides the initial one; both together may be negative
	reader    h2Waiter
	writer    h2Waiter
	server    *httppool.Conn // that the request is on
	waits     *waiting       // for one; nil = it has not waited
	finished  bool           // the response has been sent whole
	lingers   bool           // and the end of the request is waited for; see CloseWrite
	closed    bool

	// The writer's.
	resp  httpwire.Response
	began bool // the final head is sent
	out   h2Outgoing
	block []byte // of fields
}

var _ fiber.Stream = (*h2Stream)(nil)

var errStreamReset = fmt.Errorf("%w: it has reset the stream", httppool.ErrClientGone)

// Read gives the request, and waits at its end for that of the response: the client is still there.
func (st *h2Stream) Read(p []byte) (int, error) {
	n, more, err := st.read(p)
	if more {
		err = st.h.flush(nil)
	}
	return n, err
}

func (st *h2Stream) read(p []byte) (n int, more bool, err error) {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	if err = st.await(); err == nil {
		n, more = st.take(p)
	}
	return n, more, err
}

// await waits until there is something to read. mu is held.
func (st *h2Stream) await() error {
	for !st.readable() && st.err == nil {
		if st.finished && (st.ended || !st.lingers) {
			return io.EOF
		}
		if !st.reader.wait(&st.h.mu, st) {
			return os.ErrDeadlineExceeded
		}
	}
	return st.err
}

// WaitReadable returns when a Read would not wait, so that no buffer is held meanwhile.
func (st *h2Stream) WaitReadable() error {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	return st.await()
}

// look wakes the waiters to look again.
func (st *h2Stream) look() {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	st.reader.wake()
	st.writer.wake()
}

// fail ends the stream; mu is held.
func (st *h2Stream) fail(err error) {
	if st.err == nil {
		st.err = err
	}
	st.reader.wake()
	st.writer.wake()
	if st.waits != nil {
		st.waits.inner.Unpark()
	}
	if st.server != nil && !st.finished {
		_ = st.server.Close() // its answer is not awaited
	}
}

// uses says which connection is to be closed when the client resets the stream; false = it has, and c is not touched.
func (st *h2Stream) uses(c *httppool.Conn) bool {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	if st.server = c; st.err != nil {
		st.server = nil
	}
	return st.err == nil
}

// State implements fiber.Stream.
func (st *h2Stream) State() fiber.State {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	switch {
	case st.err != nil: // it precedes unread data
		return fiber.Dead
	case st.readable():
		return fiber.Pending
	}
	return fiber.Silent
}

// CopyTo implements fiber.Stream.
func (st *h2Stream) CopyTo(dst net.Conn, moved, _ func(int)) (readErr, writeErr error) {
	return fiber.Copy(st, dst, moved)
}

// Ended reports whether the client does not want the answer any more.
func (st *h2Stream) Ended() bool {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	return st.err != nil
}

// PeerClosed is Ended.
func (st *h2Stream) PeerClosed() bool { return st.Ended() }

// Write takes the response, as HTTP/1.1.
func (st *h2Stream) Write(p []byte) (int, error) {
	if _, err := st.out.write(p, st.pass); err != nil {
		return 0, err
	}
	return len(p), st.h.flush(st)
}

// pass passes the beginning of p on, and returns its length.
func (st *h2Stream) pass(p []byte) (int, error) {
	if st.began {
		return st.out.pass(p, st)
	}
	n, err := st.resp.Parse(p, st.head)
	if err != nil {
		return 0, err
	}
	return n, st.sendHead()
}

// sendHead sends the head of an interim or of the final response.
func (st *h2Stream) sendHead() error {
	r := &st.resp
	if r.Status == 101 {
		return errors.New("a response that HTTP/2 has no form for")
	}
	final := r.Status >= 200
	st.block = appendStatus(st.block[:0], r.Status)
	for i := range r.Fields {
		if f := &r.Fields[i]; !f.Known.Connectional() {
			st.block = appendCoded(st.block, f)
		}
	}
	st.began = final
	st.out.begin(r.Length)
	return st.sendFields(final && r.Length == 0)
}

// sendFields sends the block.
func (st *h2Stream) sendFields(last bool) error {
	h := st.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := st.room(); err != nil {
		return err
	}
	h.out = st.appendFields(st.block, last)
	return nil
}

// appendFields appends the block to the collected frames. mu is held.
func (st *h2Stream) appendFields(block []byte, last bool) []byte {
	h := st.h
	if !h.emptied {
		h.emptied = true
		block = append([]byte{emptyTable}, block...)
	}
	st.finish(last)
	return appendBlock(h.outgoing(), block, st.id, last)
}

// finish notes whether the response has been sent whole. mu is held.
func (st *h2Stream) finish(last bool) {
	if st.finished = last; last {
		st.rests()
		st.reader.wake()
	}
}

// sendTrailers ends the response with fields.
func (st *h2Stream) sendTrailers(fields []httpwire.Field) error {
	st.block = st.block[:0]
	for i := range fields {
		st.block = appendCoded(st.block, &fields[i])
	}
	return st.sendFields(true)
}

// sendData sends content, as far as the client gives room for it.
func (st *h2Stream) sendData(p []byte, last bool) error {
	h := st.h
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		if err := st.room(); err != nil {
			return err
		}
		n := int(max(min(int64(len(p)), maxFrame, h.initial+st.window, h.window), 0))
		if n == 0 && len(p) > 0 { // wait for the client
			if err := st.starve(); err != nil {
				return err
			}
			continue
		}
		ends := last && n == len(p)
		flags := byte(0)
		if ends {
			flags = flagEndStream
		}
		h.out = append(appendFrame(h.outgoing(), n, frameData, flags, st.id), p[:n]...)
		st.window -= int64(n)
		h.window -= int64(n)
		st.finish(ends)
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

// room waits until there is some for a frame. mu is held.
func (st *h2Stream) room() error {
	for st.err == nil && len(st.h.out) >= maxOut {
		if err := st.starve(); err != nil {
			return err
		}
	}
	return st.err
}

// starve sends collected frames, or waits if there are none or another flush runs. mu is held, and released meanwhile.
func (st *h2Stream) starve() error {
	h := st.h
	if len(h.out) > 0 && !h.flushing {
		return h.flushFor(st)
	}
	h.starved++
	defer func() { h.starved-- }()
	if !st.writer.wait(&h.mu, st) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// CloseWrite makes Read wait for the end of the request after that of the response, and drops later data: a reset right
// behind the response makes some clients, such as curl 7.88, lose it.
func (st *h2Stream) CloseWrite() error {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	if !st.finished {
		return errors.New("the response is not whole")
	}
	st.lingers = true
	return nil
}

// Close ends the stream. An incomplete response ends with a reset, and so does a request that is not read to its end.
func (st *h2Stream) Close() error {
	st.h.locked(st.close)
	return st.h.flush(nil)
}

// close is Close without the flush. mu is held.
func (st *h2Stream) close() {
	h := st.h
	if st.closed {
		return
	}
	st.closed = true
	switch {
	case st.err != nil:
	case st.began && st.resp.Length == httpwire.Unframed:
		h.out = appendFrame(h.outgoing(), 0, frameData, flagEndStream, st.id)
	case !st.finished:
		h.out = appendReset(h.outgoing(), st.id, codeInternal)
	case !st.ended:
		h.out = appendReset(h.outgoing(), st.id, codeNone)
	}
	st.rests()
	if st.err == nil && st.finished {
		h.resets = max(h.resets-1, 0)
	}
	st.fail(net.ErrClosed)
	st.reader.stop()
	st.writer.stop()
	if !st.ended {
		h.leaveBehind(st.id)
	}
	st.in.drop()
	h.extra -= st.extra
	delete(h.streams, st.id)
	h.room.wake()
	if len(h.streams) == 0 {
		h.becameIdle()
	}
}

// LocalAddr implements net.Conn.
func (st *h2Stream) LocalAddr() net.Addr { return st.h.lc.LocalAddr() }

// RemoteAddr implements net.Conn.
func (st *h2Stream) RemoteAddr() net.Addr { return st.h.lc.RemoteAddr() }

// SetDeadline implements net.Conn.
func (st *h2Stream) SetDeadline(t time.Time) error { return st.setDeadline(t, true, true) }

// SetReadDeadline implements net.Conn.
func (st *h2Stream) SetReadDeadline(t time.Time) error { return st.setDeadline(t, true, false) }

// SetWriteDeadline implements net.Conn.
func (st *h2Stream) SetWriteDeadline(t time.Time) error { return st.setDeadline(t, false, true) }

func (st *h2Stream) setDeadline(t time.Time, read, write bool) error {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
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

// begin returns the request's head, with the received part of the body if it is small: no stream that waits for its
// server holds more.
func (st *h2Stream) begin() []byte {
	b := st.start
	st.start = nil
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	if n := st.in.size() + chunkOverhead; n > chunkOverhead && len(b)+n <= bufferSize {
		b = slices.Grow(b, n)
		k, _ := st.take(b[len(b) : len(b)+n])
		b = b[:len(b)+k]
	}
	return b
}

// serve runs the request's session.
func (st *h2Stream) serve() {
	h := st.h
	s := &session{p: h.p, ctx: h.ctx, lc: h.lc, shard: h.shard, isTLS: h.isTLS, peer: h.peer, stream: st, about: &st.about}
	defer func() {
		_ = st.Close()
		st.about.drop()
	}()
	s.client.use(st)
	s.client.buf = st.begin()
	s.client.w = len(s.client.buf)
	switch n, err := s.readHead(); {
	case errors.Is(err, httpwire.ErrMalformed):
		s.refuseHead(err)
	case err != nil:
	default:
		s.serve(n)
	}
	s.client.drop()
}
