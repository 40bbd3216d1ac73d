package httpproxy_test

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-jose/go-jose/v4"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// combineServers are the servers of a round.
type combineServers struct {
	round             *combineRound
	upstreams         map[string]*httpproxy.Upstream
	big, mirror, auth *httpproxy.Upstream
	users             *httpproxy.Users
	keys              *httpproxy.APIKeys
	issuer            issuer
}

// combineKey is the key of the user ann, and combinePassword that of bob.
const combinePassword = "secret"

var combineKey string

// combineToken is a token of the user ann.
var combineToken string

func newCombineServers(r *combineRound) *combineServers {
	s := &combineServers{round: r, upstreams: map[string]*httpproxy.Upstream{}}
	settings := upstream.Settings{Limits: pool.Limits{MaxSize: 24, AcquireTimeout: patience}, Balance: upstream.RingHash, Ejection: upstream.Ejection{Failures: -1}}
	text := func(name string) string {
		return serveRaw(r.t, func(c net.Conn) { s.serve(c.(*net.TCPConn), name) })
	}
	make1 := func(name string, addresses ...string) *httpproxy.Upstream {
		u := newUpstreamWith(r.t, httpproxy.UpstreamOptions{Settings: settings}, addresses...)
		s.upstreams[name] = u
		return u
	}
	make1("one", text("one"))
	make1("two", text("two"), text("two"))
	s.big = make1("big", text("big"))
	s.mirror = make1("mirror", serveHTTP(r.t, s.copied))
	s.auth = make1("auth", serveHTTP(r.t, s.authenticate))
	coded := serveHTTP2(r.t, s.serveCoded)
	s.upstreams["coded"] = newUpstreamWith(r.t, httpproxy.UpstreamOptions{Settings: settings, Protocol: httpproxy.ProtocolH2C}, coded.addr)
	s.upstreams["framed"] = newUpstreamWith(r.t, httpproxy.UpstreamOptions{Settings: settings, Protocol: httpproxy.ProtocolH2C}, s.serveFramed())
	s.users, _ = fileOfUsers(r.t, slog.New(slog.DiscardHandler), htpasswd(r.t, "bob", combinePassword))
	key, line, err := httpproxy.NewAPIKey("ann")
	if err != nil {
		r.t.Fatal(err)
	}
	combineKey = key
	_, signer, err := ed25519.GenerateKey(nil)
	if err != nil {
		r.t.Fatal(err)
	}
	s.issuer.add(r.t, "ed", signer)
	combineToken = signed(r.t, jose.EdDSA, "ed", signer, nil)
	s.keys, _ = fileOfKeys(r.t, &conntest.Log{}, line+"\n")
	return s
}

// authenticate is the authentication server.
func (s *combineServers) authenticate(w http.ResponseWriter, req *http.Request) {
	c := s.round.find(req.Header.Get("X-Tag"))
	if c == nil {
		return
	}
	c.mu.Lock()
	c.asked++
	c.mu.Unlock()
	if got := req.Header.Get("X-Forwarded-Method"); got != c.method || req.Method != http.MethodGet {
		s.round.failed(c, "the authentication server is asked by %s about %s", req.Method, got)
	}
	switch c.credential {
	case "right":
		w.Header().Set("X-User", "fay")
		w.Header().Set("Set-Cookie", "auth=1")
	case "down":
		panic(http.ErrAbortHandler)
	default:
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("X-From", "auth")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, "log in, "+c.tag)
	}
}

// copied is the mirror.
func (s *combineServers) copied(_ http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	c := s.round.find(req.Header.Get("X-Tag"))
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.copies++
	if c.copies > 1 || c.grpc || c.upgrade != "" || err != nil || !bytes.Equal(body, c.body) || req.Header.Get(httpproxy.MirrorField) != "1" {
		s.round.failed(c, "copy %d has %d bytes, %v, %v", c.copies, len(body), err, req.Header)
	}
	s.checkHead(c, req)
}

