package httpproxy_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/listener"
)

// ownRoutes are routes with answers of their own beside one to an upstream.
func ownRoutes(u *httpproxy.Upstream) []httpproxy.Route {
	hsts := httpproxy.HeaderRules{Set: []httpproxy.HeaderField{{"Strict-Transport-Security", "max-age=1"}}, Remove: []string{"X-Content-Type-Options"}}
	return []httpproxy.Route{
		{Host: "old.example", Redirect: httpproxy.Redirect{To: "https://{host}{uri}", Status: 301}, ResponseHeaders: hsts},
		{Path: "/docs", Redirect: httpproxy.Redirect{To: "/manual{rest}{query}"}},
		{Path: "/evil", Redirect: httpproxy.Redirect{To: "/{header.X-To}{rest}"}},
		{Path: "/up", Respond: httpproxy.Respond{Status: 200, Body: "ok\n"}},
		{Path: "/gone", Respond: httpproxy.Respond{Status: 204}},
		{Path: "/moved", Redirect: httpproxy.Redirect{To: "https://www.example{rest}"}},
		{Path: "/", Upstream: u},
	}
}

// TestOwnAnswers: redirects and texts of a route need no server. The connection is reused, unless there was a body.
func TestOwnAnswers(t *testing.T) {
	p := startProxy(t, httpproxy.Config{Routes: ownRoutes(newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hi")
	})))})
	c, br := dialRaw(t, p.addr)
	for _, tc := range []struct {
		request, status, location, body string
	}{
		{"GET /a%20b?q=1 HTTP/1.1\r\nHost: old.example:8080\r\n\r\n", "301 Moved Permanently", "https://old.example/a%20b?q=1", ""},
		{"GET /docs HTTP/1.1\r\nHost: a\r\n\r\n", "308 Permanent Redirect", "/manual", ""},
		{"GET /docs/x%2Fy?a HTTP/1.1\r\nHost: a\r\n\r\n", "308 Permanent Redirect", "/manual/x%2Fy?a", ""},
		{"GET /evil//other.example/ HTTP/1.1\r\nHost: a\r\n\r\n", "308 Permanent Redirect", "/other.example/", ""},
		{"GET /evil/x HTTP/1.1\r\nHost: a\r\nX-To: a\t//b\r\n\r\n", "308 Permanent Redirect", "/a//b/x", ""},
		{"GET /evil HTTP/1.1\r\nHost: a\r\nX-To: /\t/other.example\r\n\r\n", "308 Permanent Redirect", "/other.example", ""},
		{"GET /evil HTTP/1.1\r\nHost: a\r\nX-To: \\\\other.example\r\n\r\n", "308 Permanent Redirect", "/other.example", ""},
		{"GET /evil HTTP/1.1\r\nHost: a\r\nX-To: \\/other.example\r\n\r\n", "308 Permanent Redirect", "/other.example", ""},
		{"GET /evil HTTP/1.1\r\nHost: a\r\nX-To: /\\other.example\r\n\r\n", "308 Permanent Redirect", "/other.example", ""},
		{"GET /moved%2F@evil.example/x HTTP/1.1\r\nHost: a\r\n\r\n", "308 Permanent Redirect", "https://www.example/%2F@evil.example/x", ""},
		{"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "200 OK", "", ""},
		{"GET /up HTTP/1.1\r\nHost: a\r\n\r\n", "200 OK", "", "ok\n"},
		{"HEAD /up HTTP/1.1\r\nHost: a\r\n\r\n", "200 OK", "", ""},
		{"GET /gone HTTP/1.1\r\nHost: a\r\n\r\n", "204 No Content", "", ""},
		{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "200 OK", "", "hi"},
		{"POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", "200 OK", "", "ok\n"},
	} {
		_, _ = io.WriteString(c, tc.request)
		method, _, _ := strings.Cut(tc.request, " ")
		resp, err := http.ReadResponse(br, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%q: %v", tc.request, err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.Status != tc.status || resp.Header.Get("Location") != tc.location || string(body) != tc.body {
			t.Errorf("%q: %s, %q, %q, %v", tc.request, resp.Status, resp.Header.Get("Location"), body, err)
		}
		if own := resp.StatusCode == 301; own != (resp.Header.Get("Strict-Transport-Security") == "max-age=1") {
			t.Errorf("%q: %v", tc.request, resp.Header)
		}
		if resp.Close { // a short body is read
			t.Errorf("%q: the connection ends", tc.request)
		}
	}
	eventually(t, "the answers are counted", func() bool { // after they were sent
		got := counted(p.Stats().Traffic[0])
		return got["old.example/ http_requests_total 3xx"] == 1 && got["/docs http_requests_total 3xx"] == 2 && got["/up http_requests_total 2xx"] == 3
	})
	if n := p.Stats().Errors[listener.ReasonUnknownRoute]; n != 0 {
		t.Errorf("%d requests without a route", n)
	}
}

