package httpproxy_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
)

// logLines collects the lines of an access log.
type logLines struct {
	t testing.TB

	mu  sync.Mutex
	all []string
}

func (l *logLines) WriteLine(_ int, line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := strings.Count(string(line), "\n"); n != 1 || line[len(line)-1] != '\n' {
		l.t.Errorf("a line with %d line breaks: %q", n, line)
	}
	l.all = append(l.all, strings.TrimSuffix(string(line), "\n"))
}

// take waits for n lines and returns them.
func (l *logLines) take(n int) (lines []string) {
	l.t.Helper()
	eventually(l.t, fmt.Sprintf("%d lines", n), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.all) >= n
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	lines, l.all = l.all, nil
	if len(lines) > n {
		l.t.Errorf("%d lines, want %d: %q", len(lines), n, lines)
	}
	return lines
}

// fields waits for one line in JSON.
func (l *logLines) fields() (f map[string]any) {
	l.t.Helper()
	line := l.take(1)[0]
	if err := json.Unmarshal([]byte(line), &f); err != nil {
		l.t.Fatalf("%q: %v", line, err)
	}
	return f
}

// noLines drops its lines.
type noLines struct{}

func (noLines) WriteLine(int, []byte) {}

// logsOff are logs without their file, for their cost.
var logsOff = map[string]*httpproxy.AccessLog{
	"no log": nil, "JSON": {To: noLines{}}, "combined": {To: noLines{}, Format: "combined"},
	"own": {To: noLines{}, Format: "{time} {client} {uri} {header.accept} {duration_seconds}", Query: true},
}

// wantFields compares some fields of a line.
func wantFields(t testing.TB, got map[string]any, want map[string]any) {
	t.Helper()
	for key, value := range want {
		if fmt.Sprint(got[key]) != fmt.Sprint(value) {
			t.Errorf("%s is %v, want %v, in %v", key, got[key], value, got)
		}
	}
}

// TestAccessLogFields: one line has everything that is known about a request.
func TestAccessLogFields(t *testing.T) {
	lines := &logLines{t: t}
	server, clientTLS := certificates(t)
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello")
	})
	p := startProxy(t, httpproxy.Config{
		TLS: server, AccessLog: &httpproxy.AccessLog{To: lines}, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Routes: []httpproxy.Route{{Path: "/a", Upstream: newUpstream(t, backend)}},
	})
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		tr := &http.Transport{TLSClientConfig: clientTLS.Clone(), ForceAttemptHTTP2: protocol == "HTTP/2.0"}
		if protocol == "HTTP/1.1" {
			tr.TLSClientConfig.NextProtos = []string{"http/1.1"}
		}
		defer tr.CloseIdleConnections()
		req, _ := http.NewRequest(http.MethodPost, p.url+"/a/%20b?secret=1", strings.NewReader("abc"))
		req.Header = http.Header{
			"X-Forwarded-For": {"203.0.113.7"}, "User-Agent": {`a "quoted" agent`}, "Referer": {"https://u:p@b.example/x?token=1#y"},
			"X-Request-Id": {"r-1"}, "Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		}
		if resp, body := doWith(t, &http.Client{Transport: tr}, req); resp.StatusCode != 200 || body != "hello" {
			t.Fatal(resp.Status, body)
		}
		f := lines.fields()
		wantFields(t, f, map[string]any{
			"client": "203.0.113.7", "method": "POST", "scheme": "https", "host": "127.0.0.1", "path": "/a/%20b", "query": nil, "protocol": protocol,
			"status": 200, "bytes_in": 3, "bytes_out": 5, "route": "/a", "upstream": "api", "endpoint": backend, "retries": 0,
			"user_agent": `a "quoted" agent`, "referer": "https://b.example/x", "request_id": "r-1", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
			"tls": tls.VersionName(tls.VersionTLS13), "reason": nil, "error": nil, "user": nil,
		})
		if peer, _ := f["peer"].(string); !strings.HasPrefix(peer, "127.0.0.1:") {
			t.Errorf("the peer is %q", peer)
		}
		if at, err := time.Parse("2006-01-02T15:04:05.000Z", f["time"].(string)); err != nil || time.Since(at) > time.Hour {
			t.Errorf("the time is %v: %v", f["time"], err)
		}
		whole, first, wait := f["duration_seconds"].(float64), f["first_byte_seconds"].(float64), f["wait_seconds"].(float64)
		if whole < first || first < wait || wait < 0 {
			t.Errorf("duration %v, first byte after %v, sent after %v", whole, first, wait)
		}
	}
}

