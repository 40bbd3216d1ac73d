package httpproxy

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/traffic"
)

// table finds the route of a request. It never changes; Update makes a new one.
type table struct {
	exact    map[string][]*target // by host, each list by falling length of the path
	suffixes []suffix             // by falling length
	any      []*target
}

type suffix struct {
	host    string // ".example"
	targets []*target
}

// target is a route ready to serve.
type target struct {
	path           string // without a trailing slash unless the route demands one; "" matches all
	route          Route
	name           string // of the upstream
	traffic        *traffic.Cell
	strip          int // bytes of the decoded path to take off
	trusted        []netip.Prefix
	forwarded      bool
	via            string
	idle, response time.Duration // 0 = no limit
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
		longestFirst(targets)
	}
	slices.SortFunc(t.suffixes, func(a, b suffix) int { return len(b.host) - len(a.host) })
	for _, targets := range t.exact {
		longestFirst(targets)
	}
	longestFirst(t.any)
	return t
}

func longestFirst(targets []*target) {
	slices.SortStableFunc(targets, func(a, b *target) int { return len(b.path) - len(a.path) })
}

// find returns the target for a request to host and the decoded path, nil if there is none.
func (t *table) find(host, path string) *target {
	if len(t.exact)+len(t.suffixes) == 0 {
		return findPath(t.any, path)
	}
	host = requestHost(host)
	if tg := findPath(t.exact[host], path); tg != nil {
		return tg
	}
	for _, s := range t.suffixes {
		if len(host) > len(s.host) && strings.HasSuffix(host, s.host) {
			if tg := findPath(s.targets, path); tg != nil {
				return tg
			}
		}
	}
	return findPath(t.any, path)
}

func findPath(targets []*target, path string) *target {
	for _, tg := range targets {
		if underPath(path, tg.path) {
			return tg
		}
	}
	return nil
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
