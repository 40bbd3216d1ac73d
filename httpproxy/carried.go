package httpproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// carried is one request of a Carrier and its response. The session treats it as a connection on which the request's body
// is read and the response's body written, as they are; heads pass as fields. One goroutine reads while another writes, both
// without buffering.
type carried struct {
	fiber.NoLoop
	clientSide
	lock    sync.Mutex // the mutex of clientSide
	cc      *carrierConn
	id      uint64
	w       http.ResponseWriter
	control *http.ResponseController
	r       *http.Request
	timeout time.Duration // the client's limit for the exchange; 0 = none
	session *session
	about   about // has its own mutex

	// The reader's.
	lengthless bool        // the body has no length
	endUnread  bool        // and no Read has returned its end, which is one of 0 bytes
	left       int64       // unread bytes of a body with a length
	ended      atomic.Bool // the body is complete; the writer reads this, too
	first      []byte      // the part of the body that begin has read
	small      [1]byte

	came time.Time // when the request's head did
	// writeBy is the write deadline, torn: it has passed while an interim head was written. The mutex guards them.
	writeBy time.Time
	torn    bool
	// tunnels: it carries the data of another protocol, unframed; see switchTo.
	tunnels bool
}

// errUnusual is the error of a head that a Carrier accepts and our rules for HTTP/2 do not.
var errUnusual = fmt.Errorf("%w: the head is malformed", httpwire.ErrMalformed)

// ServeHTTP implements http.Handler for the Carrier.
func (cc *carrierConn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	st := &carried{cc: cc, w: w, r: r, control: http.NewResponseController(w), came: time.Now()}
	st.mu = &st.lock
	st.session = sessions.Get().(*session) //nolint:forcetypeassert // its New makes nothing else
	cc.add(st)
	left := context.AfterFunc(r.Context(), func() { st.end(httppool.ErrClientGone) })
	st.serve()
	left()
	cc.remove(st)
	st.stop()
	if !st.answered() {
		panic(http.ErrAbortHandler)
	}
}

// begin makes the head of the request.
func (st *carried) begin() {
	cc, s, came := st.cc, st.session, st.came
	s.p, s.ctx, s.lc, s.shard, s.isTLS, s.peer = cc.p, cc.ctx, cc.lc, cc.shard, cc.tls, cc.peer
	s.stream, s.about, s.now = st, &st.about, came
	s.held.of = &cc.held
	s.holds()
	s.client.use(st)
	head := st.fields()
	ends := st.bodiless(came)
	if st.lengthless = !ends && head.length < 0 && head.protocol == ""; head.bad || !head.request(&s.req, &s.reqText, ends) {
		s.headErr = errUnusual
		return
	}
	if st.left, st.timeout = head.length, head.timeout; head.protocol != "" {
		st.left = endless
	}
	st.ended.Store(ends)
	s.held.add(cap(s.reqText))
	st.admit()
	s.headErr = s.completeHead()
}

// fields collects the fields of the head, sorted by name.
func (st *carried) fields() *h2Head {
	r, b := st.r, &h2Head{limit: st.cc.p.limits.Load().head}
	b.reset(false)
	extended := r.Method == http.MethodConnect && r.Proto != protocolHTTP3
	if b.method, b.authority = r.Method, r.Host; b.method != http.MethodConnect || extended {
		b.scheme, b.path = "https", r.RequestURI
	}
	if extended {
		b.protocol = r.Proto
	}
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		known := httpwire.Classify(name)
		for _, value := range r.Header[name] {
			b.bad = b.bad || !httpwire.ValidToken(name) || !httpwire.ValidValue(value)
			b.plain(strings.ToLower(name), strings.Trim(value, " \t"), known)
		}
	}
	if len(r.Trailer) > 0 { // the Carrier has removed the field
		b.plain("trailer", strings.Join(slices.Sorted(maps.Keys(r.Trailer)), ", "), httpwire.Trailer)
	}
	return b
}

