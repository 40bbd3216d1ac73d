package protocols

import (
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/httpwire"
)

// RateLimit bounds the rate of a route's requests; see httpproxy.RateLimit.
type RateLimit struct {
	Requests int              `conf:"requests" required:"true" min:"1" max:"1000000"`
	Per      time.Duration    `conf:"per" default:"1s" min:"10ms" max:"24h"`
	By       httpproxy.RateBy `conf:"by" default:"client"`
	Header   string           `conf:"header"` // requests are counted by this header's value; requests without the header by By
}

// settings returns the proxy's form.
func (r *RateLimit) settings() httpproxy.RateLimit {
	if r == nil {
		return httpproxy.RateLimit{}
	}
	return httpproxy.RateLimit{Requests: r.Requests, Per: r.Per, By: r.By, Header: r.Header}
}

// checkRateLimit reports problems of a route's rate limit.
func checkRateLimit(c *config.Checker, r *Route) {
	if limit := r.RateLimit; limit != nil {
		checkCountedBy(c, r, &limit.By, &limit.Header)
	}
}

// checkCountedBy reports problems of what requests or tokens are counted by.
func checkCountedBy(c *config.Checker, r *Route, by *httpproxy.RateBy, header *string) {
	if *by == httpproxy.RateByUser && r.BasicAuth == nil && r.BearerAuth == nil {
		help := `add "bearer_auth" or "basic_auth"`
		if r.ForwardAuth != nil {
			help = `with "forward_auth" count by a "header" of its "response_headers"`
		}
		c.Report(c.Mark(by), "by: the route does not know its users; %s", help)
	}
	switch {
	case *header == "" || !c.NoProblemAt(header):
	case !httpwire.ValidToken(*header) || len(*header) > 256:
		c.Report(c.Mark(header), "header: %q: want the name of a header: up to 256 letters, digits and \"-\"", config.Clip(*header))
	case strings.EqualFold(*header, "host"):
		c.Report(c.Mark(header), "header: Host cannot be counted by; write a route for each \"host\"")
	}
}
