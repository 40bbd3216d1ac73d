package proxyconf

import (
	"cmp"
	"iter"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/headpond/headpond/internal/yamltext"
)

func prefixOf(text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Masked(), true
	}
	address, mask, ok := strings.Cut(text, "/") // 10.0.0.0/255.0.0.0
	a, err := netip.ParseAddr(address)
	m, err2 := netip.ParseAddr(mask)
	if !ok || err != nil || err2 != nil || !a.Is4() || !m.Is4() {
		return netip.Prefix{}, false
	}
	for bits := 32; bits >= 0; bits-- {
		if p, err := netip.MustParseAddr("255.255.255.255").Prefix(bits); err == nil && p.Addr() == m {
			return netip.PrefixFrom(a, bits).Masked(), true
		}
	}
	return netip.Prefix{}, false
}

// PrivateNetworks are the addresses of private networks, where load balancers are.
const PrivateNetworks = `["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "::1/128", "fc00::/7"]`

// Overlap returns the one of several addresses that has the port of another one, of which one is for all addresses of the
// machine; "" if there is none.
func Overlap(all iter.Seq[string], address string) string {
	host, port, err := net.SplitHostPort(address)
	if strings.HasPrefix(address, "unix:") || err != nil {
		return ""
	}
	for other := range all {
		h, p, err := net.SplitHostPort(other)
		if err == nil && !strings.HasPrefix(other, "unix:") && p == port && (h == "" || host == "") && other != address {
			return other
		}
	}
	return ""
}

// step is a leaf below one host, with the conditions that a route there has.
type step struct {
	leaf       *Leaf
	paths      Paths
	expression bool // the route's path is an expression
}

// Routes returns the routes of an http listener that send each request the way of the first leaf that it has the conditions of.
//
// The gateway looks at the routes of the most specific host first. So each host has all leaves that its requests may take,
// unless these are the same as those of the next host that the gateway looks at.
func Routes(leaves []Leaf) (routes []Route) {
	hosts := hostsOf(leaves)
	for i, host := range hosts {
		steps := stepsOf(leaves, host)
		for _, next := range hosts[i+1:] {
			if next == "" || hostImplies(host, next) { // the gateway looks there when no route of host fits
				steps = withoutTail(steps, stepsOf(leaves, next), host)
				break
			}
		}
		ordered := spread(steps)
		if !inOrder(ordered) {
			ordered = inExpressions(steps)
		}
		seen := map[string]bool{}
		for _, s := range ordered {
			for _, one := range s.split() {
				r := one.route(host)
				if key := keyOf(r); !seen[key] {
					seen[key] = true
					routes = append(routes, r)
				}
			}
		}
	}
	return routes
}

// hostsOf returns the hosts of leaves: names, then the longest wildcard, and last none.
func hostsOf(leaves []Leaf) (hosts []string) {
	for _, l := range leaves {
		if h := l.Known.Host; !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	slices.SortStableFunc(hosts, func(a, b string) int { return cmp.Or(hostRank(b)-hostRank(a), wildLen(b)-wildLen(a)) })
	if len(hosts) == 0 || hosts[len(hosts)-1] != "" {
		hosts = append(hosts, "")
	}
	return hosts
}

func hostRank(host string) int {
	switch {
	case host == "":
		return 0
	case strings.HasPrefix(host, "*"):
		return 1
	}
	return 2
}

func wildLen(host string) int {
	if hostRank(host) == 1 {
		return len(host)
	}
	return 0
}

// stepsOf returns the leaves that requests for a host may take, up to one that takes all of them.
func stepsOf(leaves []Leaf, host string) (steps []step) {
	for i := range leaves {
		l := &leaves[i]
		if h := l.Known.Host; h != "" && !hostImplies(host, h) || host == "" && h != "" {
			continue
		}
		if l.Known.Paths != nil && len(l.Known.Paths) == 0 {
			continue
		}
		steps = append(steps, step{l, l.Known.Paths, false})
		if l.Known.Paths.all() && l.Known.Methods == nil && len(l.Known.Fields) == 0 {
			break
		}
	}
	return steps
}

// all reports whether the paths are all paths.
func (all Paths) all() bool { return all == nil || Paths(nil).implies(all) }

// withoutTail leaves out the steps at the end that the next host has, too.
func withoutTail(steps, next []step, host string) []step {
	own := len(steps)
	for own > 0 && steps[own-1].leaf.Known.Host != host {
		own--
	}
	if len(steps)-own == len(next) && slices.EqualFunc(steps[own:], next, func(a, b step) bool { return a.leaf == b.leaf }) {
		return steps[:own]
	}
	return steps
}

// natural reports whether a route can have a path as it is: path_match exact, or a prefix that ends with a slash.
func (p Path) natural() bool {
	t := p.Text
	if p.Fold || p.Tail != "" || p.Kind != Exact && (p.Kind != Affix || !strings.HasSuffix(t, "/")) {
		return false
	}
	return strings.HasPrefix(t, "/") && plain(t) && !strings.ContainsAny(t, "?#* ") && !strings.Contains(t, "/./") && !strings.Contains(t+"/", "/../") && !strings.HasSuffix(t, "/.")
}

// plain reports whether a text has only printable ASCII.
func plain(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) < 0
}