// bodiless reports whether the request has no body. A Carrier cannot tell for a head without a length. Requests with such
// methods nearly always end with the head, or have a body at once, so bodiless waits for the first byte or the end.
func (st *carried) bodiless(came time.Time) bool {
	switch {
	case st.r.ContentLength >= 0:
		return st.r.ContentLength == 0
	case !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodDelete, http.MethodTrace}, st.r.Method):
		return false
	}
	_ = st.SetReadDeadline(came.Add(st.cc.p.limits.Load().readHeader))
	n, err := st.r.Body.Read(st.small[:1])
	st.first = st.small[:n:n]
	_ = st.SetReadDeadline(time.Time{})                      // unless an end that came meanwhile has set one
	return n == 0 && err == io.EOF && len(st.r.Trailer) == 0 //nolint:errorlint // as it is documented
}

// admit reserves the memory of the request, as for a stream of HTTP/2. The received body is in the Carrier's memory. If
// the limit is reached, the request is refused.
func (st *carried) admit() {
	s := st.session
	limit := s.p.ledger.perConn.Load()
	if limit == 0 {
		return
	}
	need := 2 * bufferCost
	if !st.ended.Load() {
		need += 3 * bufferCost
	}
	s.overMemory = !s.held.reserve(need, limit, true)
}

// serve serves the request. A panic there ends only the request.
func (st *carried) serve() {
	s := st.session
	defer s.p.recovered(s.lc)
	panicked := true
	defer func() {
		if panicked && s.stream != nil {
			s.logPanic()
		}
		st.end(net.ErrClosed)
		st.about.drop()
		s.held.end()
		if !panicked {
			s.recycle()
		}
	}()
	if st.begin(); s.headErr != nil {
		s.refuseHead(s.headErr)
	} else {
		s.serve(0)
	}
	s.client.drop()
	panicked = false
}

// end ends the request for its client, unless the response is complete, and reports whether it was in progress.
func (st *carried) end(err error) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil || st.finished {
		return false
	}
	st.fail(err)
	_ = st.control.SetWriteDeadline(time.Unix(1, 0)) // unblocks calls
	_ = st.control.SetReadDeadline(time.Unix(1, 0))
	return true
}

// Read reads the request's body. At its end it waits for the end of the response: the client is still there.
func (st *carried) Read(p []byte) (int, error) {
	for {
		switch {
		case st.endUnread:
			st.endUnread = false
			return 0, nil
		case st.ended.Load() && st.tunnels:
			return 0, io.EOF
		case st.ended.Load():
			return 0, st.await()
		}
		if n, err := st.readBody(p); n > 0 || err != nil {
			return n, err
		}
	}
}

// readBody reads a piece of the body.
func (st *carried) readBody(p []byte) (n int, err error) {
	if err := st.endError(); err != nil {
		return 0, err
	}
	if len(st.first) > 0 {
		n = copy(p, st.first)
		st.first = st.first[n:]
	} else if n, err = st.r.Body.Read(p); err != nil && !errors.Is(err, io.EOF) {
		err = st.readFailed(err)
	}
	if st.left -= int64(n); !st.lengthless && st.left <= 0 && err == nil {
		if err = st.noMore(); err != io.EOF { //nolint:errorlint // as it is documented
			st.first, st.left = append(slices.Clone(p[:n]), st.first...), st.left+int64(n)
			n = 0
		}
	}
	st.cc.count()
	switch {
	case err == io.EOF && !st.lengthless && st.left > 0 && !st.tunnels: //nolint:errorlint // likewise
		return n, io.ErrUnexpectedEOF
	case err == io.EOF: //nolint:errorlint // likewise
		st.ended.Store(true)
		st.endUnread = st.lengthless && n == 0
		err = nil
	}
	return n, err
}

