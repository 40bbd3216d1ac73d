// Package haproxycfg reads configurations of HAProxy, of its versions up to 3.4, for `headpond import`.
package haproxycfg

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// Options say how a configuration is converted.
type Options struct {
	Dir       string                             // absolute: where relative names of files start
	Read      func(path string) ([]byte, error)  // reads the files that the configuration names
	List      func(dir string) ([]string, error) // lists a folder of certificates, sorted
	Env       func(name string) (value string, ok bool)
	Passwords string // the folder of the files for userlists; "": none
}

// converter makes a configuration.
type converter struct {
	opt       Options
	out       *proxyconf.Gateway
	sections  []*section
	proxies   []*proxy
	upstreams map[*proxy]*proxyconf.Upstream
	listening map[string]string // addresses, and the proxies that listen there
}

// proxy is a frontend, a backend or both.
type proxy struct {
	*section
	c     *converter
	lines []line // with those of its defaults
}

// Convert makes a configuration of the gateway of the text of a file.
func Convert(path string, text []byte, opt Options) (*proxyconf.Gateway, error) {
	c := &converter{opt: opt, out: &proxyconf.Gateway{Program: "HAProxy"}, upstreams: map[*proxy]*proxyconf.Upstream{}, listening: map[string]string{}}
	if err := c.read(path, text); err != nil {
		return nil, err
	}
	if err := c.inherit(); err != nil {
		return nil, err
	}
	c.reportSections()
	for _, p := range c.proxies {
		p.reportLines()
	}
	for _, p := range c.proxies {
		if p.kind != "backend" {
			if err := p.listeners(); err != nil {
				return nil, err
			}
		}
	}
	for _, p := range c.proxies {
		if _, used := c.upstreams[p]; !used && p.kind == "backend" {
			c.out.Reports.Add(p.at, "backend "+p.name, proxyconf.Itself, "%s", c.unused(p.name))
		}
	}
	if len(c.out.Listeners) == 0 {
		return nil, Problem{proxyconf.Position{File: path, Line: 1}, c.out.Reports.Lost("no frontend or listen that the gateway could serve; is this a configuration of HAProxy?")}
	}
	return c.out, nil
}

// inherit makes proxies of the sections, with the lines of their defaults before their own.
func (c *converter) inherit() error {
	var last *section
	defaults := map[string]*section{}
	chain := func(s *section) (lines []line, err error) {
		var from []*section
		for d := s; d != nil; {
			if slices.Contains(from, d) || len(from) > 20 {
				return nil, Problem{s.at, "its defaults refer to each other"}
			}
			from = append(from, d)
			next := defaults[d.from]
			if d.from != "" && next == nil {
				return nil, Problem{d.at, fmt.Sprintf("there is no section \"defaults %.40s\" before it", d.from)}
			}
			if d == s && d.from == "" && d.kind != "defaults" {
				next = last
			}
			d = next
		}
		for _, d := range slices.Backward(from) {
			lines = append(lines, d.lines...)
		}
		return lines, nil
	}
	for _, s := range c.sections {
		switch s.kind {
		case "defaults":
			last = s
			if s.name != "" {
				defaults[s.name] = s
			}
		case "frontend", "backend", "listen":
			if s.name == "" {
				return Problem{s.at, "the name is missing"}
			}
			lines, err := chain(s)
			if err != nil {
				return err
			}
			c.proxies = append(c.proxies, &proxy{s, c, lines})
		}
	}
	return nil
}

// last returns the last line of a name, which may have two words, unless it has "no" before it.
func (p *proxy) last(names ...string) (l line, ok bool) {
	for _, l := range slices.Backward(p.lines) {
		if len(l.words) >= len(names) && slices.Equal(l.words[:len(names)], names) {
			return l, !l.no
		}
	}
	return line{}, false
}

// http reports whether the proxy's mode is http.
func (p *proxy) http() bool {
	l, ok := p.last("mode")
	return ok && l.arg(1) == "http"
}

// backend returns the proxy with that name that has servers.
func (c *converter) backend(name string) *proxy {
	for _, p := range c.proxies {
		if p.name == name && p.kind != "frontend" {
			return p
		}
	}
	return nil
}

