package httpproxy

import (
	"bufio"
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool/httppool"
)

// finish answers the request if it has failed, logs it, and prepares for the next one; false ends the session.
func (s *session) finish(err error) bool {
	x := &s.ex
	err = s.byKill(err)
	x.result.Err = err
	if err != nil {
		s.failed(err)
	}
	s.measure(err)
	s.logDone(err)
	if err != nil || s.accesses() {
		x.result.Duration = s.ended.Sub(s.now)
		s.p.done(s.request(), x.target, x.user, x.result)
	}
	s.dropTokens()
	s.endForeseen()
	s.endCopy()
	s.releaseOut()
	if !x.inline {
		s.dropKept()
	}
	if err != nil && x.wrote {
		s.breakGRPC(err)
	}
	if err != nil && x.unframed {
		_ = s.client.conn.SetLinger(0) // otherwise the received part would look like the whole body
		return false
	}
	if x.close || err != nil && x.wrote {
		s.lingeringClose()
		return false
	}
	s.client.take(x.size)
	if x.inline {
		s.client.take(int(x.body))
	} else {
		s.client.drop()
		s.client.put(x.up.in.bytes())
		x.up.in.drop()
	}
	s.client.release()
	return true
}

// failed answers a request that failed before anything was sent.
func (s *session) failed(err error) {
	x := &s.ex
	if x.wrote {
		x.result.Status = s.resp.Status
		return
	}
	if !x.inline && (x.up == nil || !x.up.sent()) {
		x.close = true // the remainder of the body would be taken for a request
	}
	w := s.newAnswer(x.close)
	x.result.Status, x.result.BytesOut = httppool.WriteFailure(w, s.request(), err, httppool.Failure{
		Upstream: x.target.name, RequestIDField: requestIDField, RequestID: string(x.id),
	})
	if w.grpc {
		x.result.BytesOut = 0
	}
	if w.status == 0 { // the client has gone
		x.close = true
		return
	}
	if x.target.pages != nil && !w.grpc {
		s.pageForOwn(w, true)
		x.result.BytesOut = int64(w.body.Len())
		s.held.add(2 * w.body.Len())
		defer s.held.add(-2 * w.body.Len())
	}
	x.until = time.Time{} // its passing may be why the request failed
	if s.reply(w, s.within()) != nil {
		x.close = true
	}
}

// refuse answers a request that goes to no upstream; false ends the session.
func (s *session) refuse(no refusal) bool {
	x := &s.ex
	x.close = s.req.Close || !s.skips(no.status) || s.req.Switches() != nil
	if x.id == nil {
		s.identify()
	}
	w := s.newAnswer(x.close)
	if no.challenge != "" {
		w.header["Www-Authenticate"] = []string{no.challenge}
	}
	if no.retryAfter > 0 {
		w.header["Retry-After"] = []string{strconv.Itoa(no.retryAfter)}
	}
	if w.grpc && no.header != nil { // a client of gRPC cannot read a page
		if no.header = nil; no.status < http.StatusBadRequest {
			no.status = http.StatusUnauthorized
		}
	}
	if no.header != nil {
		w.answerWith(no, s.asksHead())
	}
	if s.p.refuse(w, s.request(), x.target, no, time.Since(s.now)); no.header == nil {
		s.pageForOwn(w, true)
	}
	s.served = true
	n := len(no.body) + 2*w.body.Len() // a page is held until the client has read it; the text of a message is copied
	s.held.add(n)
	err := s.reply(w, s.replyTime())
	s.logRefused(no, int64(w.body.Len()))
	s.dropTokens()
	s.held.add(-n)
	if err != nil {
		return false
	}
	return s.keepAlive()
}

// keepAlive ends an exchange whose answer was sent completely, and whose body nobody has read. It reports whether the
// connection can take another request.
func (s *session) keepAlive() bool {
	if s.ex.close {
		s.lingeringClose()
		return false
	}
	s.client.take(s.ex.size)
	if s.req.Length != 0 && !s.skipBody() {
		s.client.lingeringClose()
		return false
	}
	s.client.release()
	return true
}

// refuseHead answers a request whose head is invalid, ambiguous or late, and ends the connection.
func (s *session) refuseHead(err error) {
	s.ex = exchange{}
	status, reason := http.StatusBadRequest, listener.ReasonProtocol
	switch {
	case errors.Is(err, errHello):
		reason = listener.ReasonTLS
	case errors.Is(err, errLarge):
		status = http.StatusRequestHeaderFieldsTooLarge
	case errors.Is(err, errLate):
		status, reason = http.StatusRequestTimeout, listener.ReasonTimeout
	case errors.Is(err, httpwire.ErrVersion):
		status = http.StatusHTTPVersionNotSupported
	}
	if reason == listener.ReasonTLS {
		s.p.srv.Report(reason, slog.LevelInfo, "TLS spoken to a listener without TLS",
			"client", s.lc.RemoteAddr().String(), "hint", "give the listener tls, or let the client use http://")
	} else {
		s.p.noteRefused(s.lc, reason)
	}
	s.p.countRefused(status)
	w := newAnswer(true)
	why := strings.TrimPrefix(err.Error(), httpwire.ErrMalformed.Error()+": ")
	httppool.WriteError(w, &http.Request{Header: http.Header{}}, status, why)
	s.pageForOwn(w, false)
	replied := s.reply(w, s.replyTime()) == nil
	s.logUnread(w.status, int64(w.body.Len()), reason, why)
	if replied {
		s.lingeringClose()
	}
}

