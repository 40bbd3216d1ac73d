package httpproxy

import (
	"bytes"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/identity"
)

const crlf = "\r\n"

// peer is the client's end of the connection of a session.
type peer struct {
	addr  netip.Addr // zero = the peer has no IP address
	port  uint16
	known bool
	text  string // the address as text; "unknown" without one
	cert  string // see clientCertField; "" = no verified certificate
}

// from returns the session's peer.
func (s *session) from() *peer {
	if p := &s.peer; !p.known {
		p.known, p.text = true, "unknown" // a Unix socket
		if ap := addrPort(s.lc.RemoteAddr()); ap.IsValid() {
			p.addr, p.port = ap.Addr().Unmap().WithZone(""), ap.Port()
			p.text = p.addr.String()
		}
	}
	return &s.peer
}

// addrPort returns an address without the detour over its text, if it is one of TCP; the zero AddrPort if it has no IP address.
func addrPort(a net.Addr) netip.AddrPort {
	if a, ok := a.(*net.TCPAddr); ok {
		return a.AddrPort()
	}
	ap, _ := netip.ParseAddrPort(a.String())
	return ap
}

// trusted reports whether the peer's fields about other clients are trusted.
func (s *session) trusted() bool {
	trusted := s.ex.target.trusted
	if len(trusted) == 0 {
		return false
	}
	for _, prefix := range trusted {
		if prefix.Contains(s.from().addr) {
			return true
		}
	}
	return false
}

// key returns the key for ring hashing: with Affinity its key, "" if the request has none; without Affinity the
// client's address as forwarded to the server. The key is valid as long as the exchange lasts.
func (s *session) key() string {
	if b := &s.ex.affinityKey; s.ex.target.affinity != nil {
		return view(b.hash[:b.size()])
	}
	if s.trusted() {
		for i := range s.req.Fields {
			if f := &s.req.Fields[i]; f.Known == httpwire.XForwardedFor {
				first, _, _ := strings.Cut(view(f.Value), ",")
				return strings.Clone(first)
			}
		}
	}
	return s.from().text
}

// appendRequest appends the request's head for the server (RFC 9112, section 3; RFC 9113, section 8.3.1): the
// end-to-end fields as they were written, then the fields that the proxy sets.
func (s *session) appendRequest(dst, raw []byte) []byte {
	return s.appendHead(dst, raw, s.place() != nil)
}

// appendHead is appendRequest; coded chooses HPACK for the session's place, and otherwise the text of HTTP/1.1.
func (s *session) appendHead(dst, raw []byte, coded bool) []byte {
	r, t := &s.req, s.ex.target
	w := headWriter{dst: dst, coded: coded}
	s.beginRequest(&w, raw)
	trace, upgrade := s.ex.trace, s.ex.tunnel
	received := httpwire.Prior{Trusted: s.trusted(), RFC: t.forwarded, Named: t.via != ""}
	for i := range r.Fields {
		f := &r.Fields[i]
		if trace != nil && !trace.passes(f) {
			continue
		}
		if f.Known == httpwire.Trailer && t.access != nil && !coded {
			continue // it may name trailers that are withheld; with HTTP/2 some servers take none that are not named
		}
		if r.Listed(f) || t.requestRules.drops(f.Name) || t.access != nil && t.access.withholds(f) {
			continue
		}
		if upgrade != nil && upgrade.withholds(f, w.coded) {
			continue
		}
		if isClientCert(f.Name) && !(received.Trusted && httpwire.EqualFold(f.Name, clientCertField)) {
			continue
		}
		if f.Known != httpwire.XRequestID && received.Passes(f) {
			t.requestRules.field(&w, f)
		}
	}
	s.appendForwarded(&w, &received)
	if t.access != nil {
		s.appendAccess(&w, t.access)
	}
	s.appendRequestVia(&w, received.Via, t.via)
	w.begin(requestIDField)
	w.dst = append(w.dst, s.ex.id...)
	w.end()
	if trace != nil && !t.requestRules.drops([]byte(traceParentField)) {
		trace.write(&w)
	}
	t.requestRules.write(&w, s)
	if upgrade != nil {
		upgrade.appendKey(&w)
	}
	s.appendConnection(&w)
	s.appendFraming(&w)
	return w.finish()
}