// listeners adds the listeners of a frontend.
func (p *proxy) listeners() error {
	if _, ok := p.last("stats", "enable"); (ok || p.uses("stats")) && !p.uses("server") && !p.uses("use_backend") && !p.uses("default_backend") {
		p.c.out.Reports.Add(p.at, p.kind+" "+p.name, proxyconf.Differs, "the statistics are on the gateway's own page: give the configuration admin: 127.0.0.1:9090")
		return nil
	}
	if off, ok := p.last("disabled"); ok {
		p.c.out.Reports.Add(off.at, p.kind+" "+p.name, proxyconf.Itself, "it is disabled")
		return nil
	}
	binds, err := p.binds()
	if err != nil {
		return err
	}
	for _, b := range binds {
		if by, taken := p.c.listening[b.address]; taken {
			if by == p.name {
				p.c.out.Reports.Add(b.at, "bind", proxyconf.Itself, "the listener of %s listens for IPv4 and IPv6", b.address)
			} else {
				p.c.out.Reports.Add(b.at, "bind", proxyconf.Missing, "%q listens at %s, too, and one listener has an address: put the routes of both together", by, b.address)
			}
			continue
		}
		if taken := proxyconf.Overlap(maps.Keys(p.c.listening), b.address); taken != "" && p.c.listening[taken] == p.name {
			p.c.out.Reports.Add(b.at, "bind", proxyconf.Itself, "the listener of %s is for this address, too", taken)
			continue
		} else if taken != "" {
			p.c.out.Reports.Add(b.at, "bind", proxyconf.Missing, "the gateway listens at %s already, and that is for this address, too: these clients get what %q does", taken, p.c.listening[taken])
			continue
		}
		if p.listener(b, len(binds) == 1) {
			p.c.listening[b.address] = p.name
		}
	}
	return nil
}

// uses reports whether the section has a directive, not counting its defaults.
func (p *proxy) uses(name string) bool {
	return slices.ContainsFunc(p.section.lines, func(l line) bool { return l.words[0] == name && !l.no })
}

// listener adds the listener of an address; false if it cannot be.
func (p *proxy) listener(b bind, only bool) bool {
	at := &place{proxy: p, tls: b.tls, port: b.port, acls: map[string]*proxyconf.Cond{}}
	l := &proxyconf.Listener{Of: p.kind + " " + p.name, From: p.at}
	l.Settings.Set("protocol", map[bool]string{true: "http", false: "tcp"}[p.http()], p.modeAt())
	l.Settings.Set("listen", yamltext.Quote(b.address), b.at)
	b.settings(&l.Settings, p.http())
	p.limits(at, &l.Settings)
	var ok bool
	if p.http() {
		ok = p.httpRoutes(at, l)
	} else {
		ok = p.tcpRoutes(at, l)
	}
	if !ok {
		return false
	}
	name := p.name
	if !only && b.port != "" {
		name += "-" + b.port
	}
	l.Name = p.c.out.Name("listener", name)
	p.c.out.Listeners = append(p.c.out.Listeners, l)
	return true
}

// unused says why a backend has no requests.
func (c *converter) unused(name string) string {
	for _, p := range c.proxies {
		for _, l := range p.lines {
			if (l.words[0] == "use_backend" || l.words[0] == "default_backend") && l.arg(1) == name {
				return "only rules that are not carried use it"
			}
		}
	}
	return "no frontend uses it"
}

func (p *proxy) modeAt() proxyconf.Position {
	l, _ := p.last("mode")
	return l.at
}

// limits sets what a listener of every protocol has.
func (p *proxy) limits(at *place, s *proxyconf.Settings) {
	if l, ok := p.last("maxconn"); ok {
		if n, ok := number(l.arg(1), 1, 10_000_000); ok {
			s.Set("max_conns", n, l.at)
		}
	}
	for _, name := range []string{"httplog", "tcplog", "httpslog"} {
		if l, ok := p.last("option", name); ok {
			s.Set("access_log", "true", l.at)
		}
	}
	if l, ok := p.last("log-format"); ok {
		s.Set("access_log", "true", l.at)
		p.c.out.Reports.Add(l.at, l.name(), proxyconf.Differs, "access_log: true writes all fields to the gateway's log; http: {access_log: {path: …, format: …}} has a format")
	}
	if p.http() {
		p.clientTimes(s)
	}
	if l, ok := p.last("timeout", "client-fin"); ok && p.http() {
		p.c.out.Reports.Add(l.at, l.name(), proxyconf.Itself, "requests of clients that have left end within a second")
	}
	if l, ok := p.last("retries"); ok {
		p.c.out.Reports.Add(l.at, l.name(), proxyconf.Itself, "each endpoint is tried once when a connection cannot be opened")
	}
	state := proxyconf.State{}
	for _, l := range p.lines {
		if l.words[0] == "tcp-request" && (l.arg(1) == "connection" || l.arg(1) == "session") {
			at.connection(l, s, &state)
		}
	}
	setAddresses(s, &state)
}

