package httpproxy_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/headpond/headpond/httpproxy"
)

// combineWant is an outcome that the model allows for a request.
type combineWant struct {
	own    string // whose answer it is: "" = try's server; upgrade = likewise; gateway, auth, preflight, respond or redirect
	status int
	try    int
	cut    bool // the answer breaks off
}

// combineNotes is what is known of a request whose client has got an answer, or has not.
type combineNotes struct {
	got  combineGot
	want combineWant
}

// outcomes are what may become of the request.
func (c *combined) outcomes() []combineWant {
	r := c.route
	gateway := func(status ...int) (all []combineWant) {
		for _, s := range status {
			all = append(all, combineWant{own: "gateway", status: s})
		}
		return all
	}
	switch {
	case c.tooLong() && !c.chunked:
		return gateway(http.StatusRequestEntityTooLarge)
	case r.denied:
		return gateway(http.StatusForbidden)
	case c.preflight && c.origin == combineOrigin:
		return []combineWant{{own: "preflight", status: http.StatusNoContent}}
	case c.preflight:
		return gateway(http.StatusForbidden)
	case r.auth == "forward" && c.credential == "down":
		return gateway(http.StatusServiceUnavailable)
	case r.auth == "forward" && c.credential != "right" && !c.grpc:
		return []combineWant{{own: "auth", status: http.StatusUnauthorized}}
	case c.hasty && r.checksLogin() && c.credential != "right":
		return gateway(http.StatusUnauthorized, http.StatusServiceUnavailable)
	case r.auth != "" && c.credential != "right":
		return gateway(http.StatusUnauthorized)
	}
	var all []combineWant
	switch {
	case r.own == "redirect":
		all = []combineWant{{own: "redirect", status: r.Redirect.Status}}
	case r.own == "respond":
		all = []combineWant{{own: "respond", status: r.Respond.Status}}
	default:
		all = c.tried(0, 1, true)
	}
	if c.tooLong() { // in chunks: it is known to be only later
		all = append(all, gateway(http.StatusRequestEntityTooLarge)...)
	}
	if c.hasty && r.checksLogin() {
		all = append(all, gateway(http.StatusServiceUnavailable)...)
	}
	if r.slow || c.hasty {
		all = append(all, gateway(http.StatusGatewayTimeout)...)
	}
	if c.hasty { // the time may pass in the middle of an answer
		for _, want := range all {
			if want.cut = true; want.own == "" {
				all = append(all, want)
			}
		}
	}
	if r.limit > 0 {
		all = append(all, gateway(http.StatusTooManyRequests)...)
	}
	return all
}

// checksLogin reports whether the check of a login takes time, which a request may not have.
func (r *combineRoute) checksLogin() bool { return r.auth == "forward" || r.auth == "basic" }

func (c *combined) tooLong() bool {
	return c.route.MaxBody > 0 && c.route.own == "" && int64(len(c.body)) > c.route.MaxBody
}