// beginRequest appends method, target and host.
func (s *session) beginRequest(w *headWriter, raw []byte) {
	if !w.coded {
		w.dst = append(w.dst, s.req.Method...)
		w.dst = append(w.dst, ' ')
		w.dst = s.appendTarget(w.dst, raw)
		w.dst = append(w.dst, " HTTP/1.1\r\nHost: "...)
		w.dst = s.appendHost(w.dst)
		w.end()
		return
	}
	w.dst = append(w.dst, emptyTable) // only the first head on a connection needs it: see h2Place.begin
	switch {
	case s.ex.tunnel != nil:
		w.line(":method", http.MethodConnect)
		w.line(":protocol", s.ex.tunnel.to)
	case string(s.req.Method) == http.MethodGet:
		w.dst = append(w.dst, indexed|methodGET)
	case string(s.req.Method) == http.MethodPost:
		w.dst = append(w.dst, indexed|methodPOST)
	default:
		w.begin(":method")
		w.dst = append(w.dst, s.req.Method...)
		w.end()
	}
	w.dst = append(w.dst, indexed|s.place().c.g.o.scheme)
	w.begin(":path")
	w.dst = s.appendTarget(w.dst, raw)
	w.end()
	w.begin(":authority")
	w.dst = s.appendHost(w.dst)
	w.end()
}

// appendHost appends the host. If a client of HTTP/1.0 names none, that is the server's address.
func (s *session) appendHost(dst []byte) []byte {
	endpoint := s.ex.result.Endpoint
	if rules := s.ex.target.requestRules; rules != nil && rules.host != nil {
		if set := rules.host.append(dst, s); httpwire.ValidHost(set[len(dst):]) {
			return set
		}
	}
	switch {
	case len(s.req.Host) > 0:
		return append(dst, s.req.Host...)
	case httpwire.ValidHost(endpoint):
		return append(dst, endpoint...)
	}
	return append(dst, "localhost"...) // the server is on a Unix socket
}

// appendConnection appends the fields about the connection to the server.
func (s *session) appendConnection(w *headWriter) {
	if w.coded && s.req.Trailers {
		w.line("TE", "trailers")
	}
	if w.coded {
		return
	}
	to := ""
	if s.ex.tunnel != nil {
		to = s.ex.tunnel.to
	}
	w.dst = httpwire.AppendConnection(w.dst, s.req.Trailers, to, false)
}

func appendField(dst []byte, f *httpwire.Field) []byte {
	dst = append(dst, f.Name...)
	dst = append(dst, ": "...)
	dst = append(dst, f.Value...)
	return append(dst, crlf...)
}

// clientFields are the fields about the client of one connection, as appendForwarded has written them for an HTTP/1.1
// server, or in HPACK.
type clientFields struct {
	target *target
	host   []byte // of the request
	lines  []byte
	coded  bool // lines are in HPACK
}

// maxClientFields bounds what is kept of them, in bytes.
const maxClientFields = 512

// appendForwarded appends the fields about the client. They are the same for most requests of a connection.
func (s *session) appendForwarded(w *headWriter, received *httpwire.Prior) {
	said, host := s.lastClient(), s.req.Host
	if said == nil || received.XFF != nil || received.Forwarded != nil || received.Host || received.Proto {
		s.writeForwarded(w, received)
		return
	}
	if said.target == s.ex.target && said.coded == w.coded && bytes.Equal(said.host, host) {
		w.dst = append(w.dst, said.lines...)
		return
	}
	start := len(w.dst)
	s.writeForwarded(w, received)
	if lines := w.dst[start:]; len(lines)+len(host) <= maxClientFields {
		*said = clientFields{s.ex.target, append(said.host[:0], host...), append(said.lines[:0], lines...), w.coded}
	}
}

// lastClient returns the fields of the client in its connection's last request; nil = another fiber may use them, or the
// connection may have only one request.
func (s *session) lastClient() *clientFields {
	switch {
	case s.ex.ahead.sent:
		return &s.stream.(*h2Stream).h.lastClient // of the calling fiber //nolint:forcetypeassert // nothing else is sent ahead
	case s.stream == nil && s.served:
		return &s.said
	}
	return nil
}