// TestChangedHeaders: the server gets the headers and path that the route sets, and the client the headers of the answer.
func TestChangedHeaders(t *testing.T) {
	got := make(chan *http.Request, 1)
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r
		w.Header().Set("Server", "secret")
		w.Header()["X-Kept"] = []string{"1", "2"}
	}))
	field := func(name, value string) httpproxy.HeaderField { return httpproxy.HeaderField{Name: name, Value: value} }
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Path: "/api", Upstream: u, Rewrite: "/v2{rest}",
		RequestHeaders: httpproxy.HeaderRules{
			Set:    []httpproxy.HeaderField{field("Host", "inner"), field("X-Client", "{client_ip} {method} {scheme} {host} {request_id}"), field("X-Agent", "{header.user-agent}{{")},
			Add:    []httpproxy.HeaderField{field("X-Tag", "b"), field("X-Path", "{path} {query} {uri} {rest} {header.X-None}.")},
			Remove: []string{"cookie"},
		},
		ResponseHeaders: httpproxy.HeaderRules{
			Set:    []httpproxy.HeaderField{field("X-Frame-Options", "DENY")},
			Add:    []httpproxy.HeaderField{field("X-Kept", "{path}")},
			Remove: []string{"server"},
		},
	}}})
	c, br := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "GET /api/a%2Fb?q=1 HTTP/1.1\r\nHost: outer:80\r\nUser-Agent: curl\r\nX-Request-Id: 7\r\nX-Client: forged\r\nX-TAG: a\r\nCookie: a=b\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(br), nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v, %v", resp, err)
	}
	r := <-got
	for what, pair := range map[string][2]string{
		"Host":             {r.Host, "inner"},
		"X-Forwarded-Host": {r.Header.Get("X-Forwarded-Host"), "outer:80"},
		"target":           {r.RequestURI, "/v2/a%2Fb?q=1"},
		"X-Client":         {strings.Join(r.Header["X-Client"], "|"), "127.0.0.1 GET http outer 7"},
		"X-Agent":          {r.Header.Get("X-Agent"), "curl{"},
		"X-Tag":            {strings.Join(r.Header["X-Tag"], "|"), "a|b"},
		"X-Path":           {r.Header.Get("X-Path"), "/api/a%2Fb ?q=1 /api/a%2Fb?q=1 /a%2Fb ."},
		"Cookie":           {r.Header.Get("Cookie"), ""},
		"Server":           {resp.Header.Get("Server"), ""},
		"X-Frame-Options":  {resp.Header.Get("X-Frame-Options"), "DENY"},
		"X-Kept":           {strings.Join(resp.Header["X-Kept"], "|"), "1|2|/api/a%2Fb"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %q, want %q", what, pair[0], pair[1])
		}
	}
}

// TestHostOfRules: a value that is not a host is not sent as one.
func TestHostOfRules(t *testing.T) {
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.Host)
		})),
		RequestHeaders: httpproxy.HeaderRules{Set: []httpproxy.HeaderField{{Name: "host", Value: "{header.X-Host}"}}},
	}}})
	for host, want := range map[string]string{"": p.addr, "inner:8": "inner:8", "a b": p.addr, "a/b": p.addr} {
		req, err := http.NewRequest(http.MethodGet, p.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Host", host)
		if resp, got := do(t, req); resp.StatusCode != 200 || got != want {
			t.Errorf("X-Host %q: %s, Host %q; want %q", host, resp.Status, got, want)
		}
	}
}

// TestOwnAnswersAndHeadersByHTTP2: the same where heads pass as fields.
func TestOwnAnswersAndHeadersByHTTP2(t *testing.T) {
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("X-New")) }))
	rules := httpproxy.HeaderRules{Set: []httpproxy.HeaderField{{"X-New", "{host}"}}, Remove: []string{"Date"}}
	p := startProxy(t, httpproxy.Config{Routes: append(ownRoutes(u)[1:5], httpproxy.Route{Upstream: u, RequestHeaders: rules, ResponseHeaders: rules})})
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for path, want := range map[string]string{"/docs/a": "308 /manual/a  ", "/up": "200  ok\n ", "/gone": "204   ", "/": "200  127.0.0.1 127.0.0.1"} {
		req, err := http.NewRequest(http.MethodGet, p.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, body := doWith(t, client, req)
		if got := strings.Join([]string{resp.Status[:3], resp.Header.Get("Location"), body, resp.Header.Get("X-New")}, " "); got != want || resp.ProtoMajor != 2 {
			t.Errorf("%s: %s %q, want %q", path, resp.Proto, got, want)
		}
	}
}

