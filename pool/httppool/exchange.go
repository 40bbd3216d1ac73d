package httppool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"sync"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// Lease is the right to use a Conn: a pool.Lease[*Conn] with two more methods. upstream.Lease[*httppool.Conn] implements
// it. If a Source returns a pointer to such a lease, the answers are measured for the endpoint's balance and ejection.
// Exactly one of Release, Discard and Fail is called. Release requires that both messages were framed exactly and read to
// their end, nothing was upgraded, nothing extra arrived, neither side asked to close, the connection was not
// authenticated by NTLM or Negotiate, and the server answered "100 Continue" if the request expected it. In every other
// case the connection is closed, also when the request's context ends, or when the response ends while the request's body
// is unread.
type Lease interface {
	Value() *Conn
	Release()         // the connection is at a clean boundary
	Discard()         // it is not; the endpoint is not to blame
	Fail(cause error) // it is not, and the endpoint is to blame
	Endpoint() string // for messages
}

// Options are the limits of an exchange. The zero value is ready to use.
type Options struct {
	// ResponseHeaderTimeout bounds the wait for the response head once the request is written.
	// 0 = 60s, negative = no limit (language models may think for minutes).
	ResponseHeaderTimeout time.Duration
	// ContinueTimeout is how long a request with "Expect: 100-continue" waits for "100 Continue" before it sends its
	// body anyway (RFC 9110, section 10.1.1). 0 = 1s.
	ContinueTimeout time.Duration
	// IdleTimeout bounds each wait for the server within a body, of the request or the response. 0 or negative = no limit.
	IdleTimeout time.Duration
	// MaxHeaderBytes bounds the response head. 0 = 256 KiB.
	MaxHeaderBytes int
	// StrictBackend refuses a response that frames its body in two ways (see httpwire.Response.ParseLenient).
	StrictBackend bool
}

const (
	defaultHeaderTimeout   = 60 * time.Second
	defaultContinueTimeout = time.Second
	defaultMaxHeaderBytes  = 256 << 10
)

// exchange is one request and its response on one connection.
//
// Two goroutines work on it: the caller's reads, and the uploader writes the request's body, if there is one. mu guards
// the fields that both use.
type exchange struct {
	req   *http.Request
	opt   *Options
	lease Lease
	own   poolLease // the lease, if it comes from the Transport's own pool
	conn  *Link
	judge measured // the lease, if answers are measured; nil otherwise
	rd    *reader
	stop  func() bool // stops watching the context; nil while it is not watched
	eager bool        // the context is watched, and deadlines are set, from the start; otherwise see readLazily

	// Unless eager.
	watched bool      // the context is watched
	by      time.Time // deadline of the response's head; zero = not set yet, or no limit
	early   error     // of reading, found by ask; returned by the next Read

	p     *passage // the forwarded request; nil in a RoundTrip
	asked asks     // what the request asks for

	head     head
	resp     http.Response
	body     body
	idled    bool // the connection may have been closed by the server before it was used; see Conn.Use
	again    bool // it was closed: the lease is kept for another attempt
	answered bool // a byte of the response has arrived
	written  int  // bytes of the request that the first write accepted; see link.unsent
	// "100 Continue" was expected and has not arrived: the server may take the body for a request.
	missing100 bool

	mu        sync.Mutex // never held across I/O
	sent      time.Time  // when the whole request was sent; zero: not yet, or not measured
	upload    uploadState
	uploadErr error
	touched   bool // part of the request's body was read
	abandoned bool // the exchange has ended; the uploader must not start reading
	failed    bool // no response arrived; an untouched body may be sent again
	headRead  bool
	deadline  bool // a deadline is set on conn
	uploaded  chan struct{}
	proceed   chan bool // "Expect: 100-continue": send the body or not
}

// begin takes the lease for req, which began at the time began.
func (x *exchange) begin(req *http.Request, began time.Time) {
	x.req, x.conn, x.judge = req, x.lease.Value().link.Load(), x.measures()
	x.idled = x.conn.use(began)
}

var headPool = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// maxUnwatched is the largest request that is written without a way to interrupt the write: it fits in the socket buffers,
// which are empty before a request.
const maxUnwatched = 16 << 10

// maxPooledHead is the largest request head whose buffer is kept.
const maxPooledHead = 64 << 10

