package nginxconf

import (
	"fmt"
	"net"
	"path/filepath"
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
	end := &proxyconf.Rule{From: l.d.at, Name: "location " + l.path, When: proxyconf.Const(true), End: true}
	var pass *directive
	for _, d := range l.d.block {
		if d.name() == "proxy_pass" || d.name() == "grpc_pass" {
			pass = d
		}
	}
	if pass == nil {
		status := 404
		if slices.ContainsFunc(l.d.block, func(d *directive) bool { return strings.HasSuffix(d.name(), "_pass") }) {
			status = 502
		}
		end.Do = answer(l.d, status, "", "")
		answers := slices.ContainsFunc(l.d.block, func(d *directive) bool {
			return d.name() == "return" || d.name() == "deny" && d.arg(1) == "all" || d.name() == "rewrite" && len(d.words) > 3 && d.arg(3) != "break" && d.arg(3) != "last"
		})
		if !answers && (l.d.name() == "location" || l.find("root") != nil) {
			v.missing(l.d, "the gateway serves no files, and speaks HTTP to servers only: its requests get %d", status)
		}
		return append(rules, end)
	}
	end.Do = v.pass(l, pass)
	return append(rules, end)
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

// pass returns what sends requests to the server of a proxy_pass.
func (v *view) pass(l location, d *directive) func(*proxyconf.State, *proxyconf.Known) string {
	scheme, rest, ok := strings.Cut(d.arg(1), "://")
	if !ok && d.name() == "grpc_pass" {
		scheme, rest, ok = "grpc", d.arg(1), true
	}
	server, uri, hasURI := strings.Cut(rest, "/")
	if path, unix := strings.CutPrefix(rest, "unix:"); unix {
		path, uri, hasURI = strings.Cut(path, ":")
		server = "unix:" + path
		uri = strings.TrimPrefix(uri, "/")
	}
	if !ok || strings.Contains(rest, "$") || !slices.Contains([]string{"http", "https", "grpc", "grpcs"}, scheme) {
		v.missing(d, "the server is computed from the request; write a route for each one: its requests get 502")
		return answer(d, 502, "", "")
	}
	u, why := v.upstream(l.scope, d, scheme, server)
	if u == nil {
		v.missing(d, "%s: its requests get 502", why)
		return answer(d, 502, "", "")
	}
	settings := append(v.routeSettings(l.scope, u), v.reverse(l, d, scheme+"://"+server, "/"+uri, hasURI)...)
	fields, response := v.requestHeaders(l.scope, server), v.responseHeaders(l.scope, false)
	moves := v.moves(l, d, "/"+uri, hasURI)
	return func(s *proxyconf.State, k *proxyconf.Known) string {
		s.From = d.at
		if why := moves(s, k); why != "" {
			v.missing(d, "%s: the server gets the client's path", why)
		}
		s.Settings.Set("upstream", yamltext.Quote(u.Name), proxyconf.Position{})
		s.Settings = append(s.Settings, settings...)
		for _, f := range fields {
			s.Request.Do(f)
		}
		for _, f := range response {
			s.Response.Do(f)
		}
		return ""
	}
}

// moves returns what changes the path of requests, if proxy_pass has a path: it replaces the location's.
func (v *view) moves(l location, d *directive, uri string, hasURI bool) func(*proxyconf.State, *proxyconf.Known) string {
	none := func(*proxyconf.State, *proxyconf.Known) string { return "" }
	if !hasURI || uri == l.path && (l.modifier == "" || l.modifier == "^~") {
		return none
	}
	if strings.Contains(uri, "?") || strings.HasPrefix(l.modifier, "~") || !strings.HasPrefix(l.path, "/") {
		return func(*proxyconf.State, *proxyconf.Known) string {
			return "a path of proxy_pass with a query, or in a location with an expression"
		}
	}
	to, path := proxyconf.Escape(uri, true), proxyconf.Path{Text: l.path}
	if l.modifier != "=" {
		path = proxyconf.Path{Kind: proxyconf.Regexp, Text: "^" + quoteMeta(l.path) + "(.*)"}
		to += "${1}"
	}
	if err := (proxyconf.Paths{path}).CheckRewrite(to); err != nil {
		return func(*proxyconf.State, *proxyconf.Known) string { return err.Error() }
	}
	return v.withGroups(path, l.modifier != "=", func(s *proxyconf.State, _ *proxyconf.Known) string {
		if s.Moved { // a rewrite with break: nginx sends its path
			return ""
		}
		s.Moved = true
		s.Settings.Set("rewrite", yamltext.Quote(to), d.at)
		return ""
	})
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
		if at != nil {
			st.Allow, st.Deny = allow, deny
			st.Guards = map[string]proxyconf.Position{"allow": at.at, "deny": at.at}
		}
		return auth(st, k)
	}
}

