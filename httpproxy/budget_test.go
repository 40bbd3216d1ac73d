package httpproxy_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
)

// budgetCase is a request to a model, whose answer takes 25 tokens.
type budgetCase struct {
	path, proto, key string
	status           int
	limit, left      string
}

// askInTurn sends requests one after the other, each when the tokens of the last one have been taken.
func askInTurn(t *testing.T, p running, answered *int, cases []budgetCase) {
	t.Helper()
	for i, tc := range cases {
		resp, body := askModel(t, clientFor(t, tc.proto), p.url+tc.path, "Authorization", "Bearer "+tc.key, "X-Team", "research", "X-User", "batch")
		limit, left := resp.Header.Get("x-ratelimit-limit-tokens"), resp.Header.Get("x-ratelimit-remaining-tokens")
		if resp.StatusCode != tc.status || limit != tc.limit || left != tc.left || (resp.Header.Get("Retry-After") != "") != (tc.status == 429) {
			t.Errorf("%d: %s, %s of %s left, want %d, %s of %s: %s", i, resp.Status, left, limit, tc.status, tc.left, tc.limit, body)
		}
		if tc.status == 429 && !strings.Contains(body, `"message":"the limit of `+tc.limit+` tokens in 24h0m0s is used up`) {
			t.Errorf("%d: %s", i, body)
		}
		if resp.StatusCode == 200 {
			*answered++
		}
		awaitAnswers(t, p, *answered)
	}
}

// TestTokenLimitByUser: users have budgets of their own, whatever key and version of HTTP they use.
func TestTokenLimitByUser(t *testing.T) {
	ann, annLine := apiKeyFor(t, "ann")
	again, againLine := apiKeyFor(t, "ann")
	bob, bobLine := apiKeyFor(t, "bob")
	batch, batchLine := apiKeyFor(t, "batch")
	var log conntest.Log
	keys, _ := fileOfKeys(t, &log, annLine+againLine+bobLine+batchLine)
	limit := httpproxy.TokenLimit{Tokens: 30, Per: 24 * time.Hour, By: httpproxy.RateByUser, Budgets: map[string]int64{"batch": 60}}
	cfg := httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: newUpstream(t, serveHTTP(t, llmBackend(t))), BearerAuth: &httpproxy.BearerAuth{Keys: keys, UserHeader: "X-User"},
		LLM: &httpproxy.LLM{Limits: []httpproxy.TokenLimit{limit}},
	}}}
	cfg.Listener.Logger = slog.New(slog.DiscardHandler)
	p := startProxy(t, cfg)
	answered := 0
	askInTurn(t, p, &answered, []budgetCase{
		{"", "HTTP/1.1", ann, 200, "30", "30"},
		{"?stream", "HTTP/2.0", again, 200, "30", "5"},
		{"", "HTTP/1.1", ann, 429, "30", "0"},
		{"", "HTTP/2.0", again, 429, "30", "0"},
		{"", "HTTP/1.1", bob, 200, "30", "30"},
		{"", "HTTP/2.0", batch, 200, "60", "60"},
		{"", "HTTP/1.1", batch, 200, "60", "35"},
		{"", "HTTP/1.1", batch, 200, "60", "10"},
		{"", "HTTP/1.1", batch, 429, "60", "0"},
	})
	cfg.Routes[0].LLM.Limits[0].Budgets = map[string]int64{"batch": 60, "ann": 100} // ann's is new, and others remain
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	askInTurn(t, p, &answered, []budgetCase{
		{"", "HTTP/1.1", ann, 200, "100", "100"},
		{"", "HTTP/1.1", again, 200, "100", "75"},
		{"", "HTTP/1.1", bob, 200, "30", "5"},
		{"", "HTTP/1.1", batch, 429, "60", "0"},
	})
	refused := map[string]uint64{}
	for _, u := range p.Users() {
		refused[u.User] = u.Limited
	}
	if got, want := fmt.Sprint(refused), "map[ann:2 batch:2 bob:0]"; got != want {
		t.Errorf("refused: %s, want %s", got, want)
	}
}

// TestTokenLimitByTeam: a claim of tokens has budgets, and users without the claim have their own. A client cannot choose either.
func TestTokenLimitByTeam(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var is issuer
	is.add(t, "a", key)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: newUpstream(t, serveHTTP(t, llmBackend(t))),
		BearerAuth: &httpproxy.BearerAuth{JWT: &httpproxy.JWT{
			Issuer: "https://login.example", Headers: []httpproxy.HeaderField{{Name: "X-Team", Value: "team"}}, Source: "login", ReadKeys: is.read,
		}},
		LLM: &httpproxy.LLM{Limits: []httpproxy.TokenLimit{{
			Tokens: 30, Per: 24 * time.Hour, By: httpproxy.RateByUser, Header: "X-Team", Budgets: map[string]int64{"research": 60, "dan": 100},
		}}},
	}}})
	of := func(user string, team any) string {
		return signed(t, jose.ES256, "a", key, map[string]any{"sub": user, "team": team})
	}
	answered := 0
	askInTurn(t, p, &answered, []budgetCase{
		{"", "HTTP/1.1", of("ann", "sales"), 200, "30", "30"},
		{"", "HTTP/2.0", of("bob", "sales"), 200, "30", "5"},
		{"", "HTTP/1.1", of("ann", "sales"), 429, "30", "0"},
		{"", "HTTP/1.1", of("cid", "research"), 200, "60", "60"},
		{"", "HTTP/1.1", of("ann", "research"), 200, "60", "35"},
		{"", "HTTP/1.1", of("ann", nil), 200, "30", "30"},
		{"", "HTTP/1.1", of("dan", nil), 200, "100", "100"},
	})
}

