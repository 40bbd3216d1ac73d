package haproxycfg

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// health sets the check of the servers.
func (p *proxy) health(u *proxyconf.Upstream, s server) {
	if !s.has("check") {
		return
	}
	c, at := p.c, s.l.at
	set := func(key, text string, from proxyconf.Position) { u.Settings.Set("health/"+key, text, from) }
	p.check(u, s)
	if port, ok := number(s.options["port"], 1, 65535); ok && !slices.ContainsFunc(u.Endpoints, func(e proxyconf.Endpoint) bool { return strings.HasPrefix(e.Address, "unix:") }) {
		set("port", port, at)
	}
	interval := 2 * time.Second
	u.Settings.Default("health/interval", "2s", "HAProxy's default")
	if text, ok := s.options["inter"]; ok {
		if shown, ok := c.duration(s.l, text, 10*time.Millisecond, 24*time.Hour); ok {
			set("interval", shown, at)
			interval, _ = parseTime(text, time.Millisecond)
		}
	}
	if l, ok := p.last("timeout", "check"); ok {
		if text, ok := c.duration(l, l.arg(2), time.Millisecond, 10*time.Minute); ok {
			set("timeout", text, l.at)
		}
	} else {
		u.Settings.Default("health/timeout", yamltext.Short(min(max(interval, time.Millisecond), 10*time.Minute)), "the interval, without timeout check")
	}
	for key, def := range map[string]string{"rise": "2", "fall": "3"} {
		if n, ok := number(s.options[key], 1, 1000); ok {
			set(key, n, at)
		} else {
			u.Settings.Default("health/"+key, def, "HAProxy's default")
		}
	}
	if !p.http() {
		if s.options["on-marked-down"] == "shutdown-sessions" {
			set("on_unhealthy", "close", at)
		} else {
			u.Settings.Default("health/on_unhealthy", "keep", "HAProxy's default")
		}
	} else if s.has("on-marked-down") {
		c.out.Reports.Add(at, "server on-marked-down", proxyconf.Itself, "the next request goes to another endpoint")
	}
	slices.SortStableFunc(u.Settings, func(a, b proxyconf.Setting) int {
		return slices.Index(healthKeys, a.Key) - slices.Index(healthKeys, b.Key)
	})
}

// healthKeys is the order of the keys of health, after all others.
var healthKeys = []string{"health/http", "health/https", "health/tcp", "health/ca", "health/server_name", "health/host", "health/port", "health/expect", "health/interval", "health/timeout", "health/rise", "health/fall", "health/on_unhealthy"}

// checks are the options that say what a check sends, besides httpchk.
var checks = []string{"tcp-check", "ssl-hello-chk", "pgsql-check", "mysql-check", "redis-check", "smtpchk", "ldap-check", "spop-check", "external-check"}

// check sets the kind of check.
func (p *proxy) check(u *proxyconf.Upstream, s server) {
	l, ok := p.last("option", "httpchk")
	for _, o := range p.lines { // the last one counts
		if o.words[0] == "option" && slices.Contains(checks, o.arg(1)) && !o.no && ok && slices.IndexFunc(p.lines, func(t line) bool { return t.at == o.at }) > slices.IndexFunc(p.lines, func(t line) bool { return t.at == l.at }) && o.arg(1) != "tcp-check" {
			p.c.out.Reports.Add(l.at, l.name(), proxyconf.Itself, "%s follows, and is the check", o.name())
			ok = false
		}
	}
	if !ok {
		for _, name := range checks {
			if o, ok := p.last("option", name); ok && (name != "tcp-check" || p.hasTCPCheck()) {
				fate, text := proxyconf.Differs, "the check is that a connection opens: health: {tcp: true}"
				if name == "external-check" {
					fate, text = proxyconf.Missing, text+"; servers that its program kept out GET CLIENTS"
				}
				p.c.out.Reports.Add(o.at, o.name(), fate, "%s", text)
			}
		}
		u.Settings.Set("health/tcp", "true", s.l.at)
		return
	}
	method, path, at := "OPTIONS", "/", l.at
	if l.arg(3) != "" {
		method, path = l.arg(2), l.arg(3)
	} else if l.arg(2) != "" {
		method, path = "OPTIONS", l.arg(2)
	}
	_, fields, _ := strings.Cut(l.arg(4), "\n") // after the version
	for f := range strings.Lines(fields) {
		name, value, _ := strings.Cut(f, ":")
		p.checkHeader(u, l, name, strings.TrimSpace(value))
	}
	overTLS := s.has("check-ssl") && !s.has("ssl")
	for _, c := range p.lines {
		switch {
		case c.words[0] == "http-check" && c.arg(1) == "connect":
			overTLS = p.connect(u, c) && !s.has("ssl") || overTLS
		case c.words[0] == "http-check" && c.arg(1) == "send":
			p.send(u, c, &method, &path)
			at = c.at
		case c.words[0] == "http-check" && c.arg(1) == "expect":
			p.expect(u, c)
		case c.words[0] == "http-check":
			p.c.out.Reports.Add(c.at, c.name(), proxyconf.Missing, "a check of the gateway is one GET, and the status of its answer")
		}
	}
	if method != "GET" {
		p.c.out.Reports.Add(at, "option httpchk", proxyconf.Differs, "the check sends GET %s, not %s: see that the servers answer it", path, method)
	}
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, " #") || !plain(path) || len(path) > 1000 {
		p.c.out.Reports.Add(at, "option httpchk", proxyconf.Missing, "%q is no path for a check; a connection that opens is the check", path)
		u.Settings.Set("health/tcp", "true", s.l.at)
		u.Settings = slices.DeleteFunc(u.Settings, func(s proxyconf.Setting) bool { return s.Key == "health/expect" || s.Key == "health/host" })
		return
	}
	if !p.http() && slices.Contains(ofPatroni, path) {
		p.c.out.Reports.Add(at, "option httpchk", proxyconf.Differs, "while no server passes the check the gateway uses all of them, where HAProxy refuses clients: protocol: postgres with target: primary, or standby, of the upstream asks the servers themselves")
	}
	if overTLS {
		p.secureCheck(u, s, path, at)
		return
	}
	u.Settings.Set("health/http", yamltext.Quote(path), at)
}

