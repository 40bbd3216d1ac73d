package httpproxy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/listener"
)

const (
	htmlType = "text/html; charset=utf-8"
	jsonType = "application/json"
)

func page(content, kind string, of httpproxy.PageOf, statuses ...int) httpproxy.ErrorPage {
	return httpproxy.ErrorPage{Statuses: statuses, Content: content, ContentType: kind, Of: of}
}

// pageRoutes have pages of their own, the listener's, or none.
func pageRoutes(u, down *httpproxy.Upstream) []httpproxy.Route {
	return []httpproxy.Route{
		{Path: "/down", Upstream: down},
		{Path: "/own", Upstream: down, ErrorPages: []httpproxy.ErrorPage{
			page("five", htmlType, httpproxy.PageOfGateway, 5), page("{status} {status_text} {request_id}", htmlType, httpproxy.PageOfGateway, 502),
		}},
		{Path: "/none", Upstream: down, ErrorPages: []httpproxy.ErrorPage{}},
		{Path: "/api", Upstream: down, ErrorPages: []httpproxy.ErrorPage{page(`{"path":"{path}","h":"{host}","n":{"a":1}}`, jsonType, httpproxy.PageOfGateway, 5)}},
		{Path: "/maintenance", Respond: httpproxy.Respond{Status: 503}},
		{Path: "/said", Respond: httpproxy.Respond{Status: 503, Body: "said"}},
		{Path: "/up", Upstream: u},
	}
}

// TestErrorPages: the gateway's own errors have the page of the route or of the listener, in every version of HTTP.
func TestErrorPages(t *testing.T) {
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "the server's", 502) }))
	p := startProxy(t, httpproxy.Config{
		Routes: pageRoutes(u, newUpstream(t, "127.0.0.1:1")),
		ErrorPages: []httpproxy.ErrorPage{
			page("<b>{path}</b> {host} {method} {client_ip} a{color:red}{", htmlType, httpproxy.PageOfGateway, 4),
			page("listener's", "text/plain", httpproxy.PageOfGateway, 502, 503),
		},
	})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(t, proto)
		for _, tc := range []struct{ method, path, accept, status, kind, want string }{
			{"GET", "/down", "", "502", "text/plain", "listener's"},
			{"GET", "/own", "", "502", htmlType, "502 Bad Gateway r1"},
			{"HEAD", "/own", "", "502", htmlType, ""},
			{"GET", "/none", "", "502", "text/plain; charset=utf-8", "upstream"},
			{"GET", "/up", "", "502", "text/plain; charset=utf-8", "the server's"},
			{"GET", "/maintenance", "", "503", "text/plain", "listener's"},
			{"HEAD", "/maintenance", "", "503", "text/plain", ""},
			{"GET", "/said", "", "503", "text/plain; charset=utf-8", "said"},
			{"POST", `/x"%3C<'&`, "text/html", "404", htmlType, "<b>/x&#34;%3C&lt;&#39;&amp;</b> a.example POST 127.0.0.1 a{color:red}{"},
			{"GET", "/x", jsonType, "404", "application/json; charset=utf-8", "no route"},
			{"GET", `/api/"x`, "text/html", "502", jsonType, `{"path":"/api/\"x","h":"a.example","n":{"a":1}}`},
			{"GET", "/api", jsonType, "502", jsonType, `{"path":"/api","h":"a.example","n":{"a":1}}`},
		} {
			req, err := http.NewRequest(tc.method, p.url+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.URL.Opaque = tc.path // as it is
			req.Host = "a.example:80"
			req.Header.Set("X-Request-Id", "r1")
			if tc.accept != "" {
				req.Header.Set("Accept", tc.accept)
			}
			resp, body := doWith(t, client, req)
			if resp.Status[:3] != tc.status || resp.Header.Get("Content-Type") != tc.kind || !strings.Contains(body, tc.want) || tc.want == "" && body != "" {
				t.Errorf("%s %s by %s: %s, %s, %q; want %s, %s, %q", tc.method, tc.path, proto, resp.Status, resp.Header.Get("Content-Type"), body, tc.status, tc.kind, tc.want)
			}
			if tc.kind == jsonType && !json.Valid([]byte(body)) {
				t.Errorf("%s: no JSON: %s", tc.path, body)
			}
			if tc.method == http.MethodHead && resp.ContentLength <= 0 {
				t.Errorf("HEAD %s by %s: length %d", tc.path, proto, resp.ContentLength)
			}
		}
	}
	c, _ := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nBad Header: x\r\n\r\n")
	if raw, _ := io.ReadAll(c); !strings.HasPrefix(string(raw), "HTTP/1.1 400 ") || !strings.HasSuffix(string(raw), "\r\n\r\n<b></b>    a{color:red}{") {
		t.Errorf("a malformed head: %q", raw)
	}
}

