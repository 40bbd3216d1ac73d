package protocols

import (
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/httpwire"
)

// Affinity says which requests go to the same endpoint; see httpproxy.Affinity.
type Affinity struct {
	Header    string        `conf:"header"`                                     // a header whose value is the key
	Cookie    string        `conf:"cookie"`                                     // a cookie whose value is the key
	Prompt    int           `conf:"prompt" default:"0" max:"65536"`             // how many bytes of the prompt in a JSON body are the key
	SetCookie bool          `conf:"set_cookie"`                                 // clients without the cookie get one
	MaxAge    time.Duration `conf:"max_age" default:"0s" min:"0s" max:"87600h"` // how long they keep it; 0: until they end
	MaxLoad   int           `conf:"max_load" default:"150" max:"10000"`         // percent of its share that a key's endpoint takes; 0: any number
}

// settings returns the proxy's form.
func (a *Affinity) settings() httpproxy.Affinity {
	if a == nil {
		return httpproxy.Affinity{}
	}
	s := httpproxy.Affinity{Header: a.Header, Cookie: a.Cookie, Prompt: a.Prompt, SetCookie: a.SetCookie, MaxAge: a.MaxAge, MaxLoad: a.MaxLoad}
	switch {
	case a.Cookie != "":
		s.MaxLoad = 0
	case a.MaxLoad == 0:
		s.MaxLoad = -1
	}
	return s
}

// checkAffinity reports problems of a route's affinity.
func checkAffinity(c *config.Checker, r *Route) {
	a := r.Affinity
	if a == nil || !c.NoProblemAt(&r.Affinity) {
		return
	}
	kinds := 0
	for _, is := range []bool{a.Header != "", a.Cookie != "", a.Prompt > 0 || !c.NoProblemAt(&a.Prompt)} {
		if is {
			kinds++
		}
	}
	if kinds != 1 {
		c.Report(c.Mark(&r.Affinity), "affinity: want one of header, cookie and prompt, as in affinity: {header: X-Session}")
		return
	}
	name := func(key string, field *string, what string) {
		if *field != "" && c.NoProblemAt(field) && (!httpwire.ValidToken(*field) || len(*field) > 256) {
			c.Report(c.Mark(field), "%s: %q: want the name of a %s: up to 256 letters, digits and \"-\"", key, config.Clip(*field), what)
		}
	}
	name("header", &a.Header, "header")
	name("cookie", &a.Cookie, "cookie")
	switch cookie := a.Cookie != ""; {
	case !cookie && a.SetCookie:
		c.Report(c.Mark(&a.SetCookie), "set_cookie: there is no \"cookie\"")
	case a.MaxAge > 0 && !a.SetCookie:
		c.Report(c.Mark(&a.MaxAge), "max_age: is of the cookie that is set with set_cookie: true")
	case cookie && a.MaxLoad != httpproxy.DefaultMaxLoad:
		c.Report(c.Mark(&a.MaxLoad), "max_load: a client with a cookie stays at its endpoint, whatever its load")
	case a.MaxLoad > 0 && a.MaxLoad < 100:
		c.Report(c.Mark(&a.MaxLoad), "max_load: %d percent of their shares are not enough for all requests; want 100 or more, or 0 for any number", a.MaxLoad)
	}
	if u := c.Config.Upstream(r.Upstream); u != nil && u.Balance != "ring_hash" && c.NoProblemAt(&u.Balance) {
		c.Report(c.Mark(&r.Affinity), "affinity: upstream %q needs balance: ring_hash for it, and has %s", config.Clip(r.Upstream), u.Balance)
	}
}
