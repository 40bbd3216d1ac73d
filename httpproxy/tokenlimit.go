package httpproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/ratelimit"
	"github.com/headpond/headpond/listener"
)

// TokenLimit is how many tokens, of prompts and answers, the requests of a route may use in a period. A request begins if a
// token is left. Until its answer has ended, it counts as many tokens as requests of the limit use on average, and then
// what it has used, so that the following requests may have to wait longer. A
// request over the limit gets 429 with Retry-After and an error in OpenAI's form. Answers tell what is left in
// x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens and x-ratelimit-reset-tokens, for the limit of which least is left.
//
// Only requests that Route.BasicAuth, BearerAuth and ForwardAuth admit count, and only those with a body. Update keeps
// the counts of routes whose limits and conditions stay the same.
type TokenLimit struct {
	// Tokens is how many may be used at once after a pause; they come back within Per, evenly.
	Tokens int64
	Per    time.Duration // 0 = one minute; at least a second
	By     RateBy
	// Header is a field by whose value tokens count; see RateLimit.Header.
	Header string
	// Budgets are the Tokens of some users, or of some values of Header, in place of Tokens. They require RateByUser, or
	// a Header that the Proxy writes or knows the user by, as clients could choose their budget otherwise. When
	// they change, Update keeps the counts of those whose budget stays.
	Budgets map[string]int64
	// Shared is a name that limits of several routes have, which are then one: the requests of these routes count together.
	// All of them must be the same. "" = the limit is the route's own.
	Shared string
}

// Bounds of a TokenLimit.
const (
	maxLimitTokens = 1_000_000_000
	maxBudgets     = 1000
	minTokensPer   = time.Second
)

func (t TokenLimit) verify(r Route) error {
	switch {
	case len(t.Budgets) > maxBudgets:
		return fmt.Errorf("%d budgets; at most %d are possible", len(t.Budgets), maxBudgets)
	case len(t.Budgets) > 0 && (t.Header == "" && t.By != RateByUser || t.Header != "" && !r.vouches(t.Header)):
		return errors.New("Budgets without RateByUser or a Header that the Proxy vouches for")
	case t.Tokens < 1 || t.Tokens > maxLimitTokens:
		return fmt.Errorf("a limit of %d tokens; want 1 to %d", t.Tokens, maxLimitTokens)
	case t.Per != 0 && (t.Per < minTokensPer || t.Per > maxRatePer):
		return fmt.Errorf("a limit of tokens per %v; want %v to %v", t.Per, minTokensPer, maxRatePer)
	}
	for name, tokens := range t.Budgets {
		if name == "" || tokens < 1 || tokens > maxLimitTokens {
			return fmt.Errorf("a budget of %d tokens for %.40q; want a name, and 1 to %d", tokens, name, maxLimitTokens)
		}
	}
	return t.limit().verify(r)
}

// vouches reports whether a header of a request tells who the client is by the word of the Proxy or of ForwardAuth.
func (r Route) vouches(header string) bool {
	is := func(name string) bool { return strings.EqualFold(name, header) }
	switch {
	case r.ForwardAuth != nil:
		return slices.ContainsFunc(r.ForwardAuth.ResponseHeaders, is)
	case r.BasicAuth != nil:
		return is(r.BasicAuth.UserHeader) || is("authorization")
	case r.BearerAuth != nil:
		b := r.BearerAuth
		return is(b.UserHeader) || is("authorization") || keyHeader([]byte(header)) ||
			b.JWT != nil && slices.ContainsFunc(b.JWT.Headers, func(f HeaderField) bool { return is(f.Name) })
	}
	return false
}

// key tells limits apart by all but their Budgets.
func (t TokenLimit) key() string {
	t.Budgets = nil
	return fmt.Sprintf("%+v", t)
}

// verifyShared checks that shared limits are the same.
func verifyShared(routes []Route) error {
	seen := map[string]TokenLimit{}
	for _, r := range routes {
		if r.LLM == nil {
			continue
		}
		for _, t := range r.LLM.Limits {
			before, ok := seen[t.Shared]
			if ok && t.Shared != "" && (t.key() != before.key() || !maps.Equal(t.Budgets, before.Budgets)) {
				return fmt.Errorf("the limits of tokens that share the name %.40q differ", t.Shared)
			}
			seen[t.Shared] = t
		}
	}
	return nil
}

// limit returns the limit with the fields that it shares with a RateLimit.
func (t TokenLimit) limit() RateLimit {
	per := t.Per
	if per == 0 {
		per = time.Minute
	}
	return RateLimit{Requests: 1, Per: per, By: t.By, Header: t.Header}
}

// tokenLimitersOf returns the limiters of a route's LLM, the existing ones as far as they have the same limit. The caller
// holds tables.
func (p *Proxy) tokenLimitersOf(r Route, next map[string]*limiter) (list []*limiter) {
	for _, t := range r.LLM.Limits {
		key := "tokens shared " + t.key()
		if t.Shared == "" {
			key = fmt.Sprintf("tokens %s %q %s %s", r.key(), r.Groups, t.key(), r.Upstream.Name())
		}
		if l := next[key]; l != nil { // another route shares it, or the limit is there twice
			if !slices.Contains(list, l) {
				list = append(list, l)
			}
			continue
		}
		l := newLimiter(t.limit())
		l.rate.Count = int(t.Tokens)
		for name, tokens := range t.Budgets {
			if l.budgets == nil {
				l.budgets = map[string]int{}
			}
			l.budgets[name] = int(tokens)
		}
		if old := p.limiters[key]; old != nil {
			l.seed, l.table, l.usual = old.seed, old.table, old.usual
		}
		next[key], list = l, append(list, l)
	}
	return list
}