func (x *exchange) run() (*http.Response, error) {
	ctx := x.req.Context()
	if err := ctx.Err(); err != nil {
		x.lease.Release()
		return nil, x.wrap("send", contextError(ctx))
	}
	buf := headPool.Get().(*[]byte)
	block, length, err := x.writeHead((*buf)[:0])
	if err != nil {
		headPool.Put(buf)
		x.lease.Release()
		return nil, x.wrap("send", err)
	}
	x.rd = getReader(x)
	if x.eager = length != 0 || !x.conn.plain || x.opt.IdleTimeout > 0 || len(block) > maxUnwatched; x.eager {
		x.watch()
		_ = x.conn.arm(time.Time{}) // fails if closed, as does the write below
	}
	if length == 0 {
		x.isSent() // the answer may arrive when send returns
	}
	n, err := x.send(block)
	x.written = n
	if err == nil && length != 0 && x.idled && x.conn.unsent(n) { // known at once on a goroutine; later the body is touched
		err = io.EOF
	}
	if *buf = block; cap(block) <= maxPooledHead {
		headPool.Put(buf)
	}
	if err != nil {
		return nil, x.fail("send", err)
	}
	if length == 0 {
		x.upload = uploadDone
		if x.eager {
			x.awaitHead()
		}
	} else {
		x.startUpload(length)
	}
	return x.receive()
}

// writeHead appends the request's head, and returns the length of the body as httpwire.Request.Length is.
func (x *exchange) writeHead(dst []byte) (head []byte, length int64, err error) {
	var r *httpwire.Request
	if x.p != nil {
		r = x.p.wire
	} else if r, err = describe(x.req, 1); err != nil {
		return dst, 0, err
	} else {
		defer freeRequest(r)
	}
	x.asked = x.asks(r)
	head, err = x.appendRequest(dst, r)
	return head, r.Length, err
}

// watch makes the end of the context close the connection.
func (x *exchange) watch() {
	if ctx := x.req.Context(); x.stop == nil && ctx.Done() != nil {
		x.stop = context.AfterFunc(ctx, func() { _ = x.conn.close() })
	}
}

// write writes within the idle limit. Only the goroutine that sends calls it.
func (x *exchange) write(p []byte) (int, error) {
	if x.opt.IdleTimeout > 0 {
		x.mu.Lock()
		x.deadline = true
		x.mu.Unlock()
		if err := x.conn.nc.SetWriteDeadline(time.Now().Add(x.opt.IdleTimeout)); err != nil {
			return 0, err
		}
	}
	return x.conn.nc.Write(p)
}

// Read reads from the connection, as the source of x.rd. While a body is read the idle limit applies.
func (x *exchange) Read(p []byte) (int, error) {
	if x.early != nil {
		err := x.early
		x.early = nil
		return 0, err
	}
	if !x.eager {
		return x.readLazily(p)
	}
	if x.opt.IdleTimeout > 0 && x.body.open {
		x.mu.Lock()
		x.deadline = true
		x.mu.Unlock()
		if err := x.conn.nc.SetReadDeadline(time.Now().Add(x.opt.IdleTimeout)); err != nil {
			return 0, err
		}
	}
	return x.conn.nc.Read(p)
}

// lazyDeadline is how long a read waits before the exchange watches its context and sets its own deadline. Both cost more
// than the rest of a small request, and most answers arrive sooner. A cancelled request may last that much longer.
const lazyDeadline = 10 * time.Millisecond

// headerTimeout returns the time limit for the response's head; negative = none.
func (x *exchange) headerTimeout() time.Duration {
	return orDefault(x.opt.ResponseHeaderTimeout, defaultHeaderTimeout)
}

// patient reports whether a wait of lazyDeadline for the head of the response is within its limit.
func (x *exchange) patient() bool {
	d := x.headerTimeout()
	return d < 0 || d >= lazyDeadline
}

// send writes the request's head, and reads the beginning of the answer if it arrives soon, which costs less than reading
// it later.
func (x *exchange) send(block []byte) (n int, err error) {
	if x.eager || x.conn.asker == nil || !x.patient() {
		return x.write(block)
	}
	if x.conn.armed.IsZero() {
		_ = x.conn.arm(time.Now().Add(lazyDeadline)) // fails if closed, as does what follows
	}
	wrote, read, err := x.conn.asker.Ask(block, x.rd.buf)
	late := errors.Is(err, os.ErrDeadlineExceeded)
	if late && wrote == 0 { // the deadline is from an earlier request
		_ = x.conn.arm(time.Now().Add(lazyDeadline))
		wrote, read, err = x.conn.asker.Ask(block, x.rd.buf)
		late = errors.Is(err, os.ErrDeadlineExceeded)
	}
	x.rd.w = read
	switch {
	case wrote == len(block):
		if !late {
			x.early = err
		}
		return wrote, nil
	case err == nil || late || errors.Is(err, errors.ErrUnsupported):
		n, err = x.write(block[wrote:])
		return wrote + n, err
	}
	return wrote, err
}

