package httpproxy_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// decides is an authentication server that decides by the request.
func decides(t *testing.T, w http.ResponseWriter, r *http.Request) {
	h := r.Header
	if n, err := io.Copy(io.Discard, r.Body); n != 0 || err != nil || r.Method != http.MethodGet || r.URL.RequestURI() != "/verify?for=pond" {
		t.Errorf("asked %s %s with %d bytes, %v", r.Method, r.URL, n, err)
	}
	for _, name := range []string{"Content-Type", "Range", "If-None-Match", "X_forwarded_uri", "Accept-Encoding", "Te", "Dropped"} {
		if h[name] != nil {
			t.Errorf("the question has %s: %q", name, h[name])
		}
	}
	if method, uri := h.Get("X-Forwarded-Method"), h.Get("X-Forwarded-Uri"); h.Get("X-Original-Method") != method || h.Get("X-Original-Uri") != uri ||
		h.Get("X-Original-Url") != "http://"+r.Host+uri || h["X-Rewrite-Url"] != nil || h["X.Original.Url"] != nil {
		t.Errorf("asked about %s %s with %q", method, uri, h)
	}
	if h.Get("X-Forwarded-For") != "127.0.0.1" || h.Get("X-Forwarded-Proto") != "http" || h.Get("X-Forwarded-Host") != r.Host || h.Get("X-Request-Id") == "" || h.Get("Connection") != "" {
		t.Errorf("asked for %s with %q", r.Host, h)
	}
	w.Header().Set("X-User", "from auth")
	w.Header()["X-Groups"] = []string{"a", "b"}
	w.Header().Set("X-Other", "stays")
	switch got := h.Get("X-Forwarded-Method") + " " + h.Get("X-Forwarded-Uri") + " " + h.Get("Authorization"); got {
	case "POST /ok?q=1 ", "POST /ok?q=1 let me":
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "this is for nobody")
	case "POST /silent ":
		w.Header().Del("X-User")
	case "POST /login ":
		w.Header().Set("Set-Cookie", "state=1")
		http.Redirect(w, r, "https://login.example/?a=b", http.StatusFound)
	case "POST /denied ":
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.Header().Set("X-Hop", "1")
		http.Error(w, "who are you?", http.StatusUnauthorized)
	case "POST /large ":
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write(make([]byte, 65<<10))
	default:
		t.Errorf("asked about %q", got)
	}
}

// forwardAuthCases are requests of TestForwardAuth.
var forwardAuthCases = []struct {
	path, body string
	status     int
	header     string // that the client gets, with its value
	serves     bool
	auth       string
}{
	{path: "/ok?q=1", status: 200, body: `body ["from auth"] [] ["a" "b"] []`, serves: true},
	{path: "/ok?q=1", status: 200, body: `body ["from auth"] [] ["a" "b"] []`, serves: true, auth: "let me"},
	{path: "/silent", status: 200, body: `body [] [] ["a" "b"] []`, serves: true},
	{path: "/login", status: 302, header: "Location: https://login.example/?a=b"},
	{path: "/login", status: 302, header: "Set-Cookie: state=1"},
	{path: "/denied", status: 401, body: "who are you?\n", header: "Www-Authenticate: Bearer"},
	{path: "/denied", status: 401, body: "who are you?\n", header: "X-Hop: "},
	{path: "/denied", status: 401, body: "who are you?\n", header: "Proxy-Authenticate: "},
	{path: "/large", status: 503},
}

