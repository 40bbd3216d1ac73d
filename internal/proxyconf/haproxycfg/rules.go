package haproxycfg

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// rules returns the rules of a proxy of mode http, followed by those in after.
func (p *place) rules(after []*proxyconf.Rule) []*proxyconf.Rule {
	var first, redirects []*proxyconf.Rule
	for _, l := range p.lines { // these come after the rules of http-request, also after an allow
		if l.words[0] == "redirect" {
			words, cond, err := p.cut(l.words[1:])
			if r := p.rule(l, cond, err); r != nil && p.redirect(r, words) {
				redirects = append(redirects, r)
			}
		}
	}
	after = slices.Concat(redirects, after)
	rules := slices.Clone(after)
	for i := len(p.lines) - 1; i >= 0; i-- {
		switch l := p.lines[i]; {
		case l.words[0] == "http-request":
			if r := p.request(l, after, rules); r != nil {
				rules = append([]*proxyconf.Rule{r}, rules...)
			}
		case l.words[0] == "tcp-request" && l.arg(1) == "content":
			if r := p.content(l); r != nil {
				p.deny(r, l, nil)
				first = append([]*proxyconf.Rule{r}, first...)
			}
		case l.words[0] == "http-after-response":
			if r := p.response(l); r != nil {
				first = append([]*proxyconf.Rule{r}, first...)
			}
		case l.words[0] == "monitor-uri" && !l.no && strings.HasPrefix(l.arg(1), "/"):
			first = append(first, &proxyconf.Rule{From: l.at, Name: l.name(), End: true, Do: answer(l, 200, "", "", ""),
				When: proxyconf.When(proxyconf.Atom{Kind: proxyconf.InPath, Paths: proxyconf.Paths{{Text: l.arg(1)}}})})
		}
	}
	return append(first, rules...)
}

// responses returns the rules that change answers of servers.
func (p *place) responses() (rules []*proxyconf.Rule) {
	for _, l := range p.lines {
		if l.words[0] == "http-response" {
			if r := p.response(l); r != nil {
				rules = append(rules, r)
			}
		}
	}
	return rules
}

// rule returns the rule of a line, nil if its condition cannot be carried or holds for no request here, such as ssl_fc of a
// listener without TLS.
func (p *place) rule(l line, cond *proxyconf.Cond, err error) *proxyconf.Rule {
	if err != nil {
		p.missing(l, "%s%s%s", err, danger(l), others(cond))
	}
	if cond == nil || cond.Given(&proxyconf.Known{}).Op == proxyconf.False {
		return nil
	}
	return &proxyconf.Rule{From: l.at, Name: l.name(), Lost: danger(l), When: cond}
}

// others says that a rule is carried for a part of its condition.
func others(cond *proxyconf.Cond) string {
	if cond == nil {
		return ""
	}
	return `; the rule is carried for its other conditions ("or")`
}

// danger warns of rules whose loss opens something.
func danger(l line) string {
	if slices.Contains([]string{"deny", "reject", "auth", "tarpit", "silent-drop"}, l.arg(1)) || len(l.words) > 2 && l.arg(2) == "reject" {
		return "; requests that it refused are LET THROUGH"
	}
	return ""
}

func (p *place) missing(l line, format string, args ...any) {
	p.c.out.Reports.Add(l.at, l.name(), proxyconf.Missing, format, args...)
}

func (p *place) differs(l line, format string, args ...any) {
	p.c.out.Reports.Add(l.at, l.name(), proxyconf.Differs, format, args...)
}

func (p *place) itself(l line, format string, args ...any) {
	p.c.out.Reports.Add(l.at, l.name(), proxyconf.Itself, format, args...)
}

