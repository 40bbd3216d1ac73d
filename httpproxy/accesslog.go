package httpproxy

import (
	"bytes"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/listener"
)

// AccessLog is a log with one line for each request, besides that of listener.Config.AccessLog. Requests that are
// refused, that break off, or that have no route get a line, too; see docs/http.md.
type AccessLog struct {
	// To receives the lines. It is required.
	To listener.LineWriter
	// Format is "json", "common" or "combined", as named by Apache's httpd, or a text with variables such as "{client}
	// {method} {path} {status}"; see LogVariables. "" = "json".
	Format string
	// Query logs the queries of the request and of Referer, which may hold secrets.
	Query bool
	// Filter says which requests have a line, unless their route has a filter.
	Filter LogFilter
}

// LogFormats returns the formats with a name.
func LogFormats() []string { return []string{"json", "common", "combined"} }

// Verify reports what is wrong with the settings.
func (a *AccessLog) Verify() error {
	switch {
	case a == nil:
		return nil
	case a.To == nil:
		return errors.New("an access log needs a writer")
	}
	_, err := newLogFormat(a.Format, a.Query)
	return errors.Join(err, a.Filter.verify())
}

// accessLog is an AccessLog prepared for use. It is immutable.
type accessLog struct {
	to       listener.LineWriter
	format   *logFormat
	listener string
	query    bool
	filter   LogFilter
}

// newAccessLog returns nil if there is no log. Verify has found no error.
func newAccessLog(cfg Config) *accessLog {
	a := cfg.AccessLog
	if a == nil {
		return nil
	}
	format, _ := newLogFormat(a.Format, a.Query)
	return &accessLog{to: a.To, format: format, listener: cfg.Listener.Name, query: a.Query, filter: a.Filter}
}

// logged returns the log for the session's request, nil if none.
func (s *session) logged() *accessLog {
	if t := s.ex.target; t != nil && t.route.NoAccessLog {
		return nil
	}
	return s.p.log.Load()
}

// accesses reports whether the request is also logged in the access log of listener.Config.
func (s *session) accesses() bool {
	t := s.ex.target
	return s.p.srv.AccessLog() && (t == nil || !t.route.NoAccessLog)
}

// logLine is the source of a log line, or of a trace. All that it refers to belongs to the session.
type logLine struct {
	log      *accessLog // nil = only a trace is made
	filter   *LogFilter // the route's; nil = the log's
	trusted  []netip.Prefix
	trace    TraceID           // zero = the request is not traced
	req      *httpwire.Request // the zero Request if no head could be read
	peer     *peer
	secure   *tls.ConnectionState // nil without TLS
	protocol string
	began    time.Time
	lasted   time.Duration
	first    time.Duration // time to the head of the answer; 0 = there was none
	wait     time.Duration // time until the request was sent; -1 = it was not
	status   int           // 0 = no answer was sent
	in, out  int64
	route    string // "" = no route matched
	upstream string
	endpoint string
	retries  int
	user     string
	tokens   *tokens // nil = none are counted
	id       []byte
	reason   string // a reason of package listener; "" = no error
	err      string

	buf []byte
}

var (
	logLines  = sync.Pool{New: func() any { return new(logLine) }}
	noRequest httpwire.Request // used for requests whose head could not be read; read-only
)

const (
	protocolHTTP10 = "HTTP/1.0"
	protocolHTTP11 = "HTTP/1.1"
	protocolHTTP2  = "HTTP/2.0"
	protocolHTTP3  = "HTTP/3.0"

	statusClientGone = 499 // used in logs: the client left before it was answered; see httppool.Result
)

// write writes the line of a request, if the filter takes it.
func (l *logLine) write(shard uint8) {
	filter := l.filter
	if filter == nil {
		filter = &l.log.filter
	}
	if !filter.takes(l.status, l.reason != "", l.lasted) {
		return
	}
	l.buf = l.log.format.append(l, l.buf[:0])
	l.log.to.WriteLine(int(shard), l.buf)
}

// free ends the use of l.
func (l *logLine) free() {
	*l = logLine{buf: l.buf}
	logLines.Put(l)
}

// finishLog writes the line, gives the trace to the tracer, and frees l.
func (s *session) finishLog(l *logLine) {
	s.ex.logged = true
	if s.ex.trace != nil {
		s.passTrace(l)
	}
	if l.log != nil {
		l.write(s.shard)
	}
	l.free()
}

// logPanic logs the request whose serving has panicked, and ends what limits hold for it. A deferred function calls it before the
// session's memory is freed.
func (s *session) logPanic() {
	x, req, route, upstream := &s.ex, &s.req, "", ""
	if x.tokens != nil {
		x.tokens.giveBack()
	}
	if x.target != nil {
		route, upstream = x.target.label, x.target.name
	}
	path, _, _ := bytes.Cut(req.Target, []byte("?")) // the query may hold secrets
	s.p.srv.LogLimited(listener.ReasonInternal, slog.LevelError, "request ended by a panic", "client", s.lc.RemoteAddr().String(),
		"method", string(req.Method), "path", string(path), "route", route, "upstream", upstream, "request_id", string(x.id), "stack", string(debug.Stack()))
	log := s.logged()
	if s.beginTrace(); x.logged || log == nil && x.trace == nil {
		return
	}
	l := s.lineOf(log)
	l.lasted, l.in, l.out, l.reason, l.err = time.Since(s.now), x.result.BytesIn, x.result.BytesOut, listener.ReasonInternal, errPanicked.Error()
	if x.wrote {
		l.status = s.resp.Status
	}
	s.finishLog(l)
}

