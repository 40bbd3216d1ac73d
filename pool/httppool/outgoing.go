package httppool

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// outgoing builds the request for the server; the client's is not changed. appendFields writes its fields. Its Header is the
// client's or, for a Source, what the server gets.
func (p *passage) outgoing(ctx context.Context) error {
	in, out := p.in, &p.out
	if *out = *in; ctx != in.Context() {
		*out = *in.WithContext(ctx)
	}
	p.h.rewrite(&p.url, in.URL)
	out.URL = &p.url
	out.RequestURI, out.Close, out.Trailer, out.GetBody = "", false, nil, nil
	if p.h.cfg.TargetHost {
		out.Host = p.h.target.Host
	}
	p.addBody()
	minor := in.ProtoMinor
	if in.ProtoMajor > 1 {
		minor = 1
	}
	var err error
	if p.wire, err = describe(out, minor); err == nil && p.h.cfg.Transport.cfg.Source != nil {
		out.Header, err = p.fields()
	}
	if err != nil {
		return &Error{Step: "send", Err: err}
	}
	return nil
}

// addBody gives the request for the server the client's body.
func (p *passage) addBody() {
	in, out := p.in, &p.out
	if in.Body == nil || in.Body == http.NoBody || in.ContentLength == 0 {
		out.Body, out.ContentLength = nil, 0
		return
	}
	p.up = &upload{passage: p, idle: p.h.cfg.IdleTimeout, closed: make(chan struct{})}
	if len(in.Trailer) > 0 {
		out.Trailer = maps.Clone(in.Trailer)
	}
	out.Body = p.up
	// Without it net/http reads the whole request before it sends a response: no early answers, no duplex streams.
	_ = p.rc().EnableFullDuplex() // fails where there is no such limit
}

// fields returns the fields of appendFields as a header.
func (p *passage) fields() (http.Header, error) {
	b, err := p.appendFields(nil)
	if err != nil {
		return nil, err
	}
	fields, _, err := httpwire.ParseFields(nil, append(b, crlf...))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidRequest, err)
	}
	return headerOf(fields), nil
}

// appendFields appends the end-to-end fields (RFC 9110, section 7.6.1) and those that this proxy sets, except the ones that
// appendRequest writes.
func (p *passage) appendFields(dst []byte) ([]byte, error) {
	addr := peerAddr(p.in.RemoteAddr)
	prior := httpwire.Prior{Trusted: p.h.trusts(addr), RFC: p.h.cfg.Forwarded, Named: p.h.cfg.Via != ""}
	for name, values := range p.in.Header {
		f := httpwire.Field{Name: bytesOf(name), Known: httpwire.Classify(name)}
		if !httpwire.ValidToken(name) {
			return dst, fmt.Errorf("%w: header name %.60q", ErrInvalidRequest, name)
		}
		if p.wire.Listed(&f) || p.id != "" && strings.EqualFold(name, p.h.cfg.RequestID) {
			continue
		}
		for _, v := range values {
			if f.Value = bytesOf(v); !prior.Passes(&f) {
				continue
			}
			var err error
			if dst, err = appendLine(dst, name, nil, v); err != nil {
				return dst, err
			}
		}
	}
	if p.wire.Expects() {
		dst = append(dst, "Expect: 100-continue\r\n"...)
	}
	dst, err := p.appendForwarded(dst, addr, &prior)
	if err == nil && p.id != "" {
		dst, err = appendLine(dst, p.h.cfg.RequestID, nil, p.id)
	}
	return dst, err
}

// appendForwarded appends the fields about the client and earlier proxies.
func (p *passage) appendForwarded(dst []byte, addr netip.Addr, prior *httpwire.Prior) ([]byte, error) {
	proto, host := "http", p.in.Host
	if p.in.TLS != nil {
		proto = "https"
	}
	var err error
	switch {
	case addr.IsValid():
		var text [64]byte // an address without a zone is shorter
		dst, err = appendLine(dst, "X-Forwarded-For", prior.XFF, view(addr.AppendTo(text[:0])))
	case prior.XFF != nil:
		dst, err = appendLine(dst, "X-Forwarded-For", nil, view(prior.XFF))
	}
	if err == nil && !prior.Proto {
		dst, err = appendLine(dst, "X-Forwarded-Proto", nil, proto)
	}
	if err == nil && !prior.Host && host != "" {
		dst, err = appendLine(dst, "X-Forwarded-Host", nil, host)
	}
	if err == nil && p.h.cfg.Forwarded {
		dst, err = appendLine(dst, "Forwarded", prior.Forwarded, view(httpwire.AppendForwarded(nil, addr, proto, host)))
	}
	if err == nil && p.h.cfg.Via != "" {
		dst, err = appendLine(dst, "Via", prior.Via, p.via(p.in.ProtoMajor, p.in.ProtoMinor))
	}
	return dst, err
}

