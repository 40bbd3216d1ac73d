package protocols

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/httpproxy"
)

// LLM counts the tokens of language models; see httpproxy.LLM.
type LLM struct {
	Enabled      bool         `conf:"enabled" default:"true"`
	IncludeUsage bool         `conf:"include_usage"` // ask for the usage of streams in place of clients
	TokenLimits  []TokenLimit `conf:"token_limits" maxlen:"8"`
}

// TokenLimit bounds the tokens of a route's requests; see httpproxy.TokenLimit.
type TokenLimit struct {
	Tokens int              `conf:"tokens" required:"true" min:"1" max:"1000000000"`
	Per    time.Duration    `conf:"per" default:"1m" min:"1s" max:"24h"`
	By     httpproxy.RateBy `conf:"by" default:"client"`
	Header string           `conf:"header"` // tokens are counted by this header's value; requests without the header by By
	// Budgets are the tokens of users, or of values of Header, that have not the usual ones.
	Budgets []Budget `conf:"budgets" key:"Name" scalar:"Tokens" maxlen:"1000"`
	Shared  string   `conf:"shared"` // a name: limits that have it, of several routes, are one
}

// Budget is how many tokens a user may use, or a value of a header.
type Budget struct {
	Name   string `conf:"-"`
	Tokens int    `conf:"tokens" required:"true" min:"1" max:"1000000000"`
}

// settings returns the proxy's form.
func (l *LLM) settings() *httpproxy.LLM {
	if l == nil || !l.Enabled {
		return nil
	}
	s := &httpproxy.LLM{IncludeUsage: l.IncludeUsage}
	for _, t := range l.TokenLimits {
		limit := httpproxy.TokenLimit{Tokens: int64(t.Tokens), Per: t.Per, By: t.By, Header: t.Header, Budgets: map[string]int64{}, Shared: t.Shared}
		for _, b := range t.Budgets {
			limit.Budgets[b.Name] = int64(b.Tokens)
		}
		s.Limits = append(s.Limits, limit)
	}
	return s
}

// checkLLM reports problems of how a route counts tokens.
func checkLLM(c *config.Checker, r *Route) {
	if r.LLM == nil {
		return
	}
	if r.answersItself() {
		c.Report(c.Mark(&r.LLM), "llm: a route with %s has no language model", strings.Join([]string{"redirect", "respond"}, " or "))
	}
	for i := range r.LLM.TokenLimits {
		t := &r.LLM.TokenLimits[i]
		checkCountedBy(c, r, &t.By, &t.Header)
		checkBudgets(c, r, t)
		for j := range i {
			o := &r.LLM.TokenLimits[j]
			if t.Tokens == o.Tokens && t.Per == o.Per && t.By == o.By && strings.EqualFold(t.Header, o.Header) && t.Shared == o.Shared && len(t.Budgets)+len(o.Budgets) > 0 {
				c.Report(c.Mark(t), "token_limits: this limit differs from an earlier one in its \"budgets\" only; write them together")
			}
		}
	}
}

// checkShared reports limits of tokens that share a name, and are not the same.
func checkShared(c *config.Checker, h *HTTPListener) {
	seen := map[string]*TokenLimit{}
	for i := range h.Routes {
		if h.Routes[i].LLM == nil {
			continue
		}
		limits := h.Routes[i].LLM.TokenLimits
		for j := range limits {
			t := &limits[j]
			o := seen[t.Shared]
			if o != nil && t.Shared != "" && (t.Tokens != o.Tokens || t.Per != o.Per || t.By != o.By || t.Header != o.Header || !sameBudgets(t.Budgets, o.Budgets)) {
				c.Report(c.Mark(&t.Shared), "shared: the limit %q is another one in line %d; repeat it as it is, with all its keys", config.Clip(t.Shared), c.Mark(o).Line)
			}
			seen[t.Shared] = t
		}
	}
}

// sameBudgets reports whether two lists have the same budgets, in any order.
func sameBudgets(a, b []Budget) bool {
	byName := func(x, y Budget) int { return strings.Compare(x.Name, y.Name) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), byName), slices.SortedFunc(slices.Values(b), byName))
}

// checkBudgets reports problems of the budgets of a limit.
func checkBudgets(c *config.Checker, r *Route, t *TokenLimit) {
	switch {
	case len(t.Budgets) == 0 || !c.NoProblemAt(&t.By, &t.Header):
	case t.Header == "" && t.By != httpproxy.RateByUser:
		c.Report(c.Mark(&t.Budgets), "budgets: of whom? write \"by: user\", or \"header\" with a header that tells who the client is")
	case t.Header != "" && !r.vouches(t.Header):
		c.Report(c.Mark(&t.Budgets), "budgets: clients can write %s themselves, and choose a budget; want \"by: user\", or a header of \"bearer_auth\", \"basic_auth\" or \"forward_auth\"", t.Header)
	}
}

// vouches reports whether a header tells who the client is by the word of the gateway or of the authentication server; see
// httpproxy.TokenLimit.
func (r *Route) vouches(header string) bool {
	var names []string
	if b := r.BearerAuth; b != nil {
		names = append(names, b.UserHeader, "Authorization", "X-Api-Key", "Api-Key")
		if b.JWT != nil {
			for _, m := range b.JWT.Headers {
				names = append(names, m.Name)
			}
		}
	}
	if b := r.BasicAuth; b != nil {
		names = append(names, b.UserHeader, "Authorization")
	}
	if f := r.ForwardAuth; f != nil {
		names = append(names, f.ResponseHeaders...)
	}
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, header) })
}

