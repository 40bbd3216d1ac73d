package httpproxy_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/httpproxy"
)

// combineRoute is a route with random features, and what of them the model needs.
type combineRoute struct {
	httpproxy.Route
	prefix   string
	server   string // the name of the server that gets the requests
	big      *httpproxy.Route
	rewrite  string // "", strip, rewrite or groups
	auth     string // "", basic, bearer, token or forward
	user     string // of those who are admitted
	rules    bool
	denied   bool
	own      string // "", respond or redirect
	limit    int    // requests of each bucket
	mirrored bool
	slow     bool // the route has a time-out for servers that do not answer
}

func (r *combineRoute) String() string {
	compress := "no"
	if c := r.Compression; c != nil {
		compress = fmt.Sprintf("%q from %d", c.Encodings, c.MinBytes)
	}
	return fmt.Sprintf("server=%s rewrite=%q auth=%q rules=%t denied=%t own=%q limit=%d mirror=%t max=%d compress=%s cors=%t pages=%d llm=%t retries=%+v slow=%t body=%t",
		r.server, r.rewrite, r.auth, r.rules, r.denied, r.own, r.limit, r.mirrored, r.MaxBody, compress, r.CORS != nil, len(r.ErrorPages), r.LLM != nil, r.Retries, r.slow, r.big != nil)
}

// one reports true once in n times.
func one(rnd *rand.Rand, n int) bool { return rnd.IntN(n) == 0 }

// pick returns one of the values.
func pick[T any](rnd *rand.Rand, values ...T) T { return values[rnd.IntN(len(values))] }

// newCombineRoute makes route i.
func newCombineRoute(rnd *rand.Rand, s *combineServers, i int) *combineRoute {
	r := &combineRoute{prefix: fmt.Sprintf("/r%d", i)}
	r.Path = r.prefix
	r.Compression = pick(rnd, nil, nil, &httpproxy.Compression{}, &httpproxy.Compression{Encodings: []string{"gzip"}, MinBytes: 100}, &httpproxy.Compression{Encodings: []string{"gzip", "zstd"}, MinBytes: 1})
	if one(rnd, 2) {
		r.addRules(rnd)
	}
	if one(rnd, 3) {
		r.CORS = &httpproxy.CORS{Origins: []string{combineOrigin}, Credentials: one(rnd, 2), ResponseHeaders: []string{"X-Out"}}
	}
	if one(rnd, 3) {
		r.ErrorPages = []httpproxy.ErrorPage{
			{Statuses: []int{4}, Content: "page {status} {request_id}", ContentType: "text/html", Of: pick(rnd, httpproxy.PageOfGateway, httpproxy.PageOfBoth)},
			{Statuses: []int{5}, Content: "page {status} {request_id}", ContentType: "text/plain", Of: pick(rnd, httpproxy.PageOfGateway, httpproxy.PageOfBoth)},
		}
	}
	r.addAccess(rnd, s)
	if one(rnd, 8) {
		r.addOwn(rnd)
		return r
	}
	r.addUpstream(rnd, s)
	r.addRewrite(rnd)
	if one(rnd, 3) {
		r.mirrored = true
		r.Mirror = httpproxy.Mirror{Upstream: s.mirror, Percent: 100, MaxBody: 256 << 10}
	}
	if one(rnd, 4) {
		r.MaxBody = 3000
	}
	if one(rnd, 6) {
		r.LLM = &httpproxy.LLM{}
	}
	r.addRetries(rnd)
	if one(rnd, 6) {
		big := r.Route
		big.Body = []httpproxy.FieldMatch{{Name: "model", Value: "big"}}
		big.Upstream, big.Canary = s.big, httpproxy.Canary{}
		r.big = &big
	}
	return r
}

// combineOrigin is the origin that may use routes.
const combineOrigin = "https://ok.example"

func (r *combineRoute) addRules(rnd *rand.Rand) {
	r.rules = true
	r.RequestHeaders = httpproxy.HeaderRules{
		Set:    []httpproxy.HeaderField{{Name: "X-Set", Value: "{method} {path} {header.X-Tag}{header.X-User}"}},
		Add:    []httpproxy.HeaderField{{Name: "X-Add", Value: "a-{client_ip}"}},
		Remove: []string{"X-Drop"},
	}
	r.ResponseHeaders = httpproxy.HeaderRules{
		Set:    []httpproxy.HeaderField{{Name: "X-Out", Value: "{request_id} {method}"}},
		Add:    []httpproxy.HeaderField{{Name: "X-More", Value: "m"}},
		Remove: []string{"X-Secret"},
	}
	if one(rnd, 2) {
		r.RequestHeaders.Set = append(r.RequestHeaders.Set, httpproxy.HeaderField{Name: "Host", Value: "inner.example"})
	}
}