// request returns the rule of an http-request line, nil if there is none. allowed are the rules that follow an allow, and
// next those that follow the line.
func (p *place) request(l line, allowed, next []*proxyconf.Rule) *proxyconf.Rule {
	action := l.arg(1)
	if note := notOfRoutes[strings.SplitN(action, "(", 2)[0]]; note != "" || strings.HasPrefix(action, "track-sc") {
		p.untouched(l, note)
		return nil
	}
	words, cond, err := p.cut(l.words[2:])
	r := p.rule(l, cond, err)
	if r == nil {
		return nil
	}
	ok := true
	switch action {
	case "allow":
		r.Then = append([]*proxyconf.Rule{}, allowed...)
	case "deny", "reject", "tarpit", "silent-drop":
		p.deny(r, l, words)
	case "auth":
		p.auth(r, l)
	case "redirect":
		ok = p.redirect(r, words)
	case "return":
		ok = p.answer(r, l, words)
	case "set-header", "add-header", "del-header":
		ok = p.change(r, l, action, words, true)
	case "set-path":
		ok = p.setPath(r, l, words)
	case "replace-path":
		ok = p.replacePath(r, l, words)
	default:
		p.missing(l, "the gateway has no equal of this rule")
		return nil
	}
	if !ok {
		return nil
	}
	return r
}

// notOfRoutes are rules that no route has, and what to do.
var notOfRoutes = map[string]string{
	"capture": "access logs can have headers: `{header.NAME}` in `access_log: {format: …}`", "set-log-level": "a route's `access_log` has conditions: min_status, slower_than, sample",
	"set-var": "no condition or value that is carried looks at it", "unset-var": "no condition or value that is carried looks at it", "set-nice": "requests have no priority", "set-tos": "packets are not marked", "set-mark": "packets are not marked",
}

// untouched reports a rule that does nothing to requests by itself.
func (p *place) untouched(l line, note string) {
	if strings.HasPrefix(l.arg(1), "track-sc") {
		p.itself(l, "limits count by the client's address; the rules that compare counters become limits, or are reported")
		return
	}
	p.differs(l, "%s", strings.ReplaceAll(note, "`", ""))
}

// answer returns what gives requests an answer of the route.
func answer(l line, status int, contentType, body, why string) func(*proxyconf.State, *proxyconf.Known) string {
	return func(s *proxyconf.State, _ *proxyconf.Known) string {
		s.From = l.at
		s.Settings.Set("respond/status", strconv.Itoa(status), l.at)
		if body != "" && httpproxy.MayHaveBody(status) {
			s.Settings.Set("respond/body", yamltext.Quote(body), l.at)
			if contentType != "" {
				s.Settings.Set("respond/content_type", yamltext.Quote(contentType), l.at)
			}
		}
		return why
	}
}

// deny makes r refuse requests.
func (p *place) deny(r *proxyconf.Rule, l line, words []word) {
	status := 403
	if l.arg(1) == "tarpit" {
		status = 500
	}
	for i := 0; i+1 < len(words); i++ {
		if words[i] == "deny_status" || words[i] == "status" {
			if n, err := strconv.Atoi(words[i+1]); err == nil && n >= 200 && n <= 599 {
				status = n
			}
		}
	}
	if l.arg(1) == "silent-drop" || l.arg(1) == "reject" || l.words[0] == "tcp-request" || l.arg(1) == "tarpit" {
		p.differs(l, "the client gets %d at once", status)
	}
	r.End, r.Do = true, answer(l, status, "", "", "")
	refuse := proxyconf.Refuse(l.at)
	r.Guard = func(s *proxyconf.State, left *proxyconf.Cond) string {
		if left.Op == proxyconf.Above {
			return p.limit(s, l, left.Limit)
		}
		if why := refuse(s, left); why != "" {
			return why + danger(l)
		}
		if status != 403 {
			p.differs(l, "clients that may not use a route get 403")
		}
		return ""
	}
}

// limit makes a rate limit of a rule that refuses clients above one.
func (p *place) limit(s *proxyconf.State, l line, limit proxyconf.Limit) string {
	if limit.Kind != "http_req_rate" {
		return "connections are limited by the listener: max_connections_per_source, and connection_rate" + danger(l)
	}
	if s.Settings.Under("rate_limit") {
		return "a route has one rate_limit, and another rule has set it" + danger(l)
	}
	s.Settings.Set("rate_limit/requests", strconv.Itoa(limit.Count), l.at)
	s.Settings.Set("rate_limit/per", limit.Per, l.at)
	p.differs(l, "rate_limit of a route: it counts the route's own requests, and answers 429")
	return ""
}

