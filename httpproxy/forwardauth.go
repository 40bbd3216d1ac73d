package httpproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
	"github.com/headpond/headpond/upstream"
)

// ForwardAuth asks an authentication server about each request of a route: GET Path, with the request's header and
// without its body, over the pooled connections of Upstream. X-Forwarded-Method, -Uri, -Host, -Proto and -For, and
// X-Original-Method, -URI and -URL, say what the client requests. With a 2xx status the request goes on. Any other
// answer of up to 64 KiB goes to the client. Without one the client gets 503. A request with several Authorization fields
// is refused with 400.
type ForwardAuth struct {
	// Upstream is required, and must speak HTTP/1.1. The Proxy does not close it.
	Upstream *Upstream
	// Path is the path of the questions, with a query if needed. "" = "/".
	Path string
	// Timeout bounds a question, including the wait for a connection. 0 = DefaultAuthTimeout.
	Timeout time.Duration
	// RequestHeaders are the client's headers that a question includes; empty = all, except those about the body, the
	// connection, ranges and conditions.
	RequestHeaders []string
	// ResponseHeaders are headers of the answer that are added to the request to the route's upstream. The client's own
	// headers of these names are dropped, also with "_" in place of "-".
	ResponseHeaders []string
}

// Bounds of ForwardAuth.
const (
	DefaultAuthTimeout = 5 * time.Second
	maxAuthHeaders     = 32
	maxAuthBody        = 64 << 10 // of an answer for the client: a page with an explanation, or a login form
)

// verify reports the first problem.
func (f *ForwardAuth) verify() error {
	switch {
	case f.Upstream == nil:
		return errors.New("ForwardAuth without Upstream")
	case f.Timeout < 0:
		return errors.New("ForwardAuth: negative time-out")
	case len(f.RequestHeaders) > maxAuthHeaders || len(f.ResponseHeaders) > maxAuthHeaders:
		return fmt.Errorf("ForwardAuth: at most %d headers of a kind", maxAuthHeaders)
	}
	for _, name := range f.RequestHeaders {
		if !httpwire.ValidToken(name) {
			return fmt.Errorf("ForwardAuth: the header %.40q is not a token", name)
		}
	}
	for i, name := range f.ResponseHeaders {
		if err := CheckAuthHeader(name); err != nil {
			return fmt.Errorf("ForwardAuth: %w", err)
		}
		if slices.ContainsFunc(f.ResponseHeaders[:i], func(earlier string) bool { return SameHeader(name, earlier) }) {
			return fmt.Errorf("ForwardAuth: the header %.40q twice", name)
		}
	}
	return CheckAuthPath(f.Path)
}

// CheckAuthHeader returns an error if a header of the answer cannot go to the server; nil = it can.
func CheckAuthHeader(name string) error {
	if strings.EqualFold(name, "authorization") {
		return nil
	}
	return CheckIdentityHeader(name)
}

// CheckAuthPath reports what is wrong with ForwardAuth.Path.
func CheckAuthPath(path string) error {
	if path == "" {
		return nil
	}
	if u, err := url.ParseRequestURI(path); err != nil || path[0] != '/' || u.Host != "" || strings.ContainsAny(path, "#\\") {
		return fmt.Errorf("the path %.40q: want one that begins with /, perhaps with a query", path)
	}
	return nil
}

// asker asks the questions of a route's ForwardAuth. It is immutable.
type asker struct {
	f         ForwardAuth
	target    *url.URL
	transport *httppool.Transport
}

// grant is a field of the answer that is added to the request to the server.
type grant struct{ name, value string }

var errAuthHTTP2 = errors.New("httpproxy: the upstream of ForwardAuth speaks HTTP/2")

// newAsker returns nil if f is nil. Verify has checked f.
func newAsker(f *ForwardAuth) *asker {
	if f == nil {
		return nil
	}
	a := &asker{f: *f}
	if a.f.Path == "" {
		a.f.Path = "/"
	}
	if a.f.Timeout == 0 {
		a.f.Timeout = DefaultAuthTimeout
	}
	a.target, _ = url.ParseRequestURI(a.f.Path)
	a.target.Scheme, a.target.Host = "http", "auth"
	a.transport, _ = httppool.NewTransport(httppool.Config{
		// With an idle time-out, the exchange leaves no deadline set on the connection, which other routes may share.
		Options: httppool.Options{ResponseHeaderTimeout: a.f.Timeout, IdleTimeout: a.f.Timeout},
		Source:  sourceOf(a.f.Upstream, errAuthHTTP2),
	})
	return a
}

