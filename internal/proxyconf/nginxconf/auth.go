package nginxconf

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// ownAuth are the directives that begin with auth_ of which the package knows what they do.
var ownAuth = []string{"auth_basic", "auth_basic_user_file", "auth_request", "auth_request_set", "auth_delay"}

// foreignAuth returns a directive that asks clients who they are in a way that the gateway does not know, such as auth_jwt or
// auth_pam; nil if there is none.
func (s scope) foreignAuth() *directive {
	for _, block := range slices.Backward(s) {
		for _, d := range block.block {
			if strings.HasPrefix(d.name(), "auth_") && !d.open && !slices.Contains(ownAuth, d.name()) {
				if d = s.find(d.name()); d.arg(1) != "off" {
					return d
				}
			}
		}
	}
	return nil
}

// nobody closes a route: nobody may use it.
func nobody(st *proxyconf.State, at *directive) {
	st.Allow, st.Deny = nil, []string{"0.0.0.0/0", "::/0"}
	st.Guards = map[string]proxyconf.Position{"deny": at.at}
}

// auth returns what asks clients who they are.
func (v *view) auth(s scope) func(*proxyconf.State, *proxyconf.Known) string {
	ask, basic, foreign := s.asks(), s.find("auth_basic"), s.foreignAuth()
	if basic != nil && basic.arg(1) == "off" {
		basic = nil
	}
	limit := v.limit(s)
	var forward proxyconf.Settings
	why := ""
	if ask != nil {
		forward, why = v.forwardAuth(s, ask)
	}
	return func(st *proxyconf.State, _ *proxyconf.Known) string {
		for _, set := range append(slices.Clone(limit), forward...) {
			st.Settings.Set(set.Key, set.Text, set.From)
		}
		if sat := s.find("satisfy"); sat != nil && sat.arg(1) == "any" && (basic != nil || ask != nil) {
			v.missing(sat, "a route asks clients of allowed addresses for passwords, too")
		}
		switch {
		case foreign != nil: // which is reported with its block
			nobody(st, foreign)
		case ask != nil && basic != nil:
			v.missing(ask, "a route has forward_auth or basic_auth, and not both; nobody may use the route")
			nobody(st, ask)
		case why != "":
			v.missing(ask, "forward_auth of a route asks an upstream: {upstream, path}. %s; until it is written nobody may use the route", why)
			nobody(st, ask)
		case ask != nil:
			v.differs(ask, "another answer than 2xx of the auth server goes to the client as it is, where nginx has pages of its own; without an answer the client gets 503, not 500")
		case basic != nil:
			v.basic(s, basic, st)
		}
		return ""
	}
}

// asks returns the auth_request that is in force, nil if there is none.
func (s scope) asks() *directive {
	if d := s.find("auth_request"); d != nil && d.arg(1) != "off" {
		return d
	}
	return nil
}

// basic asks for a password.
func (v *view) basic(s scope, basic *directive, st *proxyconf.State) {
	file := s.find("auth_basic_user_file")
	if file == nil {
		nobody(st, basic)
		v.missing(basic, "there is no auth_basic_user_file; nobody may use the route")
		return
	}
	path := v.path(file.arg(1))
	text, err := v.opt.Read(path)
	if err != nil || httpproxy.CheckUsers(path, text) != nil {
		nobody(st, file)
		v.missing(file, "basic_auth of a route reads hashes of bcrypt (htpasswd -B), and %q cannot be read as such; until it is written nobody may use the route", path)
		return
	}
	st.Settings.Set("basic_auth/file", yamltext.Quote(path), file.at)
	st.Settings.Set("basic_auth/forward_credentials", "true", basic.at)
	if realm := basic.arg(1); plain(realm) && realm != "" && len(realm) < 100 && !strings.ContainsAny(realm, `"\$`) {
		st.Settings.Set("basic_auth/realm", yamltext.Quote(realm), basic.at)
	}
}

