package httpproxy_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// echoBackend answers with its name, the target and what X-Forwarded fields it saw.
func echoBackend(t *testing.T, name string) *httpproxy.Upstream {
	return newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, name+" "+r.RequestURI)
	}))
}

func TestRoutes(t *testing.T) {
	route := func(host, path string) httpproxy.Route {
		return httpproxy.Route{Host: host, Path: path, Upstream: echoBackend(t, host+path)}
	}
	strip := route("", "/strip/")
	strip.Path, strip.StripPrefix = "/strip", true
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		route("", "/any"), route("a.example", "/"), route("a.example", "/api"), route("*.example", ""),
		route("*.b.example", ""), route("c.example", "/only"), strip, route("[::1]", "/"),
	}})
	for _, tc := range []struct{ host, path, want string }{
		{"a.example", "/", "a.example/ /"},
		{"A.Example.:8080", "/x", "a.example/ /x"},
		{"a.example", "/api", "a.example/api /api"},
		{"a.example", "/api/v1", "a.example/api /api/v1"},
		{"a.example", "/apix", "a.example/ /apix"},
		{"a.example", "/%61pi/v1", "a.example/api /%61pi/v1"},
		{"x.example", "/", "*.example /"},
		{"x.y.example", "/", "*.example /"},
		{"x.b.example", "/", "*.b.example /"},
		{"c.example", "/only/x", "c.example/only /only/x"},
		{"c.example", "/other", "*.example /other"},
		{"example", "/", "404"},
		{"notexample", "/any/x", "/any /any/x"},
		{"other", "/", "404"},
		{"other", "/strip", "/strip/ /"},
		{"other", "/strip?q", "/strip/ /?q"},
		{"other", "/strip/a%2fb", "/strip/ /a%2fb"},
		{"other", "/%73trip/a%2fb", "/strip/ /a%2fb"},
		{"other", "/stripped", "404"},
		{"[::1]:80", "/", "[::1]/ /"},
	} {
		req, err := http.NewRequest("GET", p.url+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = tc.host
		resp, body := do(t, req)
		if resp.StatusCode == 404 {
			body = "404"
		}
		if body != tc.want {
			t.Errorf("%s%s went to %q, want %q", tc.host, tc.path, body, tc.want)
		}
	}
}

func TestForwardedFields(t *testing.T) {
	seen := make(chan http.Header, 1)
	u := newUpstream(t, serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }))
	sent := http.Header{"X-Forwarded-For": {"6.6.6.6"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"evil"},
		"Forwarded": {"for=6.6.6.6"}, "X-Real-Ip": {"6.6.6.6"}, "X-Forwarded-Port": {"1"}, "X-Request-Id": {"bad id"}}
	for name, tc := range map[string]struct {
		trusted string
		want    map[string]string
	}{
		"replaced": {"10.0.0.0/8", map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "app",
			"Forwarded": `for=127.0.0.1;proto=http;host="app"`, "X-Real-Ip": "", "X-Forwarded-Port": ""}},
		"extended": {"127.0.0.0/8", map[string]string{"X-Forwarded-For": "6.6.6.6, 127.0.0.1", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil",
			"Forwarded": `for=6.6.6.6, for=127.0.0.1;proto=http;host="app"`, "X-Real-Ip": "6.6.6.6", "X-Forwarded-Port": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := routeTo(u)
			cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix(tc.trusted)}
			p := startProxy(t, cfg)
			req, err := http.NewRequest("GET", p.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host, req.Header = "app", sent.Clone()
			do(t, req)
			got := <-seen
			for field, want := range tc.want {
				if got.Get(field) != want {
					t.Errorf("%s: %q, want %q", field, got.Get(field), want)
				}
			}
			if id := got.Get("X-Request-Id"); id == "" || strings.Contains(id, " ") {
				t.Errorf("the request's id is %q", id)
			}
		})
	}
}

func TestConfigErrors(t *testing.T) {
	u := echoBackend(t, "x")
	_, err := httpproxy.New(httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/a"}, {Path: "b", Upstream: u}, {Path: "/../c", Upstream: u}, {Host: "d:80", Upstream: u},
		{Host: "e", Path: "/", Upstream: u}, {Host: "E.", Path: "", Upstream: u}, {Timeout: -1, Upstream: u},
	}})
	if !errors.Is(err, httpproxy.ErrConfig) {
		t.Fatalf("the error is %v", err)
	}
	for _, want := range []string{"no upstream", "begin with /", "..", "port", "route 5 repeats", "negative timeout"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing about %q in %v", want, err)
		}
	}
}

// TestUpdate swaps the routes while a request runs under the old ones.
func TestUpdate(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	old := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-release
		_, _ = io.WriteString(w, "old")
	}))
	p := startProxy(t, routeTo(old))
	result := make(chan string)
	go func() {
		_, body := get(t, p.url)
		result <- body
	}()
	<-arrived
	cfg := routeTo(echoBackend(t, "new"))
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	if _, body := get(t, p.url); body != "new /" {
		t.Errorf("after the update: %q", body)
	}
	close(release)
	if body := <-result; body != "old" {
		t.Errorf("the running request got %q", body)
	}
	if err := p.Update(httpproxy.Config{Routes: []httpproxy.Route{{}}}); !errors.Is(err, httpproxy.ErrConfig) {
		t.Errorf("a bad update: %v", err)
	}
	if _, body := get(t, p.url); body != "new /" {
		t.Errorf("after the bad update: %q", body)
	}
}

// TestDrainFinishesRequests and closes idle connections at once.
func TestDrainFinishesRequests(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	p := startProxy(t, routeTo(newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-release
		_, _ = io.WriteString(w, "whole")
	}))))
	result := make(chan string)
	go func() {
		_, body := get(t, p.url)
		result <- body
	}()
	<-arrived
	drained := make(chan error)
	go func() { drained <- p.Drain(context.Background()) }()
	eventually(t, "draining", func() bool { return p.Stats().Draining })
	close(release)
	if body := <-result; body != "whole" {
		t.Errorf("the running request got %q", body)
	}
	if err := <-drained; err != nil {
		t.Errorf("Drain: %v", err)
	}
}
