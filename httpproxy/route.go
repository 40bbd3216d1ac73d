package httpproxy

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/jsonfield"
	"github.com/headpond/headpond/traffic"
)

// table finds the route of a request. It never changes; Update makes a new one.
type table struct {
	exact    map[string][]*target // by host, the most specific first
	suffixes []suffix             // by falling length
	any      []*target
	plan     *jsonfield.Plan // what routes look at in bodies; nil = nothing
	peek     int             // bytes of a body that may be read for that
	refuse   bool            // a body whose fields are not among them
}

type suffix struct {
	host    string // ".example"
	targets []*target
}

// target is a route ready to serve.
type target struct {
	path           string // a prefix is without a trailing slash unless the route demands one; "" matches all
	match          PathMatch
	expression     *regexp.Regexp // of PathRegexp
	when           *conditions    // nil = none
	route          Route
	name           string // of the upstream
	traffic        *traffic.Cell
	strip          int // bytes of the decoded path to take off
	trusted        []netip.Prefix
	forwarded      bool
	via            string
	idle, response time.Duration // 0 = no limit
	retries        retryPolicy
	budget         *budget
}

func newTable(routes []Route, ready func(Route) *target) *table {
	t := &table{exact: map[string][]*target{}}
	bySuffix := map[string][]*target{}
	for _, r := range routes {
		tg := ready(r)
		host := canonicalHost(r.Host)
		switch name, wild := strings.CutPrefix(host, "*"); {
		case host == "":
			t.any = append(t.any, tg)
		case wild:
			bySuffix[name] = append(bySuffix[name], tg)
		default:
			t.exact[host] = append(t.exact[host], tg)
		}
	}
	for host, targets := range bySuffix {
		t.suffixes = append(t.suffixes, suffix{host, targets})
		mostSpecificFirst(targets)
	}
	slices.SortFunc(t.suffixes, func(a, b suffix) int { return len(b.host) - len(a.host) })
	for _, targets := range t.exact {
		mostSpecificFirst(targets)
	}
	mostSpecificFirst(t.any)
	return t
}

func mostSpecificFirst(targets []*target) {
	slices.SortStableFunc(targets, func(a, b *target) int {
		switch {
		case a.match != b.match:
			return b.match.rank() - a.match.rank()
		case a.match == PathRegexp: // in the order of the configuration
			return 0
		}
		return cmp.Or(len(b.path)-len(a.path), b.when.count()-a.when.count())
	})
}

// rank is the larger the more specific paths are.
func (m PathMatch) rank() int { return [...]int{PathPrefix: 0, PathRegexp: 1, PathExact: 2}[m] }

// find returns the target for a request with that decoded path, nil if there is none. body is what is known of its body; asks says that
// this must be known, and was not given.
func (t *table) find(r *httpwire.Request, path string, body *peek) (tg *target, asks bool) {
	if len(t.exact)+len(t.suffixes) == 0 {
		return findPath(t.any, r, path, body)
	}
	host := requestHost(view(r.Host))
	if tg, asks = findPath(t.exact[host], r, path, body); tg != nil || asks {
		return tg, asks
	}
	for _, s := range t.suffixes {
		if len(host) > len(s.host) && strings.HasSuffix(host, s.host) {
			if tg, asks = findPath(s.targets, r, path, body); tg != nil || asks {
				return tg, asks
			}
		}
	}
	return findPath(t.any, r, path, body)
}

func findPath(targets []*target, r *httpwire.Request, path string, body *peek) (tg *target, asks bool) {
	for _, tg := range targets {
		if !tg.takes(path) || tg.when != nil && !tg.when.hold(r) {
			continue
		}
		if tg.when != nil && len(tg.when.body) > 0 {
			if body == nil {
				return nil, true
			}
			if !tg.when.holdIn(body) {
				continue
			}
		}
		return tg, false
	}
	return nil, false
}

// takes reports whether the route is for a path.
func (tg *target) takes(path string) bool {
	switch tg.match {
	case PathExact:
		return path == tg.path
	case PathRegexp:
		return tg.expression.MatchString(path)
	}
	return underPath(path, tg.path)
}

// underPath says whether path is prefix or lies below it.
func underPath(path, prefix string) bool {
	if !strings.HasPrefix(path, prefix) {
		return false
	}
	return len(path) == len(prefix) || prefix == "" || prefix[len(prefix)-1] == '/' || path[len(prefix)] == '/'
}

func canonicalPath(p string) string {
	if p == "/" {
		return ""
	}
	return p
}

func canonicalHost(h string) string { return strings.TrimSuffix(strings.ToLower(h), ".") }

// requestHost is the name in a Host field: without port, trailing dot and case; IPv6 addresses keep their brackets.
func requestHost(h string) string {
	if i := strings.LastIndexByte(h, ':'); i >= 0 && !strings.HasSuffix(h, "]") {
		h = h[:i]
	}
	return canonicalHost(h)
}

func validHostPattern(h string) bool {
	h = strings.TrimPrefix(h, "*.")
	if strings.HasPrefix(h, "[") && strings.HasSuffix(h, "]") {
		return !strings.ContainsAny(h[1:len(h)-1], "[]/ *")
	}
	return !strings.ContainsAny(h, ":/*@?# \t[]")
}

// hasDotSegment says whether a decoded path has a segment that servers resolve: "/api/../admin" is routed by what it
// says and served as what it means. Backslashes separate too for some servers.
func hasDotSegment(path string) bool {
	if !strings.Contains(path, "/.") && !strings.Contains(path, `\`) {
		return false
	}
	for segment := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}
