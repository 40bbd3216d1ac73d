package proxyconf_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/proxyconf"
)

// A model of rules, as HAProxy and nginx follow them, and one of the gateway's order of routes, as docs/http.md has it: each request
// must get the same answer by both.

type request struct{ method, host, path, beta string }

// holds reports whether a condition holds for a request.
func holds(c *proxyconf.Cond, r request) bool {
	switch c.Op {
	case proxyconf.True:
		return true
	case proxyconf.And:
		return !slices.ContainsFunc(c.Sub, func(c *proxyconf.Cond) bool { return !holds(c, r) })
	case proxyconf.Or:
		return slices.ContainsFunc(c.Sub, func(c *proxyconf.Cond) bool { return holds(c, r) })
	case proxyconf.Not:
		return !holds(c.Sub[0], r)
	case proxyconf.Is:
		switch a := c.Atom; a.Kind {
		case proxyconf.Host:
			suffix, wild := strings.CutPrefix(a.Value, "*")
			return r.host == a.Value || wild && strings.HasSuffix(r.host, suffix)
		case proxyconf.InPath:
			return slices.ContainsFunc(a.Paths, func(p proxyconf.Path) bool { return inPath(p, r.path) })
		case proxyconf.Method:
			return slices.Contains(a.Set, r.method)
		case proxyconf.Header:
			if a.Match == "prefix" {
				return strings.HasPrefix(r.beta, a.Value)
			}
			return r.beta == a.Value || a.Value == "*" && r.beta != ""
		}
	}
	return false
}

// inPath reports whether a path is in a set.
func inPath(p proxyconf.Path, path string) bool {
	if p.Kind == proxyconf.Regexp {
		return regexp.MustCompile(map[bool]string{true: "(?i)"}[p.Fold] + p.Text).MatchString(path)
	}
	text, tail := p.Text, p.Tail
	if p.Fold {
		path, text, tail = strings.ToLower(path), strings.ToLower(text), strings.ToLower(tail)
	}
	switch p.Kind {
	case proxyconf.Exact:
		return path == text
	case proxyconf.Part:
		return strings.Contains(path, text)
	}
	return strings.HasPrefix(path, text) && strings.HasSuffix(path, tail)
}

// follow follows rules: each that holds adds its letter, and one in capitals ends.
func follow(rules []*proxyconf.Rule, r request) (answer string) {
	for _, rule := range rules {
		if holds(rule.When, r) {
			if answer += rule.Name; rule.End {
				return answer
			}
		}
	}
	return answer
}

// routed returns the answer of the first route in the gateway's order.
func routed(routes []proxyconf.Route, r request) string {
	get := func(o proxyconf.Route, key string) string {
		text := o.When.Get(key)
		if plain, err := strconv.Unquote(text); err == nil {
			return plain
		}
		return text
	}
	rank := map[string]int{"exact": 0, "regex": 1, "": 2}
	wild := func(host string) int {
		switch {
		case host == "":
			return 1000
		case host[0] == '*':
			return 500 - len(host)
		}
		return 0
	}
	sorted := slices.Clone(routes)
	slices.SortStableFunc(sorted, func(a, b proxyconf.Route) int {
		pa, pb := get(a, "path_match"), get(b, "path_match")
		if c := cmp.Or(wild(get(a, "host"))-wild(get(b, "host")), rank[pa]-rank[pb]); c != 0 || pa == "regex" {
			return c
		}
		return cmp.Or(len(get(b, "path"))-len(get(a, "path")), len(b.When)-len(a.When))
	})
	for _, o := range sorted {
		host, path, methods := get(o, "host"), get(o, "path"), get(o, "methods")
		fits := host == "" || host == r.host || host[0] == '*' && strings.HasSuffix(r.host, host[1:])
		switch get(o, "path_match") {
		case "exact":
			fits = fits && r.path == path
		case "regex":
			re, err := httpproxy.CompilePath(path)
			fits = fits && err == nil && re.MatchString(r.path)
		default:
			fits = fits && strings.HasPrefix(r.path, path)
		}
		fits = fits && (methods == "" || slices.Contains(strings.Split(strings.Trim(methods, "[]"), ", "), r.method))
		beta := get(o, "headers/x-beta")
		if prefix, ok := strings.CutPrefix(beta, "{prefix: "); ok {
			if beta = "none"; strings.HasPrefix(r.beta, strings.Trim(prefix, `"}`)) {
				beta = r.beta
			}
		}
		if fits && (beta == "" || beta == r.beta || beta == "*" && r.beta != "") {
			return o.Settings.Get("upstream")
		}
	}
	return "no route"
}