// TestSharedTokenLimit: what a user has used on one route counts on another one, also after Update has removed the first.
func TestSharedTokenLimit(t *testing.T) {
	ann, annLine := apiKeyFor(t, "ann")
	bob, bobLine := apiKeyFor(t, "bob")
	var log conntest.Log
	keys, _ := fileOfKeys(t, &log, annLine+bobLine)
	auth := &httpproxy.BearerAuth{Keys: keys}
	day := httpproxy.TokenLimit{Tokens: 30, Per: 24 * time.Hour, By: httpproxy.RateByUser, Shared: "day"}
	own := day
	own.Shared = ""
	u := newUpstream(t, serveHTTP(t, llmBackend(t)))
	route := func(path string, limit httpproxy.TokenLimit) httpproxy.Route {
		return httpproxy.Route{Path: path, Upstream: u, BearerAuth: auth, LLM: &httpproxy.LLM{Limits: []httpproxy.TokenLimit{limit}}}
	}
	cfg := httpproxy.Config{Routes: []httpproxy.Route{route("/a", day), route("/b", day), route("/own", own)}}
	cfg.Listener.Logger = slog.New(slog.DiscardHandler)
	p := startProxy(t, cfg)
	answered := 0
	askInTurn(t, p, &answered, []budgetCase{
		{"/a", "HTTP/1.1", ann, 200, "30", "30"},
		{"/b", "HTTP/1.1", ann, 200, "30", "5"},
		{"/a", "HTTP/1.1", ann, 429, "30", "0"},
		{"/own", "HTTP/1.1", ann, 200, "30", "30"},
		{"/b", "HTTP/1.1", bob, 200, "30", "30"},
	})
	cfg.Routes = append(cfg.Routes[1:], route("/c", day))
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	askInTurn(t, p, &answered, []budgetCase{{"/c", "HTTP/2.0", ann, 429, "30", "0"}, {"/c", "HTTP/2.0", bob, 200, "30", "5"}, {"/b", "HTTP/1.1", bob, 429, "30", "0"}})
	cfg.Routes[0].LLM.Limits[0].Tokens = 31
	if err := p.Update(cfg); err == nil || !strings.Contains(err.Error(), `that share the name "day" differ`) {
		t.Errorf("two limits of one name: %v", err)
	}
}

// TestRateLimitByUser: requests count by user, and those of strangers do not.
func TestRateLimitByUser(t *testing.T) {
	ann, annLine := apiKeyFor(t, "ann")
	again, againLine := apiKeyFor(t, "ann")
	bob, bobLine := apiKeyFor(t, "bob")
	var log conntest.Log
	keys, _ := fileOfKeys(t, &log, annLine+againLine+bobLine)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: newUpstream(t, serveHTTP(t, tellsKeys)), BearerAuth: &httpproxy.BearerAuth{Keys: keys},
		RateLimit: httpproxy.RateLimit{Requests: 2, Per: 24 * time.Hour, By: httpproxy.RateByUser},
	}}})
	for i, tc := range []struct {
		key    string
		status int
	}{{"x", 401}, {"x", 401}, {"x", 401}, {ann, 200}, {again, 200}, {ann, 429}, {bob, 200}, {again, 429}} {
		resp, body := ask(t, clientFor(t, "HTTP/1.1"), p.url, map[string][]string{"X-Api-Key": {tc.key}})
		if resp.StatusCode != tc.status {
			t.Errorf("%d: %s %q, want %d", i, resp.Status, body, tc.status)
		}
	}
}

// TestBudgetConfig: budgets that a client could choose are refused, and what cannot be.
func TestBudgetConfig(t *testing.T) {
	u := newUpstream(t, "127.0.0.1:1")
	var log conntest.Log
	_, line := apiKeyFor(t, "ann")
	keys, _ := fileOfKeys(t, &log, line)
	auth := &httpproxy.BearerAuth{Keys: keys, UserHeader: "X-User"}
	of := func(b map[string]int64, by httpproxy.RateBy, header string) httpproxy.TokenLimit {
		return httpproxy.TokenLimit{Tokens: 1, By: by, Header: header, Budgets: b}
	}
	one := map[string]int64{"ann": 5}
	for i, tc := range []struct {
		auth   *httpproxy.BearerAuth
		limits []httpproxy.TokenLimit
		want   string
	}{
		{auth, []httpproxy.TokenLimit{of(one, httpproxy.RateByUser, "")}, ""},
		{auth, []httpproxy.TokenLimit{of(one, "", "x-user"), of(one, "", "Authorization"), of(one, "", "x-api-key")}, ""},
		{nil, []httpproxy.TokenLimit{of(nil, httpproxy.RateByUser, "")}, "by user, whom nothing tells"},
		{nil, []httpproxy.TokenLimit{of(one, "", "X-User")}, "that the Proxy vouches for"},
		{auth, []httpproxy.TokenLimit{of(one, "", "X-Team")}, "that the Proxy vouches for"},
		{auth, []httpproxy.TokenLimit{of(one, httpproxy.RateByRoute, "")}, "Budgets without RateByUser"},
		{auth, []httpproxy.TokenLimit{of(map[string]int64{"ann": 0}, httpproxy.RateByUser, "")}, `a budget of 0 tokens for "ann"`},
		{auth, []httpproxy.TokenLimit{of(map[string]int64{"": 1}, httpproxy.RateByUser, "")}, "want a name"},
		{auth, []httpproxy.TokenLimit{of(one, httpproxy.RateByUser, ""), of(nil, httpproxy.RateByUser, "")}, "differ only in their Budgets"},
	} {
		err := httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, BearerAuth: tc.auth, LLM: &httpproxy.LLM{Limits: tc.limits}}}}.Verify()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%d: %v, want %q", i, err, tc.want)
		}
	}
}
