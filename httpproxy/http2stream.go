package httpproxy

import (
	"bytes"
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
	head    bool // it asks for a head only
	chunked bool // the request's body has no Content-Length

	start []byte // the request's head in HTTP/1.1, which serve takes
	about about  // has its own mutex

	// Guarded by h.mu.
	in       h2Body // of the request's body
	left     int64  // of the body with a length
	chunk    int    // of the chunk that is read
	framing  []byte // before and after it, in frameBuf or last
	frameBuf [chunkOverhead]byte
	last     []byte // after the last chunk; nil = it is not known yet
	spent    int64  // of the stream's window, not yet given back
	extra    int64  // that the window is larger than at first
	ended    bool   // the client has sent all
	err      error  // it is over
	window   int64  // that the client gives besides the initial one; both together may be negative
	reader   h2Waiter
	writer   h2Waiter
	server   *httppool.Conn // that the request is on
	waits    *waiting       // for one; nil = it has not waited
	finished bool           // the response has been sent whole
	lingers  bool           // and the end of the request is waited for; see CloseWrite
	closed   bool

	// The writer's.
	resp   httpwire.Response
	chunks httpwire.Chunks
	began  bool   // the final head is sent
	rest   []byte // of written bytes, incomplete
	toSend int64  // of a body with a length
	block  []byte // of fields
}

// h2Waiter is one side's wait.
type h2Waiter struct {
	by    time.Time    // the deadline
	wait  *fiber.Group // nil = no fiber waits
	timer *time.Timer  // nil = none was needed yet
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
		if !st.wait(&st.reader) {
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

// wait waits until it is woken; false = the deadline has passed. mu is held, and released meanwhile.
func (st *h2Stream) wait(w *h2Waiter) bool {
	if !w.by.IsZero() {
		left := time.Until(w.by)
		switch {
		case left <= 0:
			return false
		case w.timer == nil:
			w.timer = time.AfterFunc(left, st.look)
		default:
			w.timer.Reset(left)
		}
	}
	g := new(fiber.Group)
	g.Add(1)
	w.wait = g
	st.h.unlocked(g.Wait)
	return true
}

// look wakes the waiter to look again.
func (st *h2Stream) look() {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	st.reader.wake()
	st.writer.wake()
}

// wake is called with mu held.
func (w *h2Waiter) wake() {
	if g := w.wait; g != nil {
		w.wait = nil
		g.Done()
	}
}

func (w *h2Waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
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
	total := len(p)
	if len(st.rest) > 0 {
		p = append(st.rest, p...)
		st.rest = nil
	}
	for len(p) > 0 {
		n, err := st.pass(p)
		if errors.Is(err, httpwire.ErrIncomplete) {
			st.rest = bytes.Clone(p[n:])
			break
		}
		if err != nil {
			return 0, err
		}
		p = p[n:]
	}
	return total, st.h.flush(st)
}

// pass passes the beginning of p on, and returns its length.
func (st *h2Stream) pass(p []byte) (int, error) {
	switch {
	case !st.began:
		n, err := st.resp.Parse(p, st.head)
		if err != nil {
			return 0, err
		}
		return n, st.sendHead()
	case st.finished:
		return 0, errors.New("more than a response")
	case st.resp.Length == httpwire.Chunked:
		return st.passChunks(p)
	case st.resp.Length == httpwire.Unframed:
		return len(p), st.sendData(p, false)
	}
	k := int(min(st.toSend, int64(len(p))))
	st.toSend -= int64(k)
	if k < len(p) && st.toSend == 0 {
		return 0, errors.New("more than a response")
	}
	return k, st.sendData(p[:k], st.toSend == 0)
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
	st.toSend = r.Length
	st.began = final
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
		st.h.active-- // for the client may send another now
		st.reader.wake()
	}
}

// passChunks passes the content of chunks on, together with the end if that is there.
func (st *h2Stream) passChunks(p []byte) (total int, err error) {
	var held []byte
	for {
		content, n, done, err := st.chunks.Next(p[total:])
		if errors.Is(err, httpwire.ErrMalformed) {
			return 0, err
		}
		if len(held) > 0 && (len(content) > 0 || err != nil || done && len(st.chunks.Trailer) > 0) {
			if err := st.sendData(held, false); err != nil {
				return 0, err
			}
			held = nil
		}
		total += n
		switch {
		case err != nil:
			return total, err
		case done && len(st.chunks.Trailer) > 0:
			st.block = st.block[:0]
			for i := range st.chunks.Trailer {
				st.block = appendCoded(st.block, &st.chunks.Trailer[i])
			}
			return total, st.sendFields(true)
		case done:
			return total, st.sendData(held, true)
		}
		if len(content) > 0 {
			held = content
		}
		if total == len(p) {
			if len(held) > 0 {
				return total, st.sendData(held, false)
			}
			return total, nil
		}
	}
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
		n := int(min(int64(len(p)), maxFrame, h.initial+st.window, h.window))
		if n <= 0 && len(p) > 0 { // wait for the client
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
	if !st.wait(&st.writer) {
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
	if !st.finished {
		h.active--
	}
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
	if len(h.streams) == 0 {
		h.rest()
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