// headFailed counts and logs a request whose head did not arrive completely, as the client has gone or an operator has ended it. It gets
// no answer.
func (s *session) headFailed(err error) {
	reason, why := listener.ReasonClientGone, "the client ended in the middle of a head"
	switch {
	case s.killed(): // which is counted already
		reason, why = listener.ReasonKilled, "ended in the middle of a head"
	case isTLSFailure(err):
		reason = listener.ReasonTLS
		s.noteTLS("TLS error", err)
	default:
		s.p.noteRefused(s.lc, reason)
	}
	s.logUnread(statusClientGone, 0, reason, why)
}

// replyTime returns the deadline for sending an answer to a request without a route.
func (s *session) replyTime() time.Time { return time.Now().Add(s.p.limits.Load().readHeader) }

// reply sends an answer of the proxy.
func (s *session) reply(a *answer, by time.Time) error {
	_ = s.client.conn.SetWriteDeadline(by)
	if s.stream != nil {
		return a.replyBy(s.stream)
	}
	n, err := s.client.conn.Write(append(s.ex.unsent, a.bytes()...))
	s.count(0, n)
	return err
}

// Bounds of lingeringClose: its time, and how much it reads. A fast client sends some MiB before it looks at the answer.
const (
	lingerTime  = time.Second
	lingerBytes = 16 << 20
)

// lingeringClose lets the client read the answer before the connection closes: closing a socket with unread input resets the
// connection, and the client may lose the answer.
func (s *session) lingeringClose() {
	if s.ex.up == nil && s.req.Length == 0 && s.client.r+s.ex.size == s.client.w {
		return // nothing is unread
	}
	s.client.lingeringClose()
}

// lingeringClose sends the end of the stream, and reads for a while.
func (s *stream) lingeringClose() {
	if s.conn.CloseWrite() != nil {
		return
	}
	s.drop()
	_ = s.conn.SetReadDeadline(time.Now().Add(lingerTime))
	for left := lingerBytes; left > 0; {
		n, err := s.fill()
		if err != nil {
			return
		}
		s.drop()
		left -= n
	}
}

// request returns the head as a *http.Request, for unusual answers and for logs. It has no body.
func (s *session) request() *http.Request {
	if s.ex.asked == nil {
		s.ex.asked = s.newRequest()
	}
	return s.ex.asked
}

func (s *session) newRequest() *http.Request {
	head := s.client.bytes()[:s.ex.size]
	switch t := s.ex.tunnel; {
	case t != nil && t.head != nil:
		head = t.head
	case s.stream != nil:
		head = appendText(nil, &s.req)
	}
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
	if err != nil { // net/http is stricter than httpwire except about framing
		r = &http.Request{
			Method: string(s.req.Method), Host: string(s.req.Host), Header: http.Header{},
			Proto: "HTTP/1." + strconv.Itoa(s.req.Minor), ProtoMajor: 1, ProtoMinor: s.req.Minor,
		}
	}
	if r.URL == nil {
		r.URL = &url.URL{Path: "/"}
	}
	if s.stream != nil {
		r.Proto, r.ProtoMajor, r.ProtoMinor = s.stream.protocol(), s.stream.major(), 0
	}
	r.RemoteAddr = s.lc.RemoteAddr().String()
	return r.WithContext(s.ctx)
}

// answer is an http.ResponseWriter for short answers of the proxy.
type answer struct {
	header http.Header
	status int
	close  bool
	grpc   bool // answer in gRPC's form
	keep   bool // say keep-alive, which HTTP/1.0 clients need to know
	body   bytes.Buffer
	rules  *headerRules // of the route; nil = none
	of     *session     // session for the variables of rules
}

func newAnswer(closes bool) *answer { return &answer{header: http.Header{}, close: closes} }

// newAnswer returns an answer to the session's request.
func (s *session) newAnswer(closes bool) *answer {
	w := newAnswer(closes)
	w.keep = !closes && s.req.Minor == 0
	w.grpc = s.asksGRPC()
	if v := s.altSvc(); v != "" {
		w.header[altSvcField] = []string{v}
	}
	if t := s.ex.target; t != nil && t.cors != nil {
		t.cors.each(&s.req, w.header.Add)
	}
	return w
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

// bytes returns the whole message.
func (a *answer) bytes() []byte {
	a.complete()
	b := make([]byte, 0, bufferSize/16)
	b = append(strconv.AppendInt(append(b, "HTTP/1.1 "...), int64(a.status), 10), ' ')
	b = append(append(b, http.StatusText(a.status)...), crlf...)
	switch {
	case a.close:
		b = append(b, "Connection: close\r\n"...)
	case a.keep:
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	w := headWriter{dst: b}
	a.fields(&w)
	return append(w.finish(), a.body.Bytes()...)
}

// complete gives the answer the form that the client accepts.
func (a *answer) complete() {
	if a.grpc {
		a.inGRPC()
	}
	a.header["Date"] = []string{dateOf(time.Now())}
}

// fields appends the fields, always in the same order.
func (a *answer) fields(w *headWriter) {
	a.rules.write(w, a.of)
	for _, name := range slices.Sorted(maps.Keys(a.header)) {
		if name != "Content-Length" && name != "Location" && a.rules.drops([]byte(name)) {
			continue
		}
		for _, value := range a.header[name] {
			w.line(name, value)
		}
	}
}

// appendText appends a request's head as text.
func appendText(dst []byte, r *httpwire.Request) []byte {
	dst = append(append(dst, r.Method...), ' ')
	dst = append(append(dst, r.Target...), " HTTP/1.1\r\n"...)
	return append(appendLines(dst, r.Fields), crlf...)
}
