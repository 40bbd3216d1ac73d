package httppool

import (
	"context"
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

// outgoing makes the request for the server out of the client's. The client's is not changed; header values that stay
// as they are are shared with it.
func (p *passage) outgoing(ctx context.Context) {
	in := p.in
	out := in.WithContext(ctx)
	p.out = out
	out.URL = p.h.rewrite(in.URL)
	out.RequestURI, out.Close, out.Trailer, out.GetBody = "", false, nil, nil
	if p.h.cfg.TargetHost {
		out.Host = p.h.target.Host
	}
	upgrade := p.passableUpgrade()
	out.Header = make(http.Header, len(in.Header)+6)
	copyEndToEnd(out.Header, in.Header)
	if hasToken(in.Header["Te"], "trailers") {
		out.Header["Te"] = []string{"trailers"}
	}
	if upgrade != "" {
		out.Header["Connection"], out.Header["Upgrade"] = []string{"Upgrade"}, []string{upgrade}
	}
	p.addForwarded(out.Header)
	p.addVia(out.Header, in.ProtoMajor, in.ProtoMinor)
	if p.id != "" {
		out.Header[p.h.cfg.RequestID] = []string{p.id}
	}
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
	_ = p.rc.EnableFullDuplex() // fails where there is no such limit
}

// passableUpgrade returns the protocol the client wants to change to, "" for none and for those that do not pass.
func (p *passage) passableUpgrade() string {
	proto := upgradeOf(p.in.Header)
	if proto == "" || p.in.ProtoMajor != 1 || p.in.ContentLength != 0 || p.in.Method != http.MethodGet {
		return ""
	}
	pass := true
	tokens([]string{proto}, func(t string) bool {
		name, _, _ := strings.Cut(strings.ToLower(t), "/")
		pass = name != "h2c" && name != "h2" && name != "http" && name != "tls"
		return pass
	})
	if !pass {
		return ""
	}
	return proto
}

// rewrite puts the target's base before the path, less the prefix to strip.
func (h *Handler) rewrite(u *url.URL) *url.URL {
	to := *h.target
	path, raw := u.Path, u.RawPath
	if h.cfg.StripPrefix != "" {
		path, raw = stripPrefix(path, raw, len(strings.TrimSuffix(h.cfg.StripPrefix, "/")))
	}
	if path == "*" && to.Path == "" { // OPTIONS *
		to.Path = path
		to.Opaque = ""
		return &to
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
	return &to
}

// stripPrefix takes n bytes off the decoded path and what stands for them off the encoded one.
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
		if !hopByHop(name) {
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

// hopByHop names the fields of one connection. name is canonical.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
		"Proxy-Authentication-Info", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings":
		return true
	}
	return false
}

// addForwarded tells the server who asked. Fields from peers that are not trusted are dropped first, all of them:
// a server may believe one this proxy does not set.
func (p *passage) addForwarded(header http.Header) {
	addr := peerAddr(p.in.RemoteAddr)
	if !p.h.trusts(addr) {
		for name := range header {
			if strings.HasPrefix(name, "X-Forwarded-") || name == "Forwarded" || name == "X-Real-Ip" {
				delete(header, name)
			}
		}
	}
	proto := "http"
	if p.in.TLS != nil {
		proto = "https"
	}
	client := "unknown" // a Unix socket's
	if addr.IsValid() {
		client = addr.String()
		header["X-Forwarded-For"] = []string{join(header["X-Forwarded-For"], client)}
	}
	if header["X-Forwarded-Proto"] == nil {
		header["X-Forwarded-Proto"] = []string{proto}
	}
	if header["X-Forwarded-Host"] == nil && p.in.Host != "" {
		header["X-Forwarded-Host"] = []string{p.in.Host}
	}
	if p.h.cfg.Forwarded {
		header["Forwarded"] = []string{join(header["Forwarded"], forwardedElement(addr, client, proto, p.in.Host))}
	}
}

func forwardedElement(addr netip.Addr, client, proto, host string) string {
	if addr.Is6() {
		client = `"[` + client + `]"`
	}
	e := "for=" + client + ";proto=" + proto
	if host != "" && httpwire.ValidHost(host) { // holds no quote or backslash
		e += `;host="` + host + `"`
	}
	return e
}

func join(values []string, next string) string {
	if len(values) == 0 {
		return next
	}
	return strings.Join(values, ", ") + ", " + next
}

// peerAddr reads "host:port"; the zero Addr stands for a peer without an IP address.
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

func (p *passage) addVia(header http.Header, major, minor int) {
	if p.h.cfg.Via == "" {
		return
	}
	version := strconv.Itoa(major) + "." + strconv.Itoa(minor)
	header["Via"] = []string{join(header["Via"], version+" "+p.h.cfg.Via)}
}

// maxRequestID bounds the id a client may choose: it goes into logs.
const maxRequestID = 128

func requestID(given []string) string {
	if len(given) == 1 && len(given[0]) <= maxRequestID && httpwire.ValidToken(given[0]) {
		return given[0]
	}
	return strconv.FormatUint(rand.Uint64()|1<<63, 16)
}

// upload is the client's body as the exchange reads it. It tells when the exchange is done with it, keeps the idle
// limit and brings the trailers over.
type upload struct {
	passage *passage
	idle    time.Duration
	n       atomic.Int64
	whole   atomic.Bool // read to its end: nothing of it is left on the client's connection
	once    sync.Once
	closed  chan struct{}

	mu    sync.Mutex // makes one step of looking at ended and setting a deadline
	ended bool
}

// begin sets the deadline of a read, unless the passage has ended: its deadline must not be put off.
func (u *upload) begin() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.idle > 0 && !u.ended {
		_ = u.passage.rc.SetReadDeadline(time.Now().Add(u.idle)) // best effort, as for writes
	}
	return !u.ended
}

// end wakes a read under way and lets no other begin. Its error says that the connection knows no deadlines.
func (u *upload) end() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	return u.passage.rc.SetReadDeadline(time.Now())
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

// Close says that nobody will read any more. The server closes the body itself.
func (u *upload) Close() error {
	u.once.Do(func() { close(u.closed) })
	return nil
}