// checkHead checks what a server gets of a request's head.
func (s *combineServers) checkHead(c *combined, req *http.Request) {
	r, h := c.route, req.Header
	bad := func(format string, args ...any) {
		s.round.failed(c, "the server gets "+format+"\n\t%v", append(args, h)...)
	}
	if req.Method != c.method || req.URL.EscapedPath() != r.serverPath(c.rest) || req.URL.RawQuery != strings.TrimPrefix(c.query, "?") {
		bad("%s %s", req.Method, req.URL)
	}
	host := combineHost
	if slices.ContainsFunc(r.RequestHeaders.Set, func(f httpproxy.HeaderField) bool { return f.Name == "Host" }) {
		host = "inner.example"
	}
	if req.Host != host {
		bad("the host %q", req.Host)
	}
	user := []string{"evil"}
	if r.auth != "" {
		user = []string{r.user}
	}
	seen := user[0]
	if r.auth != "" {
		seen = "" // what clients write themselves is not passed on by variables either
	}
	set, add, drop := []string{"client"}, []string{"client"}, []string{"1"}
	if r.rules {
		set, add, drop = []string{c.method + " " + r.prefix + c.rest + " " + c.tag + seen}, []string{"client", "a-127.0.0.1"}, nil
	}
	var upgrade []string
	if c.switches() {
		upgrade = []string{c.upgrade}
	}
	for name, want := range map[string][]string{
		"X-User": user, "X-Set": set, "X-Add": add, "X-Drop": drop, "X-Hop": nil, "X-Request-Id": {c.tag}, "X-Forwarded-For": {"127.0.0.1"},
		"X-Forwarded-Host": {combineHost}, "X-Forwarded-Proto": {"http"}, "Keep-Alive": nil, "Upgrade": upgrade, "X-Tag": {c.tag},
	} {
		if got := h[name]; !slices.Equal(got, want) {
			bad("%s %q instead of %q", name, got, want)
		}
	}
	if got := h.Get("Authorization") != ""; got && (r.BasicAuth != nil && !r.BasicAuth.Forward || r.BearerAuth != nil && !r.BearerAuth.Forward) {
		bad("the credentials")
	}
	if want := c.accept; r.LLM == nil && h.Get("Accept-Encoding") != want {
		bad("Accept-Encoding %q instead of %q", h.Get("Accept-Encoding"), want)
	}
}

// checkBody checks what a server gets of a request's body. The trailers are there after it was read.
func (s *combineServers) checkBody(c *combined, req *http.Request, body []byte, err error) {
	if err != nil {
		if !c.gives && !c.hasty && !c.tooLong() {
			s.round.failed(c, "the server gets %d bytes of the body, %v", len(body), err)
		}
		return
	}
	if !bytes.Equal(body, c.body) {
		s.round.failed(c, "the server gets %d bytes of body: %.60q", len(body), body)
	}
	up, drop := "", ""
	if c.trailers {
		up, drop = c.tag, "1"
	}
	if c.route.rules {
		drop = ""
	}
	if got := req.Trailer; got.Get("X-Up") != up || got.Get("X-Drop") != drop || got.Get("X-User") != "" && c.route.auth != "" {
		s.round.failed(c, "the server gets the trailers %v by %s", got, req.Proto)
	}
}

// serve is a connection of a server of HTTP/1.1.
func (s *combineServers) serve(c *net.TCPConn, name string) {
	in := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		spec := s.round.find(req.Header.Get("X-Tag"))
		if spec == nil {
			return
		}
		try, n := spec.begin()
		s.checkHead(spec, req)
		if want := spec.serverName(); name != want {
			s.round.failed(spec, "the server %s gets it, not %s", name, want)
		}
		if spec.upgrades(try) {
			spec.speak(c, in, n, req.Header.Get("Sec-Websocket-Key"))
			return
		}
		if try.fault == "early" {
			s.answer(c, spec, try, n, name)
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, in) // a reset could overtake the answer
			return
		}
		if req.Header.Get("Expect") != "" {
			_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		}
		body, err := io.ReadAll(req.Body)
		s.checkBody(spec, req, body, err)
		switch {
		case err != nil:
			return
		case try.fault == "stall":
			_, _ = in.ReadByte()
			return
		case try.fault == "reset":
			_ = c.SetLinger(0)
			return
		case try.fault == "close":
			return
		}
		s.answer(c, spec, try, n, name)
		switch {
		case try.fault == "cut":
			_ = c.SetLinger(0)
			return
		case try.closes || try.framing == "close":
			return
		}
	}
}

// serverName is the server that gets the request.
func (c *combined) serverName() string {
	if c.route.big != nil && c.model == "big" {
		return "big"
	}
	return c.route.server
}

// answer sends an answer in the text of HTTP/1.1.
func (s *combineServers) answer(w io.Writer, c *combined, try *combineTry, n int, name string) {
	content := c.content(n)
	var b bytes.Buffer
	for range try.interims {
		b.WriteString("HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nX-Tag: " + c.tag + "\r\n\r\n")
	}
	fmt.Fprintf(&b, "HTTP/1.1 %d Some Reason\r\n", try.status)
	for _, f := range c.fields(try, n, name) {
		b.WriteString(f[0] + ": " + f[1] + "\r\n")
	}
	b.WriteString("Connection: X-Hop\r\nX-Hop: 1\r\n")
	if try.closes || try.framing == "close" || try.fault == "early" {
		b.WriteString("Connection: close\r\n")
	}
	bodiless, end := try.bodiless(), ""
	switch {
	case bodiless && try.status != http.StatusNotModified:
	case try.framing == "length":
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(content))
	case try.framing == "chunks":
		if b.WriteString("Transfer-Encoding: chunked\r\n"); try.trailers {
			for _, f := range c.trailing() {
				b.WriteString("Trailer: " + f[0] + "\r\n")
				end += f[0] + ": " + f[1] + "\r\n"
			}
		}
	}
	b.WriteString("\r\n")
	if !bodiless && c.method != http.MethodHead {
		if try.fault == "cut" {
			content = content[:len(content)/2]
		}
		if try.framing == "chunks" {
			b.Write(inChunks(content, try.fault != "cut", try.trailers, end))
		} else {
			b.Write(content)
		}
	}
	for b.Len() > 0 { // in pieces
		if _, err := w.Write(b.Next(7000)); err != nil {
			return
		}
	}
}

