package httpproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// h2Stream is one request of an HTTP/2 connection and its response. The session treats it as a connection on which the
// body of this request is read and that of the response written, as they are; heads pass as fields. One fiber reads while another writes. The
// connection's mu guards the fields that they share with the connection's fiber.
type h2Stream struct {
	fiber.NoLoop
	clientSide
	h            *http2
	run          func()    // serve
	waitsForBody bool      // it is in h.expected, and not launched; used by the reader only
	session      *session  // of the request
	received     time.Time // when the request's head arrived
	id           uint32
	timeout      time.Duration // the client's limit for the exchange; 0 = none

	about about // has its own mutex

	// Guarded by h.mu.
	h2Content          // of the request
	left         int64 // of a body with a length
	content      int64 // received bytes of content
	spent        int64 // of the stream's window; credit not returned yet
	extra        int64 // by how much the window was enlarged
	active       bool  // counted in h.active
	ended        bool  // the client has ended the request
	window       int64 // the client's, beyond the initial one; their sum may be negative
	bodyReserved int   // bytes reserved for the request's body until it is complete; see admit
	drops        bool  // the request's body is dropped on arrival
	lingers      bool  // the end of the request is awaited; see CloseWrite
	closed       bool
	tunnels      bool // it carries the data of another protocol, unframed; see switchTo

	// The writer's.
	block []byte // of trailers
}

var errStreamReset = fmt.Errorf("%w: it has reset the stream", httppool.ErrClientGone)

// Read reads the request. At its end it waits for the end of the response: the client is still there.
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
		if st.over() {
			return io.EOF
		}
		if !st.reader.wait(st.mu) {
			return os.ErrDeadlineExceeded
		}
	}
	return st.err
}

// over reports whether nothing follows what is readable. mu is held.
func (st *h2Stream) over() bool {
	if st.tunnels {
		return st.ended
	}
	return st.finished && (st.ended || !st.lingers)
}

// WaitReadable returns when a Read would not wait. The caller need not hold a buffer meanwhile.
func (st *h2Stream) WaitReadable() error {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	return st.await()
}

// WaitReadableFor implements fiber.Stream.
func (st *h2Stream) WaitReadableFor(patience time.Duration) (ready bool, err error) {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	return st.reader.within(patience, st.await)
}

// OnReadable implements fiber.Stream.
func (st *h2Stream) OnReadable(fn func()) bool {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	return st.Loop() != 0 && st.reader.call(st.readable() || st.err != nil || st.over(), st.mu, st.Go, fn)
}

// Loop implements fiber.Stream.
func (st *h2Stream) Loop() int { return st.h.conn.Loop() }

// Go implements fiber.Stream.
func (st *h2Stream) Go(fn func()) { st.h.conn.Go(fn) }

