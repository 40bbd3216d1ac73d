package nginxconf

import (
	"cmp"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// view is one listener, from which conditions and variables are seen.
type view struct {
	*converter
	tls  bool
	port string
	name string // $server_name of the server whose rules are read
	// behind: X-Forwarded-For of another proxy says who its client is, of which the gateway's {client_ip} knows nothing.
	behind bool
}

// servers returns the rules of all servers of a listener: by name, then by the longest wildcard, then the default one.
func (v *view) servers(hosts []host, main host) (rules []*proxyconf.Rule) {
	type named struct {
		name string
		host
	}
	var all []named
	seen := map[string]bool{}
	for _, h := range hosts {
		if !slices.ContainsFunc(hosts, func(o host) bool { return o.server != main.server }) {
			break // it has all requests, whatever its names are
		}
		for _, d := range h.server.all("server_name") {
			for _, name := range d.words[1:] {
				for _, n := range v.hostNames(d, name, h.server) {
					if !seen[n] {
						seen[n] = true
						all = append(all, named{n, h})
					}
				}
			}
		}
	}
	wild := func(n named) int {
		if strings.HasPrefix(n.name, "*") {
			return 1000 - len(n.name)
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b named) int { return wild(a) - wild(b) })
	locations := map[*directive][]*proxyconf.Rule{}
	for _, h := range hosts {
		locations[h.server] = v.server(h)
	}
	for _, n := range all {
		rules = append(rules, &proxyconf.Rule{From: n.server.at, When: proxyconf.When(proxyconf.Atom{Kind: proxyconf.Host, Value: n.name}), Then: locations[n.server]})
	}
	return append(rules, &proxyconf.Rule{From: main.server.at, When: proxyconf.Const(true), Then: locations[main.server]})
}

// hostNames returns the hosts of routes for the name of a server, whose rules are in block.
func (v *view) hostNames(d *directive, name string, block *directive) []string {
	name = strings.ToLower(name)
	switch {
	case name == "_" || name == "" || name == "--":
		return nil // for no request: such a server is the default one
	case strings.HasPrefix(name, "*.") && isHost(name[2:]):
		return []string{name}
	case strings.HasPrefix(name, ".") && isHost(name[1:]):
		return []string{name[1:], "*" + name}
	case isHost(name):
		return []string{name}
	}
	v.missing(d, "%q: a route has a host, or *.host for all below; requests for it get the default server%s", name, refuses(block))
	return nil
}

// location is one, with its path.
type location struct {
	scope
	d        *directive
	modifier string
	path     string
	as       string // the path that a rewrite has chosen it by; "" = the client's
}

// server returns the rules of a server.
func (v *view) server(h host) (rules []*proxyconf.Rule) {
	v.report(h.server, "server")
	v.name = ""
	if d := h.find("server_name"); d != nil && isHost(strings.ToLower(d.arg(1))) && d.arg(1) != "_" {
		v.name = d.arg(1)
	}
	header := h.find("real_ip_header")
	v.behind = len(h.list("set_real_ip_from")) > 0 && (header == nil || header.arg(1) != "proxy_protocol")
	rules = v.rewrites(h.scope)
	if slices.ContainsFunc(rules, func(r *proxyconf.Rule) bool { return r.End && r.When.Op == proxyconf.True }) {
		return rules
	}
	var all []location
	for _, d := range h.server.all("location") {
		l := location{scope: h.within(d), d: d, path: d.arg(1)}
		if len(d.words) > 2 {
			l.modifier, l.path = d.arg(1), d.arg(2)
		} else if strings.HasPrefix(l.path, "@") {
			if slices.ContainsFunc(append(h.server.all("location"), h.server), func(o *directive) bool { return named(o) == l.path }) {
				v.report(d, "location")
			} else {
				v.missing(d, "named locations are carried for try_files only, and for no error_page")
			}
			continue
		}
		all = append(all, l)
		all = append(all, l.exactInside()...)
	}
	for _, l := range v.ordered(all) {
		rules = append(rules, v.location(l)...)
	}
	return append(rules, v.last(location{scope: h.scope, d: h.server, path: "/"})...)
}

// ordered returns locations in the order in which nginx chooses them: exact ones, prefixes that no expression replaces,
// expressions in their order, the longest prefix.
func (v *view) ordered(all []location) []location {
	rank := func(l location) (int, int) {
		switch l.modifier {
		case "=":
			return 0, 0
		case "^~":
			return 1, -len(l.path)
		case "~", "~*":
			return 2, 0
		}
		for _, o := range all { // a longer prefix below one with ^~ comes before that
			if o.modifier == "^~" && len(l.path) > len(o.path) && strings.HasPrefix(l.path, o.path) {
				switch {
				case slices.ContainsFunc(all, func(r location) bool { return strings.HasPrefix(r.modifier, "~") && refuses(r.d) != "" }):
					v.missing(l.d, "expressions of other locations do not replace it, as it is below %q; requests that they refused are LET THROUGH", o.path)
				case slices.ContainsFunc(all, func(r location) bool { return strings.HasPrefix(r.modifier, "~") }):
					v.differs(l.d, "expressions of other locations do not replace it, as it is below %q", o.path)
				}
				return 1, -len(l.path)
			}
		}
		return 3, -len(l.path)
	}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b location) int {
		ra, la := rank(a)
		rb, lb := rank(b)
		return cmp.Or(ra-rb, la-lb)
	})
	var slashes []location // requests for /path are sent to /path/, before expressions are looked at
	for _, l := range all {
		if (l.modifier == "" || l.modifier == "^~") && len(l.path) > 1 && strings.HasSuffix(l.path, "/") && len(l.d.all("proxy_pass")) > 0 {
			slashes = append(slashes, location{scope: l.scope, d: l.d, modifier: "slash", path: strings.TrimSuffix(l.path, "/")})
		}
	}
	n := slices.IndexFunc(sorted, func(l location) bool { return l.modifier != "=" })
	if n < 0 {
		n = len(sorted)
	}
	slashes = slices.DeleteFunc(slashes, func(s location) bool {
		return slices.ContainsFunc(all, func(l location) bool { return l.path == s.path && (l.modifier == "" || l.modifier == "^~") })
	})
	return slices.Insert(sorted, n, slashes...)
}

