package protocols

import (
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
)

// RewriteLocation changes addresses in answers; see httpproxy.LocationRewrite. The file may have just the value of Own
// instead of a mapping.
type RewriteLocation struct {
	Own     bool    `conf:"own" default:"true"`                            // the server's own addresses, and paths
	Replace []Match `conf:"replace" key:"Name" scalar:"Value" maxlen:"64"` // beginnings of others: what takes their place
}

// RewriteCookies changes attributes of servers' cookies; see httpproxy.CookieRewrite. The file may have just the value of
// Own instead of a mapping.
type RewriteCookies struct {
	Own      bool               `conf:"own" default:"true"`
	Domain   []Match            `conf:"domain" key:"Name" scalar:"Value" maxlen:"64"`
	Path     []Match            `conf:"path" key:"Name" scalar:"Value" maxlen:"64"`
	Secure   bool               `conf:"secure"`
	HTTPOnly bool               `conf:"http_only"`
	SameSite httpproxy.SameSite `conf:"same_site"` // "": as the server says
}

func replacementsOf(all []Match) (list []httpproxy.Replacement) {
	for _, m := range all {
		list = append(list, httpproxy.Replacement{From: m.Name, To: m.Value})
	}
	return list
}

// settings returns the proxy's form.
func (l *RewriteLocation) settings() httpproxy.LocationRewrite {
	if l == nil {
		return httpproxy.LocationRewrite{}
	}
	return httpproxy.LocationRewrite{Own: l.Own, Replace: replacementsOf(l.Replace)}
}

// settings returns the proxy's form.
func (k *RewriteCookies) settings() httpproxy.CookieRewrite {
	if k == nil {
		return httpproxy.CookieRewrite{}
	}
	return httpproxy.CookieRewrite{
		Own: k.Own, Domain: replacementsOf(k.Domain), Path: replacementsOf(k.Path), Secure: k.Secure, HTTPOnly: k.HTTPOnly, SameSite: k.SameSite,
	}
}

// checkReverse reports problems of a route's changes to addresses and cookies in answers.
func checkReverse(c *config.Checker, r *Route) {
	if l := r.RewriteLocation; l != nil {
		if r.answersItself() {
			c.Report(c.Mark(&r.RewriteLocation), "rewrite_location: a route with \"redirect\" or \"respond\" sends no request to an upstream")
		}
		checkReplacements(c, "replace", l.Replace, httpproxy.CheckLocation)
	}
	k := r.RewriteCookies
	if k == nil {
		return
	}
	if r.answersItself() {
		c.Report(c.Mark(&r.RewriteCookies), "rewrite_cookies: a route with \"redirect\" or \"respond\" sends no request to an upstream")
	}
	checkReplacements(c, "domain", k.Domain, httpproxy.CheckCookieDomain)
	checkReplacements(c, "path", k.Path, httpproxy.CheckCookiePath)
	if k.SameSite == httpproxy.SameSiteNone && !k.Secure {
		c.Warn(c.Mark(&k.SameSite), "same_site: browsers refuse cookies with none that are not secure; secure: true adds that")
	}
}

// checkReplacements reports entries that check refuses.
func checkReplacements(c *config.Checker, key string, all []Match, check func(httpproxy.Replacement) error) {
	for i := range all {
		m := &all[i]
		if m.Value == "" {
			if c.NoProblemAt(&m.Value) { // {} in place of a value
				c.Report(c.Mark(&m.Value, &m.Name), "%s: %q: want what takes its place", key, config.Clip(m.Name))
			}
			continue
		}
		if err := check(httpproxy.Replacement{From: m.Name, To: m.Value}); err != nil {
			c.Report(c.Mark(&m.Name), "%s: %v", key, err)
		}
	}
}
