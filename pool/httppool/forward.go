package httppool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// HandlerConfig describes a Handler. Target or a Transport with a Source is required.
type HandlerConfig struct {
	// Target is where requests go: "http://host:port/base" or https. The request's path follows the base, its query
	// stays. With a Transport that has a Source, Target may be empty.
	Target string
	// Transport carries the requests. Nil = one of the Handler's own, with Config's defaults.
	Transport *Transport
	// Name names the upstream in answers to clients. "" = Target's host.
	Name string
	// StripPrefix is removed from the front of the path; the Handler must get only paths that begin with it.
	StripPrefix string
	// TargetHost sends Target's host in the Host field. By default the client's Host is preserved.
	TargetHost bool
	// TrustedProxies are the peers whose X-Forwarded-* and Forwarded fields are trusted and extended. Those of other
	// clients are replaced.
	TrustedProxies []netip.Prefix
	// Forwarded adds the Forwarded field (RFC 7239) to X-Forwarded-For, -Proto and -Host.
	Forwarded bool
	// Via is the name this proxy adds to the Via field of requests and responses; "" = none.
	Via string
	// RequestID is the name of a field with the request's ID, for the server and in error answers. A well-formed one from the
	// client is kept. "" = none.
	RequestID string
	// Timeout bounds a request as a whole, with both bodies. 0 = no limit. Upgraded connections are exempt.
	Timeout time.Duration
	// IdleTimeout bounds each wait for the client within a body, and for both sides of an upgraded connection. 0 = no limit.
	// (Options.IdleTimeout bounds the waits for the server.)
	IdleTimeout time.Duration
	// OnDone is called after each request, in the request's goroutine.
	OnDone func(r *http.Request, res Result)
}

// Result is the outcome of a forwarded request.
type Result struct {
	Info
	Status   int   // sent to the client; 499 if the client left before that
	BytesIn  int64 // of the request's body
	BytesOut int64 // of the response's body; both also count after an upgrade
	Duration time.Duration
	Upgraded bool
	Err      error // nil if both messages were passed on completely
}

// Handler forwards requests and streams both bodies with bounded memory. It is safe for concurrent use.
//
// It forwards end-to-end fields (RFC 9110, section 7.6.1) and drops fields of the connection and those that Connection
// lists. Responses of unknown length, event streams and those with "X-Accel-Buffering: no" are flushed as they arrive.
// Trailers and 103 responses pass. The server decides about "Expect: 100-continue". WebSockets and other upgrades pass,
// except to HTTP/2 (which could carry requests past this proxy's rules) and for requests with a body. CONNECT is refused, as are
// paths with "." or ".." segments: a server resolves them, and would serve what is outside of the Target's base.
// When a response breaks off, the client's connection (HTTP/2: stream) is cut off too, so that the client does not take it
// for complete.
//
// gRPC needs HTTP/2 on both sides; this Handler speaks HTTP/1.1 to the server.
type Handler struct {
	cfg    HandlerConfig
	target *url.URL
	own    *Transport // to close
}

var _ http.Handler = (*Handler)(nil)

// Forward returns a Handler to target with a new Transport and all defaults. The caller must Close it.
func Forward(target string) (*Handler, error) {
	return NewHandler(HandlerConfig{Target: target})
}

// NewHandler checks cfg and makes a Handler.
func NewHandler(cfg HandlerConfig) (*Handler, error) {
	h := &Handler{cfg: cfg, target: &url.URL{Scheme: "http", Host: "upstream"}}
	if cfg.Target != "" {
		u, err := url.Parse(cfg.Target)
		if err != nil {
			// Only the reason: the URL may contain a password.
			return nil, fmt.Errorf("httppool: the target is not of the form http://host:port/base: %w", errors.Unwrap(err))
		}
		if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.User != nil {
			return nil, fmt.Errorf("httppool: target %q is not of the form http://host:port/base", u.Redacted())
		}
		u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/"), strings.TrimSuffix(u.RawPath, "/")
		h.target = u
	} else if cfg.Transport == nil || cfg.Transport.cfg.Source == nil {
		return nil, errors.New("httppool: neither a Target nor a Transport with a Source")
	}
	h.cfg.Name = cmp.Or(h.cfg.Name, h.target.Host)
	if cfg.Via != "" && !httpwire.ValidToken(cfg.Via) {
		return nil, fmt.Errorf("httppool: Via name %q is not a token", cfg.Via)
	}
	if cfg.RequestID != "" {
		if !httpwire.ValidToken(cfg.RequestID) {
			return nil, fmt.Errorf("httppool: RequestID %q is not a field name", cfg.RequestID)
		}
		h.cfg.RequestID = http.CanonicalHeaderKey(cfg.RequestID)
	}
	if cfg.Transport == nil {
		t, err := NewTransport(Config{})
		if err != nil {
			return nil, err
		}
		h.cfg.Transport, h.own = t, t
	}
	return h, nil
}