// serving returns the location that nginx serves a path with, and the scope of its server; false if it is a matter of more than the path.
func (v *view) serving(s scope, path string) (l location, ok bool) {
	i := slices.IndexFunc(s, func(d *directive) bool { return d.name() == "server" })
	if i < 0 {
		return l, false
	}
	in := s[:i+1]
	longest, expressions := -1, []location(nil)
	for _, d := range s[i].all("location") {
		o := location{scope: in.within(d), d: d, path: d.arg(1)}
		if len(d.words) > 2 {
			o.modifier, o.path = d.arg(1), d.arg(2)
		}
		switch {
		case o.modifier == "=" && o.path == path:
			return o, true
		case strings.HasPrefix(o.modifier, "~"):
			expressions = append(expressions, o)
		case (o.modifier == "" || o.modifier == "^~") && strings.HasPrefix(path, o.path) && len(o.path) > longest:
			l, longest = o, len(o.path)
		}
	}
	if l.modifier != "^~" {
		for _, o := range expressions {
			e, err := regexp.Compile(map[bool]string{true: "(?i)", false: ""}[o.modifier == "~*"] + o.path)
			if err != nil {
				return l, false
			}
			if e.MatchString(path) {
				return o, len(o.d.all("location")) == 0
			}
		}
	}
	return l, longest >= 0 && len(l.d.all("location")) == 0
}

// forwardAuth returns forward_auth for an auth_request, or why it has no equal.
func (v *view) forwardAuth(s scope, ask *directive) (set proxyconf.Settings, why string) {
	if strings.ContainsAny(ask.arg(1), "$?") || !strings.HasPrefix(ask.arg(1), "/") {
		return nil, fmt.Sprintf("%q is computed from the request", ask.arg(1))
	}
	l, ok := v.serving(s, ask.arg(1))
	if !ok {
		return nil, fmt.Sprintf("there is no location for %q", ask.arg(1))
	}
	for _, d := range l.scope[len(l.scope)-2].all("rewrite") { // for auth requests, too
		if e, err := regexp.Compile(d.arg(1)); err != nil || e.MatchString(ask.arg(1)) {
			return nil, fmt.Sprintf("the server rewrites %q", ask.arg(1))
		}
	}
	var pass *directive
	for _, d := range l.d.block {
		switch d.name() {
		case "proxy_pass":
			pass = d
		case "return", "rewrite", "if", "try_files":
			return nil, fmt.Sprintf("%q has %s", l.path, d.name())
		}
	}
	if pass == nil {
		return nil, fmt.Sprintf("%q has no proxy_pass", l.path)
	}
	to, why := v.target(l, pass)
	if why != "" {
		return nil, why
	}
	path := ask.arg(1)
	switch {
	case to.hasURI && (to.computed || l.modifier == "="):
		path = to.uri
	case to.hasURI:
		path = to.uri + strings.TrimPrefix(path, l.path)
	}
	if err := httpproxy.CheckAuthPath(path); err != nil || !plain(path) {
		return nil, fmt.Sprintf("%q is no path for it", path)
	}
	if strings.HasPrefix(to.scheme, "grpc") {
		return nil, "it speaks HTTP/1.1"
	}
	if why := v.question(l); why != "" {
		return nil, why
	}
	u, why := v.upstream(l.scope, pass, to.scheme, to.server)
	if u == nil {
		return nil, why
	}
	set.Set("forward_auth/upstream", yamltext.Quote(u.Name), ask.at)
	set.Set("forward_auth/path", yamltext.Quote(path), pass.at)
	set.Default("forward_auth/timeout", "60s", "nginx's default")
	if d := l.find("proxy_read_timeout"); d != nil {
		if text, ok := v.duration(d, 1, time.Millisecond, 10*time.Minute); ok {
			set.Set("forward_auth/timeout", text, d.at)
		}
	}
	if names := v.granted(s); len(names) > 0 {
		set.Set("forward_auth/response_headers", yamltext.List(names), ask.at)
	}
	return set, ""
}

