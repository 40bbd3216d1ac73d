package httpproxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/upstream"
)

// says is an upstream that answers everything with a word.
func says(t *testing.T, word string) *httpproxy.Upstream {
	return newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.RingHash}},
		serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, word) }))
}

// canaryAt is a proxy with a route to "old", of which a canary takes a part to "next".
func canaryAt(t *testing.T, c httpproxy.Canary, change func(*httpproxy.Route)) running {
	t.Helper()
	c.Upstream = says(t, "next")
	r := httpproxy.Route{Upstream: says(t, "old"), Canary: c}
	if change != nil {
		change(&r)
	}
	return startProxy(t, httpproxy.Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Routes: []httpproxy.Route{r}})
}

func askWith(t *testing.T, client *http.Client, url, name, value string) (*http.Response, string) {
	t.Helper()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if name != "" {
		req.Header.Set(name, value)
	}
	return doWith(t, client, req)
}

// TestCanaryOfRequests: the share is about right, and exactly so at its ends.
func TestCanaryOfRequests(t *testing.T) {
	const requests = 400 // of which 30 percent are 120, more or less 9
	for percent, bounds := range map[int][2]int{0: {0, 0}, 30: {60, 180}, 100: {requests, requests}} {
		p := canaryAt(t, httpproxy.Canary{Percent: percent}, nil)
		n := 0
		for range requests {
			if _, body := get(t, p.url); body == "next" {
				n++
			}
		}
		if n < bounds[0] || n > bounds[1] {
			t.Errorf("with %d percent %d of %d requests go to the canary", percent, n, requests)
		}
	}
}

// TestCanaryKeepsPlaces: a header value, a cookie or a client has the same place in each proxy, and keeps it when the
// share grows.
func TestCanaryKeepsPlaces(t *testing.T) {
	const keys = 100
	for name, tc := range map[string]struct {
		by    httpproxy.Canary
		field string
		value func(i int) string
	}{
		"header": {httpproxy.Canary{Header: "x-tenant"}, "X-Tenant", func(i int) string { return fmt.Sprint("tenant-", i) }},
		"cookie": {httpproxy.Canary{Cookie: "pond"}, "Cookie", func(i int) string { return fmt.Sprint("a=b; pond=", i) }},
		"client": {httpproxy.Canary{By: httpproxy.CanaryByClient}, "X-Forwarded-For", func(i int) string { return fmt.Sprint("10.0.0.", i) }},
	} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+proto, func(t *testing.T) {
				client := clientFor(t, proto)
				inside := map[int]bool{}
				before := 0
				for _, percent := range []int{10, 40, 40, 100} {
					tc.by.Percent = percent
					p := canaryAt(t, tc.by, nil)
					n := 0
					for i := range keys {
						_, body := askWith(t, client, p.url, tc.field, tc.value(i))
						if inside[i] && body != "next" {
							t.Errorf("key %d has lost its place when the share is %d percent", i, percent)
						}
						if inside[i] = body == "next"; inside[i] {
							n++
						}
					}
					if n == 0 || percent == 40 && (n < keys/5 || n > keys*3/5) || percent == 100 && n != keys || n < before {
						t.Errorf("%d of %d keys are in a share of %d percent", n, keys, percent)
					}
					before = n
				}
				if _, body := askWith(t, client, canaryAt(t, httpproxy.Canary{Header: tc.by.Header, Cookie: tc.by.Cookie, Percent: 99}, nil).url, "", ""); name != "client" && body != "old" {
					t.Errorf("without a key a request goes to %q", body)
				}
			})
		}
	}
}