// sourceOf leases connections of an upstream for a transport of the proxy's own requests, which speaks HTTP/1.1. instead is the
// error if the upstream's is one of HTTP/2.
func sourceOf(u *Upstream, instead error) httppool.Source {
	return func(ctx context.Context, _ *http.Request) (httppool.Lease, error) {
		l, err := u.AcquireNarrow(ctx, "", upstream.Narrow{Avoid: httppool.Failed(ctx)})
		if err != nil {
			return nil, err
		}
		if _, ok := l.Value().NetConn().(*h2Place); ok {
			l.Release() // nothing was sent on it
			return nil, instead
		}
		return &l, nil // the upstream measures its answers
	}
}

// withholds reports whether a field of the client could be taken for one of the answer.
func (a *asker) withholds(name []byte) bool {
	return slices.ContainsFunc(a.f.ResponseHeaders, func(own string) bool { return SameHeader(view(name), own) })
}

// errAuthTime is the error of a question whose time has passed, while it waited for a connection or for the answer. It
// is also an httppool.ErrResponseTimeout.
type errAuthTime struct{}

func (errAuthTime) Error() string        { return "the time for the question is over" }
func (errAuthTime) Is(target error) bool { return target == httppool.ErrResponseTimeout }

// ask asks whether the session's request may go on; it may if the refusal is zero.
func (s *session) ask(a *asker) refusal {
	if s.severalCredentials() {
		return refusal{status: http.StatusBadRequest, reason: listener.ReasonProtocol, why: "the request has several Authorization fields"}
	}
	wanted, stop := s.wanted()
	defer stop()
	ctx, cancel := context.WithTimeoutCause(wanted, a.f.Timeout, errAuthTime{})
	defer cancel()
	resp, err := a.transport.RoundTrip(s.question(ctx, a))
	if err != nil {
		return s.unanswered(ctx, a, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 { // a switch of protocol that nobody asked for
		return s.unanswered(ctx, a, fmt.Errorf("it answers with status %d", resp.StatusCode))
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAuthBody+1))
	granted := resp.StatusCode >= 200 && resp.StatusCode <= 299
	switch {
	case err != nil:
		return s.unanswered(ctx, a, err)
	case len(body) > maxAuthBody && !granted:
		return s.unanswered(ctx, a, fmt.Errorf("its answer has more than %d bytes", maxAuthBody))
	case granted:
		s.grant(a, resp.Header)
		return refusal{}
	}
	s.ex.target.cors.replace(resp.Header)
	no := refusal{status: resp.StatusCode, why: "refused by the authentication server", header: resp.Header, body: body}
	switch {
	case no.status == http.StatusUnauthorized || no.status == http.StatusForbidden:
		no.reason = listener.ReasonAuthFailed
	case no.status >= http.StatusInternalServerError:
		no.reason, no.counted = listener.ReasonUpstreamUnavailable, true
		s.p.srv.Report(no.reason, slog.LevelWarn, "the authentication server answered with an error",
			"client", s.lc.RemoteAddr().String(), "upstream", a.f.Upstream.Name(), "status", no.status)
	}
	return no
}

// severalCredentials reports whether the request has several Authorization fields: the upstream might use another one
// than the authentication server.
func (s *session) severalCredentials() bool {
	n := 0
	for i := range s.req.Fields {
		if s.req.Fields[i].Known == httpwire.Authorization {
			n++
		}
	}
	return n > 1
}

// unanswered refuses a request on which the authentication server has not decided.
func (s *session) unanswered(ctx context.Context, a *asker, err error) refusal {
	if errors.Is(err, httppool.ErrClientGone) || goneIn(ctx) {
		return refusal{status: http.StatusServiceUnavailable, clientGone: true}
	}
	no := refusal{status: http.StatusServiceUnavailable, why: "the authentication server does not answer", retryAfter: 1}
	if s.ctx.Err() == nil {
		no.reason, no.counted = listener.ReasonUpstreamUnavailable, true
		switch {
		case errors.Is(err, pool.ErrTimeout) || errors.Is(err, pool.ErrTooManyWaiters) || errors.Is(err, pool.ErrNoTime):
			no.reason = listener.ReasonPoolExhausted
		case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, httppool.ErrResponseTimeout):
			no.reason = listener.ReasonTimeout
		}
		s.p.srv.Report(no.reason, slog.LevelWarn, "the authentication server did not answer",
			"client", s.lc.RemoteAddr().String(), "upstream", a.f.Upstream.Name(), "error", err)
	}
	return no
}

