package httpproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/listener"
)

// bufferSize is the size of a buffer for reading and writing messages. A buffer grows for a head that does not fit, up
// to Config.MaxHeaderBytes for a request and maxResponseHead for a response.
const (
	bufferSize      = 16 << 10
	bufferSpare     = 2688                     // see spaced; up to a size class of Go that is no multiple of a page
	bufferCost      = bufferSize + bufferSpare // the memory of a buffer
	maxResponseHead = 256 << 10                // the limit of package httppool
)

var buffers = sync.Pool{New: func() any { return &new(spaced).bytes }}

// spaced is a buffer that is followed by unused bytes. The first lines of buffers at multiples of a page would all
// compete for the same few lines of the processor's caches.
type spaced struct {
	bytes [bufferSize]byte
	_     [bufferSpare]byte
}

// stream reads from one side of a session. While it waits it holds a buffer only if the connection cannot be waited for
// without one (see fiber.Stream.WaitReadable).
type stream struct {
	conn  fiber.Stream
	holds bool   // conn cannot be waited for without one
	ready bool   // the next Read does not wait
	buf   []byte // of bufferSize bytes, from buffers, unless it has grown
	r, w  int
	held  *tally // counts the size of buf
}

func (s *stream) use(c fiber.Stream) { s.conn, s.holds, s.ready = c, false, false }

func (s *stream) bytes() []byte {
	if s.buf == nil {
		return nil
	}
	return s.buf[s.r:s.w]
}

// take drops the first n bytes that were read.
func (s *stream) take(n int) {
	if s.r += n; s.r == s.w {
		s.r, s.w = 0, 0
	}
}

// release frees the buffer if it is empty.
func (s *stream) release() {
	if s.buf != nil && s.r == s.w {
		if len(s.buf) == bufferSize {
			putBuffer(s.held, (*[bufferSize]byte)(s.buf))
		} else {
			s.held.add(-len(s.buf))
		}
		s.buf, s.r, s.w = nil, 0, 0
	}
}

// drop discards the unread bytes and frees the buffer.
func (s *stream) drop() {
	s.r, s.w = 0, 0
	s.release()
}

// waitIdle frees the buffer and waits for up to suspendAfter. It reports whether that time passed with nothing to read and
// no error.
func (s *stream) waitIdle() bool {
	if s.holds {
		return false
	}
	s.release()
	ready, err := s.conn.WaitReadableFor(suspendAfter)
	s.ready = ready && err == nil
	return !ready && err == nil // the next read returns the error again
}

// fill reads once. The error is errFull if the buffer is full.
func (s *stream) fill() (n int, err error) {
	if s.r == s.w && !s.holds && !s.ready {
		s.release()
		if err := s.conn.WaitReadable(); err != nil {
			if !errors.Is(err, errors.ErrUnsupported) {
				return 0, err
			}
			s.holds = true
		}
	}
	s.ready = false
	if len(s.buf) < bufferSize {
		s.release() // an empty one of shrink
	}
	if s.buf == nil {
		s.buf = takeBuffer(s.held)[:]
	}
	if s.r > 0 {
		s.w = copy(s.buf, s.buf[s.r:s.w])
		s.r = 0
	}
	if s.w == len(s.buf) {
		return 0, errFull
	}
	idle := s.holds && s.w == 0 // a buffer that only waits for data, perhaps for long, does not count
	if idle {
		s.held.add(-s.cost())
	}
	n, err = s.conn.Read(s.buf[s.w:])
	if idle {
		s.held.add(s.cost())
	}
	s.w += n
	if n > 0 {
		err = nil
	}
	return n, err
}

// cost returns the memory of the buffer.
func (s *stream) cost() int {
	if len(s.buf) == bufferSize {
		return bufferCost
	}
	return len(s.buf)
}

// shrink moves the read bytes into a buffer of their size.
func (s *stream) shrink() {
	b := bytes.Clone(s.bytes())
	s.drop()
	s.buf, s.w = b, len(b)
	s.held.add(s.cost())
}