// addAccess adds who may use the route.
func (r *combineRoute) addAccess(rnd *rand.Rand, s *combineServers) {
	switch rnd.IntN(7) {
	case 3:
		r.auth, r.user = "token", "ann"
		r.BearerAuth = &httpproxy.BearerAuth{UserHeader: "X-User", Forward: one(rnd, 3), JWT: &httpproxy.JWT{
			Issuer: "https://login.example", Audiences: []string{"pond"}, Source: "login", ReadKeys: s.issuer.read, Logger: slog.New(slog.DiscardHandler),
		}}
	case 0:
		r.auth, r.user = "basic", "bob"
		r.BasicAuth = &httpproxy.BasicAuth{Users: s.users, UserHeader: "X-User", Forward: one(rnd, 3)}
	case 1:
		r.auth, r.user = "bearer", "ann"
		r.BearerAuth = &httpproxy.BearerAuth{Keys: s.keys, UserHeader: "X-User", Forward: one(rnd, 3)}
	case 2:
		r.auth, r.user = "forward", "fay"
		r.ForwardAuth = &httpproxy.ForwardAuth{Upstream: s.auth, Timeout: patience, Path: "/ask", ResponseHeaders: []string{"X-User"}}
	}
	switch rnd.IntN(8) {
	case 0:
		r.denied = true
		r.Deny = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	case 1, 2:
		r.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}
	if one(rnd, 4) {
		r.limit = 3
		r.RateLimit = httpproxy.RateLimit{Requests: r.limit, Per: 24 * time.Hour, Header: "X-Bucket"}
	}
}

func (r *combineRoute) addOwn(rnd *rand.Rand) {
	if r.own = pick(rnd, "respond", "redirect"); r.own == "redirect" {
		r.Redirect = httpproxy.Redirect{To: "https://{host}/to{rest}{query}", Status: pick(rnd, 301, 307)}
		return
	}
	switch r.Respond = (httpproxy.Respond{Status: pick(rnd, 200, 204, 404, 503)}); {
	case r.Respond.Status == http.StatusNoContent:
	case one(rnd, 2):
		r.Respond.Body = strings.Repeat("own answer, ", 200)
	}
}

func (r *combineRoute) addUpstream(rnd *rand.Rand, s *combineServers) {
	name := pick(rnd, "one", "two", "coded", "framed", "framed")
	r.server, r.Upstream = name, s.upstreams[name]
	switch rnd.IntN(5) {
	case 0:
		other := pick(rnd, "one", "coded", "framed")
		if other == name {
			break
		}
		r.Canary = httpproxy.Canary{Upstream: s.upstreams[other], Percent: pick(rnd, 0, 100), Cookie: "can", SetCookie: true}
		if r.Canary.Percent == 100 {
			r.server = other
		}
	case 1:
		if name == "two" {
			r.Affinity = httpproxy.Affinity{Cookie: "aff", SetCookie: true}
		}
	}
}

func (r *combineRoute) addRewrite(rnd *rand.Rand) {
	switch rnd.IntN(5) {
	case 0:
		r.rewrite, r.StripPrefix = "strip", true
	case 1:
		r.rewrite, r.Rewrite = "rewrite", "/new{rest}"
	case 2:
		r.rewrite, r.PathMatch, r.Path, r.Rewrite = "groups", httpproxy.PathRegexp, r.prefix+"(/.*)?", "/group$1"
	}
}

func (r *combineRoute) addRetries(rnd *rand.Rand) {
	switch rnd.IntN(5) {
	case 0:
	case 1:
		r.Retries = httpproxy.Retries{Attempts: 1}
	case 2:
		r.Retries = httpproxy.Retries{On: []httpproxy.Failure{httpproxy.FailedReset, httpproxy.Failed503}}
	case 3:
		r.Retries = httpproxy.Retries{On: []httpproxy.Failure{httpproxy.FailedConnect, httpproxy.FailedReset, httpproxy.Failed502, httpproxy.Failed503, httpproxy.Failed504}, Attempts: 5, Pause: time.Millisecond}
	case 4:
		r.Retries = httpproxy.Retries{On: []httpproxy.Failure{httpproxy.Failed503}, Methods: []string{"POST", "GET"}, Attempts: 4}
	}
	r.Retries.Budget = 100
	if one(rnd, 4) {
		r.slow, r.ResponseTimeout = true, 200*time.Millisecond
	}
}

// path is the path of a request as the server gets it.
func (r *combineRoute) serverPath(rest string) string {
	switch r.rewrite {
	case "strip":
		return cmp.Or(rest, "/")
	case "rewrite":
		return "/new" + rest
	case "groups":
		return "/group" + rest
	}
	return r.prefix + rest
}

// retries reports whether a status or another failure is followed by another try of the request.
func (r *combineRoute) retriesOn(f httpproxy.Failure) bool {
	if r.Retries.On == nil {
		return f == httpproxy.FailedReset || f == httpproxy.FailedConnect
	}
	return slices.Contains(r.Retries.On, f)
}

// attempts is how often a request is sent at most.
func (r *combineRoute) attempts() int { return cmp.Or(r.Retries.Attempts, httpproxy.DefaultAttempts) }

// repeats reports whether a request may be sent again although a server has seen it.
func (c *combined) repeats() bool {
	if m := c.route.Retries.Methods; m != nil {
		return slices.Contains(m, c.method)
	}
	return c.isIdempotent()
}

// isIdempotent reports whether it may be sent again after the server has closed an idle connection.
func (c *combined) isIdempotent() bool {
	return c.idempotent || slices.Contains([]string{"GET", "HEAD", "PUT", "DELETE", "OPTIONS"}, c.method)
}