// bodyEnd implements carrying.
func (st *carried) bodyEnd(dst []httpwire.Field) ([]httpwire.Field, bool) {
	if !st.lengthless || !st.ended.Load() {
		return dst, false
	}
	st.endUnread = false
	for _, name := range slices.Sorted(maps.Keys(st.r.Trailer)) {
		for _, value := range st.r.Trailer[name] {
			if httpwire.ValidToken(name) && httpwire.ValidValue(value) {
				dst = append(dst, httpwire.Field{Name: []byte(name), Value: []byte(strings.Trim(value, " \t")), Known: httpwire.Classify(name)})
			}
		}
	}
	return dst, true
}

// noMore waits for the end of a body whose content is complete by its length. It returns io.EOF, or an error if the body
// is longer or was cut. A client sends the end with the last content, or right after it.
func (st *carried) noMore() error {
	for {
		switch n, err := st.r.Body.Read(st.small[:1]); {
		case n > 0:
			return errUnusual
		case err == io.EOF: //nolint:errorlint // as it is documented
			return err
		case err != nil:
			return st.readFailed(err)
		}
	}
}

// readFailed returns the error of a read. The client's end takes precedence over the Carrier's error.
func (st *carried) readFailed(err error) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.err != nil:
		return st.err
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.ErrUnexpectedEOF):
		return err
	}
	return fmt.Errorf("%w: %w", httppool.ErrClientGone, err)
}

// await waits for the end of the response, which for the session is the end of the connection.
func (st *carried) await() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.err == nil && !st.finished {
		if !st.reader.wait(st.mu) {
			return os.ErrDeadlineExceeded
		}
	}
	if st.err != nil {
		return st.err
	}
	return io.EOF
}

// State implements fiber.Stream.
func (st *carried) State() fiber.State {
	if st.Ended() {
		return fiber.Dead
	}
	return fiber.Unknown
}

// CopyTo implements fiber.Stream.
func (st *carried) CopyTo(dst net.Conn, moved, _ func(int)) (readErr, writeErr error) {
	return fiber.Copy(st, dst, moved)
}