// writeForwarded is appendForwarded for a request that has such fields, or is the first.
func (s *session) writeForwarded(w *headWriter, received *httpwire.Prior) {
	p := s.from()
	proto := "http"
	if s.isTLS != nil {
		proto = "https"
	}
	if p.addr.IsValid() || received.XFF != nil {
		w.begin("X-Forwarded-For")
		w.dst = append(w.dst, received.XFF...)
		if p.addr.IsValid() {
			if received.XFF != nil {
				w.dst = append(w.dst, ", "...)
			}
			w.dst = append(w.dst, p.text...)
		}
		w.end()
	}
	if !received.Proto {
		w.line("X-Forwarded-Proto", proto)
	}
	if !received.Host && len(s.req.Host) > 0 {
		w.begin("X-Forwarded-Host")
		w.dst = append(w.dst, s.req.Host...)
		w.end()
	}
	if p.cert != "" && !s.trusted() { // the certificate of a trusted proxy is not its client's
		w.line("X-Forwarded-Client-Cert", p.cert)
	}
	if s.ex.target.forwarded {
		w.begin("Forwarded")
		w.dst = s.appendForwardedRFC(w.dst, received.Forwarded, proto)
		w.end()
	}
}

// appendForwardedRFC appends the value of Forwarded after the received value.
func (s *session) appendForwardedRFC(dst, before []byte, proto string) []byte {
	if before != nil {
		dst = append(dst, before...)
		dst = append(dst, ", "...)
	}
	return httpwire.AppendForwarded(dst, s.from().addr, proto, view(s.req.Host))
}

// appendRequestVia appends the Via field of the request after the received value.
func (s *session) appendRequestVia(w *headWriter, before []byte, name string) {
	if s.stream != nil {
		appendVia(w, before, s.stream.major(), 0, name)
		return
	}
	appendVia(w, before, 1, s.req.Minor, name)
}

// appendVia appends the Via field of a message received in that version of HTTP, after the received value.
func appendVia(w *headWriter, before []byte, major, minor int, name string) {
	if name == "" {
		return
	}
	w.begin("Via")
	if len(before) > 0 {
		w.dst = append(w.dst, before...)
		w.dst = append(w.dst, ", "...)
	}
	w.dst = httpwire.AppendVia(w.dst, major, minor, name)
	w.end()
}

// appendFraming appends the field that delimits the body, and Expect if the client waits for 100 Continue.
func (s *session) appendFraming(w *headWriter) {
	r := &s.req
	switch {
	case r.Length == httpwire.Chunked:
		w.connection("Transfer-Encoding: chunked\r\n")
	case r.Length > 0 || httpwire.StatesLength(r.Method):
		w.begin("Content-Length")
		w.dst = strconv.AppendInt(w.dst, max(r.Length, 0), 10)
		w.end()
	}
	if s.req.Expects() {
		w.line("Expect", "100-continue")
	}
}