// random returns random conditions, and requests.
type random struct{ *rand.Rand }

func pick[T any](r random, all ...T) T { return all[r.IntN(len(all))] }

func (r random) path() string {
	text := ""
	for range r.IntN(4) {
		text += pick(r, "/a", "/b", "/ab", "/", ".css", "/A", "a", "x\n")
	}
	return "/" + strings.TrimPrefix(text, "/")
}

func (r random) cond(depth int) *proxyconf.Cond {
	if depth > 0 && r.IntN(3) > 0 {
		return pick(r, proxyconf.Both(r.cond(depth-1), r.cond(depth-1)), proxyconf.Either(r.cond(depth-1), r.cond(depth-1)), proxyconf.Unless(r.cond(depth-1)))
	}
	switch r.IntN(6) {
	case 0:
		return proxyconf.When(proxyconf.Atom{Kind: proxyconf.Host, Value: pick(r, "a.x", "b.a.x", "x", "*.x", "*.a.x")})
	case 1:
		return proxyconf.When(proxyconf.Atom{Kind: proxyconf.Method, Set: pick(r, []string{"GET", "HEAD"}, []string{"POST"}, []string{"GET"})})
	case 2:
		if r.IntN(3) == 0 {
			return proxyconf.When(proxyconf.Atom{Kind: proxyconf.Header, Name: "x-beta", Match: "prefix", Value: pick(r, "1", "12")})
		}
		return proxyconf.When(proxyconf.Atom{Kind: proxyconf.Header, Name: "x-beta", Value: pick(r, "1", "2", "*")})
	case 3:
		return proxyconf.Const(true)
	}
	var paths proxyconf.Paths
	for range 1 + r.IntN(2) {
		paths = append(paths, pick(r, proxyconf.Path{Text: r.path()}, proxyconf.Prefix(r.path()), proxyconf.Suffix(pick(r, ".css", "b", "/")), proxyconf.Path{Kind: proxyconf.Part, Text: pick(r, "/b/", "a")},
			proxyconf.Path{Kind: proxyconf.Regexp, Text: pick(r, "^/a", "^/a/(.*)", "b$", "^/a|^/b", "(a|b)/", "^/a/[^/]*$")}, proxyconf.Path{Text: r.path(), Fold: true}))
	}
	return proxyconf.When(proxyconf.Atom{Kind: proxyconf.InPath, Paths: paths})
}

// TestRoutesFollowRules: for random rules, each request gets the same answer from the routes. Rules that are reported as not
// supported are left out of the comparison, as a whole.
func TestRoutesFollowRules(t *testing.T) {
	compared := 0
	for seed := range uint64(400) {
		r := random{rand.New(rand.NewPCG(seed, 1))}
		var rules []*proxyconf.Rule
		for i := range 1 + r.IntN(5) {
			rules = append(rules, rule(string(rune('a'+i)), r.cond(2), r.IntN(3) > 0))
		}
		rules = append(rules, rule("z", proxyconf.Const(true), true))
		reports := &proxyconf.Reports{}
		leaves, ok := proxyconf.Compile(rules, proxyconf.State{}, reports)
		if !ok || len(reports.Sorted()) > 0 {
			continue
		}
		compared++
		routes := proxyconf.Routes(leaves)
		for range 60 {
			q := request{pick(r, "GET", "HEAD", "POST"), pick(r, "a.x", "b.a.x", "x", "c.x", "other"), r.path(), pick(r, "", "1", "2", "3", "12", "13")}
			if want, got := follow(rules, q), routed(routes, q); want != got {
				t.Fatalf("seed %d: %+v: %q, want %q\n%s", seed, q, got, want, show(rules, routes))
			}
		}
	}
	if compared < 150 {
		t.Errorf("only %d lists of rules were compared", compared)
	}
}

