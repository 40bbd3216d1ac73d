package protocols

import (
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/httpwire"
)

// CORS lets pages of other origins use a route; see httpproxy.CORS.
type CORS struct {
	Origins         []string      `conf:"origins" required:"true" maxlen:"256"`
	Methods         []string      `conf:"methods" maxlen:"64"`          // empty: those of the route, or the usual ones
	RequestHeaders  []string      `conf:"request_headers" maxlen:"64"`  // empty: all
	ResponseHeaders []string      `conf:"response_headers" maxlen:"64"` // that pages may read
	Credentials     bool          `conf:"credentials"`
	MaxAge          time.Duration `conf:"max_age" default:"10m" min:"1s" max:"24h"` // of the answer to a preflight request
}

// settings returns the proxy's form.
func (k *CORS) settings() *httpproxy.CORS {
	if k == nil {
		return nil
	}
	return &httpproxy.CORS{Origins: k.Origins, Methods: k.Methods, RequestHeaders: k.RequestHeaders, ResponseHeaders: k.ResponseHeaders, Credentials: k.Credentials, MaxAge: k.MaxAge}
}

// checkCORS reports problems of what other origins may do.
func checkCORS(c *config.Checker, r *Route) {
	k := r.CORS
	if k == nil {
		return
	}
	for i := range k.Origins {
		if err := httpproxy.CheckOrigin(k.Origins[i]); err != nil {
			c.Report(c.Mark(&k.Origins[i]), "origins: %v", err)
		}
	}
	if k.Credentials && slices.Contains(k.Origins, "*") {
		c.Report(c.Mark(&k.Credentials), "credentials: not with the origin \"*\": any page could use them then")
	}
	for _, names := range [][]string{k.Methods, k.RequestHeaders, k.ResponseHeaders} {
		for i := range names {
			if !httpwire.ValidToken(names[i]) {
				c.Report(c.Mark(&names[i]), "%q: want the name of a method or header", config.Clip(names[i]))
			}
		}
	}
}