// ModelStatus is what a listener has counted for a language model, in /api/v1/status. Counters count since the start.
type ModelStatus struct {
	Listener     string  `json:"listener"`
	Route        string  `json:"route"`
	Upstream     string  `json:"upstream"`
	Model        string  `json:"model"`     // as clients name it; "other": further ones
	Answers      uint64  `json:"answers"`   // with status 2xx
	Estimated    uint64  `json:"estimated"` // of Answers, those whose tokens are estimated
	Unknown      uint64  `json:"unknown"`   // of Answers, those whose tokens are not known
	InputTokens  uint64  `json:"input_tokens"`
	CachedTokens uint64  `json:"cached_tokens"` // a part of InputTokens
	OutputTokens uint64  `json:"output_tokens"`
	FirstToken   float64 `json:"first_token_seconds"` // median time to the first text of streamed answers; 0: there are none
	PerToken     float64 `json:"per_token_seconds"`   // their median time for each further token
}

var modelReport = admin.Report[ModelStatus]{
	Key: "models", Title: "Language models",
	Columns: []admin.Column[ModelStatus]{
		admin.Text("model", func(m ModelStatus) string { return m.Model }),
		admin.Text("listener", func(m ModelStatus) string { return m.Listener }),
		admin.Text("upstream", func(m ModelStatus) string { return m.Upstream }),
		admin.Count("answers", func(m ModelStatus) float64 { return float64(m.Answers) }),
		admin.Count("input tokens", func(m ModelStatus) float64 { return float64(m.InputTokens) }),
		admin.Count("output tokens", func(m ModelStatus) float64 { return float64(m.OutputTokens) }),
		admin.Seconds("first token", func(m ModelStatus) float64 { return m.FirstToken }),
		admin.Seconds("per token", func(m ModelStatus) float64 { return m.PerToken }),
	},
	Details: []admin.Column[ModelStatus]{
		admin.Text("route", func(m ModelStatus) string { return m.Route }),
		admin.Count("cached tokens", func(m ModelStatus) float64 { return float64(m.CachedTokens) }),
		admin.Count("estimated", func(m ModelStatus) float64 { return float64(m.Estimated) }),
		admin.Count("unknown", func(m ModelStatus) float64 { return float64(m.Unknown) }),
	},
}

// UserStatus is what a listener has counted for an authenticated user of language models, in /api/v1/status. Counters count since
// the start.
type UserStatus struct {
	Listener     string `json:"listener"`
	Route        string `json:"route"`
	User         string `json:"user"`    // "other": further ones
	Answers      uint64 `json:"answers"` // with status 2xx
	InputTokens  uint64 `json:"input_tokens"`
	CachedTokens uint64 `json:"cached_tokens"` // a part of InputTokens
	OutputTokens uint64 `json:"output_tokens"`
	Limited      uint64 `json:"limited"` // requests refused by a token limit
}

var userReport = admin.Report[UserStatus]{
	Key: "model_users", Title: "Users of language models",
	Columns: []admin.Column[UserStatus]{
		admin.Text("user", func(u UserStatus) string { return u.User }),
		admin.Text("listener", func(u UserStatus) string { return u.Listener }),
		admin.Text("route", func(u UserStatus) string { return u.Route }),
		admin.Count("answers", func(u UserStatus) float64 { return float64(u.Answers) }),
		admin.Count("input tokens", func(u UserStatus) float64 { return float64(u.InputTokens) }),
		admin.Count("output tokens", func(u UserStatus) float64 { return float64(u.OutputTokens) }),
	},
	Details: []admin.Column[UserStatus]{
		admin.Count("cached tokens", func(u UserStatus) float64 { return float64(u.CachedTokens) }),
		admin.Count("limited", func(u UserStatus) float64 { return float64(u.Limited) }),
	},
}

// showModels returns what all listeners have counted, the most used models and users first.
func showModels(proxies []extend.Proxy) []admin.Addition {
	var rows []ModelStatus
	var users []UserStatus
	for _, p := range proxies {
		h := p.(*httpproxy.Proxy) //nolint:forcetypeassert // made by prepareHTTP
		name := h.Stats().Name
		for _, u := range h.Users() {
			users = append(users, UserStatus{Listener: name, Route: u.Route, User: u.User, Answers: u.Answers, InputTokens: u.Input, CachedTokens: u.Cached, OutputTokens: u.Output, Limited: u.Limited})
		}
		for _, m := range h.Models() {
			rows = append(rows, ModelStatus{
				Listener: name, Route: m.Route, Upstream: m.Upstream, Model: m.Model, Answers: m.Known + m.Estimated + m.Unknown, Estimated: m.Estimated, Unknown: m.Unknown,
				InputTokens: m.Input, CachedTokens: m.Cached, OutputTokens: m.Output,
				FirstToken: m.FirstToken.Quantile(0.5).Seconds(), PerToken: m.PerToken.Quantile(0.5).Seconds(),
			})
		}
	}
	slices.SortFunc(rows, func(a, b ModelStatus) int {
		return cmp.Or(cmp.Compare(b.InputTokens+b.OutputTokens, a.InputTokens+a.OutputTokens), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Listener, b.Listener),
			cmp.Compare(a.Route, b.Route), cmp.Compare(a.Upstream, b.Upstream))
	})
	slices.SortFunc(users, func(a, b UserStatus) int {
		return cmp.Or(cmp.Compare(b.InputTokens+b.OutputTokens, a.InputTokens+a.OutputTokens), cmp.Compare(a.User, b.User), cmp.Compare(a.Listener, b.Listener), cmp.Compare(a.Route, b.Route))
	})
	return []admin.Addition{modelReport.Of(rows), userReport.Of(users)}
}