// endings are ways in which a request ends, and what its line says.
var endings = map[string]struct {
	request string
	cut     bool // the client leaves at once
	want    map[string]any
}{
	"served":      {request: "GET /x HTTP/1.1\r\nHost: a\r\n\r\n", want: map[string]any{"status": 200, "path": "/x"}},
	"HTTP/1.0":    {request: "GET /x HTTP/1.0\r\n\r\n", want: map[string]any{"status": 200, "protocol": "HTTP/1.0"}},
	"respond":     {request: "GET /respond HTTP/1.1\r\nHost: a\r\n\r\n", want: map[string]any{"status": 203, "bytes_out": 4, "upstream": nil, "route": "/respond"}},
	"redirect":    {request: "GET /redirect HTTP/1.1\r\nHost: a\r\n\r\n", want: map[string]any{"status": 308}},
	"denied":      {request: "GET /out?a HTTP/1.1\r\nHost: a\r\n\r\n", want: map[string]any{"status": 403, "reason": "denied", "path": "/out"}},
	"no endpoint": {request: "GET /down HTTP/1.1\r\nHost: other\r\n\r\n", want: map[string]any{"status": 502, "reason": "upstream_unavailable"}},
	"died":        {request: "POST /die HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", want: map[string]any{"status": 502, "reason": "backend_gone"}},
	"torn":        {request: "GET /tear HTTP/1.1\r\nHost: a\r\n\r\n", want: map[string]any{"status": 200, "reason": "backend_gone", "bytes_out": 5}},
	"time-out":    {request: "GET /late HTTP/1.1\r\nHost: a\r\n\r\n", want: map[string]any{"status": 504, "reason": "timeout"}},
	"client gone": {request: "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n", cut: true, want: map[string]any{"status": 499, "reason": "client_gone"}},
	"malformed":   {request: "GET /x?secret HTTP/1.1\r\nHost : a\r\n\r\n", want: map[string]any{"status": 400, "reason": "protocol_error", "path": nil}},
	"two hosts":   {request: "GET /x?secret HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", want: map[string]any{"status": 400, "path": "/x"}},
	"userinfo":    {request: "GET http://me:secret@b/x?secret HTTP/1.1\r\nHost: a\r\n\r\n", want: map[string]any{"status": 400, "path": "b/x"}},
	"Host's user": {request: "GET / HTTP/1.1\r\nHost: me:secret@a:80\r\n\r\n", want: map[string]any{"status": 400, "host": "a"}},
	"fragment":    {request: "GET /x#secret HTTP/1.1\r\nHost: a\r\n\r\n", want: map[string]any{"status": 400, "path": "/x"}},
	"CONNECT":     {request: "CONNECT me:secret@b:443 HTTP/1.1\r\nHost: a\r\n\r\n", want: map[string]any{"status": 405, "path": "b:443"}},
	"incomplete":  {request: "GET /x?secret HTTP/1.1\r\nHos", cut: true, want: map[string]any{"status": 499, "reason": "client_gone", "path": nil}},
	"slow head":   {request: "GET /x?secret HTTP/1.1\r\nHos", want: map[string]any{"status": 408, "reason": "timeout"}},
	"TLS":         {request: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", want: map[string]any{"status": 400, "reason": "tls"}},
	"large head":  {request: "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 70<<10) + "\r\n\r\n", want: map[string]any{"status": 431}},
	"quiet route": {request: "GET /quiet HTTP/1.1\r\nHost: a\r\n\r\nGET /respond HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", want: map[string]any{"path": "/respond"}},
}

// TestAccessLogOnce: each request has one line, however it ends, and the reason in it is the one that is counted.
func TestAccessLogOnce(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/die":
			panic(http.ErrAbortHandler)
		case "/tear":
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "12345")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/hang":
			<-r.Context().Done()
		}
	})
	lines := &logLines{t: t}
	cfg := httpproxy.Config{
		AccessLog: &httpproxy.AccessLog{To: lines},
		Routes: []httpproxy.Route{
			{Path: "/", Upstream: newUpstream(t, backend), ResponseTimeout: time.Minute},
			{Path: "/late", Upstream: newUpstream(t, serveRaw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })), ResponseTimeout: 20 * time.Millisecond},
			{Path: "/out", Deny: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Upstream: newUpstream(t, backend)},
			{Path: "/respond", Respond: httpproxy.Respond{Status: 203, Body: "text"}},
			{Path: "/redirect", Redirect: httpproxy.Redirect{To: "/x"}},
			{Path: "/quiet", Respond: httpproxy.Respond{Status: 200}, NoAccessLog: true},
			{Host: "other", Path: "/down", Upstream: newUpstream(t, "127.0.0.1:1")},
		},
		ReadHeaderTimeout: patience,
	}
	patient := startProxy(t, cfg)
	cfg.ReadHeaderTimeout = 50 * time.Millisecond // other cases may take longer on a busy machine
	hasty := startProxy(t, cfg)
	for name, tc := range endings {
		p := patient
		if name == "slow head" {
			p = hasty
		}
		before := p.Stats().Errors
		c, br := dialRaw(t, p.addr)
		if _, err := io.WriteString(c, tc.request); err != nil {
			t.Fatal(err)
		}
		if tc.cut {
			_ = c.Close()
		}
		line := lines.take(1)[0]
		var f map[string]any
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%s: %q: %v", name, line, err)
		}
		for key, value := range tc.want {
			if fmt.Sprint(f[key]) != fmt.Sprint(value) {
				t.Errorf("%s: %s is %v, want %v, in %s", name, key, f[key], value, line)
			}
		}
		if strings.Contains(line, "secret") {
			t.Errorf("%s: a secret in %s", name, line)
		}
		if reason, failed := f["reason"].(string); failed {
			eventually(t, fmt.Sprintf("%s is counted as %s", name, reason), func() bool { return p.Stats().Errors[reason] == before[reason]+1 })
		}
		_ = c.Close()
		_, _ = io.Copy(io.Discard, br)
	}
	lines.take(0)
}