// spread gives each path that a route can have as it is a step of its own; the others stay together as expressions.
func spread(steps []step) (all []step) {
	for _, s := range steps {
		if s.paths.all() && !s.leaf.State.Groups {
			all = append(all, step{s.leaf, Paths{Prefix("/")}, false})
			continue
		}
		var rest Paths
		for _, p := range s.paths {
			if p.natural() && !s.leaf.State.Groups && len(s.paths) <= maxSpread {
				all = append(all, step{s.leaf, Paths{p}, false})
			} else {
				rest = append(rest, p)
			}
		}
		if len(rest) > 0 {
			all = append(all, step{s.leaf, rest, true})
		}
	}
	return all
}

// split returns steps for the paths of one, whose expressions are not too long for a route.
func (s step) split() (all []step) {
	if !s.expression || len(s.paths) < 2 || len(s.paths.Expression()) <= maxExpression {
		return []step{s}
	}
	n := len(s.paths) / 2
	return append(step{s.leaf, s.paths[:n:n], true}.split(), step{s.leaf, s.paths[n:], true}.split()...)
}

// maxSpread bounds the routes for a list of paths: more are easier to read as one expression.
const maxSpread = 8

// rank is the place of a step's path in the gateway's order: lower is first.
func (s step) rank() (int, int) {
	switch {
	case s.expression:
		return 1, 0
	case s.paths[0].Kind == Exact:
		return 0, 0
	}
	return 2, -len(s.paths[0].Text)
}

// inOrder reports whether the gateway looks at the steps in their order, but for those that no request fits both.
func inOrder(steps []step) bool {
	for j := range steps {
		for i := range j {
			if after(steps[i], steps[j]) && !apart(steps[i], steps[j]) && !same(steps[i], steps[j]) {
				return false
			}
		}
	}
	return true
}

// after reports whether the gateway looks at a after b, though a is before it in the file.
func after(a, b step) bool {
	ra, la := a.rank()
	rb, lb := b.rank()
	if ra != rb || ra == 1 {
		return ra > rb
	}
	if ra == 0 && a.paths[0].Text != b.paths[0].Text {
		return false
	}
	return cmp.Or(la-lb, b.conditions()-a.conditions()) > 0
}

func (s step) conditions() int {
	return min(len(s.leaf.Known.Methods), 1) + len(s.leaf.Known.Fields)
}

// apart reports whether no request fits both steps.
func apart(a, b step) bool {
	ka, kb := a.leaf.Known, b.leaf.Known
	if a.paths.disjoint(b.paths) {
		return true
	}
	return ka.Methods != nil && kb.Methods != nil && !slices.ContainsFunc(ka.Methods, func(m string) bool { return slices.Contains(kb.Methods, m) })
}

// same reports whether two steps do the same.
func same(a, b step) bool { return a.leaf == b.leaf }

// inExpressions returns the steps with expressions for their paths, which the gateway looks at in the order of the file.
// The last one may be for all paths: it comes last in any case.
func inExpressions(steps []step) (all []step) {
	for i, s := range steps {
		if i == len(steps)-1 && s.paths.all() && s.conditions() == 0 && !s.leaf.State.Groups {
			s.paths = Paths{Prefix("/")}
		} else {
			s.expression = true
		}
		all = append(all, s)
	}
	return all
}

