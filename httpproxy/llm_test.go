package httpproxy_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/traffic"
)

const (
	llmAsk     = `{"model":"gpt-4o","stream":true,"messages":[]}`
	llmUsage   = `"usage":{"prompt_tokens":20,"completion_tokens":5,"total_tokens":25,"prompt_tokens_details":{"cached_tokens":8}}`
	llmWhole   = `{"model":"gpt-4o-2024","choices":[{"message":{"content":"Hi"}}],` + llmUsage + `}`
	llmMessage = "data: {\"model\":\"gpt-4o-2024\",\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n"
	llmStream  = llmMessage + llmMessage + "data: {\"choices\":[]," + llmUsage + "}\n\ndata: [DONE]\n\n"
)

// llmBackend answers as the query says: whole or streamed, in pieces of some bytes, with a length or without, of a status.
func llmBackend(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Accept-Encoding"); got != "identity" {
			t.Errorf("Accept-Encoding: %q", got)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		q := r.URL.Query()
		text := llmWhole
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if q.Has("stream") {
			text = llmStream
			w.Header().Set("Content-Type", "text/event-stream")
		}
		if q.Has("pad") {
			text = `{"pad":"` + strings.Repeat("x", 200_000) + `",` + text[1:]
		}
		if q.Has("length") {
			w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		}
		if q.Has("gzip") {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			_, _ = io.WriteString(z, text)
			return
		}
		w.Header().Set("X-RateLimit-Remaining-Tokens", "of the server")
		if status, _ := strconv.Atoi(q.Get("status")); status > 0 {
			w.WriteHeader(status)
		}
		piece, _ := strconv.Atoi(q.Get("piece"))
		for piece = max(piece, 1); len(text) > 0; {
			n := min(piece, len(text))
			_, _ = io.WriteString(w, text[:n])
			_ = http.NewResponseController(w).Flush()
			text = text[n:]
		}
	}
}

// askModel sends a request for a chat and returns the answer.
func askModel(t *testing.T, client *http.Client, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(llmAsk))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return doWith(t, client, req)
}

// awaitAnswers waits until n answers are counted, which may be just after they arrive.
func awaitAnswers(t *testing.T, p running, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d answers are counted", n), func() bool {
		sum := 0
		for _, m := range p.Models() {
			sum += int(m.Known + m.Unknown)
		}
		return sum == n
	})
}

// TestTokens: answers in any framing and pieces arrive unchanged, and their tokens are in the log, whatever versions of HTTP
// the two sides speak.
func TestTokens(t *testing.T) {
	backend := serveEither(t, llmBackend(t))
	lines := &logLines{t: t}
	cfg := httpproxy.Config{AccessLog: &httpproxy.AccessLog{To: lines}}
	for path, protocol := range map[string]httpproxy.Protocol{"/h1": httpproxy.ProtocolH1, "/h2": httpproxy.ProtocolH2C} {
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, backend)
		cfg.Routes = append(cfg.Routes,
			httpproxy.Route{Path: path, Upstream: u, LLM: &httpproxy.LLM{}},
			httpproxy.Route{Path: path + "/zip", Upstream: u, LLM: &httpproxy.LLM{}, Compression: &httpproxy.Compression{MinBytes: 1}})
	}
	p := startProxy(t, cfg)
	asked := 0
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(t, proto)
		for _, path := range []string{"/h1", "/h2", "/h1/zip", "/h2/zip"} {
			for _, query := range []string{"piece=1000000&length", "piece=70", "pad&length&piece=1000000", "pad&piece=100000", "stream&piece=7", "stream&piece=100000"} {
				name := proto + " " + path + " " + query
				resp, got := askModel(t, client, p.url+path+"?"+query)
				want := llmWhole
				if strings.Contains(query, "pad") {
					want = `{"pad":"` + strings.Repeat("x", 200_000) + `",` + llmWhole[1:]
				}
				if strings.Contains(query, "stream") {
					want = llmStream
				}
				if got != want || resp.StatusCode != 200 || resp.Header.Get("X-RateLimit-Remaining-Tokens") != "of the server" {
					t.Errorf("%s: %s %.100q", name, resp.Status, got)
				}
				f := lines.fields()
				told := fmt.Sprint(f["model"], f["input_tokens"], f["cached_tokens"], f["output_tokens"], f["first_token_seconds"] != nil)
				if want := fmt.Sprint("gpt-4o", 20.0, 8.0, 5.0, strings.Contains(query, "stream")); told != want {
					t.Errorf("%s: the log has %s, want %s", name, told, want)
				}
				asked++
			}
		}
	}
	awaitAnswers(t, p, asked)
	var sum httpproxy.ModelUse
	for _, m := range p.Models() {
		if m.Model != "gpt-4o" || m.Upstream != "api" {
			t.Errorf("%+v", m)
		}
		sum.Known += m.Known
		sum.Unknown += m.Unknown
		sum.Input += m.Input
		sum.Cached += m.Cached
		sum.Output += m.Output
		sum.FirstToken.Add(&m.FirstToken)
		sum.PerToken.Add(&m.PerToken)
	}
	n := uint64(asked)
	if sum.Known != n || sum.Unknown != 0 || sum.Input != 20*n || sum.Cached != 8*n || sum.Output != 5*n || sum.FirstToken.Count() != n/3 || sum.PerToken.Count() != n/3 {
		t.Errorf("%d answers: %d known, %d unknown, %d, %d and %d tokens, %d first ones", n, sum.Known, sum.Unknown, sum.Input, sum.Cached, sum.Output, sum.FirstToken.Count())
	}
}