// tried are the outcomes from try n on, which is the counted attempt of that number. stale says that the try may be on a
// connection that had been idle, after whose end the next try does not count.
func (c *combined) tried(n, attempt int, stale bool) (all []combineWant) {
	r, try := c.route, c.try(n)
	again := func(f httpproxy.Failure) bool { return r.retriesOn(f) && c.repeats() && attempt < r.attempts() }
	kept := len(c.body) <= 8<<10 // longer ones may be
	failed := combineWant{own: "gateway", status: http.StatusBadGateway}
	if c.switches() && c.serverName() == "coded" { // which knows no extended CONNECT
		return []combineWant{failed}
	}
	if c.upgrades(try) {
		return []combineWant{{own: "upgrade", status: http.StatusSwitchingProtocols, try: n}}
	}
	hurried := r.slow || c.hasty // there may be no time left for another try
	switch {
	case try.gaveBack():
		if all = c.tried(n+1, attempt, stale); !kept || hurried {
			all = append(all, failed)
		}
		return all
	case try.fault == "stall":
		return []combineWant{{own: "gateway", status: http.StatusGatewayTimeout}}
	case try.fault == "reset" || try.fault == "close":
		if stale && c.isIdempotent() && !c.codedServer() {
			all = append(all, c.tried(n+1, attempt, false)...)
		}
		if again(httpproxy.FailedReset) {
			all = append(all, c.tried(n+1, attempt+1, true)...)
		}
		if !kept || hurried || !again(httpproxy.FailedReset) {
			all = append(all, failed)
		}
		return all
	case try.status >= 502 && try.status <= 504 && again(httpproxy.Failure(strconv.Itoa(try.status))):
		if all = c.tried(n+1, attempt+1, true); kept && !hurried {
			return all
		}
	}
	if !kept && c.serverName() == "framed" { // whose GOAWAY may be for any request
		all = append(all, failed)
	}
	cut := try.fault == "cut" && c.method != http.MethodHead && !try.bodiless() && !c.paged(try.status, true)
	if c.tooLong() && try.duplex { // the answer may have begun when it becomes known
		all = append(all, combineWant{status: try.status, try: n, cut: true})
	}
	return append(all, combineWant{status: try.status, try: n, cut: cut})
}

func (c *combined) codedServer() bool {
	return c.serverName() == "coded" || c.serverName() == "framed"
}

// paged reports whether an answer with the status has an error page; server: it is a server's.
func (c *combined) paged(status int, server bool) bool {
	if c.grpc || c.switches() && server {
		return false
	}
	for _, p := range c.route.ErrorPages {
		if status/100 == p.Statuses[0] && (!server || p.Of == httpproxy.PageOfBoth) {
			return !c.wantsJSON
		}
	}
	return false
}

// settle compares an answer with the model.
func (r *combineRound) settle(c *combined, got combineGot) {
	if c.gives {
		return
	}
	wants := c.outcomes()
	var first string
	for _, want := range wants {
		wrong := c.compare(want, got)
		if wrong == "" {
			c.mu.Lock()
			c.note(want, got)
			c.mu.Unlock()
			r.count(c, want)
			return
		}
		if first == "" || want.status == got.status {
			first = wrong
		}
	}
	r.failed(c, "%s\n\tstatus %d, %v, %d bytes %.80q, trailers %v, error %v, nothing=%t, wanted %+v", first, got.status, got.header, len(got.body), got.body, got.trailer, got.err, got.nothing, wants)
}

func (c *combined) note(want combineWant, got combineGot) {
	c.notes = &combineNotes{got, want}
}

// unanswered is for a request behind one after whose answer the connection has ended.
func (r *combineRound) unanswered(c *combined) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsent = true
}

// count counts an answer for the limits.
func (r *combineRound) count(c *combined, want combineWant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.route.limit == 0 || want.own == "auth" || want.own == "preflight" || want.own == "gateway" && slices.Contains([]int{401, 403, 503}, want.status) || c.tooLong() && !c.chunked {
		return
	}
	name := c.route.prefix + " " + c.bucket + " " + c.serverName()
	b := r.buckets[name]
	if b == nil {
		b = &combineBucket{limit: c.route.limit}
		r.buckets[name] = b
	}
	if want.status == http.StatusTooManyRequests {
		b.refused++
	} else {
		b.admitted++
	}
}

