package protocols

import (
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/httpwire"
)

// Canary sends a share of a route's requests to another upstream; see httpproxy.Canary.
type Canary struct {
	Upstream  string             `conf:"upstream" required:"true"`
	Percent   int                `conf:"percent" required:"true" min:"0" max:"100"`
	By        httpproxy.CanaryBy `conf:"by"`                                         // "": request, unless header or cookie is given
	Header    string             `conf:"header"`                                     // the value of this header decides
	Cookie    string             `conf:"cookie"`                                     // the value of this cookie decides
	SetCookie bool               `conf:"set_cookie"`                                 // clients without the cookie get one
	MaxAge    time.Duration      `conf:"max_age" default:"0s" min:"0s" max:"87600h"` // the cookie's lifetime; 0: until the browser ends
}

// settings returns the proxy's form.
func (k *Canary) settings(l extend.Listener) (httpproxy.Canary, error) {
	if k == nil {
		return httpproxy.Canary{}, nil
	}
	runs, err := extend.Runs[*httpproxy.Upstream](l, k.Upstream)
	return httpproxy.Canary{
		Upstream: runs, Percent: k.Percent, By: k.By, Header: k.Header, Cookie: k.Cookie, SetCookie: k.SetCookie, MaxAge: k.MaxAge,
	}, err
}

// checkCanary reports problems of a route's canary.
func checkCanary(c *config.Checker, r *Route) {
	k := r.Canary
	if k == nil || !c.NoProblemAt(&r.Canary) {
		return
	}
	checkCanaryKey(c, r)
	switch {
	case len(r.Groups) > 0:
		c.Report(c.Mark(&r.Canary), "canary: the \"groups\" of the route choose the upstream")
	case k.Upstream != "" && k.Upstream == r.Upstream && c.NoProblemAt(&k.Upstream):
		c.Report(c.Mark(&k.Upstream), "upstream: %q is that of the route, too; want another one", config.Clip(k.Upstream))
	case r.Affinity != nil && r.Affinity.SetCookie && k.SetCookie && k.Cookie == r.Affinity.Cookie:
		c.Report(c.Mark(&k.Cookie), "cookie: %q is set for \"affinity\" already; want another name", config.Clip(k.Cookie))
	}
	if u := c.Config.Upstream(k.Upstream); r.Affinity != nil && u != nil && u.Balance != "ring_hash" && c.NoProblemAt(&u.Balance) {
		c.Report(c.Mark(&k.Upstream), "upstream: %q needs balance: ring_hash for the \"affinity\" of the route, and has %s", config.Clip(k.Upstream), u.Balance)
	}
}

// checkCanaryKey reports problems of the key that selects a canary's requests.
func checkCanaryKey(c *config.Checker, r *Route) {
	k := r.Canary
	kinds := 0
	for _, is := range []bool{k.By != "", k.Header != "", k.Cookie != ""} {
		if is {
			kinds++
		}
	}
	if kinds > 1 {
		c.Report(c.Mark(&r.Canary), "canary: want one of by, header and cookie, as in canary: {upstream: next, percent: 5, by: client}")
		return
	}
	for key, field := range map[string]*string{"header": &k.Header, "cookie": &k.Cookie} {
		if *field != "" && c.NoProblemAt(field) && (!httpwire.ValidToken(*field) || len(*field) > 256) {
			c.Report(c.Mark(field), "%s: %q: want the name of a %s: up to 256 letters, digits and \"-\"", key, config.Clip(*field), key)
		}
	}
	switch {
	case k.Cookie == "" && k.SetCookie:
		c.Report(c.Mark(&k.SetCookie), "set_cookie: there is no \"cookie\"")
	case k.MaxAge > 0 && !k.SetCookie:
		c.Report(c.Mark(&k.MaxAge), "max_age: is of the cookie that is set with set_cookie: true")
	}
}