// paths returns the paths of a location.
func (v *view) paths(l location) (proxyconf.Paths, bool) {
	text := l.path
	if !strings.HasPrefix(l.modifier, "~") {
		if decoded, err := url.PathUnescape(text); err == nil {
			text = decoded
		}
	}
	path := proxyconf.Path{Text: text}
	switch l.modifier {
	case "=", "slash":
	case "", "^~":
		path = proxyconf.Prefix(text)
	case "~", "~*":
		path.Kind, path.Fold = proxyconf.Regexp, l.modifier == "~*"
	default:
		v.missing(l.d, "%q is not a modifier of locations", l.modifier)
		return nil, false
	}
	if err := path.Valid(); err != nil || len(text) > 2000 {
		v.missing(l.d, "the expression is not one of RE2, which the gateway has: %v; its requests go to the other locations%s", err, refuses(l.d))
		return nil, false
	}
	return proxyconf.Paths{path}, true
}

// location returns the rules of a location.
func (v *view) location(l location) []*proxyconf.Rule {
	when := hidden(l)
	paths, ok := proxyconf.Paths(nil), when != nil
	if !ok {
		paths, ok = v.paths(l)
		when = proxyconf.When(proxyconf.Atom{Kind: proxyconf.InPath, Paths: paths})
	}
	if !ok {
		return nil
	}
	if l.modifier == "slash" {
		to := proxyconf.Escape(l.path+"/", true) + "{query}"
		if httpproxy.CheckRedirect(to, nil) != nil || !plain(to) {
			return nil
		}
		r := &proxyconf.Rule{From: l.d.at, When: proxyconf.When(proxyconf.Atom{Kind: proxyconf.InPath, Paths: paths}), End: true, Do: redirect(l.d, to, 301)}
		return []*proxyconf.Rule{v.adding(l.scope, l.d, r)}
	}
	v.report(l.d, "location")
	if d := l.d.all("internal"); len(d) > 0 { // no client may ask for it
		return []*proxyconf.Rule{{From: l.d.at, Name: "location " + l.path, Lost: refuses(l.d), When: when, End: true, Do: answer(d[0], 404, "", "")}}
	}
	var first []*proxyconf.Rule // before rewrite and return, which are not for these methods
	for _, d := range l.d.all("limit_except") {
		first = append(first, v.except(l, d)...)
	}
	then := slices.Concat(v.nested(l), first, v.rewrites(l.scope), v.branches(l), v.last(l))
	return []*proxyconf.Rule{{From: l.d.at, Name: "location " + l.path, Lost: refuses(l.d), When: when, Then: then}}
}