// askedOf are the headers that an auth request of the gateway has, with the values of nginx that they have.
var askedOf = map[string][]string{
	"host": {"$host", "$http_host", "$host:$server_port"}, "x-original-uri": {"$request_uri"}, "x-original-method": {"$request_method"},
	"x-original-url":  {"$scheme://$http_host$request_uri", "$scheme://$host$request_uri"},
	"x-forwarded-uri": {"$request_uri"}, "x-forwarded-method": {"$request_method"},
	"x-forwarded-host": {"$host", "$http_host"}, "x-forwarded-proto": {"$scheme"}, "x-forwarded-for": {"$remote_addr", "$proxy_add_x_forwarded_for"},
	"x-request-id": {"$request_id"},
}

// unneeded are headers whose loss changes no decision of an auth server.
var unneeded = []string{"x-real-ip", "x-auth-request-redirect", "x-forwarded-port", "x-forwarded-server", "x-forwarded-ssl", "accept-encoding", "user-agent", "authorization", "cookie"}

// question reports what an auth request of the gateway has other headers for, and returns why the gateway cannot ask: a header on
// which the decision may depend.
func (v *view) question(l location) (why string) {
	host := false
	for _, d := range l.list("proxy_set_header") {
		name, value := strings.ToLower(d.arg(1)), v.constant(l.scope, d.arg(2))
		host = host || name == "host"
		switch {
		case slices.Contains([]string{"content-length", "content-type", "connection", "upgrade", "transfer-encoding", "te", "expect"}, name),
			slices.Contains(askedOf[name], value), value == "$http_"+strings.ReplaceAll(name, "-", "_"):
		case name == "x-forwarded-proto" && value == map[bool]string{true: "https", false: "http"}[v.tls]:
		case slices.Contains(unneeded, name) && (value == "" || strings.Contains(value, "$") || strings.HasPrefix(name, "x-")):
			v.differs(d, "auth requests have no %s of their own", d.arg(1))
		case name == "host" || value == "":
			v.differs(d, "auth requests have the client's %s", d.arg(1))
		default:
			return fmt.Sprintf("An auth request has no header %s: %s, on which its answer may depend", d.arg(1), value)
		}
	}
	if !host {
		v.differs(l.d, "auth requests have the client's Host")
	}
	return ""
}

// grants returns the headers of the auth server's answer that variables of auth_request_set have.
func (s scope) grants() map[string]string {
	all := map[string]string{}
	for _, d := range s.list("auth_request_set") {
		if header, ok := strings.CutPrefix(d.arg(2), "$upstream_http_"); ok && s.asks() != nil {
			all[d.arg(1)] = http.CanonicalHeaderKey(strings.ReplaceAll(header, "_", "-"))
		}
	}
	return all
}

// granted returns the headers of the auth server's answer that the server gets.
func (v *view) granted(s scope) (names []string) {
	grants := s.grants()
	for _, d := range s.list("proxy_set_header") {
		header, ok := grants[d.arg(2)]
		if !ok || httpproxy.CheckAuthHeader(header) != nil {
			continue
		}
		if strings.EqualFold(header, d.arg(1)) {
			header = d.arg(1)
		}
		if !slices.ContainsFunc(names, func(n string) bool { return httpproxy.SameHeader(n, header) }) && len(names) < 32 {
			names = append(names, header)
		}
	}
	return names
}

// grantedHeader carries a header that has a value of the auth server's answer; false if it is another one.
func (v *view) grantedHeader(s scope, d *directive, fields *proxyconf.Fields) bool {
	header, ok := s.grants()[d.arg(2)]
	if !ok {
		return false
	}
	switch err := httpproxy.CheckAuthHeader(header); {
	case err == nil && strings.EqualFold(header, d.arg(1)):
		return true // see granted
	case err == nil:
		v.missing(d, "forward_auth passes headers of its server on as they are named there: the server gets %s, and no %s", header, d.arg(1))
	default:
		v.missing(d, "forward_auth does not pass %s on; the server gets no %s", header, cmp.Or(d.arg(1), "header"))
	}
	if httpproxy.CheckHeaderRule(d.arg(1), true) == nil {
		fields.Do(proxyconf.Change{Op: "remove", Name: d.arg(1), From: d.at})
	}
	return true
}