// TestAccessLogOfUpgrades: a WebSocket has one line, when it ends, with the request that began it.
func TestAccessLogOfUpgrades(t *testing.T) {
	lines := &logLines{t: t}
	p := startProxy(t, httpproxy.Config{
		AccessLog: &httpproxy.AccessLog{To: lines},
		Routes:    []httpproxy.Route{{Upstream: newUpstream(t, serveUpgrade(t, echo))}},
	})
	c, br := dialUpgrade(t, p.addr, "")
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(br, make([]byte, len("greeting hello"))); err != nil {
		t.Fatal(err)
	}
	lines.take(0)
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, br)
	f := lines.fields()
	wantFields(t, f, map[string]any{"status": 101, "method": "GET", "path": "/ws", "host": "a", "bytes_in": 5, "bytes_out": 14, "reason": nil, "protocol": "HTTP/1.1"})
	if id, _ := f["request_id"].(string); len(id) != 16 {
		t.Errorf("the id of the request is %q", id)
	}
}

// TestAccessLogOfHTTP2: streams have one line each, with or without a fiber, also those that are refused or reset.
func TestAccessLogOfHTTP2(t *testing.T) {
	lines := &logLines{t: t}
	hang := make(chan struct{})
	defer close(hang)
	backend := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			select {
			case <-r.Context().Done():
			case <-hang:
			}
			return
		}
		_, _ = io.WriteString(w, "hi")
	})
	u := backend.upstream(t, httpproxy.ProtocolH2C)
	p := startProxy(t, httpproxy.Config{
		AccessLog: &httpproxy.AccessLog{To: lines}, MaxStreams: 2, MaxHeaderBytes: 16 << 10,
		Routes: []httpproxy.Route{{Path: "/", Upstream: u}, {Path: "/respond", Respond: httpproxy.Respond{Status: 204}}},
	})
	h := dialH2(t, p.addr)
	id := uint32(1)
	ask := func(ends bool, path string, more ...string) uint32 {
		h.ask(id, ends, slices.Concat([]string{":method", "GET", ":scheme", "http", ":authority", "a", ":path", path}, more)...)
		id += 2
		return id - 2
	}
	for i := range 20 { // the first ones have a fiber
		path := fmt.Sprintf("/x%d?secret", i)
		if got := h.outcome(ask(true, path)); got != "200 hi" {
			t.Fatal(got)
		}
		wantFields(t, lines.fields(), map[string]any{"status": 200, "path": strings.TrimSuffix(path, "?secret"), "bytes_out": 2, "protocol": "HTTP/2.0", "upstream": "api"})
	}
	if got := h.outcome(ask(true, "/respond")); got != "204" {
		t.Error(got)
	}
	wantFields(t, lines.fields(), map[string]any{"status": 204, "route": "/respond"})
	if got := h.outcome(ask(true, "/a/../b")); !strings.HasPrefix(got, "400") {
		t.Error(got)
	}
	wantFields(t, lines.fields(), map[string]any{"status": 400, "path": "/a/../b", "reason": "protocol_error"})
	if got := h.outcome(ask(true, "/x", "connection", "close")); got != "reset PROTOCOL_ERROR" {
		t.Error(got)
	}
	wantFields(t, lines.fields(), map[string]any{"status": 0, "reason": "protocol_error", "path": nil})
	hanging, second := ask(true, "/hang"), ask(true, "/hang")
	if got := h.outcome(ask(true, "/x")); got != "reset REFUSED_STREAM" {
		t.Error(got)
	}
	wantFields(t, lines.fields(), map[string]any{"status": 0, "reason": "rejected"})
	h.do(0, h.WriteRSTStream(hanging, 8))
	wantFields(t, lines.fields(), map[string]any{"status": 499, "reason": "client_gone", "path": "/hang"})
	_ = second
	_ = h.c.Close()
	wantFields(t, lines.fields(), map[string]any{"status": 499, "reason": "client_gone", "path": "/hang"})
	lines.take(0)
}