// compare tells how an answer differs from an outcome; "" = it does not.
func (c *combined) compare(want combineWant, got combineGot) string {
	if got.nothing {
		if want.cut && !c.hasty {
			return "" // the head may be lost with the connection
		}
		return fmt.Sprintf("no answer after %v", got.took)
	}
	if want.own == "upgrade" {
		return c.compareUpgrade(want, got)
	}
	status, broken := want.status, want.cut && !c.told(want)
	if c.grpc && want.own == "gateway" {
		status = http.StatusOK
	}
	if got.status != status {
		return fmt.Sprintf("status %d instead of %d", got.status, status)
	}
	if broken != (got.err != nil) {
		return fmt.Sprintf("broken off: %t, error %v", broken, got.err)
	}
	if c.upgrade != "" && c.proto == 11 && !got.closes {
		return "the connection goes on after an upgrade that was refused or left out"
	}
	if n := len(got.header["Date"]); n != 1 {
		return fmt.Sprintf("%d Date fields", n)
	}
	for _, name := range []string{"X-Hop", "Keep-Alive", "Transfer-Encoding", "Proxy-Connection"} {
		if got.header[name] != nil {
			return "a field about another connection: " + name
		}
	}
	if wrong := c.compareLength(want, got); wrong != "" {
		return wrong
	}
	if wrong := c.compareCORS(want, got); wrong != "" {
		return wrong
	}
	if want.own != "" {
		return c.compareOwn(want, got)
	}
	return c.compareServers(want, got)
}

// told reports whether the client is told by trailers that the answer breaks off.
func (c *combined) told(want combineWant) bool {
	return c.grpc && want.own == "" && (c.try(want.try).framing == "chunks" || c.codedServer())
}

// combineCalls are the statuses that calls have in place of HTTP's.
var combineCalls = map[int]string{401: "16", 403: "7", 413: "8", 429: "14", 502: "14", 503: "14", 504: "4"}

// compareCall is for the gateway's errors of calls.
func (c *combined) compareCall(want combineWant, got combineGot) string {
	h := got.header
	again := want.status == http.StatusTooManyRequests || want.status == http.StatusServiceUnavailable
	if h.Get("Grpc-Status") != combineCalls[want.status] || h.Get("Grpc-Message") == "" || (h.Get("Grpc-Retry-Pushback-Ms") != "") != again || h.Get("Content-Type") != "application/grpc" {
		return "not the gateway's error of a call"
	}
	return ""
}

// compareBroken is for the end of a call whose answer breaks off, and whose client is told.
func (c *combined) compareBroken(got combineGot) string {
	code := combineCalls[http.StatusBadGateway]
	if c.tooLong() {
		code = combineCalls[http.StatusRequestEntityTooLarge]
	}
	call := got.trailer.Get("Grpc-Status")
	if call != code && !(c.hasty && call == combineCalls[http.StatusGatewayTimeout]) || got.trailer.Get("Grpc-Message") == "" || got.trailer.Get("X-End") != "" {
		return fmt.Sprintf("the broken call has the trailers %v", got.trailer)
	}
	return ""
}

// compareLength checks Content-Length.
func (c *combined) compareLength(want combineWant, got combineGot) string {
	lengths := got.header["Content-Length"]
	switch {
	case len(lengths) > 1:
		return fmt.Sprintf("Content-Length %q", lengths)
	case len(lengths) == 0 || want.cut || c.method == http.MethodHead || got.status == http.StatusNotModified:
		return ""
	case got.status == http.StatusNoContent:
		return "a length with 204"
	case lengths[0] != strconv.Itoa(len(got.body)):
		return fmt.Sprintf("length %s, %d bytes", lengths[0], len(got.body))
	}
	return ""
}

func (c *combined) compareCORS(want combineWant, got combineGot) string {
	allowed, varies := []string(nil), false
	if want.own == "" {
		allowed = []string{"*"}
	}
	if cors := c.route.CORS; cors != nil {
		if allowed, varies = nil, true; c.origin == combineOrigin {
			allowed = []string{combineOrigin}
		}
	} else if want.own == "auth" {
		allowed = []string{"*"}
	}
	if got := got.header["Access-Control-Allow-Origin"]; !slices.Equal(got, allowed) {
		return fmt.Sprintf("Access-Control-Allow-Origin %q instead of %q", got, allowed)
	}
	if varies != hasItem(got.header, "Vary", "Origin") {
		return fmt.Sprintf("Vary %q with cors %t", got.header["Vary"], varies)
	}
	return ""
}