// lineOf starts the line of the session's request, whose head must still be held.
func (s *session) lineOf(log *accessLog) *logLine {
	x := &s.ex
	l := logLines.Get().(*logLine)
	l.log, l.req, l.peer, l.secure, l.protocol, l.began = log, &s.req, s.from(), s.isTLS, protocolHTTP11, s.now
	l.trusted = s.p.table.Load().trusted
	if x.trace != nil {
		l.trace = x.trace.id
	}
	switch {
	case s.stream != nil:
		l.protocol = s.stream.protocol()
	case len(l.req.Method) == 0: // the head is unknown
		l.protocol = ""
	case l.req.Minor == 0:
		l.protocol = protocolHTTP10
	}
	l.wait, l.first = -1, x.first
	if !x.sent.IsZero() {
		l.wait = max(x.sent.Sub(s.now), 0)
	}
	if t := x.target; t != nil {
		l.route, l.upstream, l.filter = t.label, t.name, t.route.LogFilter
	}
	l.endpoint, l.retries, l.user, l.id, l.tokens = x.result.Endpoint, x.result.Retries, x.user, x.id, x.tokens
	return l
}

// logDone logs a request that an upstream or its route has answered, or that has failed.
func (s *session) logDone(err error) {
	log, x := s.logged(), &s.ex
	if x.target.route.Upstream == nil {
		s.beginTrace()
	}
	if log == nil && x.trace == nil {
		return
	}
	l := s.lineOf(log)
	l.lasted, l.status, l.in, l.out = s.ended.Sub(s.now), x.result.Status, x.result.BytesIn, x.result.BytesOut
	if err != nil {
		l.reason, l.err = reasonOf(err), err.Error()
	}
	s.finishLog(l)
}

// logRefused logs a request that was refused with content bytes of content. The status is that of HTTP, also where a client of
// gRPC gets another.
func (s *session) logRefused(no refusal, content int64) {
	log := s.logged()
	s.beginTrace()
	if log == nil && s.ex.trace == nil {
		return
	}
	l := s.lineOf(log)
	l.lasted, l.status, l.out, l.reason, l.err = time.Since(s.now), no.status, content, no.reason, no.why
	s.finishLog(l)
}

// logUnread logs a request whose head could not be read.
func (s *session) logUnread(status int, content int64, reason, why string) {
	log := s.p.log.Load()
	if log == nil {
		return
	}
	s.ex = exchange{}
	l := s.lineOf(log)
	if s.stream == nil {
		l.protocol = ""
	}
	l.req, l.lasted, l.status, l.out, l.reason, l.err = &noRequest, time.Since(s.now), status, content, reason, why
	s.finishLog(l)
}

// logUnread logs a stream that had no session.
func (h *http2) logUnread(status int, reason, why string) {
	log := h.p.log.Load()
	if log == nil {
		return
	}
	l := logLines.Get().(*logLine)
	l.log, l.req, l.peer, l.secure, l.protocol, l.began, l.wait = log, &noRequest, &h.peer, h.isTLS, protocolHTTP2, h.lastRead, -1
	l.lasted, l.status, l.reason, l.err, l.trusted = time.Since(h.lastRead), status, reason, why, h.p.table.Load().trusted
	l.write(h.shard)
	l.free()
}

// noteFirst records when the head of the answer came, if a log needs it.
func (s *session) noteFirst() {
	if s.p.log.Load() != nil {
		s.ex.first = max(time.Since(s.now), 1)
	}
}

// client returns the address of the client, as named by trusted proxies.
func (l *logLine) client() netip.Addr {
	if len(l.trusted) > 0 {
		if ip, ok := clientOf(l.req, l.peer.addr, l.trusted); ok {
			return ip
		}
	}
	return l.peer.addr
}

// target returns the path and the query of a request's target. The target may be in absolute form, with a user name and
// password before the host; these are left out.
func (l *logLine) target() (path, query []byte) {
	path = l.req.Target
	if i := bytes.IndexByte(path, '#'); i >= 0 {
		path = path[:i]
	}
	path, query = path[:pathEnd(path)], path[pathEnd(path):]
	if len(path) > 0 && path[0] != '/' {
		path = path[bytes.LastIndexByte(path, '@')+1:]
	}
	return path, query
}

// referer returns the parts of the Referer field before and after a user name and password, without the query unless
// queries are logged.
func (l *logLine) referer() (scheme, tail []byte) {
	tail = l.field("referer")
	if i := bytes.IndexAny(tail, "?#"); i >= 0 && !l.log.query {
		tail = tail[:i]
	}
	authority := tail
	if i := bytes.IndexAny(tail, "?#"); i >= 0 {
		authority = tail[:i]
	}
	if i := bytes.Index(authority, []byte("://")); i >= 0 {
		scheme, tail, authority = tail[:i+3], tail[i+3:], authority[i+3:]
		if i = bytes.IndexByte(authority, '/'); i >= 0 {
			authority = authority[:i]
		}
	}
	return scheme, tail[bytes.LastIndexByte(authority, '@')+1:]
}

// field returns the value of the request's first field with a name, which is in lower case; nil = there is none.
func (l *logLine) field(name string) []byte {
	for i := range l.req.Fields {
		if f := &l.req.Fields[i]; len(f.Name) == len(name) && httpwire.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return nil
}

// appendTraceID appends the ID of the request's trace, or nothing.
func (l *logLine) appendTraceID(dst []byte) []byte {
	id := l.trace
	if id == (TraceID{}) {
		p, _ := parentOf(l.req)
		id = p.id
	}
	if id == (TraceID{}) {
		return dst
	}
	return hex.AppendEncode(dst, id[:])
}
