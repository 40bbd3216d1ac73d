package protocols

import (
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/httpwire"
)

// ForwardAuth asks another server about each request; see httpproxy.ForwardAuth. The file may have just the name of the
// upstream instead of a mapping.
type ForwardAuth struct {
	Upstream        string        `conf:"upstream" required:"true"`
	Path            string        `conf:"path" default:"/"`
	Timeout         time.Duration `conf:"timeout" default:"5s" min:"1ms" max:"10m"`
	RequestHeaders  []string      `conf:"request_headers" maxlen:"32"`  // client headers to send with the question; empty: all
	ResponseHeaders []string      `conf:"response_headers" maxlen:"32"` // headers of the answer to add to the backend's request
}

// settings returns the proxy's form.
func (f *ForwardAuth) settings(l extend.Listener) (*httpproxy.ForwardAuth, error) {
	if f == nil {
		return nil, nil
	}
	runs, err := extend.Runs[*httpproxy.Upstream](l, f.Upstream)
	if err != nil {
		return nil, err
	}
	return &httpproxy.ForwardAuth{Upstream: runs, Path: f.Path, Timeout: f.Timeout, RequestHeaders: f.RequestHeaders, ResponseHeaders: f.ResponseHeaders}, nil
}

// checkForwardAuth reports problems of a route that asks another server.
func checkForwardAuth(c *config.Checker, r *Route) {
	f := r.ForwardAuth
	if f == nil {
		return
	}
	if r.BasicAuth != nil {
		c.Report(c.Mark(&r.ForwardAuth), "forward_auth: the route has \"basic_auth\" already")
	}
	if u := c.Config.Upstream(f.Upstream); u != nil {
		if keys := config.PartOf[HTTPUpstreamKeys](u); keys.Version.Multiplexes() {
			c.Report(c.Mark(&f.Upstream), "upstream: %q speaks %s, and auth requests use HTTP/1.1; write a second upstream with protocol: h1", config.Clip(f.Upstream), keys.Version)
		}
	}
	if err := httpproxy.CheckAuthPath(f.Path); err != nil {
		c.Report(c.Mark(&f.Path), "path: %v", err)
	}
	for i := range f.RequestHeaders {
		if name := &f.RequestHeaders[i]; !httpwire.ValidToken(*name) {
			c.Report(c.Mark(name), "request_headers: %q: a header's name has letters, digits and \"-\"", config.Clip(*name))
		}
	}
	for i := range f.ResponseHeaders {
		name := &f.ResponseHeaders[i]
		if err := httpproxy.CheckAuthHeader(*name); err != nil {
			c.Report(c.Mark(name), "response_headers: %v", err)
		}
		if slices.ContainsFunc(f.ResponseHeaders[:i], func(earlier string) bool { return httpproxy.SameHeader(*name, earlier) }) {
			c.Report(c.Mark(name), "response_headers: %s is there twice", config.Clip(*name))
			continue
		}
		checkWrittenOnce(c, r, *name)
	}
}
