package http3_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const withRoutes = `
engine: {engine}
listeners:
  - name: web
    protocol: http
    listen: "127.0.0.1:0"
    tls: {cert: {cert}, key: {key}}
    http:
      http3: true
      routes:
        - {path: /shop, strip_prefix: true, upstream: app, rewrite_location: true, rewrite_cookies: true}
        - {path: /canary, cookies: {canary: {prefix: al}}, respond: {status: 202}}
        - {path: /canary, respond: {status: 204}}
        - {path: /model, upstream: app, llm: {token_limits: [{tokens: 60, per: 24h, by: route}]}}
upstreams:
  app: {endpoints: ["{app}"]}
`

// TestRoutes: what routes change in answers, their conditions and their limits are those of the other versions of HTTP.
func TestRoutes(t *testing.T) {
	came := make(chan struct{}, 1)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.URL.Path {
		case "/model":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"usage": {"prompt_tokens": 20, "completion_tokens": 5}}`)
		case "/model/waits":
			came <- struct{}{}
			<-r.Context().Done()
		case "/model/fails":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			w.Header().Set("Location", "http://"+r.Host+"/login?a#b")
			w.Header().Set("Content-Location", "http://"+strings.TrimPrefix(r.Header.Get("X-App"), "http://")+"/\t/other.example")
			w.Header().Set("Set-Cookie", "a=b; Path=/; Domain=inner.example")
			w.WriteHeader(http.StatusFound)
		}
	}))
	t.Cleanup(app.Close)
	for _, engine := range engines {
		w := run(t, withRoutes, "{engine}", engine, "{app}", strings.TrimPrefix(app.URL, "http://"))
		tr := w.transport()
		r := request(t, w.url("/shop/x"))
		r.Header.Set("X-App", app.URL)
		_, resp := do(t, tr, r)
		got := fmt.Sprintf("%q %q %q", resp.Header["Location"], resp.Header["Content-Location"], resp.Header["Set-Cookie"])
		if want := `["/shop/login?a#b"] ["/shop/\t/other.example"] ["a=b; Path=/shop"]`; got != want {
			t.Errorf("%s: %s, want %s", engine, got, want)
		}
		for cookie, want := range map[string]int{"a=b; canary=always": 202, "canary=never": 204, "": 204} {
			r := request(t, w.url("/canary"))
			if r.Header.Set("Cookie", cookie); cookie == "" {
				r.Header.Del("Cookie")
			}
			if _, resp := do(t, tr, r); resp.StatusCode != want {
				t.Errorf("%s: %d with the cookies %q, want %d", engine, resp.StatusCode, cookie, want)
			}
		}
		post := func(ctx context.Context, path string) *http.Request {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url(path), strings.NewReader(`{"model": "a"}`))
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		isLeft := func(want string) {
			t.Helper()
			got := ""
			for deadline := time.Now().Add(time.Minute); got != want; {
				_, resp := do(t, tr, post(t.Context(), "/model/fails"))
				if got = resp.Header.Get("x-ratelimit-remaining-tokens"); got != want && time.Now().After(deadline) {
					t.Fatalf("%s: %s tokens are left, want %s", engine, got, want)
				}
			}
		}
		isLeft("60")
		do(t, tr, post(t.Context(), "/model"))
		isLeft("35")
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			<-came
			leave()
		}()
		if resp, err := tr.RoundTrip(post(ctx, "/model/waits")); err == nil {
			t.Errorf("%s: %s", engine, resp.Status)
		}
		isLeft("35")
	}
}

const withRules = `
engine: {engine}
listeners:
  - name: web
    protocol: http
    listen: "127.0.0.1:0"
    tls: {cert: {cert}, key: {key}}
    http:
      http3: true
      routes:
        - {path: /, upstream: app, request_headers: {set: {X-Role: guest}, remove: [X-Debug]}, response_headers: {set: {X-Role: guest}, remove: [X-Debug]}}
upstreams:
  app: {endpoints: ["{app}"], protocol: {version}}
`

// TestHeaderRulesHoldForTrailers, as in the other versions of HTTP.
func TestHeaderRulesHoldForTrailers(t *testing.T) {
	app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-Role, X-Debug, X-Sum")
		_, _ = fmt.Fprint(w, len(r.Trailer), r.Trailer["X-Sum"], r.Header["X-Role"])
		for _, name := range []string{"X-Role", "X-Debug", "X-Sum"} {
			w.Header().Set(name, "server's")
		}
	}))
	app.Config.Protocols = new(http.Protocols)
	app.Config.Protocols.SetHTTP1(true)
	app.Config.Protocols.SetUnencryptedHTTP2(true)
	app.Start()
	t.Cleanup(app.Close)
	for _, version := range []string{"h1", "h2c"} {
		w := run(t, withRules, "{version}", version, "{app}", strings.TrimPrefix(app.URL, "http://"))
		r, err := http.NewRequest(http.MethodPost, w.url("/"), io.MultiReader(strings.NewReader("body")))
		if err != nil {
			t.Fatal(err)
		}
		r.Trailer = http.Header{"X-Role": {"admin"}, "X-Debug": {"1"}, "X-Sum": {"7"}}
		body, resp := do(t, w.transport(), r)
		if want := "1 [7] [guest]"; body != want {
			t.Errorf("%s: the server saw %s, want %s", version, body, want)
		}
		if got := fmt.Sprint(resp.Trailer, resp.Header["X-Role"], resp.Header["X-Debug"]); got != "map[X-Sum:[server's]] [guest] []" {
			t.Errorf("%s: the client got %s", version, got)
		}
	}
}
