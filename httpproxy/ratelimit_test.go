package httpproxy_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/listener"
)

// limited sends n requests with these headers, and returns how many were answered. The others must be refused.
func limited(t *testing.T, client *http.Client, url string, n int, headers ...string) (answered int) {
	t.Helper()
	for range n {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(headers); i += 2 {
			req.Header.Add(headers[i], headers[i+1])
		}
		resp, body := doWith(t, client, req)
		switch after, _ := strconv.Atoi(resp.Header.Get("Retry-After")); {
		case resp.StatusCode == 200 && body == "hi":
			answered++
		case resp.StatusCode != 429 || after < 1 || after > 8*3600:
			t.Errorf("%s, Retry-After %q: %s", resp.Status, resp.Header.Get("Retry-After"), body)
		}
	}
	return answered
}

// TestRateLimit counts requests by client, by a header and together, over each version of HTTP. The limits do not depend
// on the time that the test takes.
func TestRateLimit(t *testing.T) {
	limit := httpproxy.RateLimit{Requests: 3, Per: 24 * time.Hour}
	byHeader, together := limit, limit
	byHeader.Header, together.By = "X-Key", httpproxy.RateByRoute
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") }))
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			cfg := httpproxy.Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")}, Routes: []httpproxy.Route{
				{Path: "/client", Upstream: u, RateLimit: limit},
				{Path: "/header", Upstream: u, RateLimit: byHeader},
				{Path: "/route", Upstream: u, RateLimit: together},
				{Path: "/own", Respond: httpproxy.Respond{Status: 200, Body: "hi"}, RateLimit: limit},
				{Path: "/", Upstream: u},
			}}
			cfg.Listener.Logger = slog.New(slog.DiscardHandler)
			p := startProxy(t, cfg)
			client := clientFor(t, proto)
			const xff = "X-Forwarded-For"
			for i, tc := range []struct {
				path    string
				headers []string
				want    int
			}{
				{"/client", nil, 3},
				{"/client", nil, 0},
				{"/client", []string{xff, "10.0.0.1"}, 3},
				{"/client", []string{xff, "192.0.2.1"}, 3},
				{"/client", []string{xff, "203.0.113.7, 192.0.2.1, 10.0.0.9"}, 0}, // what the client itself wrote does not count
				{"/client", []string{xff, "192.0.2.1", xff, "192.0.2.2"}, 3},
				{"/client", []string{xff, "2001:db8::1"}, 3},
				{"/client", []string{xff, "2001:db8::2"}, 0}, // of the same network
				{"/client", []string{xff, "2001:db8:0:1::1"}, 3},
				{"/client", []string{xff, "nobody"}, 0}, // counted as the peer
				{"/header", []string{"X-Key", "a"}, 3},
				{"/header", []string{"X-KEY", "a"}, 0},
				{"/header", []string{"X-Key", "b"}, 3},
				{"/header", nil, 3},
				{"/header", nil, 0},
				{"/route", []string{xff, "192.0.2.1"}, 3},
				{"/route", []string{xff, "192.0.2.2"}, 0},
				{"/own", nil, 3},
				{"/own", nil, 0},
			} {
				if n := limited(t, client, p.url+tc.path, 5, tc.headers...); n != tc.want {
					t.Errorf("case %d, %s with %q: %d of 5 requests are answered, want %d", i, tc.path, tc.headers, n, tc.want)
				}
			}
			if n := limited(t, client, p.url, 10); n != 10 {
				t.Errorf("%d of 10 requests to a route without a limit are answered", n)
			}
			if err := p.Update(cfg); err != nil {
				t.Fatal(err)
			}
			if n := limited(t, client, p.url+"/header", 5); n != 0 {
				t.Errorf("%d requests are answered after an update", n)
			}
			cfg.Routes[1].RateLimit.Requests = 4
			if err := p.Update(cfg); err != nil {
				t.Fatal(err)
			}
			if n := limited(t, client, p.url+"/header", 5); n != 4 {
				t.Errorf("%d requests are answered with a new limit", n)
			}
			stats := p.Stats()
			if n, counts := stats.Errors[listener.ReasonRateLimited], counted(stats.Traffic[0]); n < 5*5 || counts["/route http_rate_limited_total "] != 7 {
				t.Errorf("%d refusals are counted, by route %v", n, counts)
			}
		})
	}
}

// TestBadRateLimits are refused.
func TestBadRateLimits(t *testing.T) {
	for name, limit := range map[string]httpproxy.RateLimit{
		"no requests":    {Per: time.Second},
		"negative":       {Requests: -1},
		"a negative per": {Requests: 1, Per: -1},
		"a year":         {Requests: 1, Per: 365 * 24 * time.Hour},
		"by what":        {Requests: 1, By: "moon"},
		"no header":      {Requests: 1, Header: "X Key"},
		"Host":           {Requests: 1, Header: "host"},
	} {
		if _, err := httpproxy.New(httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, "127.0.0.1:1"), RateLimit: limit}}}); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestRateLimitOfSlowRequests: a request counts when it is judged, not when its head began to arrive.