// route returns the route of a step.
func (s step) route(host string) Route {
	k := &s.leaf.Known
	r := Route{From: s.leaf.State.From}
	put := func(key, text string) { r.When.Set(key, text, Position{}) }
	if host != "" {
		put("host", yamltext.Quote(host))
	}
	switch rank, _ := s.rank(); rank {
	case 0:
		put("path", yamltext.Quote(s.paths[0].Text))
		put("path_match", "exact")
	case 1:
		put("path", yamltext.Quote(s.paths.Expression()))
		put("path_match", "regex")
	default:
		put("path", yamltext.Quote(s.paths[0].Text))
	}
	if k.Methods != nil {
		put("methods", yamltext.List(k.Methods))
	}
	for _, f := range k.Fields {
		put(map[Kind]string{Header: "headers/", Query: "query/", Cookie: "cookies/"}[f.Kind]+f.Name, f.text())
	}
	r.Settings = s.leaf.State.settings()
	return r
}

// settings returns all settings of a route.
func (s *State) settings() Settings {
	all := slices.Clone(s.Settings)
	for key, fields := range map[string]Fields{"request_headers": s.Request, "response_headers": s.Response} {
		removed, at := []string(nil), Position{}
		for _, op := range []string{"set", "add"} {
			for _, c := range fields {
				if c.Op == op {
					all.Set(key+"/"+op+"/"+c.Name, yamltext.Quote(c.Value), c.From)
				}
			}
		}
		for _, c := range fields {
			if c.Op == "remove" {
				removed, at = append(removed, c.Name), c.From
			}
		}
		if removed != nil {
			all.Set(key+"/remove", yamltext.List(removed), at)
		}
	}
	for key, list := range map[string][]string{"allow": s.Allow, "deny": s.Deny} {
		if len(list) > 0 {
			all.Set(key, yamltext.List(slices.Compact(slices.Sorted(slices.Values(list)))), s.Guards[key])
		}
	}
	if all.Under("redirect") || all.Under("respond") { // which need no upstream
		all = slices.DeleteFunc(all, func(set Setting) bool { return slices.Contains(ofUpstream, head(set.Key)) })
	}
	slices.SortStableFunc(all, func(a, b Setting) int { return slices.Index(keys, head(a.Key)) - slices.Index(keys, head(b.Key)) })
	return all
}

// head returns the first name of a key.
func head(key string) string {
	key, _, _ = strings.Cut(key, "/")
	return key
}

// ofUpstream are the settings of a route that only requests to upstreams need.
var ofUpstream = []string{"upstream", "affinity", "retries", "rewrite", "strip_prefix", "max_body_kib", "timeout", "idle_timeout", "request_headers", "rewrite_location", "rewrite_cookies"}

// keys is the order in which a route's settings are written.
var keys = []string{"redirect", "respond", "upstream", "strip_prefix", "rewrite", "affinity", "timeout", "idle_timeout", "request_timeout", "max_body_kib", "retries", "allow", "deny", "basic_auth", "forward_auth", "rate_limit", "compress", "request_headers", "response_headers", "rewrite_location", "rewrite_cookies", "error_pages", "access_log"}

// keyOf identifies a route by its conditions.
func keyOf(r Route) string {
	var b strings.Builder
	for _, s := range slices.SortedFunc(slices.Values(r.When), func(a, b Setting) int { return strings.Compare(a.Key, b.Key) }) {
		b.WriteString(s.Key + "=" + s.Text + "\n")
	}
	return b.String()
}

// TCPRoutes returns the routes of a tcp listener, and the upstream of clients that no route is for.
func TCPRoutes(leaves []Leaf, reports *Reports) (routes []Route, rest *State) {
	for _, host := range hostsOf(leaves) {
		for _, s := range stepsOf(leaves, host) {
			own := s.leaf.Known.Host == host
			if host == "" && len(s.leaf.Known.Fields) == 0 {
				rest = &s.leaf.State
				break
			}
			if !own && host != "" && len(s.leaf.Known.Fields) == 0 && s.leaf.Known.Host == "" {
				break // those of the listener
			}
			r := Route{From: s.leaf.State.From}
			if host != "" {
				r.When.Set("sni", yamltext.Quote(host), Position{})
			}
			for _, f := range s.leaf.Known.Fields {
				r.When.Set("alpn", yamltext.List(f.Set), Position{})
			}
			if s.leaf.State.Settings.Get("upstream") == "" {
				reports.Add(s.leaf.State.From, "reject", Missing, "a route cannot refuse clients: those for %q go to the upstream of the listener; they are LET THROUGH", host)
				continue
			}
			r.Settings = s.leaf.State.Settings
			if !slices.ContainsFunc(routes, func(o Route) bool { return keyOf(o) == keyOf(r) }) {
				routes = append(routes, r)
			}
		}
	}
	return routes, rest
}