// exactInside returns the locations for one path in another one, of which nginx looks at no other for that path.
func (l location) exactInside() (all []location) {
	for _, d := range l.d.all("location") {
		longest := ""
		for _, o := range l.scope[len(l.scope)-2].all("location") {
			if path := o.words[len(o.words)-1]; (len(o.words) == 2 || o.arg(1) == "^~") && strings.HasPrefix(d.arg(2), path) && len(path) > len(longest) {
				longest = path
			}
		}
		if d.arg(1) == "=" && longest == l.path && (l.modifier == "" || l.modifier == "^~") {
			all = append(all, location{scope: l.scope.within(d), d: d, modifier: "=", path: d.arg(2)})
		}
	}
	return all
}

// nested returns the rules of the locations in another one. nginx looks at their expressions before those beside it.
func (v *view) nested(l location) (rules []*proxyconf.Rule) {
	beside := l.scope[len(l.scope)-2].all("location")
	late := l.modifier == "" && slices.ContainsFunc(beside, func(d *directive) bool { return strings.HasPrefix(d.arg(1), "~") && len(d.words) > 2 })
	var all []location
	exact := l.exactInside()
	for _, d := range l.d.all("location") {
		if slices.ContainsFunc(exact, func(e location) bool { return e.d == d }) {
			continue // see server
		}
		in := location{scope: l.scope.within(d), d: d, path: d.arg(1)}
		if len(d.words) > 2 {
			in.modifier, in.path = d.arg(1), d.arg(2)
		}
		if late && in.modifier != "" || strings.HasPrefix(in.path, "@") || in.path == l.path {
			lost := refuses(d)
			if late { // the other one's rules on who may use it are lost, too
				lost = cmp.Or(lost, refuses(l.d))
			}
			v.missing(d, "write the location beside the other one, not in it; its requests get what the other one, or an expression beside that, does%s", lost)
			continue
		}
		all = append(all, in)
	}
	for _, in := range v.ordered(all) {
		rules = append(rules, v.location(in)...)
	}
	return rules
}

// named returns the location that try_files of a block has for requests without a file, such as @app; "" if there is none.
func named(block *directive) string {
	for _, d := range block.all("try_files") {
		if last := d.words[len(d.words)-1]; strings.HasPrefix(last, "@") {
			return last
		}
	}
	return ""
}

// fallback returns the location of try_files that all requests go to, as the gateway serves no files. nginx has the rules of
// both locations about who may use them; here at most one of them has some.
func (v *view) fallback(l location) (location, bool) {
	name := named(l.d)
	i := slices.IndexFunc(l.scope, func(d *directive) bool { return d.name() == "server" })
	if name == "" || i < 0 || strings.HasPrefix(l.d.arg(1), "@") {
		return l, false
	}
	for _, d := range l.scope[i].all("location") {
		switch {
		case d.arg(1) != name || len(d.words) > 2:
		case l.d != l.scope[i] && guarded(l.d) || guarded(d) && slices.ContainsFunc(l.scope[:i+1], guarded):
			v.missing(l.d, "both it and %s say who may use them: write that in one of them", name)
		case l.d != l.scope[i] && rewritten(l.d) && rewritten(d):
			v.missing(l.d, "both it and %s rewrite paths: write that in one of them", name)
		default:
			to := l.scope[:i+1].within(d)
			if own := l.find("client_max_body_size"); bodyLimit(l.scope) < bodyLimit(to) { // it holds before a request goes to d
				own = cmp.Or(own, &directive{at: l.d.at, words: []string{"client_max_body_size", "1m"}})
				d = &directive{at: d.at, words: d.words, block: append(slices.Clone(d.block), own)}
				to = l.scope[:i+1].within(d)
			}
			return location{scope: to, d: d, path: l.path, modifier: l.modifier}, true
		}
	}
	return l, false
}

// bodyLimit returns the most bytes that a request may have.
func bodyLimit(s scope) int64 {
	n, ok := int64(0), false
	if d := s.find("client_max_body_size"); d != nil {
		n, ok = size(d.arg(1))
	}
	switch {
	case !ok:
		return 1 << 20 // nginx's default
	case n == 0:
		return math.MaxInt64
	}
	return n
}

// rewritten reports whether a block may change the path of a request.
func rewritten(block *directive) bool {
	return slices.ContainsFunc(block.block, func(d *directive) bool {
		return d.name() == "rewrite" || d.name() == "if" && rewritten(d)
	})
}