// auth returns what asks clients who they are.
func (v *view) auth(s scope) func(*proxyconf.State, *proxyconf.Known) string {
	none := func(st *proxyconf.State, at *directive) {
		st.Allow, st.Deny = nil, []string{"0.0.0.0/0", "::/0"}
		st.Guards = map[string]proxyconf.Position{"deny": at.at}
	}
	ask, basic, file := s.find("auth_request"), s.find("auth_basic"), s.find("auth_basic_user_file")
	limit := v.limit(s)
	return func(st *proxyconf.State, _ *proxyconf.Known) string {
		for _, set := range limit {
			st.Settings.Set(set.Key, set.Text, set.From)
		}
		if sat := s.find("satisfy"); sat != nil && sat.arg(1) == "any" && basic != nil {
			v.missing(sat, "a route asks clients of allowed addresses for passwords, too")
		}
		if ask != nil && ask.arg(1) != "off" {
			v.missing(ask, "forward_auth of a route asks an upstream: {upstream, path}; until it is written nobody may use the route")
			none(st, ask)
		}
		if basic == nil || basic.arg(1) == "off" {
			return ""
		}
		if file == nil {
			none(st, basic)
			v.missing(basic, "there is no auth_basic_user_file; nobody may use the route")
			return ""
		}
		path := v.path(file.arg(1))
		text, err := v.opt.Read(path)
		if err != nil || httpproxy.CheckUsers(path, text) != nil {
			none(st, file)
			v.missing(file, "basic_auth of a route reads hashes of bcrypt (htpasswd -B), and %q cannot be read as such; until it is written nobody may use the route", path)
			return ""
		}
		st.Settings.Set("basic_auth/file", yamltext.Quote(path), file.at)
		st.Settings.Set("basic_auth/forward_credentials", "true", basic.at)
		if realm := basic.arg(1); plain(realm) && realm != "" && len(realm) < 100 && !strings.ContainsAny(realm, `"\$`) {
			st.Settings.Set("basic_auth/realm", yamltext.Quote(realm), basic.at)
		}
		return ""
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
			v.missing(d, "rate_limit of a route counts requests of each client, once")
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
		"x-forwarded-for": {"{client_ip}", "$proxy_add_x_forwarded_for"}, "x-forwarded-host": {"{host}"}, "x-forwarded-proto": {"{scheme}", map[bool]string{true: "https", false: "http"}[v.tls]}, "x-request-id": {"{request_id}"},
	}
	for _, d := range append(s.list("proxy_set_header"), s.list("grpc_set_header")...) {
		name, value := d.arg(1), d.arg(2)
		lower := strings.ToLower(name)
		text, ok := v.template(value, false)
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
		case lower == "connection" || lower == "upgrade" || lower == "te" || lower == "keep-alive":
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
			v.missing(d, "values have text and variables such as {client_ip}, {host}, {path}, {scheme}, {header.NAME}; this one, or this header, has no equal")
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

// responseHeaders returns the changes of answers; with failed those of errors.
func (v *view) responseHeaders(s scope, failed bool) (fields proxyconf.Fields) {
	for _, d := range s.list("proxy_hide_header") {
		if httpproxy.CheckHeaderRule(d.arg(1), false) == nil {
			fields.Do(proxyconf.Change{Op: "remove", Name: d.arg(1), From: d.at})
		}
	}
	for _, d := range s.list("add_header") {
		text, ok := v.template(d.arg(2), false)
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
