package httpproxy

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/ratelimit"
	"github.com/headpond/headpond/listener"
)

// RateBy is how the requests of a route are grouped for a RateLimit.
type RateBy string

// The values of RateBy.
const (
	// RateByClient counts by the address of the client, for IPv6 by its /64. It is the default, "". If the peer is one
	// of Config.TrustedProxies, the client is the last address in X-Forwarded-For that is not.
	RateByClient RateBy = "client"
	// RateByRoute counts all requests of the route together.
	RateByRoute RateBy = "route"
	// RateByUser counts by the name of the user, whom Route.BasicAuth or Route.BearerAuth must know.
	RateByUser RateBy = "user"
)

// Values lists all values that a configuration file may have.
func (RateBy) Values() []string {
	return []string{string(RateByClient), string(RateByRoute), string(RateByUser)}
}

// RateLimit is how many requests a route takes in a period. Further requests get 429 with Retry-After. The zero value has
// no limit. Update keeps the counts of routes whose limits and conditions stay the same. The count of a client, or of a
// value of Header, is dropped once some 32,000 others have come within Per.
//
// Requests refused by Route.Allow or Route.Deny do not count. A limit by client is checked before passwords and
// ForwardAuth, so that it also bounds attempts at these. With Header, RateByRoute or RateByUser only admitted requests
// count, so that strangers cannot use up a shared limit.
type RateLimit struct {
	// Requests is how many requests pass at once after a pause; after them one passes each Per/Requests. 0 = no limit.
	Requests int
	Per      time.Duration // 0 = one second
	By       RateBy
	// Header is a field by whose value requests count; requests without it count by By. If ForwardAuth adds a field of that
	// name, its value counts, and never the client's own. With BasicAuth its UserHeader and Authorization stand for the user,
	// with BearerAuth X-Api-Key and Api-Key, too.
	Header string
}

// Bounds of a RateLimit.
const (
	maxRateRequests = 1_000_000
	maxRatePer      = 24 * time.Hour
)

func (r RateLimit) verify(route Route) error {
	switch {
	case r == RateLimit{}:
		return nil
	case r.Requests < 1 || r.Requests > maxRateRequests:
		return fmt.Errorf("rate limit: %d requests; want 1 to %d", r.Requests, maxRateRequests)
	case r.Per < 0 || r.Per > maxRatePer:
		return fmt.Errorf("rate limit: requests per %v; want up to %v", r.Per, maxRatePer)
	case r.By != "" && !slices.Contains(r.By.Values(), string(r.By)):
		return fmt.Errorf("rate limit: requests cannot be counted by %q", string(r.By))
	case r.By == RateByUser && route.BasicAuth == nil && route.BearerAuth == nil:
		return errors.New("rate limit: by user, whom nothing tells; want BasicAuth or BearerAuth")
	case r.Header != "" && (!httpwire.ValidToken(r.Header) || len(r.Header) > maxMatchBytes):
		return fmt.Errorf("rate limit: the header %.40q is not a token of up to %d bytes", r.Header, maxMatchBytes)
	case strings.EqualFold(r.Header, "host"):
		return errors.New("rate limit: Host cannot be counted by; a route for each host does that")
	}
	return nil
}

// limiter enforces a RateLimit. Sessions use it concurrently.
type limiter struct {
	rate    ratelimit.Rate
	budgets map[string]int // Count of rate for these users, or values of header
	by      RateBy
	header  string // in lower case; "" = by client, route or user
	shared  bool   // only admitted requests count
	seed    maphash.Seed
	table   *ratelimit.Table[uint64] // by the hash of rateKey
	usual   *usualTokens             // of a TokenLimit
}

func newLimiter(r RateLimit) *limiter {
	per := r.Per
	if per == 0 {
		per = time.Second
	}
	return &limiter{
		rate: ratelimit.Rate{Count: r.Requests, Per: per}, by: r.By, header: strings.ToLower(r.Header), seed: maphash.MakeSeed(),
		shared: r.By == RateByRoute || r.By == RateByUser || r.Header != "", table: new(ratelimit.Table[uint64]), usual: new(usualTokens),
	}
}