// hasItem reports whether a field lists a value.
func hasItem(h http.Header, name, value string) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(h[name], ","), ","), func(item string) bool { return strings.EqualFold(strings.TrimSpace(item), value) })
}

// compareOwn is for answers of the gateway.
func (c *combined) compareOwn(want combineWant, got combineGot) string {
	h, r := got.header, c.route
	if h.Get("X-Server") != "" || h.Get("Content-Encoding") != "" || len(got.trailer) > 0 {
		return "something of a server in the gateway's answer"
	}
	ruled := r.rules && (want.own == "respond" || want.own == "redirect")
	if wrong := c.compareRules(ruled, got, nil); wrong != "" {
		return wrong
	}
	body := ""
	switch page := fmt.Sprintf("page %d %s", want.status, c.tag); {
	case c.grpc && want.own == "gateway":
		if wrong := c.compareCall(want, got); wrong != "" {
			return wrong
		}
	case want.own == "auth":
		if body = "log in, " + c.tag; h.Get("X-From") != "auth" {
			return "not the authentication server's answer"
		}
	case want.own == "respond" && (r.Respond.Body != "" || want.status < 400 || len(r.ErrorPages) == 0):
		body = r.Respond.Body
	case want.own == "respond":
		body = page
	case want.own == "redirect":
		if to := "https://" + combineHost + "/to" + c.rest + c.query; h.Get("Location") != to {
			return fmt.Sprintf("Location %q instead of %q", h.Get("Location"), to)
		}
	case want.own == "preflight":
	case want.status == http.StatusUnauthorized && r.BearerAuth != nil && r.LLM != nil: // as OpenAI's errors
		if body = string(got.body); !strings.Contains(body, "invalid_request_error") && c.method != http.MethodHead {
			return "not in the form of OpenAI's errors"
		}
	case c.paged(want.status, false):
		body = page
	case c.method == http.MethodHead:
	case c.wantsJSON:
		if !bytes.HasPrefix(got.body, []byte(`{`)) || !strings.HasPrefix(h.Get("Content-Type"), "application/json") {
			return fmt.Sprintf("no JSON: %.60q", got.body)
		}
		body = string(got.body)
	default:
		if body = string(got.body); !strings.HasPrefix(body, fmt.Sprintf("%d %s: ", want.status, http.StatusText(want.status))) {
			return "not the gateway's error"
		}
	}
	if c.method == http.MethodHead {
		body = ""
	}
	if string(got.body) != body {
		return fmt.Sprintf("not %.60q", body)
	}
	if want.own != "gateway" {
		return ""
	}
	again := want.status == http.StatusTooManyRequests || want.status == http.StatusServiceUnavailable
	asks := want.status == http.StatusUnauthorized && r.auth != "forward" // whose server says how to log in
	if again != (h.Get("Retry-After") != "") || asks != (h.Get("Www-Authenticate") != "") {
		return "Retry-After or WWW-Authenticate"
	}
	return ""
}

// compareRules checks the header rules of answers; server are the values of a server, nil = there is none.
func (c *combined) compareRules(ruled bool, got combineGot, server []string) string {
	out, more, secret := server, server, server
	if server != nil {
		secret = []string{"s"}
	}
	if ruled {
		out, more, secret = []string{c.tag + " " + c.method}, append(slices.Clone(server), "m"), nil
	}
	for name, want := range map[string][]string{"X-Out": out, "X-More": more, "X-Secret": secret} {
		if !slices.Equal(got.header[name], want) {
			return fmt.Sprintf("%s %q instead of %q", name, got.header[name], want)
		}
	}
	return ""
}

// combineEncodings are what the values of Accept-Encoding allow, the best first, where both are the same.
var combineEncodings = map[string]string{
	"": "", "gzip": "gzip", "zstd": "zstd", "gzip, zstd": "gzip zstd", "gzip;q=1.0, zstd;q=0.5": "gzip zstd", "br": "", "*": "gzip zstd", "identity, gzip;q=0.5": "", "gzip;q=0": "",
}