// grow enlarges the buffer for a head that fills it; false = the buffer has reached limit.
func (s *stream) grow(limit int) bool {
	if len(s.buf) >= limit {
		return false
	}
	larger := make([]byte, 2*len(s.buf))
	n := copy(larger, s.bytes())
	s.drop()
	s.buf, s.w = larger, n
	s.held.add(s.cost())
	return true
}

// errFull: a head, or a piece of framing, does not fit a buffer.
var errFull = errors.New("larger than the buffer")

// States of a connection for a drain. Only an idle one is interrupted, by a deadline.
const (
	sessionBusy int32 = iota
	sessionIdle
	sessionInterrupted
)

// session is one client's connection. One fiber (or goroutine)
// runs it; a second one sends a request's body while the first waits for the response.
type session struct {
	p        *Proxy
	ctx      context.Context
	leases   context.Context // see leasing
	lc       *listener.Conn
	entry    *entry // of the connection in the register; nil for a stream
	client   stream
	isTLS    *tls.ConnectionState // nil = not TLS
	awaiting atomic.Bool          // the session waits for a response's head
	deadline bool                 // a deadline is set on the server's connection
	counts   bool                 // the session counts bytes, instead of the connection below TLS
	serving  bool                 // a request is being served, on HTTP/1
	served   bool                 // a request has been answered
	blank    bool                 // and an empty line after it
	shard    uint8                // its shard of traffic counters
	// overMemory: the connection has no memory for the stream's request.
	overMemory bool
	// suspended: the session of an idle client has given up its stack; Resume continues.
	suspended bool
	rests     bool      // the session has given up its stack while an answer pauses; see beginRest
	kept      bool      // something may refer to the session after its end: it is not reused
	outLent   bool      // out is a part of the client's buffer
	now       time.Time // when the current request began
	ended     time.Time // when the last request ended; zero = long ago
	peer      peer
	stream    clientStream // the client's stream; nil in HTTP/1.1
	headErr   error        // an error in the head of the stream's request; nil = none
	about     *about       // the entry's, or the stream's

	req      httpwire.Request
	resp     httpwire.Response
	reqText  []byte // of a request head received as fields; respText is that of a response
	respText []byte
	chunks   decoder // of a response without a length; upChunks is that of a request
	upChunks decoder
	server   stream
	down     *fiber.Transfer // moves the response's content; nil = not needed yet
	passed   func(int)       // the method clientTook; nil = not needed yet
	out      []byte          // the message being written
	said     clientFields    // without a stream
	held     tally
	ex       exchange
}

// ServeConn serves one client; it implements listener.Handler.
func (p *Proxy) ServeConn(ctx context.Context, lc *listener.Conn) {
	if c, ok := lc.Raw().(Carrier); ok {
		p.serveCarrier(ctx, lc, c)
		return
	}
	s := sessions.Get().(*session) //nolint:forcetypeassert // its New makes nothing else
	s.p, s.ctx, s.lc = p, ctx, lc
	s.entry = &entry{p: p, lc: lc, session: s}
	s.about = &s.entry.about
	opened := false
	defer func() {
		if !opened {
			_ = lc.Close()
		}
	}()
	if opened = s.open(); opened {
		s.entry.conn = s.client.conn
		lc.Attach(s.entry)
		s.carry()
	}
}

// carry runs the session until it ends or is suspended.
func (s *session) carry() {
	ended := false
	defer func() {
		if s.suspended || s.rests {
			return
		}
		if s.serving { // a panic
			s.logPanic()
			s.kept = true
		}
		s.close()
		_ = s.lc.Close()
		if ended && !s.kept {
			s.entry.session = nil
			s.recycle()
		}
	}()
	s.run()
	ended = true
}

// open prepares the connection for its first request; false = the TLS handshake failed.
func (s *session) open() bool {
	cfg := s.p.limits.Load()
	raw := s.lc.Raw()
	s.shard = uint8(s.lc.Shard())
	s.holds()
	settings := s.p.tls.Load()
	if settings == nil {
		s.client.use(raw)
		s.counts = true
		return true
	}
	tc := fiber.TLSServer(s.lc, settings)
	_ = raw.SetDeadline(time.Now().Add(cfg.readHeader))
	if err := tc.HandshakeContext(s.ctx); err != nil {
		if s.lc.Attach(s.entry) { // otherwise an operator has ended it
			s.noHandshake(err)
		}
		return false
	}
	_ = raw.SetDeadline(time.Time{})
	state := tc.ConnectionState()
	s.isTLS, s.peer.cert = &state, clientCert(&state)
	s.client.use(tc)
	return true
}