// guarded reports whether a block says who may use it.
func guarded(block *directive) bool {
	return slices.ContainsFunc(block.block, func(d *directive) bool {
		return slices.Contains([]string{"allow", "deny", "limit_req", "limit_except", "satisfy", "internal"}, d.name()) || strings.HasPrefix(d.name(), "auth_")
	})
}

// refuses warns of a block that is lost, if it has refused something.
func refuses(block *directive) string {
	if slices.ContainsFunc(block.block, func(d *directive) bool {
		return slices.Contains([]string{"deny", "internal", "limit_except"}, d.name()) || strings.HasPrefix(d.name(), "auth_") || d.name() == "return" && strings.HasPrefix(d.arg(1), "4") || refuses(d) != ""
	}) {
		return "; requests that it refused are LET THROUGH"
	}
	return ""
}

// hidden returns the condition of a common location that RE2 has no expression for, nil for others: hidden files, but for
// those of /.well-known.
func hidden(l location) *proxyconf.Cond {
	text := strings.TrimPrefix(strings.TrimSuffix(strings.ReplaceAll(l.path, `\/`, "/"), ".*"), "^")
	if !strings.HasPrefix(l.modifier, "~") || text != `/\.(?!well-known)` && text != `/\.(?!well-known/)` || strings.HasPrefix(l.path, "^") {
		return nil
	}
	part := func(text string) *proxyconf.Cond {
		return proxyconf.When(proxyconf.Atom{Kind: proxyconf.InPath, Paths: proxyconf.Paths{{Kind: proxyconf.Part, Text: text}}})
	}
	return proxyconf.Both(part("/."), proxyconf.Unless(part("/.well-known")))
}

// rewrites returns the rules of return, rewrite and if in the innermost block, in their order.
func (v *view) rewrites(s scope) (rules []*proxyconf.Rule) {
	block := s[len(s)-1]
	stops := v.stops(block)
	for _, d := range block.block {
		var own []*proxyconf.Rule
		switch d.name() {
		case "return":
			own = append(own, v.adding(s, d, v.returns(s, d)))
		case "rewrite":
			if r := v.rewrite(s, d); r != nil {
				own = append(own, v.adding(s, d, r))
			}
		case "if":
			own = v.branch(s, d)
		}
		for _, r := range own {
			if stopped := stops[d]; stopped != nil {
				r.When = proxyconf.Both(proxyconf.Unless(stopped), r.When)
			}
			rules = append(rules, r)
		}
	}
	return rules
}

// branch returns the rules of an if.
func (v *view) branch(s scope, d *directive) (rules []*proxyconf.Rule) {
	cond, ok := v.condition(d)
	for _, r := range v.rewrites(s.within(d)) {
		r.When, r.Lost = proxyconf.Both(cond, r.When), cmp.Or(r.Lost, refuses(d))
		if ok {
			rules = append(rules, r)
		}
	}
	answers := len(d.all("return")) > 0
	for _, inner := range d.block {
		switch inner.name() {
		case "return", "rewrite", "break":
		case "add_header":
			if !answers {
				v.missing(inner, "a condition has return, rewrite or proxy_pass only")
			}
		case "proxy_pass":
			if !ok {
				v.missing(inner, "requests go to the server of the location, as its condition is not carried")
			}
		default:
			v.missing(inner, "a condition has return, rewrite or proxy_pass only")
		}
	}
	return rules
}

// branches returns the rules of the servers that an if chooses, of which the last one counts.
func (v *view) branches(l location) (rules []*proxyconf.Rule) {
	stops := v.stops(l.d)
	for _, d := range slices.Backward(l.d.all("if")) {
		if d.pass() == nil {
			continue
		}
		if cond, ok := v.condition(d); ok {
			if stopped := stops[d]; stopped != nil {
				cond = proxyconf.Both(proxyconf.Unless(stopped), cond)
			}
			then := v.last(location{scope: l.scope.within(d), d: d, path: l.path, modifier: l.modifier})
			rules = append(rules, &proxyconf.Rule{From: d.at, Name: "if", When: cond, Then: then})
		}
	}
	return rules
}

// adding adds the headers of add_header to a rule that answers.
func (v *view) adding(s scope, d *directive, r *proxyconf.Rule) *proxyconf.Rule {
	if !r.End {
		return r
	}
	if d.name() == "return" && d.arg(1) >= "4" {
		r = v.paged(s, r)
	}
	do, fields := r.Do, v.responseHeaders(s, d.name() == "return" && d.arg(1) >= "4")
	r.Do = func(st *proxyconf.State, k *proxyconf.Known) string {
		for _, f := range fields {
			st.Response.Do(f)
		}
		return do(st, k)
	}
	return r
}