// encoding is the encoding of the answer to a try; varies: Vary says that it depends on the client.
func (c *combined) encoding(try *combineTry) (encoding string, varies bool) {
	z := c.route.Compression
	if z == nil || c.paged(try.status, true) {
		return "", false
	}
	if try.status == http.StatusNotModified {
		return "", c.weakened(try) && try.vary != "accept-encoding"
	}
	types := strings.HasPrefix(try.media, "text/") || try.media == "application/json"
	if try.status == 204 || try.status == 206 || !types || try.coded || try.checksum || try.control != "" {
		return "", false
	}
	varies = try.vary != "accept-encoding"
	least := int(z.MinBytes)
	if least == 0 {
		least = httpproxy.DefaultMinCompressed
	}
	if c.proto == 10 || try.framing == "length" && try.size < least {
		return "", varies
	}
	allowed := z.Encodings
	if len(allowed) == 0 {
		allowed = httpproxy.Compressions()
	}
	accepts := combineEncodings[c.accept]
	if strings.Contains(c.accept, "q=0.5") && accepts != "" { // the client has an order
		allowed = slices.DeleteFunc(strings.Fields(accepts), func(e string) bool { return !slices.Contains(allowed, e) })
	}
	for _, e := range allowed {
		if slices.Contains(strings.Fields(accepts), e) {
			return e, varies
		}
	}
	return "", varies
}

// weakened reports whether a client asks about the weak ETag of a compressed answer.
func (c *combined) weakened(try *combineTry) bool {
	return try.etag == `"e"` && c.asksFor == `W/"e"`
}

// compareServers is for the answer of a server.
func (c *combined) compareServers(want combineWant, got combineGot) string {
	try, h := c.try(want.try), got.header
	if !slices.Equal(h["X-Tag"], []string{c.tag}) {
		return fmt.Sprintf("the answer to %q", h["X-Tag"])
	}
	if got := h.Get("X-Try"); got != strconv.Itoa(want.try) {
		return fmt.Sprintf("the answer to try %s", got)
	}
	if h.Get("X-Server") != c.serverName() {
		return fmt.Sprintf("the answer of %s instead of %s", h.Get("X-Server"), c.serverName())
	}
	if wrong := c.compareRules(c.route.rules, got, []string{"server"}); wrong != "" {
		return wrong
	}
	if wrong := c.compareContent(want, try, got); wrong != "" {
		return wrong
	}
	encoding, varies := c.encoding(try)
	etag, paged := try.etag, c.paged(try.status, true)
	switch {
	case paged:
		etag = ""
	case try.etag == `"e"` && (encoding != "" || c.route.Compression != nil && try.status == http.StatusNotModified && c.weakened(try)):
		etag = `W/"e"`
	}
	if h.Get("Etag") != etag || len(h["Etag"]) > 1 {
		return fmt.Sprintf("ETag %q instead of %q", h["Etag"], etag)
	}
	if varies = varies || try.vary == "accept-encoding"; varies != hasItem(h, "Vary", "Accept-Encoding") {
		return fmt.Sprintf("Vary %q, it varies: %t", h["Vary"], varies)
	}
	cookies := []string{"own=1"}
	if n := len(h["Set-Cookie"]); !slices.Equal(h["Set-Cookie"][:1], cookies) || n != 1+c.cookies() {
		return fmt.Sprintf("Set-Cookie %q", h["Set-Cookie"])
	}
	interims := c.hints(want.try + 1)
	if c.expects && c.proto == 20 {
		interims = got.interims // 100 is among them
	}
	if got.interims != interims {
		return fmt.Sprintf("%d interim answers instead of %d", got.interims, interims)
	}
	return ""
}