// TestForwardAuth on both protocols: what the authentication server is asked, what its answers do, and what the route's server gets.
func TestForwardAuth(t *testing.T) {
	var asked, served atomic.Int32
	auth := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		decides(t, w, r)
	}))
	up := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %q %q %q %q", body, r.Header["X-User"], r.Header["X_user"], r.Header["X-Groups"], r.Header["X-Other"])
	}))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Upstream: up, ForwardAuth: &httpproxy.ForwardAuth{Upstream: auth, Path: "/verify?for=pond", Timeout: patience, ResponseHeaders: []string{"X-User", "X-Groups"}}},
	}})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(t, proto)
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		for _, tc := range forwardAuthCases {
			t.Run(proto+tc.path, func(t *testing.T) {
				req, err := http.NewRequest(http.MethodPost, p.url+tc.path, strings.NewReader("body"))
				if err != nil {
					t.Fatal(err)
				}
				req.Header = http.Header{
					"X-User": {"root"}, "X_user": {"root"}, "X-Groups": {"wheel"}, "Content-Type": {"text/plain"}, "Range": {"bytes=0-0"},
					"If-None-Match": {`"x"`}, "X-Forwarded-Uri": {"/ok"}, "X-Forwarded-Method": {"GET"}, "X_forwarded_uri": {"/ok"}, "X-Original-Url": {"http://a/ok"}, "X-Original-Uri": {"/ok"}, "X-Rewrite-Url": {"/ok"}, "X.Original.Url": {"/ok"}, "X-Forwarded-For": {"192.0.2.1"},
				}
				if tc.auth != "" {
					req.Header.Set("Authorization", tc.auth)
				}
				asksBefore, servedBefore := asked.Load(), served.Load()
				resp, body := doWith(t, client, req)
				if resp.StatusCode != tc.status || tc.body != "" && body != tc.body {
					t.Errorf("%s %q, want %d %q", resp.Status, body, tc.status, tc.body)
				}
				if name, value, ok := strings.Cut(tc.header, ": "); ok && resp.Header.Get(name) != value {
					t.Errorf("%s: %q, want %q", name, resp.Header.Get(name), value)
				}
				if asked.Load() != asksBefore+1 || (served.Load() != servedBefore) != tc.serves {
					t.Errorf("%d questions, %d requests", asked.Load()-asksBefore, served.Load()-servedBefore)
				}
			})
		}
	}
	if p.Stats().Errors["auth_failed"] == 0 {
		t.Error("no failure was counted")
	}
}

// TestForwardAuthFailsClosed: without an answer nothing goes to the route's server, and the client gets an error.
func TestForwardAuthFailsClosed(t *testing.T) {
	up := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) { t.Error("a request has passed") }))
	silent := newUpstream(t, serveRaw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }))
	hangsUp := newUpstream(t, serveRaw(t, func(net.Conn) {}))
	nonsense := newUpstream(t, serveRaw(t, func(c net.Conn) {
		_ = readRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 two hundred\r\n\r\n")
	}))
	halfBody := newUpstream(t, serveRaw(t, func(c net.Conn) {
		_ = readRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
	}))
	switches := newUpstream(t, serveRaw(t, func(c net.Conn) {
		_ = readRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	}))
	gone := newUpstream(t, "unix:"+filepath.Join(t.TempDir(), "gone"))
	for name, auth := range map[string]*httpproxy.Upstream{"silent": silent, "hangs up": hangsUp, "nonsense": nonsense, "half a body": halfBody, "switches": switches, "gone": gone} {
		t.Run(name, func(t *testing.T) {
			timeout := time.Minute
			if name == "silent" {
				timeout = 50 * time.Millisecond
			}
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up, ForwardAuth: &httpproxy.ForwardAuth{Upstream: auth, Timeout: timeout}}}})
			for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
				req, err := http.NewRequest(http.MethodGet, p.url, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, body := doWith(t, clientFor(t, proto), req)
				if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, "authentication server") {
					t.Errorf("%s: %s %q", proto, resp.Status, body)
				}
			}
		})
	}
}

// TestForwardAuthHeaders: an auth request with some headers only, and those of a trusted proxy; a HEAD request;
// keep-alive.
func TestForwardAuthHeaders(t *testing.T) {
	auth := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		h := r.Header
		http.Error(w, fmt.Sprint(h["Cookie"], h["X-Other"], h["X-Forwarded-For"], h["X-Forwarded-Proto"], h["X-Forwarded-Host"], h["X-Forwarded-Method"], h["X-Forwarded-Client-Cert"]), http.StatusForbidden)
	}))
	p := startProxy(t, httpproxy.Config{
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Routes:         []httpproxy.Route{{Upstream: auth, ForwardAuth: &httpproxy.ForwardAuth{Upstream: auth, Timeout: patience, RequestHeaders: []string{"cookie"}}}},
	})
	const fields = " HTTP/1.1\r\nHost: a\r\nCookie: c=1\r\nX-Other: x\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\nX-Forwarded-Client-Cert: Hash=1\r\n"
	c, br := dialRaw(t, p.addr)
	for range 2 {
		if resp, body := roundTrip(t, c, br, "GET /"+fields+"\r\n"); body != "[c=1] [] [192.0.2.1, 127.0.0.1] [https] [b] [GET] [Hash=1]\n" {
			t.Errorf("%s %q", resp.Status, body)
		}
		if _, err := io.WriteString(c, "HEAD /"+fields+"\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(br, &http.Request{Method: http.MethodHead})
		if err != nil || resp.StatusCode != 403 || resp.ContentLength < 10 {
			t.Fatal(resp, err)
		}
	}
}