// TestErrorPagesLeaveGRPC: a client of gRPC gets its own form of an error, which has no content, also in the log.
func TestErrorPagesLeaveGRPC(t *testing.T) {
	lines := &logLines{t: t}
	p := startProxy(t, httpproxy.Config{
		AccessLog:  &httpproxy.AccessLog{To: lines, Format: "{status} {bytes_out}"},
		Routes:     []httpproxy.Route{{Upstream: newUpstream(t, "127.0.0.1:1")}},
		ErrorPages: []httpproxy.ErrorPage{page("page", htmlType, httpproxy.PageOfBoth, 5)},
	})
	req, err := http.NewRequest(http.MethodPost, p.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	if resp, body := doWith(t, clientFor(t, "HTTP/2.0"), req); resp.StatusCode != 200 || resp.Header.Get("Grpc-Status") != "14" || body != "" {
		t.Errorf("%s, %v, %q", resp.Status, resp.Header, body)
	}
	if line := lines.take(1)[0]; line != "502 0" {
		t.Errorf("the log says %q", line)
	}
}

// TestErrorPagesOfServers: a page replaces the content of a server's answer, however that is framed, and its other fields
// stay. The next answer on both connections is whole.
func TestErrorPagesOfServers(t *testing.T) {
	serve := func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{"WWW-Authenticate": "Basic", "Set-Cookie": "a=b", "ETag": `"1"`, "Content-Encoding": "br", "Content-Security-Policy": "x"} {
			w.Header().Set(name, value)
		}
		switch r.URL.Path {
		case "/ok":
			w.Header().Del("Content-Encoding")
			_, _ = io.WriteString(w, "ok")
		case "/short":
			w.WriteHeader(500)
			_, _ = io.WriteString(w, "short")
		case "/chunked":
			w.WriteHeader(500)
			_, _ = io.WriteString(w, "chunked")
			_ = http.NewResponseController(w).Flush()
		case "/long":
			w.WriteHeader(503)
			for range 64 {
				_, _ = io.WriteString(w, strings.Repeat("long", 4096))
			}
		case "/login":
			w.WriteHeader(401)
		default:
			w.WriteHeader(404)
			_, _ = io.WriteString(w, "the server's")
		}
	}
	for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, serveEither(t, serve))
		large := strings.Repeat(strings.Repeat("large ", 300)+"{request_id} ", 32)
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
			Upstream: u, Compression: &httpproxy.Compression{}, Retries: httpproxy.Retries{Attempts: 1},
			ErrorPages: []httpproxy.ErrorPage{page("page {status}", htmlType, httpproxy.PageOfBackend, 5, 401), page(large, htmlType, httpproxy.PageOfBoth, 503)},
		}}})
		large = strings.ReplaceAll(large, "{request_id}", "r1")
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			client := clientFor(t, proto)
			for _, tc := range []struct{ method, path, accept, want string }{
				{"GET", "/short", "", "500 page 500"}, {"GET", "/ok", "", "200 ok"}, {"GET", "/chunked", "", "500 page 500"}, {"GET", "/ok", "", "200 ok"},
				{"GET", "/long", "", "503 " + large}, {"GET", "/ok", "", "200 ok"}, {"HEAD", "/long", "", "503 "}, {"GET", "/login", "", "401 page 401"},
				{"GET", "/other", "", "404 the server's"}, {"POST", "/short", "", "500 page 500"}, {"GET", "/short", jsonType, "500 short"},
			} {
				req, err := http.NewRequest(tc.method, p.url+tc.path, strings.NewReader(strings.Repeat("x", 100)))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("X-Request-Id", "r1")
				req.Header.Set("Accept-Encoding", "gzip")
				if tc.accept != "" {
					req.Header.Set("Accept", tc.accept)
				}
				resp, body := doWith(t, client, req)
				what := fmt.Sprintf("%s %s by %s to %s", tc.method, tc.path, proto, protocol)
				if got := resp.Status[:4] + body; got != tc.want {
					t.Errorf("%s: %.80q, want %.80q", what, got, tc.want)
				}
				h := resp.Header
				if paged := strings.Contains(tc.want, "page") || resp.StatusCode == 503; paged != (h.Get("ETag") == "" && h.Get("Content-Encoding") == "" && h.Get("Content-Type") == htmlType) {
					t.Errorf("%s: %v", what, h)
				}
				if h.Get("WWW-Authenticate") != "Basic" || h.Get("Set-Cookie") != "a=b" || h.Get("Content-Security-Policy") != "x" || len(h["Content-Type"]) > 1 {
					t.Errorf("%s: %v", what, h)
				}
			}
		}
	}
}

// TestUpdatedErrorPages: an update changes the pages.
func TestUpdatedErrorPages(t *testing.T) {
	cfg := httpproxy.Config{Listener: listener.Config{Logger: slog.New(slog.DiscardHandler)}, ErrorPages: []httpproxy.ErrorPage{page("one", htmlType, httpproxy.PageOfGateway, 404)}}
	p := startProxy(t, cfg)
	for _, want := range []string{"one", "two"} {
		cfg.ErrorPages = []httpproxy.ErrorPage{page(want, htmlType, httpproxy.PageOfGateway, 404)}
		if err := p.Update(cfg); err != nil {
			t.Fatal(err)
		}
		if _, body := get(t, p.url); body != want {
			t.Errorf("%q, want %q", body, want)
		}
	}
}

// TestBadErrorPages are refused by New.
func TestBadErrorPages(t *testing.T) {
	for name, pages := range map[string][]httpproxy.ErrorPage{
		"no status":     {page("x", htmlType, httpproxy.PageOfGateway)},
		"success":       {page("x", htmlType, httpproxy.PageOfGateway, 200)},
		"a class of 3":  {page("x", htmlType, httpproxy.PageOfGateway, 3)},
		"no type":       {page("x", "", httpproxy.PageOfGateway, 404)},
		"a broken type": {page("x", "text/html\r\nX: y", httpproxy.PageOfGateway, 404)},
		"too long":      {page(strings.Repeat("x", httpproxy.MaxOwnBody+1), htmlType, httpproxy.PageOfGateway, 404)},
		"two":           {page("x", htmlType, httpproxy.PageOfBoth, 404), page("x", htmlType, httpproxy.PageOfBackend, 404)},
		"many values":   {page(strings.Repeat("{path}", 33), htmlType, httpproxy.PageOfGateway, 404)},
	} {
		if _, err := httpproxy.New(httpproxy.Config{ErrorPages: pages}); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
