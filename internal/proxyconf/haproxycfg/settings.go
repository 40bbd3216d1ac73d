package haproxycfg

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// routeSettings returns what all routes to a backend have, from a frontend.
func (p *proxy) routeSettings(front *proxy) (s proxyconf.Settings) {
	const most = 168 * time.Hour
	if l, ok := p.last("timeout", "server"); ok && !isZero(l) {
		if text, ok := p.c.duration(l, l.arg(2), time.Millisecond, most); ok {
			s.Set("timeout", text, l.at)
		}
	} else {
		s.Default("timeout", "never", "HAProxy's default")
	}
	idle, ok := p.last("timeout", "tunnel")
	if ok {
		p.c.out.Reports.Add(idle.at, idle.name(), proxyconf.Differs, "idle_timeout of a route is for bodies, too")
	}
	for _, from := range []*proxy{p, front} {
		name := "server"
		if from == front && from != p || from == front && p.kind == "listen" {
			name = "client"
		}
		l, has := from.last("timeout", name)
		if longer, _ := parseTime(l.arg(2), time.Millisecond); has && !(ok && idle.arg(1) == "tunnel") {
			if now, _ := parseTime(idle.arg(2), time.Millisecond); !ok || longer > now {
				idle, ok = l, true
			}
		}
	}
	if ok && !isZero(idle) {
		if text, ok := p.c.duration(idle, idle.arg(2), time.Millisecond, most); ok {
			s.Set("idle_timeout", text, idle.at)
		}
	} else {
		s.Default("idle_timeout", "never", "HAProxy's default")
	}
	p.affinity(&s)
	p.compression(&s, front)
	if p != front {
		if pages, from := p.errorPages(); pages != "" {
			s.Set("error_pages", pages, from)
		}
		if text := p.retries(); text != front.retries() {
			s.Set("retries", text, p.retriesAt())
		}
	}
	return s
}

func isZero(l line) bool { d, _ := parseTime(l.arg(2), time.Millisecond); return d == 0 }

// affinity sets which requests belong together.
func (p *proxy) affinity(s *proxyconf.Settings) {
	if name := p.cookie(); name != "" {
		l, _ := p.last("cookie")
		s.Set("affinity", fmt.Sprintf("{cookie: %s, set_cookie: true}", yamltext.Quote(name)), l.at)
		p.c.out.Reports.Add(l.at, "cookie", proxyconf.Differs, "the cookie has a random value, which chooses the endpoint, and not the server's name: clients with HAProxy's cookie may move once")
		return
	}
	if l := p.stick(); l.words != nil {
		switch kind, name := p.sticksTo(l); kind {
		case "cookie":
			s.Set("affinity", fmt.Sprintf("{cookie: %s}", yamltext.Quote(name)), l.at)
		case "header":
			s.Set("affinity", fmt.Sprintf("{header: %s, max_load: 0}", yamltext.Quote(name)), l.at)
		}
		return
	}
	l, ok := p.last("balance")
	if ok && strings.HasPrefix(l.arg(1), "hdr(") && headerName(balanceHeader(l)) {
		s.Set("affinity", fmt.Sprintf("{header: %s, max_load: 0}", yamltext.Quote(balanceHeader(l))), l.at)
	}
}

// compression sets which answers are compressed.
func (p *proxy) compression(s *proxyconf.Settings, front *proxy) {
	for _, from := range []*proxy{p, front} {
		l, ok := from.last("compression", "algo")
		if !ok {
			continue
		}
		if !slices.Contains(l.words[2:], "gzip") {
			p.c.out.Reports.Add(l.at, l.name(), proxyconf.Missing, "compress of a route has gzip and zstd")
			continue
		}
		text := "encodings: [gzip], min_bytes: 1"
		if t, ok := from.last("compression", "type"); ok {
			types := slices.DeleteFunc(slices.Clone(t.words[2:]), func(t string) bool {
				return !plain(t) || strings.Count(t, "/") != 1 || strings.ContainsAny(t, " ;,*") || t[0] == '/' || t[len(t)-1] == '/'
			})
			if len(types) > 0 && len(types) <= 64 {
				text += ", types: " + yamltext.List(types)
			}
		}
		s.Set("compress", "{"+text+"}", l.at)
		return
	}
}

