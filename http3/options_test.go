package http3_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/mockllm"
)

// options has what routes can do, besides passing requests on. Its users are ann and bob, whose keys are their names.
const options = `
engine: {engine}
drain_timeout: 5s
listeners:
  - name: web
    protocol: http
    listen: "127.0.0.1:0"
    upstream: app
    tls: {cert: {cert}, key: {key}}
    http:
      http3: true
      access_log: {path: {log}, format: "{protocol} {method} {path} {status} {user} {input_tokens}", min_status: 400}
      error_pages: [{status: 4xx, content_type: text/html, body: "<p>{status} {host} {method} {request_id}", of: both}]
      routes:
        - {path: '/items/(?<number>[0-9]+)/(.*)', path_match: regex, upstream: app, rewrite: /found/$2/$number}
        - {path: '/old/(.*)', path_match: regex, redirect: {to: "https://elsewhere.example/$1"}}
        - {path: /sum, upstream: app, max_body_kib: 64}
        - {path: /copied, upstream: app, mirror: copies}
        - {path: /keyed, upstream: app, bearer_auth: {keys: {keys}, user_header: X-Forwarded-Proto-Of}}
        - {path: /quiet, respond: {status: 410}, access_log: {min_status: 500}}
        - path: /v1
          upstream: model
          bearer_auth: {keys}
          llm: {include_usage: true, token_limits: [{tokens: 5, per: 24h, by: user, budgets: {bob: 1000}}]}
upstreams:
  app: {endpoints: ["{server}"], protocol: {version}, connect_timeout: 1m, pool: {acquire_timeout: 1m}}
  copies: {endpoints: ["{copies}"]}
  model: {endpoints: ["{model}"]}
`

// optionsCase is a request and what its client sees. In header, "" stands for a field that is not there, and "*" for some value.
type optionsCase struct {
	name, method, path, key, body string
	status                        int
	says                          string // in the answer's body, with {host} and {id} of the request
	header                        map[string]string
	streamed                      bool // the body comes without a length
}

const ask = `{"model":"m","stream":true,"messages":[{"role":"user","content":"who are you"}]}`

var optionsCases = []optionsCase{
	{name: "rewritten", method: "GET", path: "/items/42/a%2Fb?c=d", status: 200, says: " /found/a%2Fb/42?c=d https "},
	{name: "rewritten with a body", method: "POST", path: "/items/7/x", body: "text", status: 200, says: " /found/x/7 https text"},
	{name: "redirected", method: "GET", path: "/old/page", status: 308, header: map[string]string{"Location": "https://elsewhere.example/page"}},
	{name: "not rewritten", method: "GET", path: "/items/1/..%2f..", status: 400, says: "<p>400 {host} GET {id}"},
	{name: "page for the backend", method: "POST", path: "/early", body: "text", status: 403, says: "<p>403 {host} POST {id}", header: map[string]string{"Content-Type": "text/html", "Content-Length": "*"}},
	{name: "page for HEAD", method: "HEAD", path: "/early", status: 403, header: map[string]string{"Content-Type": "text/html", "Content-Length": "*"}},
	{name: "page for a body that is too large", method: "POST", path: "/sum", body: strings.Repeat("x", 100_000), status: 413, says: "<p>413 {host} POST {id}"},
	{name: "page for a body that becomes too large", method: "POST", path: "/sum", body: strings.Repeat("x", 100_000), streamed: true, status: 413, says: "<p>413 {host} POST {id}"},
	{name: "answer of the route", method: "GET", path: "/quiet", status: 410, says: "<p>410 {host} GET {id}"},
	{name: "no key", method: "GET", path: "/keyed", status: 401, says: "<p>401 ", header: map[string]string{"Www-Authenticate": `Bearer realm="restricted"`}},
	{name: "wrong key", method: "POST", path: "/keyed", body: "x", key: "eve", status: 401, says: "<p>401 "},
	{name: "right key", method: "POST", path: "/keyed", body: "x", key: "ann", status: 200, says: " /keyed https x"},
	{name: "no key for a model", method: "POST", path: "/v1/chat/completions", body: ask, status: 401, says: `"code":"invalid_api_key"`, header: map[string]string{"Content-Type": "application/json"}},
	{name: "first answer of a model", method: "POST", path: "/v1/chat/completions", body: ask, key: "ann", status: 200, says: "data: [DONE]", header: map[string]string{"X-Ratelimit-Limit-Tokens": "5", "Content-Type": "text/event-stream"}},
	{name: "tokens used up", method: "POST", path: "/v1/chat/completions", body: ask, key: "ann", status: 429, says: `"code":"rate_limit_exceeded"`, header: map[string]string{"Retry-After": "*", "X-Ratelimit-Remaining-Tokens": "0", "Content-Type": "application/json"}},
	{name: "a budget", method: "POST", path: "/v1/chat/completions", body: ask, key: "bob", streamed: true, status: 200, says: "data: [DONE]", header: map[string]string{"X-Ratelimit-Limit-Tokens": "1000"}},
	{name: "copied", method: "POST", path: "/copied", body: strings.Repeat("text", 5000), status: 200, says: " /copied https text"},
	{name: "copied without a length", method: "PUT", path: "/copied/a?b", body: strings.Repeat("text", 5000), streamed: true, status: 200, says: " /copied/a?b https text"},
	{name: "copied without a body", method: "GET", path: "/copied", status: 200, says: " /copied https "},
}