// appendResponse appends the head of a response for the client.
func (s *session) appendResponse(dst []byte) []byte {
	r := &s.resp
	w := headWriter{dst: dst}
	if s.stream != nil {
		w = s.stream.head(dst)
	}
	w.status(r)
	via := s.ex.target.via
	bodiless := r.Status < 200 || r.Status == 204
	names := len(s.ex.target.groups) > 0 // add the name of the upstream, unless the server gives one
	var before []byte
	limits := s.ex.tokens.limits()
	announced, instead := s.altSvc(), s.p.carriers.value.Load() != nil // it replaces the server's own, for all clients
	for i := range r.Fields {
		f := &r.Fields[i]
		if !r.EndToEnd(f) || bodiless && f.Known == httpwire.ContentLength {
			continue // with a length some readers would wait for a body (RFC 9110, section 8.6)
		}
		if r.Status >= 200 && s.ex.target.responseRules.drops(f.Name) {
			continue
		}
		if f.Known == httpwire.Via && via != "" {
			before = httpwire.AppendJoined(before, f.Value)
			continue
		}
		if limits != nil && limits.replaces(f) || s.ex.target.cors.replaces(f) || s.ex.compression.rewrites(&w, f) || s.ex.target.reverse.rewrites(&w, s, f) || instead && httpwire.EqualFold(f.Name, altSvcName) {
			continue
		}
		names = names && !httpwire.EqualFold(f.Name, nodeField)
		s.ex.target.responseRules.field(&w, f)
	}
	if names && r.Status >= 200 && !s.ex.target.responseRules.drops([]byte(identity.Node)) {
		w.line(identity.Node, s.ex.target.name)
	}
	if s.place() != nil {
		appendVia(&w, before, 2, 0, via)
	} else {
		appendVia(&w, before, 1, r.Minor, via)
	}
	if r.Status < 200 {
		return w.finish()
	}
	if announced != "" && !s.ex.target.responseRules.drops([]byte(altSvcField)) {
		w.line(altSvcField, announced)
	}
	s.appendSetCookies(&w)
	if limits != nil {
		limits.write(&w, s.ex.target.responseRules)
	}
	s.ex.compression.write(&w)
	s.ex.target.cors.write(&w, &s.req, s.ex.target.responseRules)
	s.ex.target.responseRules.write(&w, s)
	if !r.HasDate && !s.ex.target.responseRules.drops([]byte("Date")) {
		w.line("Date", dateOf(s.now))
	}
	if r.Length < 0 && !s.ex.unframed {
		w.connection("Transfer-Encoding: chunked\r\n")
	}
	switch {
	case s.ex.close:
		w.connection("Connection: close\r\n")
	case s.req.Minor == 0:
		w.connection("Connection: keep-alive\r\n")
	}
	return w.finish()
}

// status appends the status line of a response, or its HTTP/2 form.
func (w *headWriter) status(r *httpwire.Response) {
	if w.coded {
		w.code(r.Status)
		return
	}
	w.dst = append(append(w.dst, "HTTP/1.1 "...), r.Reason...)
	if len(r.Reason) == len("200") {
		w.dst = append(w.dst, ' ') // required even without a reason phrase (RFC 9112, section 4)
	}
	w.dst = append(w.dst, crlf...)
}

// date is the value of a Date field, valid for one second.
type date struct {
	second int64
	value  string
}

var today atomic.Pointer[date]

// dateOf returns the Date for a response that has none (RFC 9110, section 6.6.1).
func dateOf(now time.Time) string {
	if d := today.Load(); d != nil && d.second == now.Unix() {
		return d.value
	}
	d := &date{now.Unix(), now.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")}
	today.Store(d)
	return d.value
}

// pathEnd returns the index where the query of a target begins, or the length of a target without a query.
func pathEnd(raw []byte) int {
	if q := bytes.IndexByte(raw, '?'); q >= 0 {
		return q
	}
	return len(raw)
}

// appendTarget appends the request's target for the server.
func (s *session) appendTarget(dst, raw []byte) []byte {
	t := s.ex.target
	if t.rewrite == nil || raw[0] != '/' { // not rewritten, or "*": OPTIONS for the whole server
		return t.appendTarget(dst, raw)
	}
	if c := s.ex.captured; c != nil {
		return append(append(dst, c.made...), raw[pathEnd(raw):]...)
	}
	return append(s.appendRewritten(dst), raw[pathEnd(raw):]...)
}

// appendRewritten appends the path that the route's Rewrite makes.
func (s *session) appendRewritten(dst []byte) []byte {
	start := len(dst)
	dst = s.ex.target.rewrite.append(dst, s)
	path := dst[start:]
	for len(path) > 1 && path[1] == '/' { // of "/{rest}": servers might take "//" for the start of a host
		path = path[1:]
	}
	return dst[:start+copy(dst[start:], path)]
}

// appendTarget appends the request's target without the prefix to strip.
func (t *target) appendTarget(dst, raw []byte) []byte {
	if t.strip == 0 {
		return append(dst, raw...)
	}
	query := pathEnd(raw)
	i := rawIndex(raw[:query], t.strip)
	if i == query || raw[i] != '/' {
		dst = append(dst, '/')
	}
	return append(dst, raw[i:]...)
}

// unescape decodes a path.
func unescape(path string) (string, error) { return url.PathUnescape(path) }