// clientTimes sets how long a head may take, and how long a client may be idle: without http-keep-alive as long as for a head.
func (p *proxy) clientTimes(s *proxyconf.Settings) {
	set := func(key, name string, most time.Duration) bool {
		l, ok := p.last("timeout", name)
		if !ok || isZero(l) {
			return false
		}
		if text, ok := p.c.duration(l, l.arg(2), time.Millisecond, most); ok {
			s.Set(key, text, l.at)
		}
		return true
	}
	set("http/read_header_timeout", "http-request", time.Hour)
	if !set("http/client_idle_timeout", "http-keep-alive", 24*time.Hour) {
		set("http/client_idle_timeout", "http-request", 24*time.Hour)
	}
}

// connection sets the limits of connections that a tcp-request line has.
func (p *place) connection(l line, s *proxyconf.Settings, state *proxyconf.State) {
	action := l.arg(2)
	words, cond, err := p.cut(l.words[min(3, len(l.words)):])
	switch {
	case strings.HasPrefix(action, "track-sc"):
		p.untouched(line{at: l.at, words: []word{l.words[0], action}}, "")
		return
	case action == "accept" && err == nil && len(words) == 0 && (cond.Op == proxyconf.True || simple(cond).Op == proxyconf.Source):
		p.accepted = append(p.accepted, simple(cond))
		return
	case slices.ContainsFunc(p.accepted, func(c *proxyconf.Cond) bool { return c.Op == proxyconf.True }):
		return // nobody comes so far
	case action != "reject":
		p.missing(l, "the gateway has no equal of this rule for connections; allow and deny of a listener have addresses%s", danger(l))
		return
	case err != nil:
		p.missing(l, "%s%s", err, danger(l))
		return
	}
	all := []*proxyconf.Cond{cond}
	for _, c := range p.accepted { // these are not refused any more
		all = append(all, proxyconf.Unless(c))
	}
	cond = simple(proxyconf.Both(all...))
	switch limit := cond.Limit; {
	case cond.Op == proxyconf.Above && limit.Kind == "conn_cur":
		s.Set("max_connections_per_source", fmt.Sprint(limit.Count), l.at)
	case cond.Op == proxyconf.Above && limit.Kind == "conn_rate":
		s.Set("connection_rate/connections", fmt.Sprint(limit.Count), l.at)
		s.Set("connection_rate/per", limit.Per, l.at)
	default:
		if why := proxyconf.Refuse(l.at)(state, cond); why != "" {
			p.missing(l, "%s%s", why, danger(l))
		}
	}
}

// simple returns a condition without constants in it.
func simple(c *proxyconf.Cond) *proxyconf.Cond { return c.Given(&proxyconf.Known{}) }

// httpRoutes adds the routes of an http listener.
func (p *proxy) httpRoutes(at *place, l *proxyconf.Listener) bool {
	l.Settings.Set("http/retries", p.retries(), p.retriesAt())
	if pages, from := p.errorPages(); pages != "" {
		l.Settings.Set("http/error_pages", pages, from)
	}
	var after []*proxyconf.Rule
	if p.kind == "listen" && len(p.servers()) > 0 {
		after = append(p.choose(at), append(at.responses(), at.to(p, line{at: p.at}))...)
	} else {
		after = p.choose(at)
	}
	after = append(after, &proxyconf.Rule{From: p.at, When: proxyconf.Const(true), End: true, Do: answer(line{at: p.at}, 503, "", "", "")})
	leaves, ok := proxyconf.Compile(at.rules(after), proxyconf.State{}, &p.c.out.Reports)
	if !ok {
		p.c.out.Reports.Add(p.at, p.kind+" "+p.name, proxyconf.Missing, "its rules have too many combinations of conditions, and each is a route: the whole %s is not in the result", p.kind)
		return false
	}
	l.Routes = proxyconf.Routes(leaves)
	return true
}

// choose returns the rules that choose a backend.
func (p *proxy) choose(at *place) (rules []*proxyconf.Rule) {
	for _, l := range p.lines {
		if l.words[0] != "use_backend" || l.no {
			continue
		}
		words, cond, err := at.cut(l.words[1:])
		if err != nil || len(words) != 1 {
			at.missing(l, "%v: its requests go where later rules send them%s", err, others(cond))
		}
		if cond == nil || len(words) != 1 {
			continue
		}
		for _, c := range at.choices(l, words[0]) {
			c.When = proxyconf.Both(cond, c.When)
			rules = append(rules, c)
		}
	}
	if l, ok := p.last("default_backend"); ok {
		rules = append(rules, at.choices(l, l.arg(1))...)
	}
	return rules
}