// retries returns which failed requests are sent again.
func (p *proxy) retries() string {
	on := []string{"connect"} // HAProxy's default
	if l, ok := p.last("retry-on"); ok {
		on = nil
		for _, w := range l.words[1:] {
			name := map[string]string{"conn-failure": "connect", "empty-response": "reset", "junk-response": "", "response-timeout": "504", "502": "502", "503": "503", "504": "504", "all-retryable-errors": "connect, reset, 502, 503, 504"}[w]
			for _, n := range strings.Split(name, ", ") {
				if n != "" && !slices.Contains(on, n) {
					on = append(on, n)
				}
			}
		}
		if len(on) == 0 {
			on = []string{"connect"}
		}
	}
	text := "on: [" + strings.Join(on, ", ") + "]"
	if l, ok := p.last("retries"); ok && len(on) > 1 {
		if n, err := strconv.Atoi(l.arg(1)); err == nil && n >= 0 {
			text += fmt.Sprintf(", attempts: %d", min(n, 9)+1)
		}
	}
	return "{" + text + "}"
}

func (p *proxy) retriesAt() proxyconf.Position {
	l, _ := p.last("retry-on")
	return l.at
}

// errorPages returns the pages of errorfile and http-error, and where they are.
func (p *proxy) errorPages() (text string, at proxyconf.Position) {
	pages := map[int]string{}
	for _, l := range p.lines {
		status, contentType, body, ok := p.page(l)
		if !ok {
			continue
		}
		at = l.at
		pages[status] = fmt.Sprintf("content_type: %s, body: %s", yamltext.Quote(contentType), yamltext.Quote(body))
	}
	var all []string
	for _, status := range slices.Sorted(maps.Keys(pages)) {
		list := strconv.Itoa(status)
		if status == 503 && pages[502] == "" { // where no server can be reached the gateway answers 502
			list = "502, 503"
		}
		all = append(all, fmt.Sprintf("{status: [%s], %s}", list, pages[status]))
	}
	if all == nil {
		return "", at
	}
	return "[" + strings.Join(all, ", ") + "]", at
}

// page returns the page of a line.
func (p *proxy) page(l line) (status int, contentType, body string, ok bool) {
	if l.no || l.words[0] != "errorfile" && l.words[0] != "http-error" {
		return 0, "", "", false
	}
	contentType = "text/plain; charset=utf-8"
	missing := func(format string, args ...any) (int, string, string, bool) {
		p.c.out.Reports.Add(l.at, l.name(), proxyconf.Missing, format, args...)
		return 0, "", "", false
	}
	if l.words[0] == "errorfile" {
		status, _ = strconv.Atoi(l.arg(1))
		text, err := p.c.opt.Read(p.c.path(l.arg(2)))
		if err != nil {
			return missing("cannot read %q", l.arg(2))
		}
		head, rest, found := strings.Cut(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n\n")
		if body = rest; !found {
			return missing("%q has no empty line after its headers", l.arg(2))
		}
		for h := range strings.SplitSeq(head, "\n") {
			if name, value, _ := strings.Cut(h, ":"); strings.EqualFold(name, "content-type") {
				contentType = strings.TrimSpace(value)
			}
		}
	} else {
		for i := 1; i+1 < len(l.words); i += 2 {
			switch l.words[i] {
			case "status":
				status, _ = strconv.Atoi(l.words[i+1])
			case "content-type":
				contentType = l.words[i+1]
			case "string":
				body = l.words[i+1]
			default:
				return missing("%q is not supported; error_pages of a listener have a status, a body and a content_type", l.words[i])
			}
		}
	}
	if status < 400 || status > 599 || body == "" || len(body) > httpproxy.MaxOwnBody || !utf8.ValidString(body) || httpproxy.CheckContentType(contentType) != nil {
		return missing("error_pages have a status from 400 to 599, a body of up to %d bytes and a content_type", httpproxy.MaxOwnBody)
	}
	return status, contentType, body, true
}