// TestTokensUnknown: what is no answer of a model counts nothing, and answers that cannot be read count as such.
func TestTokensUnknown(t *testing.T) {
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, serveHTTP(t, llmBackend(t))), LLM: &httpproxy.LLM{}}}})
	client := clientFor(t, "HTTP/1.1")
	if resp, _ := askModel(t, client, p.url+"?status=404"); resp.StatusCode != 404 {
		t.Error(resp.Status)
	}
	if resp, _ := get(t, p.url); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
	if got := p.Models(); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	_, _ = askModel(t, client, p.url+"?gzip", "Accept-Encoding", "gzip")
	_, _ = askModel(t, client, p.url, "Content-Type", "text/plain") // the model's name comes from the answer
	_, _ = askModel(t, client, p.url+"?gzip", "Accept-Encoding", "gzip", "Content-Type", "text/plain")
	awaitAnswers(t, p, 3)
	for _, m := range p.Models() {
		switch {
		case m.Model == "" && m.Known == 0 && m.Unknown == 1: // nobody names it
		case m.Model == "gpt-4o" && m.Known == 0 && m.Unknown == 1:
		case m.Model == "gpt-4o-2024" && m.Known == 1 && m.Unknown == 0 && m.Input == 20:
		default:
			t.Errorf("%+v", m)
		}
	}
}

// TestTokenLimit: clients that have used up their tokens are refused until these have come back, in the form that clients
// of OpenAI know.
func TestTokenLimit(t *testing.T) {
	day := httpproxy.TokenLimit{Tokens: 30, Per: 24 * time.Hour, Header: "Authorization"}
	all := httpproxy.TokenLimit{Tokens: 110, Per: 24 * time.Hour, By: httpproxy.RateByRoute}
	cfg := httpproxy.Config{
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Routes: []httpproxy.Route{{
			Upstream: newUpstream(t, serveHTTP(t, llmBackend(t))), LLM: &httpproxy.LLM{Limits: []httpproxy.TokenLimit{day, all}},
		}},
	}
	cfg.Listener.Logger = slog.New(slog.DiscardHandler)
	p := startProxy(t, cfg)
	answered := 0
	for i, tc := range []struct {
		key, proto string
		status     int
		left       string
	}{
		{"a", "HTTP/1.1", 200, "30"},
		{"a", "HTTP/2.0", 200, "5"},
		{"a", "HTTP/1.1", 429, "0"}, // it owes 20
		{"a", "HTTP/2.0", 429, "0"},
		{"b", "HTTP/1.1", 200, "60"}, // of all, of which less is left
		{"b", "HTTP/1.1", 200, "5"},
		{"c", "HTTP/1.1", 200, "10"},
		{"d", "HTTP/1.1", 429, "0"}, // the route owes 15
	} {
		client := clientFor(t, tc.proto)
		resp, body := askModel(t, client, p.url+"?stream", "Authorization", "Bearer "+tc.key)
		after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		if got := resp.Header.Values("x-ratelimit-remaining-tokens"); resp.StatusCode != tc.status || len(got) != 1 || got[0] != tc.left || (after > 0) != (tc.status == 429) {
			t.Errorf("%d: %s, %s left, Retry-After %d", i, resp.Status, got, after)
		}
		if tc.status == 200 {
			answered++
			awaitAnswers(t, p, answered)
		}
		if tc.status == 429 && (!strings.Contains(body, `"code":"rate_limit_exceeded"`) || resp.Header.Get("Content-Type") != "application/json") {
			t.Errorf("%d: %s %s", i, resp.Header, body)
		}
		if limit := resp.Header.Get("x-ratelimit-limit-tokens"); limit != "30" && limit != "110" {
			t.Errorf("%d: of %s", i, limit)
		}
		if err := p.Update(cfg); err != nil { // which changes nothing
			t.Fatal(err)
		}
	}
	if resp, _ := get(t, p.url); resp.StatusCode != 200 { // without a body it uses no tokens
		t.Error(resp.Status)
	}
	want := map[string]float64{"/ http_token_limited_total ": 3, "/ http_requests_total 2xx": 6, "/ http_request_seconds": 6, "/ http_request_wait_seconds": 6, " http_requests_total 4xx": 3}
	eventually(t, "all requests are counted", func() bool { return fmt.Sprint(counted(p.Stats().Traffic[0])) == fmt.Sprint(want) })
}