// Close closes the Handler's own Transport, if it has one.
func (h *Handler) Close() {
	if h.own != nil {
		h.own.Close()
	}
}

// passage is one request through a Handler. It belongs to the goroutine of ServeHTTP.
type passage struct {
	h     *Handler
	w     http.ResponseWriter
	in    *http.Request
	out   http.Request // to the server
	url   url.URL      // its URL
	up    *upload      // nil without a request body
	id    string
	began time.Time // when ServeHTTP was called
	res   Result

	wire       *httpwire.Request        // what in asks for; nil before outgoing
	controller *http.ResponseController // made by rc
}

// rc returns w's ResponseController. It is for the goroutine of ServeHTTP.
func (p *passage) rc() *http.ResponseController {
	if p.controller == nil {
		p.controller = http.NewResponseController(p.w)
	}
	return p.controller
}

// ServeHTTP forwards r. It panics with http.ErrAbortHandler to cut a broken response off, as net/http requires.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := &passage{h: h, w: w, in: r, began: time.Now()}
	cut := p.serve()
	if h.cfg.OnDone != nil {
		p.res.Duration = time.Since(p.began)
		h.cfg.OnDone(r, p.res)
	}
	if cut {
		panic(http.ErrAbortHandler)
	}
}

// serve reports whether the response must be cut off.
func (p *passage) serve() (cut bool) {
	ctx := p.in.Context()
	if p.h.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.h.cfg.Timeout)
		defer cancel()
	}
	if p.h.cfg.RequestID != "" {
		p.id = requestID(p.in.Header[p.h.cfg.RequestID])
	}
	if p.in.Method == http.MethodConnect {
		p.refuse(http.StatusMethodNotAllowed, "CONNECT is not supported")
		return false
	}
	if httpwire.HasDotSegment(p.in.URL.Path) {
		p.refuse(http.StatusBadRequest, "the path has a . or .. segment")
		return false
	}
	err := p.outgoing(ctx)
	defer func() { freeRequest(p.wire) }()
	defer p.endUpload()
	var resp *http.Response
	if err == nil {
		resp, err = p.h.cfg.Transport.roundTrip(&p.out, p)
	}
	if err != nil {
		p.res.Err = err
		p.answerError(err)
		return p.res.Status == statusClientGone
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		p.upgrade(resp)
		return false
	}
	defer resp.Body.Close()
	if p.res.Err = p.reply(resp); p.res.Err != nil {
		return true
	}
	return false
}

// endUpload interrupts reads of the client's body before ServeHTTP returns. A server may answer before it has read the
// request; then neither the uploader nor net/http, which skips the rest of the body, may wait for a client that never
// sends it. No deadline is set if the body was read to its end: it would end the client's connection.
func (p *passage) endUpload() {
	if p.up == nil {
		return
	}
	if !p.up.whole.Load() {
		if err := p.up.end(); err != nil && p.uploading() {
			p.res.BytesIn = p.up.n.Load()
			return // not a server's connection; there is nothing to interrupt
		}
	}
	<-p.up.closed
	p.res.BytesIn = p.up.n.Load()
}

// closeIfUnread announces the end of the connection to a client that is answered before its body was read: the rest of the
// body is not read, and a client that reused the connection would find it closed. It ends, too, after a request for an
// upgrade that is answered otherwise: what the client may have sent for the new protocol must not be read as requests.
func (p *passage) closeIfUnread() {
	unread := p.up != nil && !p.up.whole.Load()
	if p.in.ProtoMajor == 1 && (unread || p.wire != nil && p.upgradeTo() != "") {
		p.w.Header()["Connection"] = []string{"close"}
	}
}