// copiesOf are what the mirror gets of optionsCases.
var copiesOf = []string{"POST /copied 20000 20000", "PUT /copied/a?b 20000 20000", "GET /copied 0 0"}

// linesOf is the access log of optionsCases.
const linesOf = `GET /items/1/..%2f.. 400 - -
POST /early 403 - -
HEAD /early 403 - -
POST /sum 413 - -
POST /sum 413 - -
GET /keyed 401 - -
POST /keyed 401 - -
POST /v1/chat/completions 401 - -
POST /v1/chat/completions 429 ann -
`

// TestOptionsOfRoutes: they do for HTTP/3 what they do for HTTP/2.
func TestOptionsOfRoutes(t *testing.T) {
	for _, engine := range engines {
		for n, version := range []string{"HTTP/2.0", "HTTP/3.0"} {
			t.Run(engine+" "+version, func(t *testing.T) {
				copies := make(chan string, 100)
				mirror := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					if err != nil || r.Header.Get("X-Headpond-Mirror") != "1" {
						t.Errorf("a copy: %v %v", err, r.Header)
					}
					copies <- fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.ContentLength, " ", len(body))
				}))
				t.Cleanup(mirror.Close)
				model := httptest.NewServer(&mockllm.Server{})
				t.Cleanup(model.Close)
				dir := t.TempDir()
				keys, log := filepath.Join(dir, "keys"), filepath.Join(dir, "log")
				if err := os.WriteFile(keys, fmt.Appendf(nil, "ann:%x\nbob:%x\n", sha256.Sum256([]byte("ann")), sha256.Sum256([]byte("bob"))), 0o600); err != nil {
					t.Fatal(err)
				}
				w := run(t, options, "{engine}", engine, "{version}", []string{"h1", "h2c"}[n], "{keys}", keys, "{log}", log, "{copies}", mirror.Listener.Addr().String(), "{model}", model.Listener.Addr().String())
				tr := http.RoundTripper(w.overTCP())
				if version == "HTTP/3.0" {
					tr = w.transport()
				}
				for _, tc := range optionsCases {
					tc.run(t, w, tr, version)
				}
				var got []string
				for range copiesOf {
					got = append(got, <-copies)
				}
				slices.Sort(got) // copies may overtake each other
				if want := slices.Sorted(slices.Values(copiesOf)); !slices.Equal(got, want) {
					t.Errorf("copies %q", got)
				}
				want := ""
				for line := range strings.Lines(linesOf) {
					want += version + " " + line
				}
				var text []byte
				conntest.Eventually(t, "the access log has all lines", func() bool {
					text, _ = os.ReadFile(log)
					return len(text) >= len(want)
				})
				logged, lines := slices.Sorted(strings.Lines(string(text))), slices.Sorted(strings.Lines(want)) // a client may go on before its request is logged
				if !slices.Equal(logged, lines) {
					t.Errorf("the access log has\n%s\nwant\n%s", text, want)
				}
			})
		}
	}
}

func (tc *optionsCase) run(t *testing.T, w *world, tr http.RoundTripper, version string) {
	t.Helper()
	text, resp, id := tc.ask(t, w, tr)
	if tc.status == http.StatusTooManyRequests { // a client may have its answer before the tokens are counted
		conntest.Eventually(t, tc.name, func() bool {
			if resp.StatusCode == http.StatusOK {
				text, resp, id = tc.ask(t, w, tr)
			}
			return resp.StatusCode != http.StatusOK
		})
	}
	says := strings.NewReplacer("{host}", "127.0.0.1", "{id}", id).Replace(tc.says)
	if resp.StatusCode != tc.status || !strings.Contains(text, says) || resp.Proto != version {
		t.Errorf("%s: %s %s %.300q, want %d with %q", tc.name, resp.Proto, resp.Status, text, tc.status, says)
	}
	if tc.method == http.MethodHead && text != "" {
		t.Errorf("%s: a body %q", tc.name, text)
	}
	for name, want := range tc.header {
		if got := resp.Header.Get(name); got != want && (want != "*" || got == "") && !strings.HasPrefix(got, want+";") {
			t.Errorf("%s: %s is %q, want %q", tc.name, name, got, want)
		}
	}
}

// ask sends the request, whose id it returns with the answer.
func (tc *optionsCase) ask(t *testing.T, w *world, tr http.RoundTripper) (text string, resp *http.Response, id string) {
	t.Helper()
	var body io.Reader = strings.NewReader(tc.body)
	if tc.streamed {
		body = io.MultiReader(body) // hides the length
	}
	r, err := http.NewRequest(tc.method, w.url(tc.path), body)
	if err != nil {
		t.Fatal(err)
	}
	id = "id-" + strings.ReplaceAll(tc.name, " ", "-")
	r.Header.Set("X-Request-Id", id)
	if tc.key != "" {
		r.Header.Set("Authorization", "Bearer "+tc.key)
	}
	if strings.HasPrefix(tc.body, "{") {
		r.Header.Set("Content-Type", "application/json")
	}
	text, resp = do(t, tr, r)
	return text, resp, id
}