// TestChangesThatMustNotBreakAMessage: paths and headers with empty variables are in a form that every server accepts.
func TestChangesThatMustNotBreakAMessage(t *testing.T) {
	for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, serveEither(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.RequestURI+" ["+r.Header.Get("X-Who")+"]")
		}))
		who := httpproxy.HeaderRules{Set: []httpproxy.HeaderField{{Name: "X-Who", Value: " {header.X-None} {method} {header.X-None} "}, {Name: "Date", Value: "never"}}}
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
			{Path: "/api", Upstream: u, Rewrite: "/v2{rest}", RequestHeaders: who, ResponseHeaders: who},
			{Path: "/", Upstream: u, Rewrite: "/{rest}", RequestHeaders: who, ResponseHeaders: who},
		}})
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			client := clientFor(t, proto)
			for path, want := range map[string]string{
				"/api": "/v2 [GET]", "/api/x?q": "/v2/x?q [GET]", "/api%2Fx": "/v2/%2Fx [GET]", "/x": "/x [GET]", "//x": "/x [GET]",
			} {
				req, err := http.NewRequest(http.MethodGet, p.url+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, got := doWith(t, client, req)
				if who, date := resp.Header["X-Who"], resp.Header["Date"]; got != want || len(who) != 1 || who[0] != "GET" || len(date) != 1 || date[0] != "never" {
					t.Errorf("%s by %s to %s: %s, %q, headers %v; want %q", path, proto, protocol, resp.Status, got, resp.Header, want)
				}
			}
		}
	}
}

// TestBadChanges: New refuses rules that would break a message, and texts with unknown variables.
func TestBadChanges(t *testing.T) {
	u := newUpstream(t, "127.0.0.1:1")
	set := func(name, value string) httpproxy.HeaderRules {
		return httpproxy.HeaderRules{Set: []httpproxy.HeaderField{{name, value}}}
	}
	for name, r := range map[string]httpproxy.Route{
		"framing":                   {Upstream: u, RequestHeaders: set("Content-Length", "1")},
		"framing of answers":        {Upstream: u, ResponseHeaders: set("transfer-encoding", "x")},
		"a line break":              {Upstream: u, RequestHeaders: set("X-A", "a\r\nB: c")},
		"an unknown variable":       {Upstream: u, RequestHeaders: set("X-A", "{who}")},
		"an open brace":             {Upstream: u, RequestHeaders: set("X-A", "{host")},
		"a Host that is added":      {Upstream: u, RequestHeaders: httpproxy.HeaderRules{Add: []httpproxy.HeaderField{{"Host", "a"}}}},
		"a Host that is removed":    {Upstream: u, RequestHeaders: httpproxy.HeaderRules{Remove: []string{"Host"}}},
		"a header in a path":        {Upstream: u, Rewrite: "/{header.X-A}"},
		"a relative path":           {Upstream: u, Rewrite: "x"},
		"a line break in a path":    {Upstream: u, Rewrite: "/x{rest}\n"},
		"a tab in a path":           {Upstream: u, Rewrite: "/x\t{rest}"},
		"letters of no ASCII":       {Upstream: u, Rewrite: "/\u00e9{rest}"},
		"a long path":               {Upstream: u, Rewrite: "/" + strings.Repeat("x", 5000)},
		"blanks around a type":      {Respond: httpproxy.Respond{Status: 200, ContentType: "text/plain "}},
		"a second Location":         {Redirect: httpproxy.Redirect{To: "/x"}, ResponseHeaders: set("Location", "/y")},
		"dots in a path":            {Upstream: u, Rewrite: "/../x"},
		"a dot before a variable":   {Upstream: u, Rewrite: "/.{rest}"},
		"two answers":               {Redirect: httpproxy.Redirect{To: "/x"}, Respond: httpproxy.Respond{Status: 200}},
		"an upstream and an answer": {Upstream: u, Respond: httpproxy.Respond{Status: 200}},
		"an interim answer":         {Respond: httpproxy.Respond{Status: 103}},
		"a body of none":            {Respond: httpproxy.Respond{Status: 204, Body: "x"}},
		"a body of a reset form":    {Respond: httpproxy.Respond{Status: 205, Body: "x"}},
		"no redirect":               {Redirect: httpproxy.Redirect{To: "/x", Status: 304}},
		"another host":              {Redirect: httpproxy.Redirect{To: "//cdn.example/x"}},
		"another host to browsers":  {Redirect: httpproxy.Redirect{To: `/\cdn.example/x`}},
		"another scheme":            {Redirect: httpproxy.Redirect{To: "javascript:x"}},
	} {
		if _, err := httpproxy.New(httpproxy.Config{Routes: []httpproxy.Route{r}}); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