// question makes the request to the authentication server.
func (s *session) question(ctx context.Context, a *asker) *http.Request {
	h := http.Header{}
	for i := range s.req.Fields {
		f := &s.req.Fields[i]
		if !s.req.Listed(f) && a.passes(f) {
			h.Add(string(f.Name), string(f.Value))
		}
	}
	received := httpwire.Prior{Trusted: s.trusted()}
	for i := range s.req.Fields {
		f := &s.req.Fields[i]
		if s.req.Listed(f) || !received.Passes(f) {
			continue
		}
		if f.Known == httpwire.XForwardedHost || f.Known == httpwire.XForwardedProto || received.Trusted && httpwire.EqualFold(f.Name, clientCertField) {
			h.Add(string(f.Name), string(f.Value))
		}
	}
	w := headWriter{}
	s.appendForwarded(&w, &received)
	for line := range strings.SplitSeq(strings.TrimSuffix(string(w.dst), crlf), crlf) {
		if name, value, ok := strings.Cut(line, ": "); ok && name != "Forwarded" {
			h.Set(name, value)
		}
	}
	s.identify()
	h.Set(requestIDField, string(s.ex.id))
	h.Set("X-Forwarded-Method", string(s.req.Method))
	h.Set("X-Forwarded-Uri", string(s.req.Target))
	h.Set("X-Original-Method", string(s.req.Method))
	h.Set("X-Original-URI", string(s.req.Target))
	h.Set("X-Original-URL", h.Get("X-Forwarded-Proto")+"://"+h.Get("X-Forwarded-Host")+string(s.req.Target))
	r := &http.Request{
		Method: http.MethodGet, URL: a.target, Host: string(s.req.Host), Header: h, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	return r.WithContext(ctx)
}

// unasked lists headers that a question does not include: those about the body, conditions and ranges, and those that
// authentication servers take for the request's target. X-Forwarded-* and X-Real-IP are covered by httpwire.Known.
var unasked = []string{
	"accept-encoding", "content-encoding", "content-language", "content-length", "content-location", "content-range", "content-type", "digest", "expect",
	"if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "range",
	"x-original-method", "x-original-uri", "x-original-url", "x-original-host", "x-rewrite-url", "x-auth-request-redirect", "x-authelia-url",
	"x-envoy-original-path",
}

// passes reports whether a field of the client goes into the question. Names with signs other than "-" do not, as they
// might be taken for fields that the gateway sets.
func (a *asker) passes(f *httpwire.Field) bool {
	switch f.Known {
	case httpwire.Other, httpwire.Authorization:
	default:
		return false
	}
	name := view(f.Name)
	if strings.ContainsFunc(name, isSign) || slices.ContainsFunc(unasked, func(no string) bool { return httpwire.EqualFold(f.Name, no) }) {
		return false
	}
	return len(a.f.RequestHeaders) == 0 || slices.ContainsFunc(a.f.RequestHeaders, func(own string) bool { return strings.EqualFold(name, own) })
}

// isSign reports whether r is neither a letter, nor a digit, nor "-".
func isSign(r rune) bool {
	return r != '-' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
}

// grant keeps the fields of the answer that go to the route's upstream.
func (s *session) grant(a *asker, h http.Header) {
	for _, name := range a.f.ResponseHeaders {
		for _, value := range h.Values(name) {
			s.ex.grants = append(s.ex.grants, grant{name, value})
		}
	}
}

// answerWith fills w with the answer of another server.
func (w *answer) answerWith(no refusal, head bool) {
	for name, values := range no.header {
		if known := httpwire.Classify(name); known.Connectional() || known == httpwire.ContentLength || known == httpwire.Date {
			continue
		}
		if name == "Vary" { // cors may have one
			values = slices.Concat(w.header[name], values)
		}
		w.header[name] = values
	}
	for _, list := range no.header["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			delete(w.header, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	w.WriteHeader(no.status)
	if no.status == http.StatusNotModified || no.status == http.StatusNoContent {
		return
	}
	w.header["Content-Length"] = []string{fmt.Sprint(len(no.body))}
	if !head {
		_, _ = w.Write(no.body)
	}
}