// rule returns a rule that adds its name to the answer, which is the name of the upstream.
func rule(name string, when *proxyconf.Cond, end bool) *proxyconf.Rule {
	return &proxyconf.Rule{Name: name, When: when, End: end, Do: func(s *proxyconf.State, _ *proxyconf.Known) string {
		s.Settings.Set("upstream", s.Settings.Get("upstream")+name, proxyconf.Position{})
		return ""
	}}
}

func show(rules []*proxyconf.Rule, routes []proxyconf.Route) string {
	var b strings.Builder
	for _, r := range rules {
		fmt.Fprintf(&b, "rule %s, ends: %v, when %s\n", r.Name, r.End, shown(r.When))
	}
	for _, r := range routes {
		fmt.Fprintf(&b, "route %v %v\n", r.When, r.Settings)
	}
	return b.String()
}

func shown(c *proxyconf.Cond) string {
	var subs []string
	for _, sub := range c.Sub {
		subs = append(subs, shown(sub))
	}
	switch c.Op {
	case proxyconf.Is:
		return fmt.Sprintf("%+v", c.Atom)
	case proxyconf.Not:
		return "not " + subs[0]
	}
	return fmt.Sprintf("%d(%s)", c.Op, strings.Join(subs, ", "))
}

// FuzzPaths: the expression of a set matches the paths of the set, and what is said of two sets is so.
func FuzzPaths(f *testing.F) {
	f.Add("/a", ".css", "/a/b", ".js", "/a/b.css", byte(0))
	f.Add("/ab", "bc", "/A", "", "/abc", byte(5))
	f.Fuzz(func(t *testing.T, text, tail, text2, tail2, path string, kinds byte) {
		of := func(kind proxyconf.PathKind, text, tail string, fold bool) proxyconf.Path {
			if kind != proxyconf.Affix {
				tail = ""
			}
			return proxyconf.Path{Kind: kind, Text: text, Tail: tail, Fold: fold}
		}
		p, q := of(proxyconf.PathKind(kinds&3), text, tail, kinds&16 != 0), of(proxyconf.PathKind(kinds>>2&3), text2, tail2, kinds&32 != 0)
		for _, s := range []string{text, tail, text2, tail2, path} {
			if strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) {
				return // folding case of other letters changes their length
			}
		}
		if p.Valid() != nil || q.Valid() != nil {
			return
		}
		k, ok := (&proxyconf.Known{}).And(proxyconf.Atom{Kind: proxyconf.InPath, Paths: proxyconf.Paths{p}})
		if !ok {
			t.Fatal("one set alone")
		}
		second := proxyconf.When(proxyconf.Atom{Kind: proxyconf.InPath, Paths: proxyconf.Paths{q}})
		in, in2 := inPath(p, path), inPath(q, path)
		path = strings.ReplaceAll(path, "\n", "")
		if got := matches(t, k.Paths, path); got != in && strings.HasPrefix(path, "/") {
			t.Errorf("%+v: %q: %v, want %v", p, path, got, in)
		}
		switch left := second.Given(k); {
		case left.Op == proxyconf.True && in && !in2, left.Op == proxyconf.False && in && in2:
			if strings.HasPrefix(path, "/") {
				t.Errorf("%+v in %+v: %v, but %q is in them: %v %v", p, q, left.Op, path, in, in2)
			}
		case left.Op == proxyconf.Is:
			if both, ok := k.And(second.Atom); ok && matches(t, both.Paths, path) != (in && in2) && strings.HasPrefix(path, "/") {
				t.Errorf("%+v and %+v: %+v: %q: %v", p, q, both.Paths, path, in && in2)
			}
		}
	})
}

func matches(t *testing.T, all proxyconf.Paths, path string) bool {
	t.Helper()
	if len(all) == 0 {
		return false
	}
	re, err := httpproxy.CompilePath(all.Expression())
	if err != nil {
		t.Fatalf("%+v: %v", all, err)
	}
	return re.MatchString(path)
}