// tightest is the limit of which least is left, relative to it.
type tightest struct {
	limit int
	per   time.Duration
	ratelimit.Level
}

// overTokens refuses the request if none of its tokens are left. The status is 0 if the request passes.
func (s *session) overTokens() (no refusal) {
	limits := s.ex.target.llm.limits
	if len(limits) == 0 || s.req.Length == 0 {
		return no
	}
	k, now := s.takeTokens(), time.Since(began)
	k.giveBack()
	k.checked, k.limiters = true, limits
	for i, l := range limits {
		k.keys[i], k.rates[i] = s.rateKey(l)
		rate := k.rates[i]
		usual := min(l.usual.get(), int64(rate.Count)) // more would make others wait for longer than until it is given back
		level := l.table.Reserve(k.keys[i], rate, usual, now)
		if level.Wait == 0 {
			k.reserved[i] = usual
		}
		if i == 0 || level.Wait > k.tight.Wait || level.Wait == k.tight.Wait && float64(level.Left)/float64(rate.Count) < float64(k.tight.Left)/float64(k.tight.limit) {
			k.tight = tightest{rate.Count, rate.Per, level}
		}
	}
	if k.tight.Wait == 0 {
		return no
	}
	k.giveBack()
	s.ex.target.traffic.Shard(int(s.shard)).Add(tokenLimited, 1)
	if s.ex.user != "" {
		s.ex.target.llm.users.of([]byte(s.ex.user)).Shard(int(s.shard)).Add(userLimited, 1)
	}
	seconds := int((k.tight.Wait + time.Second - 1) / time.Second)
	no = refusal{
		status: http.StatusTooManyRequests, reason: listener.ReasonRateLimited, retryAfter: seconds, header: http.Header{"Content-Type": {"application/json"}},
		why: fmt.Sprintf("the limit of %d tokens in %v is used up; try again later", k.tight.limit, k.tight.per),
	}
	for i, name := range tokenLimitFields {
		no.header.Set(name, string(k.tight.append(nil, i)))
	}
	no.body = openAIError(no.why, "tokens", "rate_limit_exceeded")
	return no
}

// openAIError returns an error in the form of OpenAI's API.
func openAIError(message, kind, code string) []byte {
	var body struct {
		Error struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    string  `json:"code"`
		} `json:"error"`
	}
	body.Error.Message, body.Error.Type, body.Error.Code = message, kind, code
	text, _ := json.Marshal(body) // no error: it has strings only
	return append(text, '\n')
}

// spend takes what a request has used, in place of what was reserved for it.
func (k *tokens) spend() {
	now := time.Since(began)
	for i, l := range k.limiters {
		l.table.Spend(k.keys[i], k.rates[i], k.usage.Total()-k.reserved[i], now)
		k.reserved[i] = 0
		l.usual.add(k.usage.Total())
	}
}

// giveBack ends the reservations of a request whose usage is not known.
func (k *tokens) giveBack() {
	now := time.Since(began)
	for i, l := range k.limiters {
		if n := k.reserved[i]; n > 0 {
			k.reserved[i] = 0
			l.table.Spend(k.keys[i], k.rates[i], -n, now)
		}
	}
}

// usualTokens is a moving average of what requests use, of which the last one is an eighth; in sixteenths of a token.
type usualTokens struct{ sixteenths atomic.Int64 }

// get returns the average; 0 = no request has ended yet.
func (u *usualTokens) get() int64 { return u.sixteenths.Load() / 16 }

// add counts a request. Of two at the same time one may be lost.
func (u *usualTokens) add(tokens int64) {
	tokens *= 16
	if before := u.sixteenths.Load(); before != 0 {
		tokens = before + (tokens-before)/8
	}
	u.sixteenths.Store(tokens)
}

// tokenLimitFields tell clients what is left of a limit, as OpenAI's API does.
var tokenLimitFields = [...]string{"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"}

// append appends the value of the field of that index.
func (t *tightest) append(dst []byte, field int) []byte {
	switch field {
	case 0:
		return strconv.AppendInt(dst, int64(t.limit), 10)
	case 1:
		return strconv.AppendInt(dst, max(t.Left, 0), 10)
	}
	return append(dst, t.Full.Round(time.Millisecond).String()...)
}

// limits returns what is left of the limits for the request; nil = it has none. k may be nil.
func (k *tokens) limits() *tightest {
	if k == nil || !k.checked {
		return nil
	}
	return &k.tight
}

// replaces reports whether a field of the server's answer is replaced by the proxy's own.
func (t *tightest) replaces(f *httpwire.Field) bool {
	if f.Known != httpwire.Other {
		return false
	}
	for _, name := range tokenLimitFields {
		if len(f.Name) == len(name) && strings.EqualFold(view(f.Name), name) {
			return true
		}
	}
	return false
}

// write appends the fields about the limits.
func (t *tightest) write(w *headWriter, rules *headerRules) {
	for i, name := range tokenLimitFields {
		if !rules.drops([]byte(name)) {
			w.begin(name)
			w.dst = t.append(w.dst, i)
			w.end()
		}
	}
}
