package httpproxy_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/enginetest"
)

// endsInManyWays answers, or does not, as the path says.
func endsInManyWays(answer http.HandlerFunc, came chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/waits":
			_, _ = io.Copy(io.Discard, r.Body)
			came <- struct{}{}
			<-r.Context().Done()
		case "/dies":
			panic(http.ErrAbortHandler)
		case "/breaks":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, llmWhole[:10])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		default:
			answer(w, r)
		}
	}
}

// TestTokenLimitGivesBack: what was taken for a request comes back however the request ends, unless its usage is known.
func TestTokenLimitGivesBack(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		came := make(chan struct{}, 1)
		backend := serveHTTP(t, endsInManyWays(llmBackend(t), came))
		var left atomic.Int64
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
			c, err := enginetest.Dial(ctx, endpoint)
			return bomb{c, &left, nil}, err
		}}, backend)
		route := httpproxy.Route{Upstream: u, LLM: &httpproxy.LLM{Limits: []httpproxy.TokenLimit{{Tokens: 60, Per: 24 * time.Hour, By: httpproxy.RateByRoute}}}}
		cfg := httpproxy.Config{Routes: []httpproxy.Route{route}}
		cfg.Listener.Logger = slog.New(slog.DiscardHandler)
		p := startProxy(t, cfg)
		client := clientFor(t, proto)
		ask := func(ctx context.Context, path string) {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+path, strings.NewReader(llmAsk))
			if err != nil {
				t.Fatal(err)
			}
			if resp, err := client.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}
		isLeft := func(after, want string) {
			t.Helper()
			eventually(t, proto+": "+want+" tokens are left after "+after, func() bool {
				resp, _ := askModel(t, client, p.url+"?status=500") // which uses none
				return resp.Header.Get("x-ratelimit-remaining-tokens") == want
			})
		}
		askModel(t, client, p.url)
		isLeft("the first", "35")
		for _, path := range []string{"/dies", "/breaks"} {
			ask(t.Context(), path)
			isLeft(path, "35")
		}
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			<-came
			leave()
		}()
		ask(ctx, "/waits")
		isLeft("a client that has left", "35")
		client.CloseIdleConnections()
		left.Store(1)
		ask(t.Context(), "/")
		if left.Load() > 0 {
			t.Error("no connection has panicked")
		}
		isLeft("a panic", "35")
		ctx, leave = context.WithCancel(t.Context())
		go func() {
			<-came
			if err := p.Update(routeTo(u)); err != nil {
				t.Error(err)
			}
			leave()
		}()
		ask(ctx, "/waits")
		if err := p.Update(cfg); err != nil {
			t.Fatal(err)
		}
		isLeft("the limit was removed", "60")
	}
}

// TestTokenLimitOfLargeRequests: a request that is under way makes others wait no longer than the whole limit would, even if
// those of other keys use more on average.
func TestTokenLimitOfLargeRequests(t *testing.T) {
	came, release := make(chan struct{}), make(chan struct{})
	answer := llmBackend(t)
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("wait") {
			close(came)
			<-release
		}
		answer(w, r)
	}))
	limits := []httpproxy.TokenLimit{{Tokens: 10, Per: 24 * time.Hour, Header: "X-Team"}}
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, LLM: &httpproxy.LLM{Limits: limits}}}})
	client := clientFor(t, "HTTP/1.1")
	askModel(t, client, p.url, "X-Team", "a")
	awaitAnswers(t, p, 1) // it has used 25
	over := make(chan struct{})
	go func() {
		defer close(over)
		askModel(t, client, p.url+"?wait", "X-Team", "b")
	}()
	<-came
	resp, _ := askModel(t, client, p.url, "X-Team", "b")
	const token = 24 * 60 * 60 / 10
	if after, _ := strconv.Atoi(resp.Header.Get("Retry-After")); resp.StatusCode != http.StatusTooManyRequests || after < 1 || after > token {
		t.Errorf("%s, Retry-After %d, want up to %d", resp.Status, after, token)
	}
	close(release)
	<-over
}