// ofPatroni are the paths of Patroni's checks of a server's role.
var ofPatroni = []string{"/primary", "/master", "/leader", "/read-write", "/replica", "/read-only", "/standby-leader", "/sync", "/async", "/read-only-sync"}

// secureCheck sets a check over TLS, of servers whose clients speak TLS to them, or nothing of the kind.
func (p *proxy) secureCheck(u *proxyconf.Upstream, s server, path string, at proxyconf.Position) {
	if s.options["verify"] == "none" || !s.has("ca-file") {
		p.c.out.Reports.Add(at, "option httpchk", proxyconf.Missing, "a check over TLS verifies the servers' certificate, and there is no ca-file: here the check is that a connection opens, and servers that answer it with an error GET CLIENTS; write health: {https: %s, ca: FILE} instead", path)
		u.Settings.Set("health/tcp", "true", s.l.at)
		u.Settings = slices.DeleteFunc(u.Settings, func(s proxyconf.Setting) bool {
			return slices.Contains([]string{"health/expect", "health/host", "health/server_name"}, s.Key)
		})
		return
	}
	u.Settings.Set("health/https", yamltext.Quote(path), at)
	u.Settings.Set("health/ca", yamltext.Quote(p.c.based("ca-base", s.options["ca-file"])), s.l.at)
	if name := s.options["check-sni"]; isHost(strings.ToLower(name)) {
		u.Settings.Set("health/server_name", yamltext.Quote(name), s.l.at)
	}
}

// connect reads "http-check connect", and reports whether it is over TLS.
func (p *proxy) connect(u *proxyconf.Upstream, l line) (overTLS bool) {
	for i := 2; i < len(l.words); i++ {
		switch w := l.words[i]; w {
		case "ssl":
			overTLS = true
		case "port":
			i++
			if port, ok := number(l.arg(i), 1, 65535); ok {
				u.Settings.Set("health/port", port, l.at)
			}
		case "sni":
			i++
			if isHost(strings.ToLower(l.arg(i))) {
				u.Settings.Set("health/server_name", yamltext.Quote(l.arg(i)), l.at)
			}
		case "alpn", "proto", "comment":
			i++
		case "default", "linger":
		default:
			p.c.out.Reports.Add(l.at, l.name(), proxyconf.Missing, "the check of the gateway has no %s", w)
		}
	}
	return overTLS
}

// hasTCPCheck reports whether there are steps of a tcp-check.
func (p *proxy) hasTCPCheck() bool {
	return slices.ContainsFunc(p.lines, func(l line) bool { return l.words[0] == "tcp-check" && l.arg(1) != "connect" })
}

// send reads "http-check send".
func (p *proxy) send(u *proxyconf.Upstream, l line, method, path *string) {
	for i := 2; i < len(l.words); i++ {
		value := l.arg(i + 1)
		switch l.words[i] {
		case "meth":
			*method = value
		case "uri":
			*path = value
		case "ver":
		case "hdr":
			p.checkHeader(u, l, value, l.arg(i+2))
			i++
		default:
			p.c.out.Reports.Add(l.at, l.name(), proxyconf.Missing, "the check of the gateway has no %s", l.words[i])
		}
		i++
	}
}

// checkHeader carries a header of a check.
func (p *proxy) checkHeader(u *proxyconf.Upstream, l line, name, value string) {
	host, _, _ := strings.Cut(strings.ToLower(value), ":")
	if !strings.EqualFold(strings.TrimSpace(name), "host") || !isHost(host) {
		p.c.out.Reports.Add(l.at, l.name(), proxyconf.Missing, "the check sends no header %s", name)
		return
	}
	u.Settings.Set("health/host", yamltext.Quote(host), l.at)
}

// expect reads "http-check expect".
func (p *proxy) expect(u *proxyconf.Upstream, l line) {
	words := l.words[2:]
	for len(words) > 2 && words[0] != "status" {
		words = words[1:]
	}
	if len(words) != 2 || words[0] != "status" || slices.Contains(l.words, "!") {
		p.c.out.Reports.Add(l.at, l.name(), proxyconf.Missing, "a check of the gateway looks at the status alone: health: {expect: [200]}; servers that this kept out GET REQUESTS")
		return
	}
	var list []string
	for _, part := range strings.Split(words[1], ",") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || from < 100 || to > 599 || to < from {
			p.c.out.Reports.Add(l.at, l.name(), proxyconf.Missing, "%q is no list of statuses", words[1])
			return
		}
		if from == 200 && to == 399 { // the gateway's default
			return
		}
		for ; from <= to; from++ {
			list = append(list, strconv.Itoa(from))
		}
	}
	if len(list) > 50 {
		p.c.out.Reports.Add(l.at, l.name(), proxyconf.Differs, "statuses from 200 to 399 are those of a healthy endpoint: expect has up to 50")
		return
	}
	u.Settings.Set("health/expect", "["+strings.Join(list, ", ")+"]", l.at)
}
