package nginxconf

import (
	"cmp"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

func (c *converter) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(c.opt.Dir, name)
}

// last returns the rules at the end of a location: who may use it, and where its requests go.
func (v *view) last(l location) (rules []*proxyconf.Rule) {
	if to, ok := v.fallback(l); ok {
		return append(v.rewrites(to.scope), v.last(to)...)
	}
	if d := v.closed(l.scope); d != nil { // whoever asks
		if sat := l.find("satisfy"); sat != nil && sat.arg(1) == "any" && (l.find("auth_basic") != nil || l.find("auth_request") != nil) {
			v.missing(sat, "a route asks clients of allowed addresses for passwords, too: nobody may use it; take the addresses away to let passwords do")
		}
		r := &proxyconf.Rule{From: d.at, When: proxyconf.Const(true), End: true, Do: answer(d, 403, "", "")}
		return append(rules, v.adding(l.scope, &directive{words: []string{"return", "403"}}, r))
	}
	rules = append(rules, &proxyconf.Rule{From: l.d.at, When: proxyconf.Const(true), Do: v.access(l.scope)})
	for _, d := range l.d.all("limit_except") {
		rules = append(rules, v.except(l, d)...)
	}
	pass := l.d.pass()
	if pass == nil {
		return append(rules, v.unserved(l))
	}
	return append(rules, v.forward(l, pass)...)
}

// pass returns what names the server of a location, nil if nothing does.
func (d *directive) pass() (pass *directive) {
	for _, inner := range d.block {
		if inner.name() == "proxy_pass" || inner.name() == "grpc_pass" {
			pass = inner
		}
	}
	return pass
}

// unserved returns the rule at the end of a location that is no server's.
func (v *view) unserved(l location) *proxyconf.Rule {
	status := 404
	if slices.ContainsFunc(l.d.block, func(d *directive) bool { return strings.HasSuffix(d.name(), "_pass") }) {
		status = 502
	}
	answers := slices.ContainsFunc(l.d.block, func(d *directive) bool {
		return d.name() == "return" || d.name() == "deny" && d.arg(1) == "all" || d.name() == "rewrite" && len(d.words) > 3 && d.arg(3) != "break"
	})
	switch {
	case answers || l.d.name() != "location" && l.find("root") == nil:
	case v.isPage(l):
		v.differs(l.d, "the page of error_page; clients that ask for it by its path get %d", status)
	default:
		v.missing(l.d, "the gateway serves no files, and speaks HTTP to servers only: its requests get %d", status)
	}
	r := &proxyconf.Rule{From: l.d.at, Name: "location " + l.path, When: proxyconf.Const(true), End: true, Do: answer(l.d, status, "", "")}
	return v.paged(l.scope, r)
}

// forward returns the rules that send requests to the server of a proxy_pass, of which a map has several.
func (v *view) forward(l location, pass *directive) (rules []*proxyconf.Rule) {
	all := []alternative{{proxyconf.Const(true), v.constant(l.scope, pass.arg(1))}}
	if some, ok := v.alternatives(all[0].text); ok {
		all = some
	}
	for _, a := range all {
		d := &directive{at: pass.at, words: []string{pass.name(), a.text, pass.arg(1)}}
		rules = append(rules, v.paged(l.scope, &proxyconf.Rule{From: l.d.at, Name: "location " + l.path, When: a.when, End: true, Do: v.pass(l, d)}))
	}
	return rules
}

// except returns the rules of limit_except, who may use methods that are not in it.
func (v *view) except(l location, d *directive) []*proxyconf.Rule {
	set := slices.Clone(d.words[1:])
	if slices.Contains(set, "GET") && !slices.Contains(set, "HEAD") {
		set = append(set, "HEAD")
	}
	if slices.ContainsFunc(set, func(m string) bool { return !methodsOf.MatchString("^"+m+"$") || m == "CONNECT" }) || len(set) == 0 {
		v.missing(d, "a route has methods in upper case%s", refuses(d))
		return nil
	}
	for _, inner := range d.block {
		if inner.name() == "proxy_pass" {
			v.missing(inner, "write a location for it")
		}
	}
	slices.Sort(set)
	other := proxyconf.Unless(proxyconf.When(proxyconf.Atom{Kind: proxyconf.Method, Set: slices.Compact(set)}))
	return []*proxyconf.Rule{{From: d.at, Name: "limit_except", Lost: refuses(d), When: other, Do: v.access(l.scope.within(d))}}
}