// SetDeadline implements net.Conn.
func (st *carried) SetDeadline(t time.Time) error {
	return errors.Join(st.SetReadDeadline(t), st.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (st *carried) SetReadDeadline(t time.Time) error {
	_ = st.clientSide.SetReadDeadline(t)
	return st.deadline(st.control.SetReadDeadline, t)
}

// SetWriteDeadline implements net.Conn.
func (st *carried) SetWriteDeadline(t time.Time) error {
	return st.deadline(func(t time.Time) error {
		st.writeBy = t
		return st.control.SetWriteDeadline(t)
	}, t)
}

// deadline sets a deadline, unless end has set the last one.
func (st *carried) deadline(set func(time.Time) error, t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil {
		return nil //nolint:nilerr // the next call reports it
	}
	return set(t)
}

func (st *carried) protocol() string { return protocolHTTP3 }

func (st *carried) major() int { return 3 }

// whole never knows: the Carrier reports the end only to a Read.
func (*carried) whole() (content int64, come, read bool) { return 0, false, false }

func (st *carried) limit() time.Duration { return st.timeout }

func (st *carried) resumes() func() { return nil }

func (st *carried) head(dst []byte) headWriter {
	return headWriter{dst: dst, coded: true, into: st.w.Header()}
}

func (st *carried) sendHead(status int, _ []byte, length int64) error {
	if status == http.StatusSwitchingProtocols {
		return errH2Switch
	}
	if err := st.endError(); err != nil {
		return err
	}
	st.frame(status, length)
	if status < 200 {
		return st.writeInterim(status)
	}
	st.writeHead(status)
	if length == 0 {
		return st.sendData(nil, true)
	}
	return nil
}

// writeInterim writes an interim head. A Carrier does not tell whether all of it was written, so nothing follows one whose write the
// deadline may have ended: the client gets a reset.
func (st *carried) writeInterim(status int) error {
	defer clear(st.w.Header())
	if st.late() {
		return os.ErrDeadlineExceeded
	}
	st.w.WriteHeader(status)
	if !st.late() {
		return nil
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.torn = true
	return os.ErrDeadlineExceeded
}

// late reports whether the write deadline has passed.
func (st *carried) late() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return !st.writeBy.IsZero() && !time.Now().Before(st.writeBy)
}

// writeHead writes a final head. The Carrier must not add fields that the response does not have.
func (st *carried) writeHead(status int) {
	h := st.w.Header()
	for _, name := range [...]string{"Content-Type", "Date"} {
		if _, ok := h[name]; !ok {
			h[name] = nil
		}
	}
	st.w.WriteHeader(status)
}

func (st *carried) switchTo([]byte) error {
	if err := st.endError(); err != nil {
		return err
	}
	st.frame(http.StatusOK, endless)
	st.writeHead(http.StatusOK)
	st.tunnels = true
	return st.flush()
}

func (st *carried) cutOff(err error) {
	if !st.end(err) { // the response is complete
		_ = st.control.SetReadDeadline(time.Unix(1, 0))
	}
}

// endError returns why the request has ended, or why nothing more can be sent.
func (st *carried) endError() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err == nil && st.torn {
		return os.ErrDeadlineExceeded
	}
	return st.err
}

func (st *carried) sendEnd(p []byte, trailers []httpwire.Field) error {
	return st.out.end(p, trailers, st)
}

// Write sends a part of the response's body, which ends by its length or with sendEnd.
func (st *carried) Write(p []byte) (int, error) {
	if _, err := st.out.write(p, st); err != nil {
		return 0, err
	}
	return len(p), st.flush()
}

func (st *carried) flush() error {
	err := st.endError()
	if err == nil && st.began && !st.answered() {
		err = st.control.Flush()
	}
	st.cc.count()
	return err
}

// answered reports whether the response has been sent completely.
func (st *carried) answered() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.finished
}

func (st *carried) sendData(p []byte, last bool) error {
	if err := st.endError(); err != nil {
		return err
	}
	if len(p) > 0 {
		if _, err := st.w.Write(p); err != nil {
			return err
		}
	}
	if !last {
		return nil
	}
	if err := st.control.Flush(); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil {
		return st.err
	}
	st.finished = true
	if st.ended.Load() {
		st.session.held.finish()
	}
	st.reader.wake()
	return nil
}

func (st *carried) sendTrailers(fields []httpwire.Field) error {
	h := st.w.Header()
	for i := range fields {
		h.Add(http.TrailerPrefix+http.CanonicalHeaderKey(string(fields[i].Name)), string(fields[i].Value))
	}
	return st.sendData(nil, true)
}

func (st *carried) endWith(trailers []httpwire.Field) error {
	if !st.takeEnd() {
		return nil
	}
	return st.sendTrailers(trailers)
}

// CloseWrite ends this side of a tunnel. Otherwise it is not supported: the Carrier drops an unread body.
func (st *carried) CloseWrite() error {
	w, ok := st.w.(TunnelWriter)
	if !ok || !st.tunnels {
		return errors.ErrUnsupported
	}
	st.mu.Lock()
	err := st.err
	if err == nil {
		st.finished = true // before the request's context ends by it
	}
	st.mu.Unlock()
	if err != nil {
		return err
	}
	return w.EndResponse()
}

// Close ends the request. The client gets an error if the response is incomplete.
func (st *carried) Close() error {
	st.end(net.ErrClosed)
	return nil
}

// LocalAddr implements net.Conn.
func (st *carried) LocalAddr() net.Addr { return st.cc.lc.LocalAddr() }

// RemoteAddr implements net.Conn.
func (st *carried) RemoteAddr() net.Addr { return st.cc.lc.RemoteAddr() }