// TestForwardAuthWaits: requests of one HTTP/2 connection that wait for the only connection to the authentication server get each their own
// answer.
func TestForwardAuthWaits(t *testing.T) {
	auth := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1, AcquireTimeout: patience}}}, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-User", r.Header.Get("X-Forwarded-Uri"))
	}))
	up := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("X-User")) }))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Upstream: up, ForwardAuth: &httpproxy.ForwardAuth{Upstream: auth, Timeout: patience, ResponseHeaders: []string{"X-User"}}},
	}})
	for _, proto := range []string{"HTTP/2.0", "HTTP/1.1"} { // HTTP/2 has to open the connection
		client, results := clientFor(t, proto), make(chan error)
		for i := range 50 {
			go func() {
				path := fmt.Sprintf("/%d", i)
				resp, err := client.Get(p.url + path)
				if err == nil {
					var body []byte
					if body, err = io.ReadAll(resp.Body); err == nil && string(body) != path {
						err = fmt.Errorf("%s: %s %q", path, resp.Status, body)
					}
					resp.Body.Close()
				}
				results <- err
			}()
		}
		for range 50 {
			if err := <-results; err != nil {
				t.Errorf("%s: %v", proto, err)
			}
		}
	}
}

// TestForwardAuthCredentials: the auth server and the route's server could read different ones of several credentials.
func TestForwardAuthCredentials(t *testing.T) {
	up := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) { t.Error("a request has passed") }))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up, ForwardAuth: &httpproxy.ForwardAuth{Upstream: up, Timeout: patience}}}})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		req, err := http.NewRequest(http.MethodGet, p.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header["Authorization"] = []string{"Bearer mine", "Bearer another's"}
		if resp, body := doWith(t, clientFor(t, proto), req); resp.StatusCode != 400 || !strings.Contains(body, "Authorization") {
			t.Errorf("%s: %s %q", proto, resp.Status, body)
		}
	}
	if n := p.Stats().Errors["protocol_error"]; n != 2 {
		t.Errorf("%d are counted, want 2", n)
	}
}

// TestForwardAuthReasons: errors of an authentication server, and an exhausted pool to it, are counted and logged, in the
// access log for the same reason.
func TestForwardAuthReasons(t *testing.T) {
	up := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) { t.Error("a request has passed") }))
	fails := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	var asked atomic.Int64
	full := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1, MaxWaiters: -1, AcquireTimeout: patience}}}, serveRaw(t, func(c net.Conn) {
		_ = readRequest(bufio.NewReader(c))
		asked.Add(1)
		_, _ = io.Copy(io.Discard, c)
	}))
	var log conntest.Log
	cfg := httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/fails", Upstream: up, ForwardAuth: &httpproxy.ForwardAuth{Upstream: fails, Timeout: patience}},
		{Path: "/full", Upstream: up, ForwardAuth: &httpproxy.ForwardAuth{Upstream: full, Timeout: time.Hour}},
	}}
	cfg.Listener.Logger = log.Logger()
	lines := &logLines{t: t}
	cfg.AccessLog = &httpproxy.AccessLog{To: lines}
	p := startProxy(t, cfg)
	if resp, _ := get(t, p.url+"/fails"); resp.StatusCode != 500 || p.Stats().Errors["upstream_unavailable"] != 1 || log.Line("answered with an error", "status=500") == "" {
		t.Errorf("%s, %v, %s", resp.Status, p.Stats().Errors, log.String())
	}
	wantFields(t, lines.fields(), map[string]any{"status": 500, "reason": "upstream_unavailable"})
	h := dialH2(t, p.addr) // takes the only connection
	h.ask(1, true, ":method", "GET", ":scheme", "http", ":path", "/full", ":authority", "a")
	eventually(t, "the authentication server is asked", func() bool { return asked.Load() == 1 })
	if resp, _ := get(t, p.url+"/full"); resp.StatusCode != 503 || p.Stats().Errors["pool_exhausted"] != 1 {
		t.Errorf("%s, %v", resp.Status, p.Stats().Errors)
	}
	wantFields(t, lines.fields(), map[string]any{"status": 503, "reason": "pool_exhausted"})
}