func TestRateLimitOfSlowRequests(t *testing.T) {
	const per = 10 * time.Millisecond
	u := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: u, RateLimit: httpproxy.RateLimit{Requests: 1000, Per: per, By: httpproxy.RateByRoute},
	}}})
	c, br := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n")
	<-time.After(10 * per)
	if resp, body := get(t, p.url); resp.StatusCode != 200 {
		t.Errorf("another request: %s: %s", resp.Status, body)
	}
	if resp, body := roundTrip(t, c, br, "Host: a\r\n\r\n"); resp.StatusCode != 200 {
		t.Errorf("the slow request: %s, Retry-After %q: %s", resp.Status, resp.Header.Get("Retry-After"), body)
	}
}

// TestRateLimitOfStrangers: refused requests use nothing of a shared limit. A limit by client comes before passwords.
func TestRateLimitOfStrangers(t *testing.T) {
	users, _ := fileOfUsers(t, slog.New(slog.DiscardHandler), htpasswd(t, "ann", "secret"))
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") }))
	limit := httpproxy.RateLimit{Requests: 2, Per: 24 * time.Hour}
	shared, byKey := limit, limit
	shared.By, byKey.Header = httpproxy.RateByRoute, "X-Key"
	auth, stranger := &httpproxy.BasicAuth{Users: users}, []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}
	p := startProxy(t, httpproxy.Config{
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Routes: []httpproxy.Route{
			{Path: "/denied", Upstream: u, Deny: stranger, RateLimit: shared},
			{Path: "/shared", Upstream: u, BasicAuth: auth, RateLimit: shared},
			{Path: "/key", Upstream: u, BasicAuth: auth, RateLimit: byKey},
			{Path: "/client", Upstream: u, BasicAuth: auth, RateLimit: limit},
		},
	})
	ask := func(path, from, password string) int {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, p.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Forwarded-For", from)
		req.Header.Set("X-Key", "k")
		req.SetBasicAuth("ann", password)
		resp, _ := do(t, req)
		return resp.StatusCode
	}
	for _, tc := range []struct {
		path, from, password string
		want                 int
	}{
		{"/denied", "192.0.2.1", "secret", 403},
		{"/shared", "192.0.2.1", "wrong", 401},
		{"/key", "192.0.2.1", "wrong", 401},
	} {
		for range 3 {
			if got := ask(tc.path, tc.from, tc.password); got != tc.want {
				t.Errorf("%s of a stranger: %d, want %d", tc.path, got, tc.want)
			}
		}
		for i, want := range []int{200, 200, 429} {
			if got := ask(tc.path, "192.0.2.2", "secret"); got != want {
				t.Errorf("%s, request %d: %d, want %d", tc.path, i, got, want)
			}
		}
	}
	for i, want := range []int{401, 401, 429} {
		if got := ask("/client", "192.0.2.1", "wrong"); got != want {
			t.Errorf("password %d: %d, want %d", i, got, want)
		}
	}
}

// TestRateLimitOfCredentials: a client does not evade a limit with another form of its credentials, nor of a user with a
// header of its own.
func TestRateLimitOfCredentials(t *testing.T) {
	users, _ := fileOfUsers(t, slog.New(slog.DiscardHandler), htpasswd(t, "ann", "secret")+htpasswd(t, "bob", "secret"))
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") }))
	limit := func(header string) httpproxy.RateLimit {
		return httpproxy.RateLimit{Requests: 2, Per: 8 * time.Hour, Header: header}
	}
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/key", Upstream: u, RateLimit: limit("Authorization")},
		{Path: "/user", Upstream: u, BasicAuth: &httpproxy.BasicAuth{Users: users, UserHeader: "X-User"}, RateLimit: limit("X-User")},
		{Path: "/basic", Upstream: u, BasicAuth: &httpproxy.BasicAuth{Users: users}, RateLimit: limit("Authorization")},
	}})
	client := clientFor(t, "HTTP/1.1")
	const ann, bob = "YW5uOnNlY3JldA==", "Ym9iOnNlY3JldA=="
	for i, tc := range []struct {
		path    string
		headers []string
		want    int
	}{
		{"/key", []string{"Authorization", "Bearer Key"}, 1},
		{"/key", []string{"Authorization", "bEARER  Key"}, 1},
		{"/key", []string{"Authorization", "BEARER   Key"}, 0},
		{"/key", []string{"Authorization", "Bearer key"}, 1},
		{"/key", []string{"Authorization", "Key"}, 1},
		{"/user", []string{"Authorization", "Basic " + ann, "X-User", "1"}, 1},
		{"/user", []string{"Authorization", "Basic " + ann, "X-User", "2"}, 1},
		{"/user", []string{"Authorization", "Basic " + ann, "X-User", "bob"}, 0},
		{"/user", []string{"Authorization", "Basic " + bob, "X-User", "ann"}, 1},
		{"/basic", []string{"Authorization", "Basic " + ann}, 1},
		{"/basic", []string{"Authorization", "basic " + ann}, 1},
		{"/basic", []string{"Authorization", "BASIC  " + ann}, 0},
		{"/basic", []string{"Authorization", "Basic " + bob}, 1},
	} {
		if got := limited(t, client, p.url+tc.path, 1, tc.headers...); got != tc.want {
			t.Errorf("%d: %d answered, want %d", i, got, tc.want)
		}
	}
}