// TestAccessLogFormats: the formats of httpd, and texts with variables.
func TestAccessLogFormats(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	for _, tc := range []struct {
		format string
		query  bool
		want   string // "TIME" stands for one
	}{
		{"common", false, `127.0.0.1 - - [TIME] "GET /a%22b HTTP/1.1" 200 5`},
		{"combined", false, `127.0.0.1 - - [TIME] "GET /a%22b HTTP/1.1" 200 5 "http://b.example/" "x\"y\\z\xff\xc2\x9b"`},
		{"combined", true, `127.0.0.1 - - [TIME] "GET /a%22b?k=v HTTP/1.1" 200 5 "http://b.example/?t=1" "x\"y\\z\xff\xc2\x9b"`},
		{"{client_ip} {method} {uri} {header.X-Own} {header.x-none} {{x}", true, `127.0.0.1 GET /a%22b?k=v a\x09b - {x}`},
		{"{path}{query}", true, `/a%22b?k=v`},
		{"{scheme} {host} {tls} {user} {trace_id} {reason} {route}", false, `http a.example - - - - /`},
	} {
		lines := &logLines{t: t}
		p := startProxy(t, httpproxy.Config{
			AccessLog: &httpproxy.AccessLog{To: lines, Format: tc.format, Query: tc.query}, Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend)}},
		})
		c, br := dialRaw(t, p.addr)
		roundTrip(t, c, br, "GET /a%22b?k=v HTTP/1.1\r\nHost: A.example:80\r\nUser-Agent: x\"y\\z\xff\u009b\r\nX-Own: a\tb\r\nReferer: http://b.example/?t=1\r\n\r\n")
		got := lines.take(1)[0]
		if from, to := strings.IndexByte(got, '['), strings.IndexByte(got, ']'); strings.Contains(tc.want, "TIME") && from >= 0 && to > from {
			if _, err := time.Parse("02/Jan/2006:15:04:05 -0700", got[from+1:to]); err != nil {
				t.Error(err)
			}
			got = got[:from+1] + "TIME" + got[to:]
		}
		if got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.format, got, tc.want)
		}
	}
}

// TestAccessLogVerify: formats that would log secrets, or nothing, are refused.
func TestAccessLogVerify(t *testing.T) {
	for format, want := range map[string]string{
		"{status":                 "not closed",
		"{stauts}":                "no variable {stauts}",
		"plain":                   "formats with a name are json, common, combined",
		"{uri}":                   "needs query: true",
		"{query}":                 "needs query: true",
		"{header.Authorization}":  "credentials",
		"{header.cookie}":         "credentials",
		"{header.Referer}":        "{referer}",
		"{header.a b}":            "letters",
		"{path}\n":                "line breaks",
		strings.Repeat("{a}", 65): "more than 64",
	} {
		err := httpproxy.CheckLogFormat(format, false)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", format, err, want)
		}
	}
	if _, err := httpproxy.New(httpproxy.Config{AccessLog: &httpproxy.AccessLog{}}); err == nil || !strings.Contains(err.Error(), "needs a writer") {
		t.Error(err)
	}
}

// TestAccessLogUpdate: a reload switches the log, also for requests in progress.
func TestAccessLogUpdate(t *testing.T) {
	came, answer := make(chan struct{}), make(chan struct{})
	u := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {
		came <- struct{}{}
		<-answer
	}))
	first, second := &logLines{t: t}, &logLines{t: t}
	cfg := httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u}}, AccessLog: &httpproxy.AccessLog{To: first}}
	p := startProxy(t, cfg)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := http.Get(p.url); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-came
	cfg.Listener.Logger = nil
	cfg.AccessLog = &httpproxy.AccessLog{To: second}
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	answer <- struct{}{}
	<-done
	second.take(1)
	first.take(0)
}

// TestAccessLogOfRefusedRequests: they have the request's id, and calls of gRPC the status of HTTP.
func TestAccessLogOfRefusedRequests(t *testing.T) {
	lines := &logLines{t: t}
	p := startProxy(t, httpproxy.Config{AccessLog: &httpproxy.AccessLog{To: lines}})
	for _, contentType := range []string{"text/plain", "application/grpc"} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			req, err := http.NewRequest(http.MethodPost, p.url, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", contentType)
			req.Header.Set("X-Request-Id", "id-7")
			doWith(t, clientFor(t, proto), req)
			wantFields(t, lines.fields(), map[string]any{"status": 404, "request_id": "id-7", "reason": "unknown_route"})
		}
	}
}