func redirect(d *directive, to string, status int) func(*proxyconf.State, *proxyconf.Known) string {
	return func(s *proxyconf.State, _ *proxyconf.Known) string {
		s.From = d.at
		s.Settings.Set("redirect/to", yamltext.Quote(to), d.at)
		s.Settings.Set("redirect/status", strconv.Itoa(status), d.at)
		return ""
	}
}

// answer returns what gives requests an answer of the route.
func answer(d *directive, status int, contentType, body string) func(*proxyconf.State, *proxyconf.Known) string {
	return func(s *proxyconf.State, _ *proxyconf.Known) string {
		s.From = d.at
		s.Settings.Set("respond/status", strconv.Itoa(status), d.at)
		if body != "" && httpproxy.MayHaveBody(status) {
			s.Settings.Set("respond/body", yamltext.Quote(body), d.at)
			s.Settings.Set("respond/content_type", yamltext.Quote(contentType), d.at)
		}
		return ""
	}
}

// returns returns the rule of a return.
func (v *view) returns(s scope, d *directive) *proxyconf.Rule {
	r := &proxyconf.Rule{From: d.at, Name: "return", When: proxyconf.Const(true), End: true}
	code, text := d.arg(1), v.constant(s, d.arg(2))
	if len(d.words) == 2 && strings.Contains(code, "://") {
		code, text = "302", code
	}
	status, err := strconv.Atoi(code)
	if slices.Contains(httpproxy.RedirectStatuses(), status) && text != "" {
		to, ok := v.template(text, true)
		if ok && plain(to) && httpproxy.CheckRedirect(to, nil) == nil {
			r.Do = redirect(d, to, status)
			return r
		}
	}
	fine := err == nil && status >= 200 && status <= 599 && (status < 300 || status >= 400) && !strings.Contains(text, "$") && len(text) <= httpproxy.MaxOwnBody
	contentType := "text/plain"
	if t := s.find("default_type"); t != nil {
		contentType = t.arg(1)
	}
	if status >= 400 {
		r.Guard = v.refuse(d, status)
	}
	if status == 444 {
		v.differs(d, "the connection stays open: its requests get 403")
		r.Do = answer(d, 403, "", "")
		return r
	}
	if !fine || httpproxy.CheckContentType(contentType) != nil {
		v.missing(d, "respond of a route has a status, a text without variables and a content_type, and redirect some variables; its requests get %d", 503-100*btoi(status >= 400 && status < 500))
		r.Do = answer(d, 503-100*btoi(status >= 400 && status < 500), "", "")
		return r
	}
	r.Do = answer(d, status, contentType, text)
	return r
}