// readLazily reads with a deadline at most lazyDeadline away. The deadline stays set, also for the next exchanges, until
// it has passed: only then is the clock read.
func (x *exchange) readLazily(p []byte) (int, error) {
	if err := x.req.Context().Err(); err != nil {
		return 0, err
	}
	if !x.conn.armed.IsZero() && !x.watched && x.patient() {
		if n, err := x.conn.nc.Read(p); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := x.req.Context().Err(); err != nil { // while it waited
			return 0, err
		}
	}
	now, limit := time.Now(), time.Time{}
	if !x.body.open {
		if d := x.headerTimeout(); x.by.IsZero() && d > 0 {
			x.by = now.Add(d)
		}
		limit = x.by
	}
	for {
		if err := x.conn.arm(x.readBy(now, limit)); err != nil {
			return 0, err
		}
		n, err := x.conn.nc.Read(p)
		if n > 0 || err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if now = time.Now(); !limit.IsZero() && !now.Before(limit) {
			return 0, err
		}
		x.watch()
		x.watched = true
	}
}

// readBy returns the deadline of a read that begins now and must end by limit, if that is not zero.
func (x *exchange) readBy(now, limit time.Time) time.Time {
	if x.watched {
		return limit
	}
	by := x.conn.armed
	if soon := now.Add(lazyDeadline); !by.After(now) || by.After(soon) {
		by = soon
	}
	if !limit.IsZero() && limit.Before(by) {
		return limit
	}
	return by
}

// awaitHead starts the time-out for the response head: the request is written.
func (x *exchange) awaitHead() {
	d := x.headerTimeout()
	if d < 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.headRead {
		x.deadline = true
		_ = x.conn.nc.SetReadDeadline(time.Now().Add(d)) // fails if closed; the pending read reports it
	}
}

// gotHead ends the time-out for the response's head.
func (x *exchange) gotHead() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.headRead = true
	if x.deadline {
		_ = x.conn.nc.SetReadDeadline(time.Time{})
		x.deadline = x.opt.IdleTimeout > 0 // the uploader's may still be set
	}
}

// receive reads interim responses and the final head.
func (x *exchange) receive() (*http.Response, error) {
	limit := x.opt.MaxHeaderBytes
	if limit <= 0 {
		limit = defaultMaxHeaderBytes
	}
	for range httpwire.MaxInterim {
		block, err := x.rd.block(limit)
		x.answered = x.answered || err == nil || x.rd.buffered() > 0
		if err != nil {
			return nil, x.fail("receive", err)
		}
		if err = x.head.parse(&x.rd.head, block, x.req.Method, x.opt.StrictBackend, x.p); err != nil {
			return nil, x.fail("receive", err)
		}
		if x.head.status >= 200 || x.head.status == http.StatusSwitchingProtocols {
			return x.respond()
		}
		if err := x.handleInterim(); err != nil {
			return nil, x.fail("receive", err)
		}
	}
	return nil, x.fail("receive", fmt.Errorf("%w: more than %d interim responses", httpwire.ErrMalformed, httpwire.MaxInterim))
}

// handleInterim handles a 1xx response other than 101.
func (x *exchange) handleInterim() error {
	trace := httptrace.ContextClientTrace(x.req.Context())
	if x.head.status == http.StatusContinue {
		x.missing100 = false
		if x.proceed != nil {
			x.proceed <- true
			x.proceed = nil
		}
		if trace != nil && trace.Got100Continue != nil {
			trace.Got100Continue()
		}
	} else if x.p != nil {
		if err := x.p.interim(x.head.status, x.head.header); err != nil {
			return err
		}
	}
	if trace != nil && trace.Got1xxResponse != nil {
		return trace.Got1xxResponse(x.head.status, textproto.MIMEHeader(x.head.header))
	}
	return nil
}