// choices returns the rules that go to a backend, of which a map has several.
func (p *place) choices(l line, name string) (rules []*proxyconf.Rule) {
	if strings.Contains(name, "%") {
		return p.mapped(l, name)
	}
	b := p.c.backend(name)
	if b == nil {
		p.missing(l, "there is no backend %q", name)
		return nil
	}
	if b.http() != p.http() {
		p.missing(l, "the mode of backend %q is another one", name)
		return nil
	}
	r := &proxyconf.Rule{From: l.at, Name: l.name(), When: proxyconf.Const(true), Then: []*proxyconf.Rule{p.to(b, l)}}
	if p.http() {
		of := &place{proxy: b, tls: p.tls, port: p.port, acls: map[string]*proxyconf.Cond{}}
		r.Then = of.rules(slices.Concat(of.responses(), p.responses(), r.Then))
	}
	return []*proxyconf.Rule{r}
}

// mapped returns the rules of use_backend with a map of hosts.
func (p *place) mapped(l line, name string) (rules []*proxyconf.Rule) {
	inner, ok := strings.CutSuffix(strings.TrimPrefix(name, "%["), "]")
	inner, args, found := strings.Cut(inner, ",map(")
	if !found {
		inner, args, found = strings.Cut(inner, ",map_str(")
	}
	file, def, _ := strings.Cut(strings.TrimSuffix(args, ")"), ",")
	if !ok || !found || strings.ContainsAny(file, "()") {
		p.missing(l, "the backend is computed from the request; write a route for each backend")
		return nil
	}
	entries, err := p.patterns(file)
	if err != nil {
		p.missing(l, "%v", err)
		return nil
	}
	for _, e := range entries {
		kv := strings.Fields(e)
		if len(kv) != 2 {
			continue
		}
		cond, err := p.test([]word{inner, kv[0]})
		if err != nil {
			p.missing(l, "%v", err)
			return nil
		}
		for _, r := range p.choices(l, kv[1]) {
			r.When = cond
			rules = append(rules, r)
		}
	}
	if def != "" {
		rules = append(rules, p.choices(l, def)...)
	}
	return rules
}

// to returns the rule that sends requests to the servers of a backend.
func (p *place) to(b *proxy, l line) *proxyconf.Rule {
	u := p.c.upstream(b)
	r := &proxyconf.Rule{From: l.at, When: proxyconf.Const(true), End: true}
	if u == nil {
		r.Do = answer(line{at: b.at}, 503, "", "", "")
		return r
	}
	settings := proxyconf.Settings{}
	if p.http() {
		settings = b.routeSettings(p.proxy)
	}
	r.Do = func(s *proxyconf.State, _ *proxyconf.Known) string {
		s.From = l.at
		s.Settings.Set("upstream", yamltext.Quote(u.Name), proxyconf.Position{})
		s.Settings = append(s.Settings, settings...)
		return ""
	}
	return r
}

// tcpRoutes adds the routes of a tcp listener.
func (p *proxy) tcpRoutes(at *place, l *proxyconf.Listener) bool {
	var rules []*proxyconf.Rule
	for _, t := range p.lines {
		if t.words[0] == "tcp-request" && t.arg(1) == "content" {
			if at.source(t, &l.Settings) {
				continue
			}
			if r := at.content(t); r != nil {
				rules = append(rules, r)
			}
		}
	}
	rules = append(rules, p.choose(at)...)
	if p.kind == "listen" && len(p.servers()) > 0 {
		rules = append(rules, at.to(p, line{at: p.at}))
	}
	leaves, ok := proxyconf.Compile(rules, proxyconf.State{}, &p.c.out.Reports)
	if !ok {
		p.c.out.Reports.Add(p.at, p.kind+" "+p.name, proxyconf.Missing, "its rules have too many combinations of conditions: the whole %s is not in the result", p.kind)
		return false
	}
	routes, rest := proxyconf.TCPRoutes(leaves, &p.c.out.Reports)
	if rest != nil {
		if name := rest.Settings.Get("upstream"); name != "" {
			l.Settings.Set("upstream", name, rest.From)
		}
	}
	if len(routes) == 0 && l.Settings.Get("upstream") == "" {
		p.c.out.Reports.Add(p.at, p.kind+" "+p.name, proxyconf.Missing, "it has no servers to forward to")
		return false
	}
	p.tcpSettings(l, leaves)
	l.Routes = routes
	return true
}

