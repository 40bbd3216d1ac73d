package nginxconf

import (
	"strings"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// reverse returns what changes addresses and cookies in the answers of a server of proxy_pass.
func (v *view) reverse(l location, pass *directive, server, uri string, hasURI bool) (set proxyconf.Settings) {
	if pass.name() != "proxy_pass" {
		return nil
	}
	if text, at := v.redirects(l, pass, server, uri, hasURI); text != "" {
		set.Set("rewrite_location", text, at.at)
		if at == pass {
			set[0].From, set[0].Why = proxyconf.Position{}, "nginx's default"
		}
	}
	v.cookies(l.scope, &set)
	return set
}

// redirects returns rewrite_location of a route, and where it comes from; "" if addresses stay.
func (v *view) redirects(l location, pass *directive, server, uri string, hasURI bool) (string, *directive) {
	usual := func() (from, to string) { // what proxy_redirect default does, if it is not own: true
		if hasURI && uri != l.path && !strings.HasPrefix(l.modifier, "~") {
			return server + uri, l.path
		}
		return "", ""
	}
	own, at := false, pass
	var replace []string
	add := func(from, to string) bool {
		if httpproxy.CheckLocation(httpproxy.Replacement{From: from, To: to}) != nil || strings.Contains(to, "{host}:") || !plain(from+to) || len(replace) > 60 {
			return false
		}
		replace = append(replace, yamltext.Quote(from)+": "+yamltext.Quote(to))
		return true
	}
	lines := l.list("proxy_redirect")
	if len(lines) == 0 {
		lines = []*directive{{at: pass.at, words: []string{"proxy_redirect", "default"}}}
	} else {
		at = lines[0]
	}
	for _, d := range lines {
		switch from, to := usual(); {
		case d.arg(1) == "off":
			return "", nil
		case d.arg(1) == "default" && from == "":
			own = true
		case d.arg(1) == "default":
			if !add(from, to) && at != pass {
				v.missing(d, "rewrite_location of a route has URLs and paths; this one has no equal")
			}
		case (d.arg(1) == "http://" || d.arg(1) == "https://") && strings.HasSuffix(d.arg(2), "://"):
			v.differs(d, "only for the server's own addresses, of which scheme and host are left out")
			own = true
		default:
			text, ok := v.template(d.arg(2), false)
			if !ok || strings.Contains(d.arg(1), "$") || !add(d.arg(1), text) {
				v.missing(d, "rewrite_location of a route has beginnings of URLs and paths, and what takes their place, with {scheme} and {host}; this one has no equal")
			}
		}
	}
	switch {
	case own && len(replace) == 0:
		return "true", at
	case len(replace) == 0:
		return "", nil
	}
	text := "{"
	if !own {
		text += "own: false, "
	}
	return text + "replace: {" + strings.Join(unequal(replace), ", ") + "}}", at
}

// unequal leaves out entries of a mapping whose key is there already.
func unequal(entries []string) (all []string) {
	seen := map[string]bool{}
	for _, e := range entries {
		if key, _, _ := strings.Cut(e, ": "); !seen[key] {
			seen[key] = true
			all = append(all, e)
		}
	}
	return all
}

// cookies sets rewrite_cookies of a route.
func (v *view) cookies(s scope, set *proxyconf.Settings) {
	parts := []string{"own: false"}
	at := (*directive)(nil)
	for _, kind := range []struct {
		name, key string
		check     func(httpproxy.Replacement) error
	}{{"proxy_cookie_domain", "domain", httpproxy.CheckCookieDomain}, {"proxy_cookie_path", "path", httpproxy.CheckCookiePath}} {
		var entries []string
		for _, d := range s.list(kind.name) {
			if d.arg(1) == "off" {
				entries = nil
				break
			}
			if kind.check(httpproxy.Replacement{From: d.arg(1), To: d.arg(2)}) != nil || strings.Contains(d.arg(1)+d.arg(2), "$") || len(entries) > 60 {
				v.missing(d, "rewrite_cookies of a route has domains and paths, and what takes their place, without expressions and variables")
				continue
			}
			entries, at = append(entries, yamltext.Quote(d.arg(1))+": "+yamltext.Quote(d.arg(2))), d
		}
		if len(entries) > 0 {
			parts = append(parts, kind.key+": {"+strings.Join(unequal(entries), ", ")+"}")
		}
	}
	for _, d := range s.list("proxy_cookie_flags") {
		flags := v.flags(d)
		if flags != nil && len(s.list("proxy_cookie_flags")) == 1 {
			parts, at = append(parts, flags...), d
		} else if d.arg(1) != "off" {
			v.missing(d, "rewrite_cookies of a route adds secure, http_only and same_site to all cookies; other flags, and those of one cookie, have no equal")
		}
	}
	if at != nil {
		set.Set("rewrite_cookies", "{"+strings.Join(parts, ", ")+"}", at.at)
	}
}

// flags returns the settings for a line of proxy_cookie_flags, nil if there are none.
func (v *view) flags(d *directive) (all []string) {
	if d.arg(1) != "~" || len(d.words) < 3 {
		return nil
	}
	seen := map[string]bool{}
	for _, w := range d.words[2:] {
		setting, ok := map[string]string{
			"secure": "secure: true", "httponly": "http_only: true", "samesite=strict": "same_site: strict", "samesite=lax": "same_site: lax", "samesite=none": "same_site: none",
		}[strings.ToLower(w)]
		key, _, _ := strings.Cut(setting, ":")
		if !ok || seen[key] {
			return nil
		}
		seen[key] = true
		all = append(all, setting)
	}
	return all
}