// TestForwardAuthWithinTheRequest: the time-out of the request bounds the auth request, too.
func TestForwardAuthWithinTheRequest(t *testing.T) {
	up := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) { t.Error("a request has passed") }))
	silent := newUpstream(t, serveRaw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Upstream: up, Timeout: 50 * time.Millisecond, ForwardAuth: &httpproxy.ForwardAuth{Upstream: silent, Timeout: time.Hour}},
	}})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		req, err := http.NewRequest(http.MethodGet, p.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, body := doWith(t, clientFor(t, proto), req); resp.StatusCode != 503 {
			t.Errorf("%s: %s %q", proto, resp.Status, body)
		}
	}
}

// TestForwardAuthEndsWithItsClient: an auth request whose client has gone is cancelled, and not repeated.
func TestForwardAuthEndsWithItsClient(t *testing.T) {
	up := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) { t.Error("a request has passed") }))
	for name, leave := range map[string]func(addr string, asked func()){
		"stream": func(addr string, asked func()) {
			h := dialH2(t, addr)
			h.ask(1, true, ":method", "GET", ":scheme", "http", ":path", "/", ":authority", "a")
			asked()
			h.do(0, h.WriteRSTStream(1, http2.ErrCodeCancel))
		},
		"connection of HTTP/2": func(addr string, asked func()) {
			c, _ := dialRaw(t, addr)
			h := speakH2(t, c)
			h.ask(1, true, ":method", "GET", ":scheme", "http", ":path", "/", ":authority", "a")
			asked()
			_ = c.Close()
		},
		"connection": func(addr string, asked func()) {
			c, _ := dialRaw(t, addr)
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
			asked()
			_ = c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			var asked, closed atomic.Int64
			auth := newUpstream(t, serveRaw(t, func(c net.Conn) {
				_ = readRequest(bufio.NewReader(c))
				asked.Add(1)
				_, _ = io.Copy(io.Discard, c)
				closed.Add(1)
			}))
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up, ForwardAuth: &httpproxy.ForwardAuth{Upstream: auth, Timeout: time.Hour}}}})
			leave(p.addr, func() { eventually(t, "it is asked", func() bool { return asked.Load() > 0 }) })
			eventually(t, "the question is over", func() bool { return closed.Load() > 0 })
			eventually(t, "it is counted", func() bool { return p.Stats().Errors["client_gone"] == 1 })
			if n := asked.Load(); n != 1 {
				t.Errorf("it is asked %d times", n)
			}
			if n := p.Stats().Errors["upstream_unavailable"] + p.Stats().Errors["timeout"]; n != 0 {
				t.Errorf("%d failures of the authentication server", n)
			}
		})
	}
}

// lockedLog is a log that may be read while it is written.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestForwardAuthPoolExhausted: an auth request that ended while it waited for a connection is not logged as sent.
func TestForwardAuthPoolExhausted(t *testing.T) {
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	settings := upstream.Settings{Limits: pool.Limits{MaxSize: 1}}
	auth := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: settings}, serveHTTP(t, func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-answer
	}))
	up := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))
	var log lockedLog
	cfg := httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/first", Upstream: up, ForwardAuth: &httpproxy.ForwardAuth{Upstream: auth, Timeout: time.Minute}},
		{Path: "/second", Upstream: up, ForwardAuth: &httpproxy.ForwardAuth{Upstream: auth, Timeout: 10 * time.Millisecond}},
	}}
	cfg.Listener.Logger = slog.New(slog.NewTextHandler(&log, nil))
	p := startProxy(t, cfg)
	done := make(chan struct{})
	go func() {
		defer close(done)
		get(t, p.url+"/first")
	}()
	<-asked
	get(t, p.url+"/second")
	text := log.String() // nothing logs until the first is answered
	close(answer)
	<-done
	if !strings.Contains(text, "reason=pool_exhausted") || !strings.Contains(text, "the time for the question is over") {
		t.Errorf("logged: %s", text)
	}
	if strings.Contains(text, "waiting for the response") || strings.Contains(text, `\n`) {
		t.Errorf("logged as one that was sent, or in several lines: %s", text)
	}
}

// TestForwardAuthTwice: servers may join the values of two names that they treat as the same.
func TestForwardAuthTwice(t *testing.T) {
	up := newUpstream(t, "127.0.0.1:1")
	for _, names := range [][]string{{"X-User", "x-user"}, {"X-User", "X.User"}} {
		_, err := httpproxy.New(httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up, ForwardAuth: &httpproxy.ForwardAuth{Upstream: up, ResponseHeaders: names}}}})
		if err == nil || !strings.Contains(err.Error(), "twice") {
			t.Errorf("%q: %v", names, err)
		}
	}
}