// closed returns the directive that refuses all clients, nil if there is none.
func (v *view) closed(s scope) *directive {
	for _, block := range slices.Backward(s) {
		for _, d := range block.block {
			switch {
			case d.name() == "allow":
				return nil
			case d.name() == "deny" && d.arg(1) == "all":
				return d
			}
		}
		if len(block.all("deny")) > 0 {
			return nil
		}
	}
	return nil
}

// target is what a proxy_pass names.
type target struct {
	scheme, server string
	uri            string // with its slash
	hasURI         bool
	computed       bool // the text has variables: nginx replaces the whole path
	raw            bool // the client's path and query, whatever rewrite has made of them
}

// address returns the server's URL.
func (t target) address() string { return t.scheme + "://" + t.server }

// target reads a proxy_pass, or returns why a route cannot have it.
func (v *view) target(l location, d *directive) (t target, why string) {
	text := v.constant(l.scope, d.arg(1))
	t.computed = strings.Contains(cmp.Or(d.arg(2), d.arg(1)), "$")
	for _, same := range []string{"$request_uri", "$uri$is_args$args"} {
		if before, ok := strings.CutSuffix(text, same); ok && strings.Contains(before, "://") && !strings.Contains(strings.SplitN(before, "://", 2)[1], "/") {
			text, t.raw = before, same == "$request_uri"
		}
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok && d.name() == "grpc_pass" {
		scheme, rest, ok = "grpc", text, true
	}
	t.scheme = scheme
	t.server, t.uri, t.hasURI = strings.Cut(rest, "/")
	if path, unix := strings.CutPrefix(rest, "unix:"); unix {
		path, t.uri, t.hasURI = strings.Cut(path, ":")
		t.server = "unix:" + path
		t.uri = strings.TrimPrefix(t.uri, "/")
	}
	t.uri = "/" + t.uri
	if !ok || strings.Contains(t.server, "$") || !slices.Contains([]string{"http", "https", "grpc", "grpcs"}, scheme) {
		return t, "the server is computed from the request; write a route for each one"
	}
	return t, ""
}

// pass returns what sends requests to the server of a proxy_pass.
func (v *view) pass(l location, d *directive) func(*proxyconf.State, *proxyconf.Known) string {
	to, why := v.target(l, d)
	var u *proxyconf.Upstream
	if why == "" {
		u, why = v.upstream(l.scope, d, to.scheme, to.server)
	}
	if u == nil {
		v.missing(d, "%s: its requests get 502", why)
		return answer(d, 502, "", "")
	}
	settings := append(v.routeSettings(l.scope, u), v.reverse(l, d, to.address(), to.uri, to.hasURI)...)
	fields, response := v.requestHeaders(l.scope, to.server), v.responseHeaders(l.scope, false)
	moves, user := v.moves(l, d, to), v.userHeader(l.scope)
	return func(s *proxyconf.State, k *proxyconf.Known) string {
		s.From = d.at
		if why := moves(s, k); why != "" {
			v.missing(d, "%s: the server gets the client's path", why)
		}
		s.Settings.Set("upstream", yamltext.Quote(u.Name), proxyconf.Position{})
		s.Settings = append(s.Settings, settings...)
		if user != nil && s.Settings.Get("basic_auth/file") != "" {
			s.Settings.Set("basic_auth/user_header", yamltext.Quote(user.arg(1)), user.at)
		}
		for _, f := range fields {
			s.Request.Do(f)
		}
		for _, f := range response {
			s.Response.Do(f)
		}
		return ""
	}
}

// userHeader returns the line that tells the server who the user of a password is, nil if there is none.
func (v *view) userHeader(s scope) *directive {
	for _, d := range s.list("proxy_set_header") {
		if basic := s.find("auth_basic"); d.arg(2) == "$remote_user" && basic != nil && basic.arg(1) != "off" && httpproxy.CheckIdentityHeader(d.arg(1)) == nil {
			return d
		}
	}
	return nil
}

// moves returns what changes the path of requests, if proxy_pass has a path: it replaces the location's.
func (v *view) moves(l location, d *directive, t target) func(*proxyconf.State, *proxyconf.Known) string {
	none := func(s *proxyconf.State, _ *proxyconf.Known) string {
		if t.raw && s.Moved {
			return "$request_uri is the path before rewrite; write a route for each"
		}
		return ""
	}
	uri := t.uri
	if !t.hasURI || !t.computed && uri == l.path && (l.modifier == "" || l.modifier == "^~") {
		return none
	}
	if l.as != "" && !t.computed {
		return v.moveAgain(l, d, uri)
	}
	whole := t.computed || l.modifier == "=" // nothing of the client's path is left
	if t.computed {
		without, ok := strings.CutSuffix(strings.TrimSuffix(uri, "$is_args$args"), "?$args")
		if uri = without; !ok && uri == t.uri {
			v.differs(d, "the server gets the client's query, too")
		}
	}
	if e, err := regexp.Compile(l.path); err == nil && strings.HasPrefix(l.modifier, "~") { // its groups with names
		numbers := map[string]string{}
		for i, name := range e.SubexpNames() {
			if name != "" && i < 10 {
				numbers[name] = "$" + strconv.Itoa(i)
			}
		}
		uri = replaced(uri, numbers)
	}
	to, known := v.groups(uri)
	if strings.Contains(uri, "?") || !known || !whole && (strings.HasPrefix(l.modifier, "~") || !strings.HasPrefix(l.path, "/")) {
		return func(*proxyconf.State, *proxyconf.Known) string {
			return "a path of proxy_pass with a query or variables, or in a location with an expression"
		}
	}
	path := proxyconf.Path{Text: l.path}
	switch {
	case strings.HasPrefix(l.modifier, "~"):
		path.Kind, path.Fold = proxyconf.Regexp, l.modifier == "~*"
	case !whole:
		path = proxyconf.Path{Kind: proxyconf.Regexp, Text: "^" + quoteMeta(l.path) + "(.*)"}
		to += "${1}"
	case l.modifier != "=":
		path = proxyconf.Prefix(l.path)
	}
	if err := (proxyconf.Paths{path}).CheckRewrite(to); err != nil {
		return func(*proxyconf.State, *proxyconf.Known) string { return err.Error() }
	}
	return v.withGroups(path, strings.Contains(to, "$"), func(s *proxyconf.State, _ *proxyconf.Known) string {
		if s.Moved { // a rewrite with break: nginx sends its path
			return ""
		}
		s.Moved = true
		s.Settings.Set("rewrite", yamltext.Quote(to), d.at)
		return ""
	})
}

// moveAgain is moves, where a rewrite has chosen the location: its path is replaced in that of the rewrite.
func (v *view) moveAgain(l location, d *directive, uri string) func(*proxyconf.State, *proxyconf.Known) string {
	rest, ok := strings.CutPrefix(l.as, l.path)
	to, known := v.groups(rest)
	return func(s *proxyconf.State, _ *proxyconf.Known) string {
		if !ok || !known || strings.Contains(uri, "?") {
			return "a path of proxy_pass behind a rewrite"
		}
		s.Settings.Set("rewrite", yamltext.Quote(proxyconf.Escape(uri, true)+to), d.at)
		return ""
	}
}

// access returns what refuses clients.
func (v *view) access(s scope) func(*proxyconf.State, *proxyconf.Known) string {
	var allow, deny []string
	var at *directive
	closed, lost := false, false
	var rules []*directive
	for _, block := range slices.Backward(s) {
		for _, d := range block.block {
			if d.name() == "allow" || d.name() == "deny" {
				rules = append(rules, d)
			}
		}
		if rules != nil {
			break
		}
	}
	for _, d := range rules {
		at = d
		if closed {
			break
		}
		c := proxyconf.ParsePrefix(d.arg(1))
		switch {
		case d.arg(1) == "all":
			closed = true
			if d.name() == "deny" && len(allow) == 0 {
				deny = []string{"0.0.0.0/0", "::/0"}
			} else if d.name() == "allow" {
				allow = nil
			}
		case c == nil:
			lost = true
		case d.name() == "allow":
			allow = append(allow, c.Prefixes[0].String())
		default:
			lost = lost || len(allow) > 0 // an address may be in both
			deny = append(deny, c.Prefixes[0].String())
		}
	}
	if at != nil && !closed && len(allow) > 0 { // others may use it, too
		allow = nil
	}
	auth := v.auth(s)
	return func(st *proxyconf.State, k *proxyconf.Known) string {
		if lost {
			v.missing(at, "allow of a route has addresses that may use it, and deny exceptions: this order fits into neither; nobody may use the route")
			allow, deny = nil, []string{"0.0.0.0/0", "::/0"}
		}
		if at != nil && len(st.Allow) > 0 && len(allow) > 0 { // of a condition before
			v.missing(at, "a route has one list of addresses that may use it (allow), and an if has another one; nobody may use the route")
			st.Allow, allow, deny = nil, nil, []string{"0.0.0.0/0", "::/0"}
		}
		if at != nil {
			st.Allow, st.Deny = append(st.Allow, allow...), append(st.Deny, deny...)
			st.Guards = map[string]proxyconf.Position{"allow": at.at, "deny": at.at}
		}
		return auth(st, k)
	}
}

// limit returns the rate limit of a scope.
func (v *view) limit(s scope) (set proxyconf.Settings) {
	for i, d := range s.list("limit_req") {
		zone, burst := "", 0
		for _, w := range d.words[1:] {
			if name, ok := strings.CutPrefix(w, "zone="); ok {
				zone = name
			}
			if n, ok := strings.CutPrefix(w, "burst="); ok {
				burst, _ = strconv.Atoi(n)
			}
		}
		rate, client := v.zone(zone)
		if i > 0 || rate == 0 || !client || burst < 0 || burst > 100_000 {
			v.missing(d, "rate_limit of a route counts requests of each client, once; this limit is gone")
			continue
		}
		set.Set("rate_limit/requests", strconv.Itoa(burst+1), d.at)
		set.Set("rate_limit/per", yamltext.Short(min(max(time.Duration(float64(burst+1)/rate*1e9).Round(time.Millisecond), 10*time.Millisecond), 24*time.Hour)), d.at)
		v.differs(d, "requests above the limit get 429, and none are delayed; each route counts its own")
	}
	return set
}

// zone returns the rate of a zone in requests a second, and whether it counts by the client's address.
func (v *view) zone(name string) (rate float64, client bool) {
	for _, d := range v.http.all("limit_req_zone") {
		if len(d.words) < 4 || !strings.HasPrefix(d.arg(2), "zone="+name+":") {
			continue
		}
		text := strings.TrimPrefix(d.arg(3), "rate=")
		per := 1.0
		if n, ok := strings.CutSuffix(text, "r/m"); ok {
			text, per = n, 60
		}
		n, err := strconv.ParseUint(strings.TrimSuffix(text, "r/s"), 10, 16)
		if err == nil {
			rate = float64(n) / per
		}
		client = d.arg(1) == "$binary_remote_addr" || d.arg(1) == "$remote_addr"
	}
	return rate, client
}

// routeSettings returns the settings of a route to a server.
func (v *view) routeSettings(s scope, u *proxyconf.Upstream) (set proxyconf.Settings) {
	const most = 168 * time.Hour
	set.Default("timeout", "60s", "nginx's default")
	set.Default("idle_timeout", "60s", "nginx's default")
	for _, name := range []string{"proxy_read_timeout", "grpc_read_timeout"} {
		if d := s.find(name); d != nil {
			if text, ok := v.duration(d, 1, time.Millisecond, most); ok {
				set.Set("timeout", text, d.at)
				set.Set("idle_timeout", text, d.at)
			}
		}
	}
	set.Default("max_body_kib", "1024", "nginx's default")
	if d := s.find("client_max_body_size"); d != nil {
		if n, ok := size(d.arg(1)); ok {
			set.Set("max_body_kib", strconv.FormatInt(min((n+1023)>>10, 1<<30), 10), d.at)
		}
	}
	if d := s.find("gzip"); d != nil && d.arg(1) == "on" {
		set.Set("compress", v.gzip(s), d.at)
	}
	if d := s.find("access_log"); d != nil && d.arg(1) == "off" {
		set.Set("access_log", "false", d.at)
	}
	if d := s.find("proxy_next_upstream"); d != nil {
		set.Set("retries", v.retries(s, d), d.at)
	}
	for _, setting := range u.Settings {
		if setting.Key == "-affinity" {
			set.Set("affinity", setting.Text, setting.From)
		}
	}
	return set
}

// gzip returns the settings of compression.
func (v *view) gzip(s scope) string {
	types := []string{"text/html"}
	if d := s.find("gzip_types"); d != nil {
		for _, t := range d.words[1:] {
			if strings.Count(t, "/") == 1 && plain(t) && !strings.ContainsAny(t, " ;,*") && t[0] != '/' && t[len(t)-1] != '/' && !slices.Contains(types, t) && len(types) < 64 {
				types = append(types, t)
			}
		}
	}
	least := "20"
	if d := s.find("gzip_min_length"); d != nil {
		if n, ok := size(d.arg(1)); ok {
			least = strconv.FormatInt(min(max(n, 1), 16<<20), 10)
		}
	}
	return fmt.Sprintf("{encodings: [gzip], types: %s, min_bytes: %s}", yamltext.List(types), least)
}

// retries returns which failed requests are sent again.
func (v *view) retries(s scope, d *directive) string {
	on := []string{}
	for _, w := range d.words[1:] {
		for _, name := range map[string][]string{"error": {"connect", "reset"}, "http_502": {"\"502\""}, "http_503": {"\"503\""}, "http_504": {"\"504\""}, "invalid_header": {}, "timeout": {}, "off": {"connect"}}[w] {
			if name = strings.Trim(name, `"`); !slices.Contains(on, name) {
				on = append(on, name)
			}
		}
		if slices.Contains([]string{"http_500", "http_403", "http_404", "http_429", "non_idempotent"}, w) {
			v.missing(d, "%s: retries has connect, reset, 502, 503 and 504, and methods", w)
		}
	}
	if len(on) == 0 {
		on = []string{"connect"}
	}
	text := "{on: [" + strings.Join(on, ", ") + "]"
	if t := s.find("proxy_next_upstream_tries"); t != nil {
		if n, err := strconv.Atoi(t.arg(1)); err == nil && n > 0 {
			text += fmt.Sprintf(", attempts: %d", min(n, 10))
		}
	}
	return text + "}"
}

// requestHeaders returns the changes of requests. Without another one nginx sends the server's name as Host.
func (v *view) requestHeaders(s scope, server string) (fields proxyconf.Fields) {
	hostSet := false
	byItself := map[string][]string{
		"x-forwarded-for": {"{client_ip}", "$remote_addr", "$proxy_add_x_forwarded_for"}, "x-forwarded-host": {"{host}"}, "x-forwarded-proto": {"{scheme}", map[bool]string{true: "https", false: "http"}[v.tls]}, "x-request-id": {"{request_id}"},
	}
	for _, d := range append(s.list("proxy_set_header"), s.list("grpc_set_header")...) {
		name, value := d.arg(1), d.arg(2)
		lower := strings.ToLower(name)
		value = v.constant(s, value)
		text, ok := v.template(value, false)
		if v.grantedHeader(s, d, &fields) || d == v.userHeader(s) {
			continue
		}
		switch {
		case lower == "host":
			hostSet = true
			switch value {
			case "$host", "$http_host", "$host:$server_port":
				continue // as the client sent it
			case "$proxy_host":
				hostSet = false // nginx's default
				continue
			}
		case lower == "connection" || lower == "upgrade" || lower == "te" || lower == "keep-alive" || lower == "content-length" && value == "":
			v.itself(d, "the gateway writes %s itself; WebSockets pass", name)
			continue
		case byItself[lower] != nil:
			if slices.Contains(byItself[lower], text) || slices.Contains(byItself[lower], value) {
				v.itself(d, "the gateway always sends %s", name)
			} else {
				v.missing(d, "the gateway writes %s itself, with what it knows of the client; behind another proxy name that in trusted_proxies", name)
			}
			continue
		case strings.EqualFold(text, "{header."+name+"}"):
			continue // as the client sent it
		case value == "" && httpproxy.CheckHeaderRule(name, true) == nil:
			fields.Do(proxyconf.Change{Op: "remove", Name: name, From: d.at})
			continue
		}
		if !ok || text == "" || strings.TrimSpace(text) != text || !plain(text) || len(text) > 4000 || httpproxy.CheckHeaderRule(name, true) != nil && lower != "host" {
			v.lostHeader(d, value, &fields)
			continue
		}
		fields.Do(proxyconf.Change{Op: "set", Name: name, Value: text, From: d.at})
	}
	if name, _, _ := strings.Cut(server, "/"); !hostSet && !strings.HasPrefix(name, "unix:") && plain(name) && !strings.Contains(name, "{") {
		fields.Do(proxyconf.Change{Op: "set", Name: "Host", Value: name, From: s[len(s)-1].at})
	} else if !hostSet {
		fields.Do(proxyconf.Change{Op: "set", Name: "Host", Value: "localhost", From: s[len(s)-1].at})
	}
	return fields
}

// lostHeader reports a header that a route cannot set. The server must not take a client's own for it.
func (v *view) lostHeader(d *directive, value string, fields *proxyconf.Fields) {
	why := "values have text and variables such as {client_ip}, {host}, {path}, {scheme}, {header.NAME}; this one, or this header, has no equal"
	if value == "$remote_addr" {
		why = "{client_ip} is the address of the proxy before the gateway, not the client's, which is in X-Forwarded-For"
	}
	switch {
	case strings.EqualFold(d.arg(1), "host"):
		why += "; the server gets the client's Host"
	case httpproxy.CheckHeaderRule(d.arg(1), true) == nil:
		fields.Do(proxyconf.Change{Op: "remove", Name: d.arg(1), From: d.at})
		why += "; the server gets none, not even a client's own"
	}
	v.missing(d, "%s", why)
}

// responseHeaders returns the changes of answers; with failed those of errors.
func (v *view) responseHeaders(s scope, failed bool) (fields proxyconf.Fields) {
	for _, d := range s.list("proxy_hide_header") {
		if httpproxy.CheckHeaderRule(d.arg(1), false) == nil {
			fields.Do(proxyconf.Change{Op: "remove", Name: d.arg(1), From: d.at})
		}
	}
	for _, d := range s.list("add_header") {
		text, ok := v.template(v.constant(s, d.arg(2)), false)
		if failed && d.arg(3) != "always" {
			continue
		}
		if strings.EqualFold(d.arg(1), "alt-svc") {
			v.itself(d, "http3 of a listener sends it")
			continue
		}
		if !ok || text == "" || !plain(text) || strings.TrimSpace(text) != text || len(text) > 4000 || httpproxy.CheckHeaderRule(d.arg(1), false) != nil {
			v.missing(d, "values have text and variables such as {client_ip}, {host}, {path}, {scheme}, {header.NAME}; this one, or this header, has no equal")
			continue
		}
		field := proxyconf.Change{Op: "add", Name: d.arg(1), Value: text, From: d.at}
		if fields.Adds(field) {
			v.missing(d, "a route adds one value of each name: write both in one")
			continue
		}
		fields = append(fields, field)
	}
	return fields
}

// upstream returns the upstream for a server of proxy_pass, or why there is none.
func (v *view) upstream(s scope, pass *directive, scheme, server string) (*proxyconf.Upstream, string) {
	var block *directive
	for _, d := range v.http.all("upstream") {
		if d.arg(1) == server {
			block = d
		}
	}
	u := &proxyconf.Upstream{Of: "upstream " + server, From: pass.at}
	port := map[bool]string{true: "443", false: "80"}[strings.HasSuffix(scheme, "s")]
	if block == nil {
		address, ok := serverAddress(server, port)
		if !ok {
			return nil, fmt.Sprintf("%q is no address", server)
		}
		u.Endpoints = []proxyconf.Endpoint{{Address: address, From: pass.at}}
		u.Settings.Default("balance", "round_robin", "nginx's default")
	} else {
		u.From = block.at
		v.endpoints(u, block, "80")
	}
	if len(u.Endpoints) == 0 {
		return nil, "it has no server that is in use"
	}
	connect := s.find(map[bool]string{true: "grpc_connect_timeout", false: "proxy_connect_timeout"}[strings.HasPrefix(scheme, "grpc")])
	u.Settings.Default("connect_timeout", "60s", "nginx's default")
	if connect != nil {
		if text, ok := v.duration(connect, 1, time.Millisecond, 10*time.Minute); ok {
			u.Settings.Set("connect_timeout", text, connect.at)
		}
	}
	if u.Settings.Get("pool/max_size") == "" {
		u.Settings.Default("pool/max_size", "10000", "nginx has no limit of its own")
	}
	if strings.HasPrefix(scheme, "grpc") {
		u.Settings.Set("protocol", map[bool]string{true: "h2", false: "h2c"}[scheme == "grpcs"], pass.at)
	}
	if strings.HasSuffix(scheme, "s") {
		v.serverTLS(u, s, server)
	}
	key := fmt.Sprintf("%+v %+v", u.Endpoints, u.Settings)
	if known := v.upstreams[key]; known != nil {
		return known, ""
	}
	u.Name = v.out.Name("upstream", strings.TrimPrefix(server, "unix:"))
	v.upstreams[key] = u
	kept := *u
	kept.Settings = slices.DeleteFunc(slices.Clone(u.Settings), func(s proxyconf.Setting) bool { return s.Key == "-affinity" })
	v.out.Upstreams = append(v.out.Upstreams, &kept)
	return u, ""
}

// serverTLS sets how connections to servers are encrypted. nginx verifies nothing unless it is told to.
func (v *view) serverTLS(u *proxyconf.Upstream, s scope, server string) {
	if d := s.find("proxy_ssl_verify"); d == nil || d.arg(1) != "on" {
		u.Settings.Default("tls/insecure_skip_verify", "true", "nginx's default; give it the ca of the servers")
	} else if ca := s.find("proxy_ssl_trusted_certificate"); ca != nil {
		u.Settings.Set("tls/ca", yamltext.Quote(v.path(ca.arg(1))), ca.at)
	}
	name := server
	if d := s.find("proxy_ssl_name"); d != nil && isHost(strings.ToLower(d.arg(1))) {
		name = d.arg(1)
	} else if host, _, err := net.SplitHostPort(server); err == nil {
		name = host
	}
	if isHost(strings.ToLower(name)) {
		u.Settings.Set("tls/server_name", yamltext.Quote(name), u.From)
	}
	if cert, key := s.find("proxy_ssl_certificate"), s.find("proxy_ssl_certificate_key"); cert != nil && key != nil {
		u.Settings.Set("tls/cert", yamltext.Quote(v.path(cert.arg(1))), cert.at)
		u.Settings.Set("tls/key", yamltext.Quote(v.path(key.arg(1))), key.at)
	}
}