// limiterOf returns the limiter of a route, the existing one if it has the same limit; nil = none. The caller holds
// tables.
func (p *Proxy) limiterOf(r Route, next map[string]*limiter) *limiter {
	if r.RateLimit.Requests == 0 {
		return nil
	}
	key := fmt.Sprintf("%s %q %+v", r.key(), r.Groups, r.RateLimit)
	if r.Upstream != nil {
		key += " " + r.Upstream.Name()
	}
	l := p.limiters[key]
	if l == nil {
		l = newLimiter(r.RateLimit)
	}
	next[key] = l
	return l
}

// began is the time at which the clock of all limiters is zero.
var began = time.Now()

// overRate refuses the request if its route has had too many of its kind. The status is 0 if the request passes.
func (s *session) overRate(l *limiter) (no refusal) {
	key, rate := s.rateKey(l)
	wait := l.table.Take(key, rate, time.Since(began)) // the current time, because the head may have begun long ago
	if wait == 0 {
		return no
	}
	s.ex.target.traffic.Shard(int(s.shard)).Add(rateLimited, 1)
	return refusal{
		status: http.StatusTooManyRequests, reason: listener.ReasonRateLimited, why: "too many requests; try again later",
		retryAfter: int((wait + time.Second - 1) / time.Second),
	}
}

// overShared refuses the request if its route has had too many of its kind by a limit that only admitted requests count
// for, or if its tokens are used up. The status is 0 if the request passes.
func (s *session) overShared(l *limiter) (no refusal) {
	if l != nil && l.shared {
		if no = s.overRate(l); no.status != 0 {
			return no
		}
	}
	if s.ex.target.llm != nil {
		no = s.overTokens()
	}
	return no
}

// of returns the key and the rate of a user, or of a header's value that the gateway knows.
func (l *limiter) of(name string) (key uint64, rate ratelimit.Rate) {
	key, rate = maphash.String(l.seed, name), l.rate
	if own, ok := l.budgets[name]; ok {
		rate.Count = own
		key ^= uint64(own) // another budget begins full
	}
	return key, rate
}

// rateKey returns the hash of what the request counts by, and its rate.
func (s *session) rateKey(l *limiter) (key uint64, rate ratelimit.Rate) {
	if l.header != "" {
		a := s.ex.target.access
		if a != nil && a.identifiesBy(l.header) {
			return l.of(s.ex.user) // a client may write its credentials in several ways, and have several keys
		}
		for _, g := range s.ex.grants {
			if strings.EqualFold(g.name, l.header) {
				return l.of(g.value)
			}
		}
		for i := range s.req.Fields {
			if f := &s.req.Fields[i]; httpwire.EqualFold(f.Name, l.header) && (a == nil || !a.writes(f.Name)) {
				if f.Known == httpwire.Authorization {
					return hashCredentials(l.seed, f.Value), l.rate
				}
				return maphash.Bytes(l.seed, f.Value), l.rate
			}
		}
	}
	switch l.by {
	case RateByUser:
		return l.of(s.ex.user)
	case RateByRoute:
		return 0, l.rate
	}
	from := s.source().As16()
	return maphash.Bytes(l.seed, from[:]), l.rate
}

// hashCredentials returns the same hash for all ways to write the scheme and the spaces behind it, which servers ignore.
func hashCredentials(seed maphash.Seed, value []byte) uint64 {
	scheme, secret, _ := bytes.Cut(value, []byte(" "))
	var h maphash.Hash
	h.SetSeed(seed)
	for _, c := range scheme {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		_ = h.WriteByte(c) // no error
	}
	_ = h.WriteByte(' ')
	_, _ = h.Write(bytes.TrimLeft(secret, " \t"))
	return h.Sum64()
}

// source returns the client's address that the request counts for, of IPv6 the /64, which belongs to one owner. All
// clients of a Unix socket have the zero Addr.
func (s *session) source() netip.Addr {
	ip, ok := s.clientAddr()
	if !ok { // a Unix socket, or not readable
		ip = s.from().addr
	}
	if ip.Is6() {
		network, _ := ip.Prefix(64) // no error: an IPv6 address has 64 bits
		return network.Addr()
	}
	return ip
}