// State implements fiber.Stream.
func (st *h2Stream) State() fiber.State {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	switch {
	case st.err != nil: // reported before unread data
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

// bodyEnd implements carrying.
func (st *h2Stream) bodyEnd(dst []httpwire.Field) ([]httpwire.Field, bool) {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	return st.readToEnd(dst)
}

func (st *h2Stream) sendEnd(p []byte, trailers []httpwire.Field) error {
	if err := st.out.end(p, trailers, st); err != nil {
		return err
	}
	return st.h.flush(st)
}

// Write sends a part of the response's body, which ends by its length or with sendEnd.
func (st *h2Stream) Write(p []byte) (int, error) {
	if _, err := st.out.write(p, st); err != nil {
		return 0, err
	}
	return len(p), st.h.flush(st)
}

func (st *h2Stream) protocol() string { return protocolHTTP2 }

func (st *h2Stream) major() int { return 2 }

func (st *h2Stream) limit() time.Duration { return st.timeout }

func (st *h2Stream) resumes() func() { return st.run }

func (st *h2Stream) head(dst []byte) headWriter { return headWriter{dst: dst, coded: true} }

func (st *h2Stream) flush() error { return st.h.flush(st) }

func (st *h2Stream) switchTo(block []byte) error {
	st.frame(http.StatusOK, endless)
	if err := st.sendFields(block, false); err != nil {
		return err
	}
	st.h.locked(func() {
		if !st.closed {
			st.tunnels = true
			st.h.tunnels++
		}
	})
	return st.flush()
}

func (st *h2Stream) cutOff(err error) {
	st.h.locked(func() {
		if st.err == nil && !(st.finished && st.ended) {
			st.reset(err)
		}
	})
}

// reset resets a stream that has not ended. mu is held.
func (st *h2Stream) reset(err error) {
	st.h.out = appendReset(st.h.outgoing(), st.id, codeCancel)
	st.fail(err)
	st.h.checkBy(time.Unix(1, 0)) // so that the reader sends the reset soon
}

var errH2Switch = errors.New("a response that HTTP/2 has no form for")

func (st *h2Stream) sendHead(status int, block []byte, length int64) error {
	if status == http.StatusSwitchingProtocols {
		return errH2Switch
	}
	st.frame(status, length)
	return st.sendFields(block, st.began && length == 0)
}

// sendFields sends a field block.
func (st *h2Stream) sendFields(block []byte, last bool) error {
	h := st.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := st.room(); err != nil {
		return err
	}
	h.out = st.appendFields(block, last)
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

// finish records whether the response has been sent completely. mu is held.
func (st *h2Stream) finish(last bool) {
	if st.finished = last; last {
		if st.ended && st.session != nil { // a head that is too large has no session
			st.session.held.finish()
		}
		if !st.tunnels || st.ended {
			st.deactivate()
		}
		st.reader.wake()
	}
}

// sendTrailers ends the response with trailers.
func (st *h2Stream) sendTrailers(fields []httpwire.Field) error {
	st.block = st.block[:0]
	for i := range fields {
		st.block = appendCoded(st.block, &fields[i])
	}
	return st.sendFields(st.block, true)
}

// sendData sends content as the client's windows allow.
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
			if err := st.awaitSpace(); err != nil {
				return err
			}
			continue
		}
		st.appendData(p[:n], last && n == len(p))
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

// appendData appends a DATA frame to the collected frames, which have space; last ends the response. mu is held.
func (st *h2Stream) appendData(p []byte, last bool) {
	h, n, flags := st.h, len(p), byte(0)
	if last {
		flags = flagEndStream
	}
	h.out = append(appendFrame(outFor(h.outgoing(), frameHead+n), n, frameData, flags, st.id), p...)
	st.window -= int64(n)
	h.window -= int64(n)
	st.finish(last)
}

// room waits until a DATA frame can be appended. mu is held.
func (st *h2Stream) room() error {
	for st.err == nil && len(st.h.out) >= maxOut {
		if err := st.awaitSpace(); err != nil {
			return err
		}
	}
	return st.err
}

// awaitSpace sends collected frames, or waits if there are none or another flush runs. mu is held, and released meanwhile.
func (st *h2Stream) awaitSpace() error {
	h := st.h
	if len(h.out) > 0 && !h.flushing {
		return h.flushFor(st)
	}
	h.blocked++
	defer func() { h.blocked-- }()
	if !st.writer.wait(st.mu) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// CloseWrite ends this side of a tunnel. After the end of a response it makes Read wait for the end of the request, and
// drops later data: a reset right after the response makes some clients, such as curl 7.88, lose the response.
func (st *h2Stream) CloseWrite() error {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	switch {
	case st.err != nil:
		return st.err
	case st.tunnels && !st.finished:
		st.appendData(nil, true)
		return st.h.flushFor(st)
	case !st.finished:
		return errors.New("the response is not whole")
	}
	st.lingers = true
	return nil
}

// Close ends the stream. It resets an incomplete response, and a request that was not read to its end.
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
	case !st.finished:
		h.out = appendReset(h.outgoing(), st.id, codeInternal)
	case !st.ended:
		h.out = appendReset(h.outgoing(), st.id, codeNone)
	}
	st.deactivate()
	if st.err == nil && st.finished {
		h.resets = max(h.resets-1, 0)
	}
	st.fail(net.ErrClosed)
	if !st.ended {
		h.noteEndedEarly(st.id)
	}
	st.in.drop()
	h.extra -= st.extra
	if st.tunnels {
		h.tunnels--
	}
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

// begin makes s, which has read the head, the session of the stream.
func (st *h2Stream) begin(s *session) {
	h := st.h
	st.session = s
	s.p, s.ctx, s.lc, s.shard, s.isTLS, s.peer = h.p, h.ctx, h.lc, h.shard, h.isTLS, h.peer
	s.stream, s.about, s.now = st, &st.about, st.received
	s.held.of = &h.held
	s.holds()
	s.held.add(cap(s.reqText)) // released by held.end
	st.in.held = &s.held
	st.admit(s)
	s.client.use(st)
	s.headErr = s.completeHead()
}

// serve continues the session in a fiber of the stream. A panic there ends only the stream.
func (st *h2Stream) serve() {
	h, s := st.h, st.session
	rests := false
	defer func() {
		if !rests {
			h.fibers.Done()
		}
	}()
	defer h.p.recovered(h.lc)
	func() {
		panicked := true
		defer func() {
			if rests = s.rests; rests {
				return
			}
			if panicked {
				s.logPanic()
			}
			_ = st.Close()
			st.about.drop()
			s.held.end()
		}()
		switch {
		case s.rests:
			s.endRest()
		case s.headErr != nil:
			s.refuseHead(s.headErr)
		case s.ex.judged:
			s.forward()
		default:
			st.preread()
			s.serve(0)
		}
		if !s.rests {
			s.client.drop()
		}
		panicked = false
	}()
	if !rests {
		h.locked(func() { h.keep(st) })
	}
}

// again prepares the ended stream for another request: it keeps what does not change, and memory. No fiber waits for the
// stream. mu is held.
func (st *h2Stream) again() {
	st.reader.by, st.writer.by = time.Time{}, time.Time{}
	st.h2Content = h2Content{in: h2Body{bufs: st.in.bufs}}
	st.left, st.content, st.spent, st.extra, st.window, st.bodyReserved = 0, 0, 0, 0, 0, 0
	st.active, st.ended, st.drops, st.finished, st.lingers, st.closed, st.tunnels, st.began = false, false, false, false, false, false, false, false
	st.err, st.server, st.cancel = nil, nil, nil
	st.session = nil
	st.out = h2Outgoing{}
}

// sessions holds sessions of ended connections and streams. Nothing refers to them: all users of a connection refer to its
// entry, which is not reused, and those of a stream to its h2Stream, which is reused on the same connection only (see
// http2.newStream).
var sessions = sync.Pool{New: func() any { return new(session) }}

// recycle frees the session for another connection or stream, perhaps of another client. Its own is closed, and the fiber
// that sent its body has ended. A session that panicked is not recycled.
func (s *session) recycle() {
	request, response, trailer, upTrailer := s.req.Fields, s.resp.Fields, s.chunks.Trailer, s.upChunks.Trailer
	reqText, respText := s.reqText, s.respText
	*s = session{} // a literal with fields would be built elsewhere and copied
	s.reqText, s.respText = emptiedText(reqText), emptiedText(respText)
	s.req.Fields, s.resp.Fields = emptied(request), emptied(response)
	s.chunks.Trailer, s.upChunks.Trailer = emptied(trailer), emptied(upTrailer)
	sessions.Put(s)
}

// emptied clears fields for reuse, unless they are large.
func emptied(fields []httpwire.Field) []httpwire.Field {
	if cap(fields) > keptFields {
		return nil
	}
	clear(fields[:cap(fields)])
	return fields[:0]
}

// completeHead is readHead for a head that arrived as fields.
func (s *session) completeHead() error {
	err := s.req.Complete()
	if errors.Is(err, httpwire.ErrTooMany) || err == nil && len(s.req.Fields) > s.p.limits.Load().fields {
		return errLarge
	}
	return err
}