// holds starts the memory accounting of the session.
func (s *session) holds() {
	s.held.to = s.p.ledger.account(s.shard)
	s.client.held, s.server.held = &s.held, &s.held
}

// close ends the session's use of the connection.
func (s *session) close() {
	s.about.drop()
	s.client.drop()
	s.held.end()
	_ = s.client.conn.Close() // sends TLS's close_notify
}

// run serves requests until the session ends.
func (s *session) run() {
	if s.isTLS != nil && s.isTLS.NegotiatedProtocol == "h2" {
		s.goHTTP2()
		return
	}
	if s.rests {
		s.serving = true
		again := s.endRest()
		if s.serving = false; !again {
			return
		}
	}
	for {
		if s.client.r == s.client.w && !s.awaitRequest() {
			return
		}
		if s.emptyLine() {
			continue
		}
		n, err := s.readHead()
		if err != nil {
			s.noHead(err)
			return
		}
		s.blank = false
		s.serving = true
		again := s.serve(n)
		if s.serving = false; !again {
			return
		}
	}
}

// noHead ends the session, or makes it one of HTTP/2, after an error of readHead.
func (s *session) noHead(err error) {
	switch {
	case errors.Is(err, errHTTP2):
		s.goHTTP2()
	case errors.Is(err, httpwire.ErrMalformed):
		s.refuseHead(err)
	case errors.Is(err, os.ErrDeadlineExceeded) && len(s.client.bytes()) > 0:
		s.refuseHead(errLate)
	default:
		s.headFailed(err)
	}
}

// emptyLine skips an empty line before a request, which some clients send after a body (RFC 9112, section 2.2).
func (s *session) emptyLine() bool {
	if !s.blank && string(s.client.bytes()) == crlf[:1] { // the line's second byte has not arrived
		_ = s.client.conn.SetReadDeadline(time.Now().Add(s.p.limits.Load().readHeader))
		n, _ := s.client.fill() // readHead refuses a head that stays incomplete
		s.count(n, 0)
	}
	if s.blank || !bytes.HasPrefix(s.client.bytes(), []byte(crlf)) {
		return false
	}
	s.client.r += len(crlf)
	s.blank = true
	return true
}

// suspendAfter is how long the session of an idle client keeps its stack.
const suspendAfter = 100 * time.Millisecond

// awaitRequest waits for the first byte of the next request; false = there is none, or the session was suspended.
func (s *session) awaitRequest() bool {
	if s.suspended {
		s.suspended = false // the deadline is still set
	} else {
		s.entry.state.Store(sessionIdle)
		if s.p.isDraining() {
			return false
		}
		cfg := s.p.limits.Load()
		limit := cfg.readHeader
		if s.served {
			limit = cfg.clientIdle
		}
		since := s.ended
		if s.ended = (time.Time{}); since.IsZero() {
			since = time.Now()
		}
		s.about.setIdle(since)
		_ = s.client.conn.SetReadDeadline(since.Add(limit))
		if s.entry.state.Load() == sessionInterrupted { // the line above may have replaced its deadline
			return false
		}
		if s.client.waitIdle() && s.lc.Suspend() {
			s.suspended = true
			s.about.drop()
			s.req, s.resp, s.respText = httpwire.Request{}, httpwire.Response{}, nil // drop references to buffers
			s.said = clientFields{}
			s.leases = nil // belongs to the fiber that ends now
			return false
		}
	}
	n, err := s.client.fill()
	if errors.Is(err, os.ErrDeadlineExceeded) && s.hasComeInTime() {
		n, err = s.client.fill()
	}
	if !s.entry.state.CompareAndSwap(sessionIdle, sessionBusy) {
		if n == 0 {
			return false // interrupted
		}
		s.entry.resist() // it has come as the drain began
		_ = s.client.conn.SetReadDeadline(time.Now().Add(s.p.limits.Load().readHeader))
	}
	s.count(n, 0)
	if err != nil && isTLSFailure(err) {
		s.noteTLS("TLS error", err)
	}
	return err == nil
}