// source carries a tcp-request content line that refuses clients by their address, before any that looks at what they send; false if
// it is another one.
func (p *place) source(l line, s *proxyconf.Settings) bool {
	_, cond, err := p.cut(l.words[min(3, len(l.words)):])
	if l.arg(2) != "reject" || err != nil {
		return false
	}
	if cond = simple(cond); cond.Op != proxyconf.Source && (cond.Op != proxyconf.Not || cond.Sub[0].Op != proxyconf.Source) || s.Under("allow") || s.Under("deny") {
		return false
	}
	state := proxyconf.State{}
	if proxyconf.Refuse(l.at)(&state, cond) != "" {
		return false
	}
	for _, before := range p.lines[:slices.IndexFunc(p.lines, func(o line) bool { return o.at == l.at })] {
		if before.words[0] == "tcp-request" && before.arg(1) == "content" && before.arg(2) == "accept" {
			p.differs(l, "it refuses clients that a line before accepts, too")
			break
		}
	}
	setAddresses(s, &state)
	return true
}

// setAddresses sets who may connect.
func setAddresses(s *proxyconf.Settings, state *proxyconf.State) {
	for key, list := range map[string][]string{"allow": state.Allow, "deny": state.Deny} {
		if len(list) > 0 {
			s.Set(key, yamltext.List(list), state.Guards[key])
		}
	}
}

// content returns the rule of a tcp-request content line, nil if there is none.
func (p *place) content(l line) *proxyconf.Rule {
	_, cond, err := p.cut(l.words[min(3, len(l.words)):])
	switch action := l.arg(2); {
	case strings.HasPrefix(action, "track-sc"), strings.HasPrefix(action, "set-var"), action == "capture":
		p.untouched(line{at: l.at, words: []word{l.words[0], action}}, "no other rule that is carried looks at it")
		return nil
	case action == "accept":
		p.itself(l, "the gateway waits for the client's greeting if it has routes")
		return nil
	case action != "reject":
		p.missing(l, "the gateway has no equal of this rule")
		return nil
	case err != nil:
		p.missing(l, "%s%s", err, danger(l))
		return nil
	}
	return &proxyconf.Rule{From: l.at, Name: l.name(), Lost: danger(l), When: cond, End: true, Do: func(s *proxyconf.State, _ *proxyconf.Known) string {
		s.From = l.at
		return ""
	}}
}

// tcpSettings sets the time-outs of a tcp listener.
func (p *proxy) tcpSettings(l *proxyconf.Listener, leaves []proxyconf.Leaf) {
	backends := map[*proxy]bool{}
	for b, u := range p.c.upstreams {
		for _, leaf := range leaves {
			if u != nil && leaf.State.Settings.Get("upstream") == yamltext.Quote(u.Name) {
				backends[b] = true
			}
		}
	}
	idle, from, set := time.Duration(0), line{}, false
	take := func(t line, ok bool) {
		if d, valid := parseTime(t.arg(2), time.Millisecond); ok && valid && (!set || d < idle) {
			idle, from, set = d, t, true
		}
	}
	take(p.last("timeout", "client"))
	proxies, versions := "", map[string]bool{}
	used := slices.DeleteFunc(slices.Clone(p.c.proxies), func(b *proxy) bool { return !backends[b] })
	for _, b := range used {
		take(b.last("timeout", "server"))
		proxies = b.sendProxy()
		versions[proxies] = true
	}
	for _, b := range used {
		if t, ok := b.last("timeout", "tunnel"); ok {
			set = false
			take(t, ok)
		}
	}
	l.Settings.Default("tcp/idle_timeout", "never", "HAProxy's default")
	if set && idle > 0 {
		if text, ok := p.c.duration(from, from.arg(2), time.Millisecond, 8760*time.Hour); ok {
			l.Settings.Set("tcp/idle_timeout", text, from.at)
		}
	}
	if t, ok := p.last("timeout", "client-fin"); ok {
		if text, ok := p.c.duration(t, t.arg(2), time.Millisecond, 24*time.Hour); ok {
			l.Settings.Set("tcp/client_fin_timeout", text, t.at)
		}
	}
	switch {
	case len(versions) > 1:
		p.c.out.Reports.Add(p.at, "server send-proxy", proxyconf.Missing, "some of its backends want a PROXY header, and others none: send_proxy is for all of a listener")
	case proxies != "":
		l.Settings.Set("tcp/send_proxy", proxies, p.at)
	}
}
