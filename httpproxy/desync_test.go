package httpproxy_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
)

// recorder is a backend that records each request that it reads, and other bytes on its connections.
type recorder struct {
	mu       sync.Mutex
	requests []string // "METHOD target body"
	garbage  []string
}

func (rec *recorder) serve(c net.Conn) {
	br := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			if rest, _ := io.ReadAll(br); err != io.EOF && len(rest) > 0 {
				rec.mu.Lock()
				rec.garbage = append(rec.garbage, err.Error())
				rec.mu.Unlock()
			}
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // broken off: never a request that was understood
		}
		rec.mu.Lock()
		rec.requests = append(rec.requests, req.Method+" "+req.RequestURI+" "+string(body))
		rec.mu.Unlock()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
}

func (rec *recorder) seen() []string {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(rec.requests), func(s string) bool { return s == "GET /end " })
}

// TestNoDesynchronisation sends requests that readers have been known to understand differently. Each is refused with 400
// and does not reach the server, or reaches it as exactly the given request.
func TestNoDesynchronisation(t *testing.T) {
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
	const post = "POST / HTTP/1.1\r\nHost: a\r\n"
	const chunked = post + "Transfer-Encoding: chunked\r\n"
	for name, tc := range map[string]struct {
		raw  string
		want string // the one request that may reach the server; "" = none
	}{
		"both framings":            {raw: chunked + "Content-Length: 5\r\n\r\n0\r\n\r\n" + smuggled},
		"both, in a long head":     {raw: chunked + "A: " + strings.Repeat("a", 20000) + "\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + smuggled},
		"two lengths, a long head": {raw: post + "A: " + strings.Repeat("a", 40000) + "\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello" + smuggled},
		"a long head":              {raw: post + "A: " + strings.Repeat("a", 40000) + "\r\nContent-Length: 2\r\n\r\nhi", want: "POST / hi"},
		"both, length first":       {raw: post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled},
		"two lengths":              {raw: post + "Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + smuggled},
		"list of lengths":          {raw: post + "Content-Length: 0, 44\r\n\r\n" + smuggled},
		"signed length":            {raw: post + "Content-Length: +2\r\n\r\nhi"},
		"length with space":        {raw: post + "Content-Length : 2\r\n\r\nhi"},
		"coding with space":        {raw: post + "Transfer-Encoding : chunked\r\nContent-Length: 2\r\n\r\nhi"},
		"folded coding":            {raw: post + "Transfer-Encoding:\r\n chunked\r\nContent-Length: 2\r\n\r\nhi"},
		"two codings":              {raw: post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
		"unknown coding":           {raw: post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
		"coding with tab":          {raw: post + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"},
		"repeated coding":          {raw: chunked + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		"bare CR in a header":      {raw: post + "A: b\rContent-Length: 2\r\n\r\nhi"},
		"NUL in a header":          {raw: post + "A: b\x00\r\nContent-Length: 2\r\n\r\nhi"},
		"two hosts":                {raw: post + "Host: b\r\nContent-Length: 0\r\n\r\n"},
		"no host":                  {raw: "GET / HTTP/1.1\r\n\r\n"},
		"host with path":           {raw: "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"},
		"chunk overflow":           {raw: chunked + "\r\n10000000000000002\r\nhi\r\n0\r\n\r\n"},
		"chunk negative":           {raw: chunked + "\r\n-2\r\nhi\r\n0\r\n\r\n"},
		"chunk longer than said":   {raw: chunked + "\r\n1\r\nhi\r\n0\r\n\r\n"},
		"chunk extension abuse":    {raw: chunked + "\r\n" + strings.Repeat("1;"+strings.Repeat("x", 3000)+"\r\na\r\n", 40) + "0\r\n\r\n"},
		"chunk extension bare LF":  {raw: chunked + "\r\n2;\nxx\r\nhi\r\n0\r\n\r\n" + smuggled},
		"chunk extension":          {raw: chunked + "\r\n2;a=b\r\nhi\r\n0\r\n\r\n", want: "POST / hi"},
		"body of a GET":            {raw: "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", want: "GET / hi"},
		"length 0 in Connection":   {raw: post + "Connection: content-length\r\nContent-Length: 2\r\n\r\nhi", want: "POST / hi"},
		"coding in Connection":     {raw: chunked + "Connection: transfer-encoding\r\n\r\n2\r\nhi\r\n0\r\n\r\n", want: "POST / hi"},
		"trailer with a length":    {raw: chunked + "\r\n2\r\nhi\r\n0\r\nContent-Length: 9\r\n\r\n", want: "POST / hi"},
		"HTTP/1.0 with coding":     {raw: "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled},
		"HTTP/1.0, then coding":    {raw: "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nPOST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled, want: "GET / "},
		"bare LF":                  {raw: "GET / HTTP/1.1\nHost: a\n\n"},
		"one bare LF":              {raw: "GET / HTTP/1.1\r\nHost: a\nA: b\r\n\r\n"},
		"folded field":             {raw: "GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n c\r\n\r\n"},
		"the same length twice":    {raw: post + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi", want: "POST / hi"},
		"list of one length":       {raw: post + "Content-Length: 2, 2\r\n\r\nhi"},
		"later minor version":      {raw: "GET / HTTP/1.2\r\nHost: a\r\n\r\n", want: "GET / "},
		"version":                  {raw: "GET / HTTP/1.10\r\nHost: a\r\n\r\n"},
		"major version":            {raw: "GET / HTTP/3.0\r\nHost: a\r\n\r\n"},
		"short":                    {raw: "GET /\r\n\r\n"},
		"absolute form":            {raw: "GET http://a/x?y HTTP/1.1\r\nHost: b\r\n\r\n", want: "GET /x?y "},
		"upgrade to h2c":           {raw: "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n", want: "GET / "},
		"CONNECT":                  {raw: "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n" + smuggled},
		"dot segments":             {raw: "GET /a/%2e%2e/b HTTP/1.1\r\nHost: a\r\n\r\n"},
		"garbage":                  {raw: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"},
		"space in the target":      {raw: "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"},
		"bytes after an unmet ask": {raw: "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x05hello", want: "GET / "},
	} {
		t.Run(name, func(t *testing.T) { wantRequest(t, tc.raw, tc.want) })
	}
}

// TestTargetsAndHosts: unusual forms of targets and hosts, and their results.
func TestTargetsAndHosts(t *testing.T) {
	for name, tc := range map[string]struct {
		raw  string
		want string // as in TestNoDesynchronisation
	}{
		"empty host":           {raw: "GET / HTTP/1.1\r\nHost:\r\n\r\n"},
		"empty host, absolute": {raw: "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n"},
		"empty line before":    {raw: "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", want: "GET / "},
		"all of a server":      {raw: "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", want: "OPTIONS * "},
		"all of it, absolute":  {raw: "OPTIONS http://a HTTP/1.1\r\nHost: b\r\n\r\n", want: "OPTIONS * "},
		"its root, absolute":   {raw: "OPTIONS http://a/ HTTP/1.1\r\nHost: b\r\n\r\n", want: "OPTIONS / "},
		"its query, absolute":  {raw: "OPTIONS http://a?x HTTP/1.1\r\nHost: b\r\n\r\n", want: "OPTIONS /?x "},
		"no path, absolute":    {raw: "GET http://a HTTP/1.1\r\nHost: b\r\n\r\n", want: "GET / "},
	} {
		t.Run(name, func(t *testing.T) { wantRequest(t, tc.raw, tc.want) })
	}
}

// wantRequest sends raw, and wants the server to see the one request, or none and the client to be refused.
func wantRequest(t *testing.T, raw, want string) {
	t.Helper()
	rec := &recorder{}
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, serveRaw(t, rec.serve))}}})
	statuses := sendRaw(t, p.addr, raw)
	got := rec.seen()
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case len(rec.garbage) > 0:
		t.Errorf("the server saw %q", rec.garbage)
	case want == "" && len(got) > 0:
		t.Errorf("the server saw %q, the client %v", got, statuses)
	case want != "" && (len(got) != 1 || got[0] != want):
		t.Errorf("the server saw %q, want %q; the client %v", got, want, statuses)
	case want == "" && (len(statuses) == 0 || statuses[0] < 400):
		t.Errorf("the client saw %v, want a refusal", statuses)
	}
}

// sendRaw sends text and a last request that ends the connection, and returns the statuses of all answers.
func sendRaw(t *testing.T, addr, text string) []int {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text+"GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	var statuses []int
	br := bufio.NewReader(c)
	for {
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			return statuses
		}
		statuses = append(statuses, resp.StatusCode)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return statuses
		}
	}
}

// TestHopByHopFieldsStayBehind in both directions.
func TestHopByHopFieldsStayBehind(t *testing.T) {
	seen := make(chan http.Header, 1)
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		h := w.Header()
		h.Set("Connection", "X-Private")
		h.Set("X-Private", "1")
		h.Set("Keep-Alive", "timeout=5")
		h.Set("Proxy-Authenticate", "Basic")
		h.Set("X-Public", "1")
	})
	p := startProxy(t, httpproxy.Config{Via: "pond", Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend)}}})
	req, err := http.NewRequest("GET", p.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "X-Listed", "X-Public"} {
		req.Header.Set(name, "1")
	}
	req.Header.Set("Connection", "X-Listed, X-Forwarded-For")
	req.Header.Set("TE", "gzip, trailers")
	resp, _ := do(t, req)
	h := <-seen
	if got := h["Connection"]; len(got) != 1 || got[0] != "TE" { // this proxy's own
		t.Errorf("the server got Connection: %q", got)
	}
	for _, name := range []string{"Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "X-Listed"} {
		if h[name] != nil {
			t.Errorf("the server got %s: %q", name, h[name])
		}
	}
	for name, want := range map[string]string{"X-Public": "1", "Te": "trailers", "X-Forwarded-For": "127.0.0.1", "Via": "1.1 pond"} {
		if h.Get(name) != want {
			t.Errorf("the server got %s: %q, want %q", name, h[name], want)
		}
	}
	for _, name := range []string{"X-Private", "Keep-Alive", "Proxy-Authenticate"} {
		if resp.Header[name] != nil {
			t.Errorf("the client got %s: %q", name, resp.Header[name])
		}
	}
	if resp.Header.Get("X-Public") != "1" || resp.Header.Get("Via") != "1.1 pond" {
		t.Errorf("the client got %v", resp.Header)
	}
}

// TestViaNamesTheVersion in which a message came, of requests and responses.
func TestViaNamesTheVersion(t *testing.T) {
	old := serveRaw(t, func(c net.Conn) {
		if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\nContent-Length: 8\r\n\r\n"+r.Header.Get("Via"))
		}
	})
	modern := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("Via")) })
	p := startProxy(t, httpproxy.Config{Via: "pond", Routes: []httpproxy.Route{
		{Path: "/old", Upstream: newUpstream(t, old)}, {Path: "/new", Upstream: modern.upstream(t, httpproxy.ProtocolH2C)},
	}})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for path, via := range map[string]string{"/old": "1.0 pond", "/new": "2.0 pond"} {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+path, nil)
			resp, body := doWith(t, clientFor(t, proto), req)
			if body != strings.TrimPrefix(proto, "HTTP/")+" pond" || resp.Header.Get("Via") != via {
				t.Errorf("%s %s: the server gets Via %q, the client %q", proto, path, body, resp.Header.Get("Via"))
			}
		}
	}
}