// auth makes r ask for a password.
func (p *place) auth(r *proxyconf.Rule, l line) {
	realm := ""
	for i := 2; i+1 < len(l.words); i++ {
		if l.words[i] == "realm" && l.words[i+1] != "" && len(l.words[i+1]) < 100 && plainText(l.words[i+1]) && !strings.ContainsAny(l.words[i+1], `"\`) {
			realm = l.words[i+1]
		}
	}
	r.Guard = func(s *proxyconf.State, left *proxyconf.Cond) string {
		if left.Op != proxyconf.Not || left.Sub[0].Op != proxyconf.User {
			return "basic_auth of a route asks everybody for a password" + danger(l)
		}
		file, why := p.c.users(left.Sub[0].Name)
		if why != "" {
			s.Allow, s.Deny = nil, []string{"0.0.0.0/0", "::/0"}
			s.Guards = map[string]proxyconf.Position{"deny": l.at}
			return why + "; until then nobody may use the route (deny)"
		}
		s.Settings.Set("basic_auth/file", yamltext.Quote(file), l.at)
		s.Settings.Set("basic_auth/forward_credentials", "true", l.at)
		if realm != "" {
			s.Settings.Set("basic_auth/realm", yamltext.Quote(realm), l.at)
		}
		return ""
	}
	r.Do = func(*proxyconf.State, *proxyconf.Known) string {
		return "it asks for a password whatever the client has sent" + danger(l)
	}
}

// redirect makes r answer with another address.
func (p *place) redirect(r *proxyconf.Rule, words []word) bool {
	l := line{at: r.From, words: []word{"redirect"}}
	kind, to, code, uri := "", "", 302, "{uri}"
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case (w == "location" || w == "prefix" || w == "scheme") && i+1 < len(words):
			kind, to = w, words[i+1]
			i++
		case w == "code" && i+1 < len(words):
			code, _ = strconv.Atoi(words[i+1])
			i++
		case w == "drop-query":
			uri = "{path}"
		case w == "ignore-empty" || w == "keep-query":
		default:
			p.missing(l, "%q of a redirect is not supported", w)
			return false
		}
	}
	text, ok := p.template(to, true)
	switch kind {
	case "scheme":
		text += "://{host}" + uri
	case "prefix":
		text = strings.TrimSuffix(text, "/") + uri
	}
	if !ok || kind == "" || httpproxy.CheckRedirect(text, nil) != nil || !plain(text) || !slices.Contains(httpproxy.RedirectStatuses(), code) {
		p.missing(l, "%q: redirect of a route has the variables {host}, {path}, {query}, {uri}, {header.NAME} and others; this has no equal", to)
		return false
	}
	r.End = true
	r.Do = func(s *proxyconf.State, _ *proxyconf.Known) string {
		if s.Moved && strings.Contains(text, "{uri}") {
			return "the path has been changed before, and variables of redirects have the client's"
		}
		s.From = r.From
		s.Settings.Set("redirect/to", yamltext.Quote(text), r.From)
		s.Settings.Set("redirect/status", strconv.Itoa(code), r.From)
		return ""
	}
	return true
}

func plain(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' })
}

// answer makes r answer by itself.
func (p *place) answer(r *proxyconf.Rule, l line, words []word) bool {
	status, contentType, body := 200, "", ""
	var fields proxyconf.Fields
	for i := 0; i < len(words); i++ {
		value := ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		switch words[i] {
		case "status":
			status, _ = strconv.Atoi(value)
		case "content-type":
			contentType = value
		case "string":
			body = value
		case "lf-string":
			if strings.Contains(value, "%") {
				p.missing(l, "the body of respond has no variables")
				return false
			}
			body = value
		case "file":
			text, err := p.c.opt.Read(p.c.path(value))
			if err != nil || !utf8.Valid(text) {
				p.missing(l, "cannot read %q as a text; the body of respond is a text", value)
				return false
			}
			body = string(text)
		case "hdr":
			if i+2 >= len(words) || !p.field(l, &fields, "add", value, words[i+2], false) {
				p.missing(l, "a header of the answer has no equal")
				return false
			}
			i++
		case "default-errorfiles":
			i--
		default:
			p.missing(l, "%q is not supported; respond has a status, a body and a content_type", words[i])
			return false
		}
		i++
	}
	if status < 200 || status > 599 || len(body) > httpproxy.MaxOwnBody || contentType != "" && httpproxy.CheckContentType(contentType) != nil {
		p.missing(l, "respond has a status from 200 to 599, and a body of up to %d bytes", httpproxy.MaxOwnBody)
		return false
	}
	do := answer(l, status, contentType, body, "")
	r.End = true
	r.Do = func(s *proxyconf.State, k *proxyconf.Known) string {
		for _, f := range fields {
			s.Response.Do(f)
		}
		return do(s, k)
	}
	return true
}

// response returns the rule of an http-response or http-after-response line.
func (p *place) response(l line) *proxyconf.Rule {
	action := l.arg(1)
	if note := notOfRoutes[strings.SplitN(action, "(", 2)[0]]; note != "" {
		p.untouched(l, note)
		return nil
	}
	words, cond, err := p.cut(l.words[min(2, len(l.words)):])
	if err != nil {
		p.missing(l, "%s", err)
		return nil
	}
	r := &proxyconf.Rule{From: l.at, Name: l.name(), When: cond}
	switch action {
	case "set-header", "add-header", "del-header":
		if p.change(r, l, action, words, false) {
			return r
		}
		return nil
	case "allow":
		p.missing(l, "the gateway has no rules that look at answers")
		return nil
	}
	p.missing(l, "response_headers of a route sets, adds and removes headers; the gateway has no other rules for answers")
	return nil
}

// change makes r change a header.
func (p *place) change(r *proxyconf.Rule, l line, action string, words []word, request bool) bool {
	if len(words) == 0 {
		p.missing(l, "the name of the header is missing")
		return false
	}
	op := map[string]string{"set-header": "set", "add-header": "add", "del-header": "remove"}[action]
	value := strings.Join(words[1:], " ")
	if op == "remove" && len(words) > 1 {
		p.missing(l, "headers are removed by their whole name only; those of clients reach the servers")
		return false
	}
	if request && p.own(l, op, words[0], value) {
		return false
	}
	var fields proxyconf.Fields
	if !p.field(l, &fields, op, words[0], value, request) {
		const why = "%s: values have text and variables such as {client_ip}, {host}, {path}, {scheme}, {header.NAME}; this one, or this header, has no equal"
		if op != "set" || !request || !p.field(l, &fields, "remove", words[0], "", true) {
			p.missing(l, why, words[0])
			return false
		}
		p.missing(l, why+"; the servers get none, not even a client's own", words[0]) // which they would take for it
	}
	r.Do = func(s *proxyconf.State, _ *proxyconf.Known) string {
		to := &s.Response
		if request {
			to = &s.Request
			if s.Moved && strings.Contains(value, "path") {
				return "the path has been changed before, and variables have the client's"
			}
		}
		if to.Adds(fields[0]) {
			return words[0] + ": a rule before adds another value, and a route adds one of each name; this one is left out"
		}
		to.Do(fields[0])
		return ""
	}
	return true
}

// field adds a change of a header; false if it has no equal.
func (p *place) field(l line, to *proxyconf.Fields, op, name, value string, request bool) bool {
	text, ok := p.template(value, false)
	if !ok || !headerName(name) || (op != "remove" && text == "") || len(text) > 4000 || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) || strings.TrimSpace(text) != text {
		return false
	}
	if httpproxy.CheckHeaderRule(name, request) != nil && (!request || op != "set" || !strings.EqualFold(name, "host")) {
		return false
	}
	to.Do(proxyconf.Change{Op: op, Name: name, Value: text, From: l.at})
	return true
}

// own reports a header that the gateway writes by itself.
func (p *place) own(l line, op, name, value string) bool {
	text, _ := p.template(value, false)
	scheme := map[bool]string{true: "https", false: "http"}[p.tls]
	byItself := map[string][]string{
		"x-forwarded-for": {"{client_ip}"}, "x-forwarded-host": {"{host}"}, "x-forwarded-proto": {"{scheme}", scheme}, "x-request-id": {"{request_id}"},
	}
	values, known := byItself[strings.ToLower(name)]
	switch {
	case !known:
		return false
	case op != "remove" && slices.Contains(values, text):
		p.itself(l, "the gateway always sends %s", name)
	case op == "remove":
		p.differs(l, "%s of clients is replaced, unless they are trusted_proxies", name)
	default:
		p.missing(l, "the gateway writes %s itself, with what it knows of the client; behind another proxy name that in trusted_proxies", name)
	}
	return true
}

// setPath makes r change the path.
func (p *place) setPath(r *proxyconf.Rule, l line, words []word) bool {
	if before, after, ok := strings.Cut(strings.Join(words, " "), "%[path,regsub("); ok && before == "" {
		args, rest, closed := strings.Cut(after, ")]")
		parts := strings.Split(strings.TrimSuffix(args, ")"), ",")
		if closed && rest == "" && len(parts) == 2 && strings.HasPrefix(parts[0], "^") && !strings.ContainsAny(parts[0]+parts[1], `(|\$'"`) {
			return p.replacePath(r, l, []word{strings.TrimSuffix(parts[0], "$") + "(.*)", parts[1] + `\1`})
		}
	}
	text, ok := p.template(strings.Join(words, " "), true)
	if !ok || httpproxy.CheckRewrite(text, nil) != nil || len(text) > 2000 {
		p.missing(l, "rewrite of a route has text, {path}, and with an expression its groups ($1); this has no equal")
		return false
	}
	r.Do = func(s *proxyconf.State, _ *proxyconf.Known) string {
		if s.Moved {
			return "the path has been changed before; write one rewrite for both"
		}
		s.Moved = true
		s.Settings.Set("rewrite", yamltext.Quote(text), l.at)
		return ""
	}
	return true
}

// replacePath makes r change paths that an expression matches.
func (p *place) replacePath(r *proxyconf.Rule, l line, words []word) bool {
	if len(words) != 2 {
		p.missing(l, "want an expression and a new path")
		return false
	}
	path := proxyconf.Path{Kind: proxyconf.Regexp, Text: words[0]}
	text, ok := groups(words[1])
	if err := path.Valid(); err != nil || len(words[0]) > maxPath {
		p.missing(l, "the expression is not one of RE2, which the gateway has: %v", err)
		return false
	}
	all := proxyconf.Paths{path}
	if !ok || all.CheckRewrite(text) != nil {
		p.missing(l, "%q: rewrite of a route has text, {path}, and groups of its expression ($1); this has no equal", words[1])
		return false
	}
	r.When = proxyconf.Both(r.When, proxyconf.When(proxyconf.Atom{Kind: proxyconf.InPath, Paths: all}))
	r.Do = func(s *proxyconf.State, k *proxyconf.Known) string {
		if s.Moved {
			return "the path has been changed before; write one rewrite for both"
		}
		if !k.Narrow(path) {
			return fmt.Sprintf("the groups of %q are known only where the route's path is that expression, and this route is for a part of it", words[0])
		}
		s.Moved, s.Groups = true, true
		s.Settings.Set("rewrite", yamltext.Quote(text), l.at)
		return ""
	}
	return true
}

// groups returns a replacement with the gateway's groups, \1 as ${1}; false if there are variables.
func groups(text string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text) && text[i+1] >= '0' && text[i+1] <= '9':
			i++
			b.WriteString("$" + text[i:i+1])
			if i+1 < len(text) && text[i+1] >= '0' && text[i+1] <= '9' {
				return "", false
			}
		case c == '\\' || c == '%':
			return "", false
		default:
			b.WriteString(proxyconf.Escape(text[i:i+1], true))
		}
	}
	return b.String(), true
}