// uploading reports whether the uploader may still read the client's body.
func (p *passage) uploading() bool {
	if p.up == nil {
		return false
	}
	select {
	case <-p.up.closed:
		return false
	default:
		return true
	}
}

// interim passes 1xx responses on. Nothing is written while net/http may write "100 Continue".
func (p *passage) interim(code int, header http.Header) error {
	if !p.in.ProtoAtLeast(1, 1) || p.in.Header["Expect"] != nil {
		return nil
	}
	dst := p.w.Header()
	copyEndToEnd(dst, header)
	p.w.WriteHeader(code)
	for name := range header {
		delete(dst, name)
	}
	return nil
}

// takeFields sets the end-to-end fields of the response on w. They replace w's fields of the same names.
func (p *passage) takeFields(r *httpwire.Response) {
	dst := p.w.Header()
	fresh := len(dst) == 0
	values := make([]string, len(r.Fields))
	for i := range r.Fields {
		f := &r.Fields[i]
		if !r.EndToEnd(f) {
			continue
		}
		name := textproto.CanonicalMIMEHeaderKey(view(f.Name))
		values[i] = view(f.Value)
		if old := dst[name]; old != nil && (fresh || repeats(r.Fields[:i], name)) {
			dst[name] = append(old, values[i])
			continue
		}
		dst[name] = values[i : i+1 : i+1]
	}
}

// repeats reports whether one of fields has the name.
func repeats(fields []httpwire.Field, name string) bool {
	return slices.ContainsFunc(fields, func(f httpwire.Field) bool { return strings.EqualFold(view(f.Name), name) })
}

// reply sends the response, whose fields are set on w. An error means that the client must not take the response for
// complete.
func (p *passage) reply(resp *http.Response) error {
	dst := p.w.Header()
	if dst["Content-Type"] == nil {
		dst["Content-Type"] = nil // net/http would guess one
	}
	for name := range resp.Trailer {
		dst["Trailer"] = append(dst["Trailer"], name)
	}
	announced := len(resp.Trailer)
	p.addVia(dst, resp.ProtoMajor, resp.ProtoMinor)
	p.closeIfUnread()
	p.res.Status = resp.StatusCode
	p.w.WriteHeader(resp.StatusCode)
	if resp.Body == http.NoBody {
		return nil
	}
	flush := flushes(resp, dst)
	if flush {
		_ = p.rc().Flush() // the client sees the head of a stream before its first byte; Write notices a dead client
	}
	if err := p.copyBody(resp.Body, flush); err != nil {
		return err
	}
	prefix := ""
	if len(resp.Trailer) != announced {
		prefix = http.TrailerPrefix
	}
	for name, values := range resp.Trailer {
		dst[prefix+name] = values
	}
	return nil
}

func flushes(resp *http.Response, header http.Header) bool {
	if resp.ContentLength < 0 {
		return true
	}
	if v := header["X-Accel-Buffering"]; len(v) == 1 && strings.EqualFold(v[0], "no") {
		return true
	}
	ct := header["Content-Type"]
	return len(ct) == 1 && strings.HasPrefix(strings.ToLower(ct[0]), "text/event-stream")
}

func (p *passage) copyBody(body io.Reader, flush bool) error {
	buf := copyPool.Get().(*[]byte)
	defer copyPool.Put(buf)
	idle := p.h.cfg.IdleTimeout
	if idle > 0 {
		defer p.rc().SetWriteDeadline(time.Time{}) // best effort: a connection that cannot has no deadline either
	}
	for {
		n, err := body.Read(*buf)
		if n > 0 {
			if idle > 0 {
				_ = p.rc().SetWriteDeadline(time.Now().Add(idle))
			}
			written, werr := p.w.Write((*buf)[:n])
			p.res.BytesOut += int64(written)
			if werr == nil && flush {
				werr = p.rc().Flush()
			}
			if werr != nil && !errors.Is(werr, http.ErrNotSupported) {
				return fmt.Errorf("%w: %w", ErrClientGone, werr)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
