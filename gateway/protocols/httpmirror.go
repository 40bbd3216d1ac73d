package protocols

import (
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/httpproxy"
)

// Mirror sends copies of a route's requests to another upstream; see httpproxy.Mirror. The file may have just the name of
// the upstream instead of a mapping.
type Mirror struct {
	Upstream string `conf:"upstream" required:"true"`
	Percent  int    `conf:"percent" default:"100" min:"0" max:"100"`
	MaxBody  int    `conf:"max_body_kib" default:"64" min:"1" max:"16384"`
}

// settings returns the proxy's form.
func (m *Mirror) settings(l extend.Listener) (httpproxy.Mirror, error) {
	if m == nil {
		return httpproxy.Mirror{}, nil
	}
	runs, err := extend.Runs[*httpproxy.Upstream](l, m.Upstream)
	return httpproxy.Mirror{Upstream: runs, Percent: m.Percent, MaxBody: int64(m.MaxBody) << 10}, err
}

// checkMirror reports problems of a route's mirror.
func checkMirror(c *config.Checker, r *Route) {
	m := r.Mirror
	if m == nil || !c.NoProblemAt(&r.Mirror, &m.Upstream) {
		return
	}
	if r.answersItself() {
		c.Report(c.Mark(&r.Mirror), "mirror: a route with \"redirect\" or \"respond\" sends no request to an upstream")
		return
	}
	if m.Upstream != "" && m.Upstream == r.Upstream {
		c.Report(c.Mark(&m.Upstream), "upstream: %q is that of the route, too, which would get each request twice; want another one", config.Clip(m.Upstream))
	}
	if u := c.Config.Upstream(m.Upstream); u != nil {
		if keys := config.PartOf[HTTPUpstreamKeys](u); keys.Version.Multiplexes() {
			c.Report(c.Mark(&m.Upstream), "upstream: %q speaks %s, and copies use HTTP/1.1; write a second upstream with protocol: h1", config.Clip(m.Upstream), keys.Version)
		}
	}
}