// TestCanarySetsCookies: a client without the cookie gets one, and stays where it was; Affinity's cookie is another.
func TestCanarySetsCookies(t *testing.T) {
	p := canaryAt(t, httpproxy.Canary{Percent: 50, Cookie: "pond-next", SetCookie: true, MaxAge: 3600e9}, func(r *httpproxy.Route) {
		r.Affinity = httpproxy.Affinity{Cookie: "pond", SetCookie: true}
	})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client, seen := clientFor(t, proto), map[string]int{}
		for range 100 {
			resp, body := askWith(t, client, p.url, "", "")
			cookies := resp.Cookies()
			if len(cookies) != 2 || cookies[0].Name != "pond" || cookies[1].Name != "pond-next" || len(cookies[1].Value) != 16 || cookies[1].MaxAge != 3600 ||
				!cookies[1].HttpOnly || cookies[0].Value == cookies[1].Value {
				t.Fatalf("the cookies are %v", cookies)
			}
			seen[body]++
			for range 2 {
				resp, again := askWith(t, client, p.url, "Cookie", "pond=1; pond-next="+cookies[1].Value)
				if again != body || len(resp.Cookies()) != 0 {
					t.Errorf("from %q to %q with cookies %v", body, again, resp.Cookies())
				}
			}
		}
		if seen["old"] == 0 || seen["next"] == 0 {
			t.Errorf("100 clients are at %v", seen)
		}
	}
}

// TestCanaryIsOfItsRoute: limits are the route's as a whole, and so are its rules; the counts are each upstream's own.
func TestCanaryIsOfItsRoute(t *testing.T) {
	asked := 0
	auth := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) { asked++ }))
	p := canaryAt(t, httpproxy.Canary{Percent: 50, Header: "X-Tenant"}, func(r *httpproxy.Route) {
		r.RateLimit = httpproxy.RateLimit{Requests: 20, Per: 3600e9, By: httpproxy.RateByRoute}
		r.ForwardAuth = &httpproxy.ForwardAuth{Upstream: auth, Timeout: patience}
		r.ResponseHeaders = httpproxy.HeaderRules{Set: []httpproxy.HeaderField{{Name: "X-Rule", Value: "1"}}}
	})
	got := map[string]float64{}
	for i := range 30 {
		resp, body := askWith(t, http.DefaultClient, p.url, "X-Tenant", fmt.Sprint(i))
		if resp.StatusCode == 200 && resp.Header.Get("X-Rule") != "1" {
			t.Errorf("the answer of %q has no rule", body)
		}
		got[strings.SplitN(body, " ", 2)[0]]++
	}
	if got["429"] != 10 || got["old"]+got["next"] != 20 || got["old"] == 0 || got["next"] == 0 || asked != 30 {
		t.Errorf("the answers are %v, the authentication server was asked %d times", got, asked)
	}
}

// TestCanaryErrors: what a Canary must not be.
func TestCanaryErrors(t *testing.T) {
	old, next := says(t, "old"), says(t, "next")
	for _, r := range []httpproxy.Route{
		{Canary: httpproxy.Canary{Percent: 5}},
		{Canary: httpproxy.Canary{Upstream: old, Percent: 5}},
		{Canary: httpproxy.Canary{Upstream: next, Percent: 101}},
		{Canary: httpproxy.Canary{Upstream: next, Percent: -1}},
		{Canary: httpproxy.Canary{Upstream: next, By: "server"}},
		{Canary: httpproxy.Canary{Upstream: next, Header: "a b"}},
		{Canary: httpproxy.Canary{Upstream: next, Cookie: "a b"}},
		{Canary: httpproxy.Canary{Upstream: next, Header: "a", Cookie: "b"}},
		{Canary: httpproxy.Canary{Upstream: next, Header: "a", By: httpproxy.CanaryByClient}},
		{Canary: httpproxy.Canary{Upstream: next, SetCookie: true}},
		{Canary: httpproxy.Canary{Upstream: next, Cookie: "a", MaxAge: 1}},
		{Canary: httpproxy.Canary{Upstream: next}, Groups: []string{"all"}},
		{Canary: httpproxy.Canary{Upstream: next, Cookie: "a", SetCookie: true}, Affinity: httpproxy.Affinity{Cookie: "a", SetCookie: true}},
	} {
		r.Upstream = old
		if err := (httpproxy.Config{Routes: []httpproxy.Route{r}}).Verify(); err == nil || !strings.Contains(err.Error(), "canary") {
			t.Errorf("%+v: %v", r.Canary, err)
		}
	}
}