// appendLine appends a field with the values before, if any, and last as a list.
func appendLine(dst []byte, name string, before []byte, last string) ([]byte, error) {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	start := len(dst)
	if len(before) > 0 {
		dst = append(append(dst, before...), ", "...)
	}
	dst = append(dst, last...)
	if !httpwire.ValidValue(dst[start:]) {
		return dst, fmt.Errorf("%w: control character in the value of %s", ErrInvalidRequest, name)
	}
	return append(dst, crlf...), nil
}

// upgradeTo returns the protocols to which the client may change; "" = none. HTTP/2 has no such field.
func (p *passage) upgradeTo() string {
	if p.in.ProtoMajor != 1 {
		return ""
	}
	return view(p.wire.Switches())
}

// rewrite sets *to to the target with u's path appended to its base, without the prefix to strip.
func (h *Handler) rewrite(to, u *url.URL) {
	*to = *h.target
	path, raw := u.Path, u.RawPath
	if h.cfg.StripPrefix != "" {
		path, raw = stripPrefix(path, raw, len(strings.TrimSuffix(h.cfg.StripPrefix, "/")))
	}
	if path == "*" && to.Path == "" { // OPTIONS *
		to.Path = path
		to.Opaque = ""
		return
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
		if raw != "" {
			raw = "/" + raw
		}
	}
	if raw != "" || to.RawPath != "" {
		base := to.EscapedPath()
		if raw == "" {
			raw = (&url.URL{Path: path}).EscapedPath()
		}
		to.RawPath = base + raw
	}
	to.Path += path
	to.RawQuery, to.ForceQuery = u.RawQuery, u.ForceQuery
}

// stripPrefix removes n bytes from the decoded path and their encoding from the encoded one.
func stripPrefix(path, raw string, n int) (string, string) {
	if n > len(path) {
		return path, raw
	}
	if raw == "" {
		return path[n:], ""
	}
	i := 0
	for range n {
		if i+2 < len(raw) && raw[i] == '%' {
			i += 2
		}
		i++
	}
	return path[n:], raw[min(i, len(raw)):]
}

// copyEndToEnd copies the fields that go beyond the next hop (RFC 9110, section 7.6.1). Values are shared.
func copyEndToEnd(dst, src http.Header) {
	for name, values := range src {
		if !httpwire.Classify(name).Connectional() {
			dst[name] = values
		}
	}
	if listed := src["Connection"]; listed != nil {
		tokens(listed, func(name string) bool {
			delete(dst, http.CanonicalHeaderKey(name))
			return true
		})
	}
}

func join(values []string, next string) string {
	if len(values) == 0 {
		return next
	}
	return strings.Join(values, ", ") + ", " + next
}

// peerAddr parses "host:port"; the zero Addr stands for a peer without an IP address.
func peerAddr(remote string) netip.Addr {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}

func (h *Handler) trusts(addr netip.Addr) bool {
	for _, prefix := range h.cfg.TrustedProxies {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// via returns this proxy's element of a Via field, for a message received in that version.
func (p *passage) via(major, minor int) string {
	return string(httpwire.AppendVia(nil, major, minor, p.h.cfg.Via))
}

func (p *passage) addVia(header http.Header, major, minor int) {
	if p.h.cfg.Via != "" {
		header["Via"] = []string{join(header["Via"], p.via(major, minor))}
	}
}

func requestID(given []string) string {
	if len(given) == 1 && httpwire.ValidRequestID(given[0]) {
		return given[0]
	}
	return strconv.FormatUint(rand.Uint64()|1<<63, 16)
}

// upload is the client's body as the exchange reads it. It signals its end, enforces the idle limit and copies the
// trailers.
type upload struct {
	passage *passage
	idle    time.Duration
	n       atomic.Int64
	whole   atomic.Bool // read to its end: nothing of it remains on the client's connection
	once    sync.Once
	closed  chan struct{}

	mu    sync.Mutex // makes checking ended and setting a deadline atomic
	ended bool
}

// begin sets the deadline of a read, unless end has set the last one.
func (u *upload) begin() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.idle > 0 && !u.ended {
		_ = u.passage.rc().SetReadDeadline(time.Now().Add(u.idle)) // best effort, as for writes
	}
	return !u.ended
}

// end interrupts a running read and prevents others. An error means that the connection has no deadlines.
func (u *upload) end() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	return u.passage.rc().SetReadDeadline(time.Now())
}

func (u *upload) Read(b []byte) (int, error) {
	if !u.begin() {
		return 0, errAbandoned
	}
	n, err := u.passage.in.Body.Read(b)
	if u.n.Add(int64(n)) == u.passage.in.ContentLength || err == io.EOF {
		u.whole.Store(true)
	}
	if err == io.EOF && len(u.passage.in.Trailer) > 0 {
		if u.passage.out.Trailer == nil {
			u.passage.out.Trailer = http.Header{}
		}
		maps.Copy(u.passage.out.Trailer, u.passage.in.Trailer)
	}
	return n, err
}

// Close signals that no more reads follow. net/http closes the body itself.
func (u *upload) Close() error {
	u.once.Do(func() { close(u.closed) })
	return nil
}