// hints is how many interim answers the client gets to the first tries.
func (c *combined) hints(tries int) (n int) {
	for i := range tries {
		if try := c.try(i); c.proto != 10 && try.fault != "reset" && try.fault != "close" && !try.gaveBack() {
			n += try.interims
		}
	}
	return n
}

// compareContent checks the content of a server's answer, its coding, length and trailers.
func (c *combined) compareContent(want combineWant, try *combineTry, got combineGot) string {
	content, h := c.content(want.try), got.header
	encoding, _ := c.encoding(try)
	paged := c.paged(try.status, true)
	if paged {
		content = fmt.Appendf(nil, "page %d %s", try.status, c.tag)
	}
	length := strconv.Itoa(len(content))
	if try.bodiless() || c.method == http.MethodHead {
		content = nil
	}
	coding := encoding
	if try.coded && !paged {
		coding = "br"
	}
	if h.Get("Content-Encoding") != coding {
		return fmt.Sprintf("Content-Encoding %q instead of %q", h.Get("Content-Encoding"), coding)
	}
	stated := try.framing == "length" && encoding == "" && try.status != http.StatusNoContent || paged
	if c.grpc && c.codedServer() { // such an answer may have trailers
		stated = false
	}
	if weak := try.status == http.StatusNotModified && c.route.Compression != nil && c.weakened(try); weak {
		stated = false
	}
	if got := h.Get("Content-Length"); stated && got != length || !stated && got != "" && !(try.status == 304 || c.proto == 20 && try.size == 0) {
		return fmt.Sprintf("Content-Length %q, it is stated: %t", got, stated)
	}
	body := got.body
	if encoding != "" && c.method != http.MethodHead && !want.cut {
		var err error
		if body, err = uncoded(encoding, body); err != nil {
			return fmt.Sprintf("decoding %s: %v", encoding, err)
		}
	}
	if want.cut {
		if encoding == "" && !bytes.HasPrefix(content, body) {
			return "another beginning of the content"
		}
		if c.told(want) {
			return c.compareBroken(got)
		}
		return ""
	}
	if !bytes.Equal(body, content) {
		return fmt.Sprintf("%d bytes instead of %d", len(body), len(content))
	}
	end, secret := "", ""
	if try.trailers && c.proto != 10 && !paged && !try.bodiless() && c.method != http.MethodHead {
		if end = c.tag; !c.route.rules {
			secret = "s"
		}
	}
	if call := got.trailer.Get("Grpc-Status"); c.grpc && call != map[bool]string{true: combineCall}[end != ""] {
		return fmt.Sprintf("the call has the status %q", call)
	}
	if got.trailer.Get("X-End") != end || got.trailer.Get("X-Secret") != secret {
		return fmt.Sprintf("trailers %v instead of %q %q", got.trailer, end, secret)
	}
	return ""
}

// cookies is how many cookies the gateway sets.
func (c *combined) cookies() (n int) {
	if c.route.Affinity.SetCookie {
		n++
	}
	if c.route.Canary.SetCookie && c.serverName() != "big" {
		n++
	}
	return n
}

// uncoded is content without its encoding.
func uncoded(encoding string, body []byte) ([]byte, error) {
	if encoding == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(z)
	}
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	return z.DecodeAll(body, nil)
}

// partial reports whether the answer may be over before the body is.
func (c *combined) partial(try *combineTry) bool { return try.fault == "early" || c.tooLong() }

// served reports whether the answer is a server's.
func (w *combineWant) served() bool { return w.own == "" || w.own == "upgrade" }

// handled is how often servers may have acted on the request.
func (c *combined) handled() (n int) {
	for i := range c.seen {
		if !c.try(i).gaveBack() {
			n++
		}
	}
	return n
}