// respond makes the response of the final head, and ends the lease if it has no body.
func (x *exchange) respond() (*http.Response, error) {
	x.gotHead()
	x.measureAnswer()
	if x.proceed != nil { // the server answers without wanting the body
		x.proceed <- false
		x.proceed = nil
	}
	h := &x.head
	x.resp = http.Response{
		Status: h.reason, StatusCode: h.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: h.minor,
		Header: h.header, Trailer: h.trailer, ContentLength: h.length,
		Close: !h.keepAlive, Request: x.req, Body: http.NoBody,
	}
	if h.minor == 0 {
		x.resp.Proto = "HTTP/1.0"
	}
	if h.status == http.StatusSwitchingProtocols {
		return x.switchProtocols()
	}
	switch {
	case x.req.Method == http.MethodHead:
		x.resp.ContentLength = h.declared
	case h.length == httpwire.Chunked:
		x.resp.ContentLength = -1
		x.resp.TransferEncoding = chunkedCoding
	}
	if h.length == 0 {
		x.finish()
		return &x.resp, nil
	}
	x.body.start(x)
	x.resp.Body = &x.body
	return &x.resp, nil
}

var chunkedCoding = []string{"chunked"}

// finish ends the lease after the whole response has been read.
func (x *exchange) finish() {
	clean := x.rd.buffered() == 0
	putReader(x.rd)
	x.rd = nil
	ok := x.head.keepAlive && clean && !x.missing100 && !x.asked.auth && !x.asked.closes && x.uploadFinished()
	if x.stop != nil && !x.stop() {
		ok = false // the context has ended, and the connection is being closed
	}
	if ok && x.deadline {
		ok = x.conn.nc.SetDeadline(time.Time{}) == nil
	}
	if !ok || !x.fit() {
		_ = x.abandon()
		_ = x.conn.close()
		if good, is := x.lease.(interface{ OK() }); is {
			good.OK() // the endpoint answered: closing the connection is not its failure
		}
		x.lease.Discard()
		return
	}
	x.lease.Release()
}

// fit reports whether the connection, which is at a clean boundary, may be kept. The Transport checks a connection of its
// own pools when it leases it, so only those of a Source are checked here: that takes a system call.
func (x *exchange) fit() bool {
	if x.lease == Lease(&x.own) {
		return !x.conn.closed.Load()
	}
	return x.conn.alive()
}

// drop ends the lease when the response's body is no longer wanted.
func (x *exchange) drop() {
	if x.stop != nil {
		x.stop()
	}
	_ = x.abandon()
	_ = x.conn.close()
	putReader(x.rd)
	x.rd = nil
	x.lease.Discard()
}

// fail ends the lease after an error of the connection or of a message on it, unless there is to be another attempt (see
// again), and returns an *Error.
func (x *exchange) fail(step string, err error) error {
	if x.stop != nil {
		x.stop()
	}
	x.mu.Lock()
	x.failed = true
	x.mu.Unlock()
	upload := x.abandon()
	_ = x.conn.close()
	if x.rd != nil {
		putReader(x.rd)
		x.rd = nil
	}
	ctx := x.req.Context()
	blame := false
	switch {
	case ctx.Err() != nil:
		x.measureSilence(ctx, step)
		err = contextError(ctx)
	case errors.Is(upload, ErrRequestBody):
		err = upload
	case errors.Is(upload, os.ErrDeadlineExceeded): // see runUpload
		err = ErrIdleTimeout
	case errors.Is(err, os.ErrDeadlineExceeded):
		if err = ErrResponseTimeout; x.body.open || step == "send" {
			err = ErrIdleTimeout
		} else {
			x.measureSilence(ctx, step)
		}
	default:
		lost := x.lost()
		x.again, blame = lost.Stale(), lost.Blames()
		if upload != nil && !errors.Is(err, httpwire.ErrMalformed) {
			err = upload // says more than the end of the reading
		}
		err = ServerFailure(err)
	}
	failed := x.wrap(step, err)
	switch {
	case x.again:
	case blame:
		x.lease.Fail(failed)
	default:
		x.lease.Discard()
	}
	return failed
}

// contextError returns the error of ctx, with its cause if known.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

func (x *exchange) wrap(step string, err error) error {
	return &Error{Endpoint: x.lease.Endpoint(), Step: step, Reused: x.idled, Err: err}
}

// lost describes the attempt whose connection ended. A malformed answer counts as an answer.
func (x *exchange) lost() httpwire.Lost {
	answered := x.answered || x.headRead
	return httpwire.Lost{
		Idled: x.idled, Answered: answered, Whole: x.bodyIsOurs() || x.req.GetBody != nil,
		Unsent: x.idled && !answered && x.conn.unsent(x.written), Idempotent: x.asked.idempotent, // unsent is not needed in other cases, and may wait for a loop
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // the request is over, whatever its error
	}
}