// TestTokenLimitOfParallelRequests: requests under way count as many tokens as those before them have used, until they end.
func TestTokenLimitOfParallelRequests(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		came, release := make(chan struct{}), make(chan struct{})
		answer := llmBackend(t)
		u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("wait") {
				came <- struct{}{}
				<-release
			}
			answer(w, r)
		}))
		limits := []httpproxy.TokenLimit{{Tokens: 60, Per: 24 * time.Hour, Header: "X-Team"}, {Tokens: 110, Per: 24 * time.Hour, By: httpproxy.RateByRoute}}
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, LLM: &httpproxy.LLM{Limits: limits}}}})
		client := clientFor(t, proto)
		ask := func(query string, status int, left string) {
			t.Helper()
			resp, _ := askModel(t, client, p.url+query, "X-Team", "a")
			if got := resp.Header.Get("x-ratelimit-remaining-tokens"); resp.StatusCode != status || got != left {
				t.Errorf("%s: %s has %s, %s left; want %s", proto, query, resp.Status, got, left)
			}
		}
		ask("?stream", 200, "60")
		awaitAnswers(t, p, 1)
		ask("?stream&status=500", 500, "35") // it has used nothing
		eventually(t, "what was taken for the failed request is back", func() bool {
			return p.Stats().Traffic != nil && counted(p.Stats().Traffic[0])["/ http_requests_total 5xx"] == 1
		})
		var parallel sync.WaitGroup
		for _, left := range []string{"35", "10"} {
			parallel.Go(func() { ask("?stream&wait", 200, left) })
			<-came
		}
		ask("?stream", 429, "0")
		close(release)
		parallel.Wait()
		awaitAnswers(t, p, 3)
		ask("?stream", 429, "0")                                                                                                     // of 60 tokens 75 are used
		if resp, _ := askModel(t, client, p.url+"?stream", "X-Team", "b"); resp.Header.Get("x-ratelimit-remaining-tokens") != "35" { // of 110
			t.Errorf("%s: %s tokens are left for all", proto, resp.Header.Get("x-ratelimit-remaining-tokens"))
		}
	}
}

// TestTokenLimitByGrant: a header that the authentication server gives is counted by, and not the client's own.
func TestTokenLimitByGrant(t *testing.T) {
	auth := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-User", r.Header.Get("Authorization")) }))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: newUpstream(t, serveHTTP(t, llmBackend(t))), ForwardAuth: &httpproxy.ForwardAuth{Upstream: auth, Timeout: patience, Path: "/", ResponseHeaders: []string{"X-User"}},
		LLM: &httpproxy.LLM{Limits: []httpproxy.TokenLimit{{Tokens: 25, Per: 24 * time.Hour, By: httpproxy.RateByRoute, Header: "X-User"}}},
	}}})
	client := clientFor(t, "HTTP/1.1")
	for i, tc := range []struct {
		user   string
		status int
	}{{"a", 200}, {"a", 429}, {"b", 200}, {"b", 429}} {
		if resp, body := askModel(t, client, p.url, "Authorization", tc.user, "X-User", fmt.Sprint(i)); resp.StatusCode != tc.status {
			t.Errorf("%d: %s %s", i, resp.Status, body)
		}
		awaitAnswers(t, p, i/2+1)
	}
}

// TestModelsAreBounded: names beyond the bound count together.
func TestModelsAreBounded(t *testing.T) {
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, serveHTTP(t, llmBackend(t))), LLM: &httpproxy.LLM{}}}})
	client := clientFor(t, "HTTP/1.1")
	const most = 1000
	for i := range most + 2 {
		req, err := http.NewRequest(http.MethodPost, p.url+"?piece=1000", strings.NewReader(fmt.Sprintf(`{"model":"m%d"}`, i)))
		if err != nil {
			t.Fatal(err)
		}
		doWith(t, client, req)
	}
	awaitAnswers(t, p, most+2)
	others := 0
	for _, m := range p.Models() {
		if m.Model == traffic.Other {
			others += int(m.Known)
		}
	}
	if n := len(p.Models()); n != most+1 || others != 2 {
		t.Errorf("%d models, %d others", n, others)
	}
}

// TestLLMConfig: what cannot be is refused.
func TestLLMConfig(t *testing.T) {
	u := newUpstream(t, "127.0.0.1:1")
	for want, r := range map[string]httpproxy.Route{
		"want 1 to 1000000000":                 {Upstream: u, LLM: &httpproxy.LLM{Limits: []httpproxy.TokenLimit{{}}}},
		"tokens per 1ms":                       {Upstream: u, LLM: &httpproxy.LLM{Limits: []httpproxy.TokenLimit{{Tokens: 1, Per: time.Millisecond}}}},
		`counted by "key"`:                     {Upstream: u, LLM: &httpproxy.LLM{Limits: []httpproxy.TokenLimit{{Tokens: 1, By: "key"}}}},
		"more than 8":                          {Upstream: u, LLM: &httpproxy.LLM{Limits: make([]httpproxy.TokenLimit, 9)}},
		"answers itself has no language model": {Respond: httpproxy.Respond{Status: 200}, LLM: &httpproxy.LLM{}},
	} {
		if err := (httpproxy.Config{Routes: []httpproxy.Route{r}}).Verify(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