// checkEnd checks what is left of a request when all are over.
func (r *combineRound) checkEnd(c *combined, lines []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.notes
	switch {
	case n == nil && c.unsent:
		if c.seen > 0 || len(lines) > 0 {
			r.failed(c, "it had no answer, and was seen %d times, with the lines %q", c.seen, lines)
		}
		return
	case n == nil: // its client has left, or has failed
		if len(lines) > 1 || c.handled() > 1 && !c.repeats() && !c.isIdempotent() {
			r.failed(c, "seen %d times, with the lines %q", c.seen, lines)
		}
		return
	case n.want.served() && c.seen != n.want.try+1, !n.want.served() && n.want.own != "gateway" && c.seen > 0:
		r.failed(c, "seen %d times for %+v", c.seen, n.want)
	case n.want.own == "gateway" && c.seen > 0 && slices.Contains([]int{401, 403, 429}, n.want.status):
		r.failed(c, "refused, and seen %d times", c.seen)
	}
	if want := c.route.mirrored && !c.grpc && c.upgrade == "" && n.want.own == "" && !c.partial(c.try(n.want.try)); want && c.copies != 1 || c.copies > 1 || (!c.route.mirrored || c.tooLong()) && c.copies > 0 {
		r.failed(c, "%d copies", c.copies)
	}
	if len(lines) != 1 {
		r.failed(c, "%d lines in the log: %q", len(lines), lines)
		return
	}
	r.checkLine(c, n, lines[0])
}

// checkLine checks the line of a request in the access log.
func (r *combineRound) checkLine(c *combined, n *combineNotes, line string) {
	f := strings.Split(line, "|")
	status, in, out, retries, proto, method, path, user, reason, id := f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9]
	bad := func(format string, args ...any) {
		r.failed(c, "the log has "+format+"\n\t%s\n\t%+v", append(args, line, n.want)...)
	}
	if status != strconv.Itoa(n.want.status) {
		bad("status %s instead of %d", status, n.want.status)
	}
	if want := strconv.Itoa(len(n.got.body)); !n.want.cut && out != want && !(n.got.nothing) {
		bad("%s bytes out instead of %s", out, want)
	}
	if n.want.own == "" && !c.partial(c.try(n.want.try)) && !(n.want.cut && c.hasty) && in != strconv.Itoa(len(c.body)) && !(in == "-" && len(c.body) == 0) {
		bad("%s bytes in instead of %d", in, len(c.body))
	}
	if n.want.own == "upgrade" && in != strconv.Itoa(len(c.said)) {
		bad("%s bytes in instead of %d", in, len(c.said))
	}
	if got, _ := strconv.Atoi(retries); n.want.served() && got < c.seen-1 {
		bad("%s retries instead of %d", retries, c.seen-1)
	}
	if want := map[int]string{10: "HTTP/1.0", 11: "HTTP/1.1", 20: "HTTP/2.0"}[c.proto]; proto != want || method != c.method || path != c.route.prefix+c.rest {
		bad("%s %s %s", proto, method, path)
	}
	want := "-"
	if n.want.served() && (c.route.BasicAuth != nil || c.route.BearerAuth != nil) {
		want = c.route.user
	}
	if n.want.served() && user != want {
		bad("the user %s", user)
	}
	if id != c.tag {
		bad("the id %s", id)
	}
	late := c.hasty && reason == "timeout" // it ended when the last part had been handed over, and so came whole
	if failed := n.want.cut; n.want.own == "" && failed != (reason != "-") && !(late && !failed) {
		bad("the reason %s", reason)
	}
}

// checkCounters compares the counters of requests with the lines of the log.
func (r *combineRound) checkCounters(lines map[string][]string) {
	logged, got := map[string]float64{}, map[string]float64{}
	for tag, all := range lines {
		for _, line := range all {
			if tag != "-" { // a head that did not come whole
				logged[line[:1]+"xx"]++
			}
		}
	}
	for name, n := range counted(r.proxy.Stats().Traffic[0]) {
		if route, class, ok := strings.Cut(name, " http_requests_total "); ok && route != combineWarm {
			got[class] += n
		}
	}
	if !maps.Equal(logged, got) {
		r.t.Errorf("requests by the log: %v, by the counters: %v", logged, got)
	}
}
