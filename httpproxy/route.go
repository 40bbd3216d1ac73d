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
	exact    map[string][]*target // by host, most specific first
	suffixes []suffix             // longest first
	any      []*target
	plan     *jsonfield.Plan // the body fields that routes look at; nil = none
	trusted  []netip.Prefix  // peers whose X-Forwarded-For counts
	peek     int             // bytes of a body that may be read to find a route
	asks     bool            // a route has LLM.IncludeUsage
	pages    *errorPages     // of requests without a route
	refuse   bool            // refuse a body if those fields are not within peek

	keyAuthorization func(token string) string // Config.KeyAuthorization; nil = none
}

type suffix struct {
	host    string // ".example"
	targets []*target
}

// target is a route ready to serve.
type target struct {
	label          string // in counters and logs
	path           string // a prefix is without a trailing slash unless the route demands one; "" matches all
	match          PathMatch
	expression     *regexp.Regexp // of PathRegexp
	when           *conditions    // nil = none
	groups         []group        // the groups of the upstream
	affinity       *affinity      // nil = none
	limiter        *limiter       // nil = none
	llm            *llm           // nil = tokens are not counted
	readsBody      bool           // the body is needed also if no condition looks at it
	canary         *canary        // nil = none
	cors           *cors          // nil = none
	set            []*target      // all targets that differ only in groups and upstream; nil = it has no groups
	compress       *compressing   // nil = answers are not compressed
	pages          *errorPages    // nil = none
	mirror         *mirror        // nil = none
	access         *access        // nil = everybody may use the route
	route          Route
	name           string // name of the upstream
	traffic        *traffic.Cell
	strip          int      // bytes of the decoded path that StripPrefix removes
	prefix         int      // bytes of the decoded path before {rest}
	rewrite        template // nil = none
	redirect       template // nil = none
	redirectStatus int
	captures       bool         // rewrite or redirect has groups of the expression
	requestRules   *headerRules // nil = none
	responseRules  *headerRules // nil = none
	reverse        *reverse     // nil = none
	trusted        []netip.Prefix
	forwarded      bool
	via            string
	idle, response time.Duration // 0 = no limit
	retries        retryPolicy
	budget         *budget
}

func newTable(routes []Route, ready func(Route) *target) *table {
	t := &table{exact: map[string][]*target{}}
	bySuffix, sets := map[string][]*target{}, map[string]*target{}
	for _, r := range routes {
		tg := ready(r)
		if len(r.Groups) > 0 {
			first := sets[r.key()]
			if first == nil {
				first, sets[r.key()] = tg, tg
			}
			if first.set = append(first.set, tg); first != tg {
				continue
			}
		}
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
		return cmp.Or(len(b.path)-len(a.path), b.conditions()-a.conditions())
	})
}

// rank is larger for more specific kinds of path.
func (m PathMatch) rank() int { return [...]int{PathPrefix: 0, PathRegexp: 1, PathExact: 2}[m] }

// conditions counts the route's conditions besides its path; all groups together are one.
func (tg *target) conditions() int { return tg.when.count() + min(len(tg.groups), 1) }

// finding is the result of find.
type finding struct {
	target      *target // nil = no route
	needsBody   bool    // the body must be read to decide
	noGroupFits bool    // the set had upstreams, but none with a fitting group
}

// find returns the target for a request with the given decoded path. body is the peeked body; nil = not read yet.
func (t *table) find(r *httpwire.Request, path string, body *peek) (f finding) {
	if len(t.exact)+len(t.suffixes) == 0 {
		f.among(t.any, r, path, body)
		return f
	}
	host := requestHost(view(r.Host))
	if f.among(t.exact[host], r, path, body) {
		return f
	}
	for _, s := range t.suffixes {
		if len(host) > len(s.host) && strings.HasSuffix(host, s.host) {
			if f.among(s.targets, r, path, body) {
				return f
			}
		}
	}
	f.among(t.any, r, path, body)
	return f
}

// among looks for a match in targets, and reports whether the search is over.
func (f *finding) among(targets []*target, r *httpwire.Request, path string, body *peek) bool {
	for _, tg := range targets {
		if !tg.takes(path) || tg.when != nil && !tg.when.hold(r) {
			continue
		}
		if tg.set == nil && (tg.when == nil || len(tg.when.body) == 0) && (body != nil || !tg.readsBody || r.Length == 0) {
			f.target = tg
			return true
		}
		if f.needsBody = body == nil && r.Length != 0; f.needsBody {
			return true
		}
		if tg.when != nil && len(tg.when.body) > 0 && (body == nil || !tg.when.holdIn(body)) {
			continue
		}
		if tg.set != nil {
			if tg = tg.provider(r, body); tg == nil {
				f.noGroupFits = true
				continue
			}
		}
		f.target = tg
		return true
	}
	return false
}

// takes reports whether the target's path matches path.
func (tg *target) takes(path string) bool {
	switch tg.match {
	case PathExact:
		return path == tg.path
	case PathRegexp:
		return tg.expression.MatchString(path)
	}
	return underPath(path, tg.path)
}

// underPath reports whether path is prefix or lies below it.
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

// requestHost returns the host name of a Host field, in lower case and without port and trailing dot; IPv6 addresses
// keep their brackets.
func requestHost(h string) string {
	if i := strings.LastIndexByte(h, ':'); i >= 0 && !strings.HasSuffix(h, "]") {
		h = h[:i]
	}
	return canonicalHost(h)
}

// withoutUser returns a Host field for the log, without the user name and password that some clients copy from a URL.
func withoutUser(host string) string { return host[strings.LastIndexByte(host, '@')+1:] }

func validHostPattern(h string) bool {
	h = strings.TrimPrefix(h, "*.")
	if strings.HasPrefix(h, "[") && strings.HasSuffix(h, "]") {
		return !strings.ContainsAny(h[1:len(h)-1], "[]/ *")
	}
	return !strings.ContainsAny(h, ":/*@?# \t[]")
}