// refuse is the Guard of a return for some addresses.
func (v *view) refuse(d *directive, status int) func(s *proxyconf.State, left *proxyconf.Cond) string {
	refuse := proxyconf.Refuse(d.at)
	return func(s *proxyconf.State, left *proxyconf.Cond) string {
		why := refuse(s, left)
		if why == "" && status != 403 {
			v.differs(d, "clients that may not use a route get 403")
		}
		return why
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// rewrite returns the rule of a rewrite, nil if there is none.
func (v *view) rewrite(s scope, d *directive) *proxyconf.Rule {
	path := proxyconf.Path{Kind: proxyconf.Regexp, Text: d.arg(1)}
	if strings.HasPrefix(path.Text, "(?i)") {
		path.Text, path.Fold = path.Text[4:], true
	}
	if err := path.Valid(); err != nil || len(path.Text) > 2000 {
		v.missing(d, "the expression is not one of RE2, which the gateway has: %v", err)
		return nil
	}
	all := proxyconf.Paths{path}
	r := &proxyconf.Rule{From: d.at, Name: "rewrite", When: proxyconf.When(proxyconf.Atom{Kind: proxyconf.InPath, Paths: all})}
	target, flag := v.constant(s, d.arg(2)), d.arg(3)
	target, noArgs := strings.CutSuffix(target, "?")
	to, known := v.groups(target)
	ok := true
	external := strings.HasPrefix(target, "http://") || strings.HasPrefix(target, "https://") || strings.HasPrefix(target, "$scheme")
	if flag == "permanent" || flag == "redirect" || external {
		status := map[bool]int{true: 301, false: 302}[flag == "permanent"]
		if !noArgs && !strings.Contains(to, "?") {
			to += "{query}"
		}
		if !known || !plain(to) || all.CheckRedirect(to) != nil {
			v.missing(d, "redirect of a route has text, variables and groups of its expression; this has no equal")
			return nil
		}
		r.End = true
		r.Do = v.withGroups(path, strings.Contains(to, "$"), redirect(d, to, status))
		return r
	}
	var then location
	inside := slices.ContainsFunc(s, func(d *directive) bool { return d.name() == "location" })
	if flag != "break" || !inside { // nginx looks for another location
		then, ok = v.restart(s, d, target)
	}
	if !ok || noArgs || strings.Contains(target, "?") || !known || all.CheckRewrite(to) != nil {
		v.missing(d, "rewrite of a route changes the path that its server gets, and leaves the query; this one has no equal: its requests keep their path, and go where others of the block go%s", map[bool]string{true: refuses(s[len(s)-1])}[inside])
		return nil
	}
	if then.d != nil {
		r.Then = slices.Concat(v.rewrites(then.scope), v.branches(then), v.last(then))
	}
	r.Do = v.withGroups(path, strings.Contains(to, "$"), func(s *proxyconf.State, _ *proxyconf.Known) string {
		if s.Moved {
			return "the path has been changed before; write one rewrite for both"
		}
		s.Moved = true
		s.Settings.Set("rewrite", yamltext.Quote(to), d.at)
		return ""
	})
	return r
}

// restart returns the location in which a request goes on after a rewrite, without those of its rules that its new path has no part
// in; false if that is a matter of more than the path.
func (v *view) restart(s scope, d *directive, to string) (l location, ok bool) {
	literal, _, computed := strings.Cut(to, "$")
	if l, ok = v.serving(s, literal); !ok || !strings.HasPrefix(to, "/") {
		return l, false
	}
	path := proxyconf.Path{Text: literal}
	if computed {
		path = proxyconf.Prefix(literal)
	}
	apart := func(expression, modifier string) bool {
		p := proxyconf.Path{Kind: proxyconf.Regexp, Text: expression, Fold: modifier == "~*"}
		return p.Valid() == nil && path.Apart(p)
	}
	for _, o := range s[len(s)-1].all("set") { // the new location has its value
		ok = ok && !uses(l.d, strings.TrimPrefix(o.arg(1), "$"))
	}
	server := slices.IndexFunc(s, func(d *directive) bool { return d.name() == "server" })
	for _, o := range s[server].all("location") { // that the rest of the path may choose
		switch {
		case !computed || o == l.d:
		case strings.HasPrefix(o.arg(1), "~"):
			ok = ok && (l.modifier == "^~" || apart(o.arg(2), o.arg(1)))
		case strings.HasPrefix(o.words[len(o.words)-1], literal):
			ok = false
		}
	}
	if pass := l.d.pass(); computed && (l.modifier == "=" || strings.HasPrefix(l.modifier, "~")) || pass != nil && strings.HasPrefix(l.modifier, "~") && strings.Contains(pass.arg(1), "$") {
		ok = false // its expression may not fit, or has groups of the path before
	}
	after := false
	for _, o := range s[len(s)-1].block { // without a flag, those that follow look at the new path
		if after && d.arg(3) == "" && slices.Contains([]string{"rewrite", "if", "return"}, o.name()) {
			ok = false
		}
		after = after || o == d
	}
	own := *l.d // without the rewrites that have no part in it
	own.block = nil
	for _, o := range l.d.block {
		if o.name() != "rewrite" {
			own.block = append(own.block, o)
		}
		ok = ok && (o.name() != "rewrite" || apart(o.arg(1), ""))
	}
	return location{scope: l.scope[:len(l.scope)-1].within(&own), d: &own, modifier: l.modifier, path: l.path, as: to}, ok
}

// uses reports whether a block has a variable.
func uses(block *directive, name string) bool {
	return slices.ContainsFunc(block.block, func(d *directive) bool {
		return uses(d, name) || slices.ContainsFunc(d.words, func(w string) bool { return replaced(w, map[string]string{name: ""}) != w })
	})
}

// withGroups makes the route's path the expression whose groups something has.
func (v *view) withGroups(path proxyconf.Path, groups bool, do func(*proxyconf.State, *proxyconf.Known) string) func(*proxyconf.State, *proxyconf.Known) string {
	return func(s *proxyconf.State, k *proxyconf.Known) string {
		if groups {
			if !k.Narrow(path) {
				return "the groups of its expression are known only where the route's path is that expression, and this route is for a part of it"
			}
			s.Groups = true
		}
		return do(s, k)
	}
}