// hasComeInTime reports whether a request has begun to come before the deadline was noticed, and gives it time for its head. On
// a machine that stood still, or is starved, the session may be the one that is late. To close the connection then would cost
// the client a request that it has sent in time, without an answer. A drain's deadline is such a one, too; what has come before it
// may be a part of a TLS record, for whose remainder the drain does not wait long.
func (s *session) hasComeInTime() bool {
	if !hasCome(s.client.conn) {
		return false
	}
	limit := s.p.limits.Load().readHeader
	if s.entry.state.Load() == sessionInterrupted {
		limit = min(limit, interruptGrace)
	}
	_ = s.client.conn.SetReadDeadline(time.Now().Add(limit))
	return true
}

// hasCome reports whether there is something to read, perhaps a part of a TLS record.
func hasCome(c fiber.Stream) bool {
	state := c.State()
	return state == fiber.Pending || state == fiber.Closing
}

// interruptGrace is how long a drain waits for the rest of a TLS record that a client without a request has begun to send, and an
// HTTP/2 connection that is to end for its silence.
const interruptGrace = time.Second

var (
	// errLarge is for a head with too many bytes or fields.
	errLarge = fmt.Errorf("%w: the head is larger than allowed, or has more fields", httpwire.ErrMalformed)
	errHTTP2 = errors.New("for HTTP/2") // the connection speaks HTTP/2
	errLate  = fmt.Errorf("%w: the head did not come in time", httpwire.ErrMalformed)
)

// http2Preface is the first line of an HTTP/2 connection (RFC 9113, section 3.4).
const http2Preface = "PRI * HTTP/2.0\r\n"

// readHead reads a request's head and returns its size. The error is errHTTP2, wraps httpwire.ErrMalformed, or is that
// of reading.
func (s *session) readHead() (int, error) {
	s.now = fiber.Now()
	late := false
	for {
		n, err := s.req.Parse(s.client.bytes())
		switch {
		case err == nil:
			if l := s.p.limits.Load(); n > l.head || len(s.req.Fields) > l.fields {
				return 0, errLarge
			}
			return n, nil
		case !s.served && s.isTLS == nil && isHello(s.client.bytes()):
			return 0, errHello
		case errors.Is(err, httpwire.ErrIncomplete):
		case !s.served && s.isTLS == nil && bytes.HasPrefix(s.client.bytes(), []byte(http2Preface)):
			return 0, errHTTP2
		case errors.Is(err, httpwire.ErrTooMany):
			return 0, errLarge
		default:
			return 0, err
		}
		if !late {
			late = true
			_ = s.client.conn.SetReadDeadline(s.now.Add(s.p.limits.Load().readHeader))
		}
		got, err := s.client.fill()
		s.count(got, 0)
		if errors.Is(err, errFull) {
			if s.client.grow(s.p.limits.Load().head) {
				continue
			}
			return 0, errLarge
		}
		if err != nil {
			return 0, err
		}
	}
}

// count adds to the byte counters of the connection.
func (s *session) count(in, out int) {
	if s.counts {
		s.lc.Count(int64(in), int64(out))
	}
}

// outgoing returns an empty buffer for building a message. Behind a short request, which stays in the client's buffer
// while it is served, it is the end of that buffer.
func (s *session) outgoing() []byte {
	if s.out == nil {
		if b := &s.client; s.stream == nil && s.ex.inline && len(b.buf)-b.w >= leastLent {
			s.out, s.outLent = b.buf[b.w:], true
		} else {
			s.out = takeBuffer(&s.held)[:]
		}
	}
	return s.out[:0]
}

// leastLent leaves room for the largest piece of a body in its framing, and for a head.
const leastLent = bufferSize/2 + 4<<10

// releaseOut frees the buffer.
func (s *session) releaseOut() {
	if s.out != nil && !s.outLent {
		putOut(&s.held, s.out)
	}
	s.out, s.outLent = nil, false
}