// inChunks codes content; with ends there is the last chunk, with trailers if asked for.
func inChunks(content []byte, ends, trailers bool, lines string) []byte {
	var b bytes.Buffer
	for size := 1000; len(content) > 0; size *= 3 {
		n := min(len(content), size)
		fmt.Fprintf(&b, "%x\r\n%s\r\n", n, content[:n])
		content = content[n:]
	}
	if !ends {
		return b.Bytes()
	}
	b.WriteString("0\r\n")
	if trailers {
		b.WriteString(lines)
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// bodiless reports whether answers with the status have no content.
func (t *combineTry) bodiless() bool {
	return t.status == http.StatusNoContent || t.status == http.StatusNotModified
}

// fields are those of an answer that do not frame it.
func (c *combined) fields(try *combineTry, n int, name string) [][2]string {
	f := [][2]string{{"X-Tag", c.tag}, {"X-Try", strconv.Itoa(n)}, {"X-Server", name}, {"X-Out", "server"}, {"X-More", "server"}, {"X-Secret", "s"}, {"Access-Control-Allow-Origin", "*"}, {"Set-Cookie", "own=1"}}
	for name, value := range map[string]string{"ETag": try.etag, "Content-Type": try.media, "Vary": try.vary, "Cache-Control": try.control} {
		if value != "" {
			f = append(f, [2]string{name, value})
		}
	}
	if try.coded {
		f = append(f, [2]string{"Content-Encoding", "br"})
	}
	if try.checksum {
		f = append(f, [2]string{"Digest", "sha-256=x"})
	}
	return f
}

// combineCall is the status of gRPC calls that servers answer.
const combineCall = "5"

// trailing are the trailers of an answer that has some.
func (c *combined) trailing() [][2]string {
	f := [][2]string{{"X-End", c.tag}, {"X-Secret", "s"}}
	if c.grpc {
		f = append(f, [2]string{"Grpc-Status", combineCall})
	}
	return f
}

// serveCoded is the server of HTTP/2 that is Go's.
func (s *combineServers) serveCoded(w http.ResponseWriter, req *http.Request) {
	c := s.round.find(req.Header.Get("X-Tag"))
	if c == nil {
		return
	}
	try, n := c.begin()
	s.checkHead(c, req)
	if want := c.serverName(); want != "coded" {
		s.round.failed(c, "the server coded gets it, not %s", want)
	}
	// Go's server ends the connection, with all its streams, if trailers come on a stream that it has closed. So an answer is not
	// early if trailers may be on their way.
	if try.fault != "early" || c.trailers {
		body, err := io.ReadAll(req.Body)
		s.checkBody(c, req, body, err)
		if err != nil {
			return
		}
	}
	switch try.fault {
	case "stall":
		<-req.Context().Done()
		return
	case "reset", "close":
		panic(http.ErrAbortHandler)
	}
	h, content := w.Header(), c.content(n)
	for range try.interims {
		h.Set("Link", "</a>; rel=preload")
		h.Set("X-Tag", c.tag)
		h.Set("Content-Length", "0") // net/http sends a copy then, without it: else the fields may be in use when their stream has been reset
		w.WriteHeader(http.StatusEarlyHints)
		clear(h)
	}
	for _, f := range c.fields(try, n, "coded") {
		h.Add(f[0], f[1])
	}
	if try.media == "" {
		h["Content-Type"] = nil
	}
	if try.trailers && try.framing != "length" {
		for _, f := range c.trailing() {
			h.Add("Trailer", f[0])
		}
	}
	if try.framing == "length" && (!try.bodiless() || try.status == http.StatusNotModified) {
		h.Set("Content-Length", strconv.Itoa(len(content)))
	}
	w.WriteHeader(try.status)
	if try.bodiless() {
		return
	}
	out := http.NewResponseController(w)
	_ = out.Flush()
	if try.fault == "cut" && req.Method != http.MethodHead {
		_, _ = w.Write(content[:len(content)/2])
		_ = out.Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(content)
	if try.trailers && try.framing != "length" {
		for _, f := range c.trailing() {
			h.Set(f[0], f[1])
		}
	}
}
