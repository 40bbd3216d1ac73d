package protocols

import (
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/httpproxy"
)

// AccessLog is a file with a line for each request; see httpproxy.AccessLog.
type AccessLog struct {
	Path   config.LogPath `conf:"path" required:"true"`  // listeners with the same path share the file
	Format string         `conf:"format" default:"json"` // json, common, combined, or a text with variables
	Query  bool           `conf:"query"`                 // log queries, which may hold secrets

	MinStatus  int           `conf:"min_status" default:"0" min:"0" max:"599"` // as in httpproxy.LogFilter, like the next two
	SlowerThan time.Duration `conf:"slower_than" default:"never" min:"1ms" max:"168h" never:"0s"`
	Sample     int           `conf:"sample" default:"0" min:"0" max:"1000000"`
}

// RouteLog says which requests of a route are in the access logs.
type RouteLog struct {
	Enabled    bool          `conf:"enabled" default:"true"`
	MinStatus  int           `conf:"min_status" default:"0" min:"0" max:"599"`
	SlowerThan time.Duration `conf:"slower_than" default:"never" min:"1ms" max:"168h" never:"0s"`
	Sample     int           `conf:"sample" default:"0" min:"0" max:"1000000"`
}

// filter returns the proxy's form; nil = the listener's decides.
func (r *RouteLog) filter() *httpproxy.LogFilter {
	if r == nil || r.MinStatus == 0 && r.SlowerThan == 0 && r.Sample == 0 {
		return nil
	}
	return &httpproxy.LogFilter{MinStatus: r.MinStatus, SlowerThan: r.SlowerThan, Sample: r.Sample}
}

// checkRouteLog reports conditions without effect.
func checkRouteLog(c *config.Checker, r *RouteLog) {
	if r == nil {
		return
	}
	if !r.Enabled && r.filter() != nil {
		c.Report(c.Mark(&r.MinStatus, &r.SlowerThan, &r.Sample), "access_log: the route has no lines, because of enabled: false")
	}
}

// settings returns the proxy's form.
func (a *AccessLog) settings(l extend.Listener) *httpproxy.AccessLog {
	if a == nil {
		return nil
	}
	return &httpproxy.AccessLog{
		To: l.LogFile(a.Path), Format: a.Format, Query: a.Query,
		Filter: httpproxy.LogFilter{MinStatus: a.MinStatus, SlowerThan: a.SlowerThan, Sample: a.Sample},
	}
}

// httpLogs are the files that a listener writes.
func httpLogs(l *config.Listener) []*config.LogPath {
	if a := config.SectionOf[HTTPListener](l).AccessLog; a != nil {
		return []*config.LogPath{&a.Path}
	}
	return nil
}

// checkAccessLog reports problems of the format. Whether the file can be written shows when it is opened.
func checkAccessLog(c *config.Checker, a *AccessLog) {
	if a == nil {
		return
	}
	if known := httpproxy.LogFormats(); !strings.Contains(a.Format, "{") && !slices.Contains(known, a.Format) {
		c.Unknown(c.Mark(&a.Format, &a.Path), "format", a.Format, known)
		return
	}
	if err := httpproxy.CheckLogFormat(a.Format, a.Query); err != nil {
		c.Report(c.Mark(&a.Format, &a.Path), "format: %v", err)
	}
}

// Tracer is an extend.Part that takes the traces of all http listeners.
type Tracer interface {
	extend.Part
	// Tracer is the same for as long as the Part is.
	Tracer() httpproxy.Tracer
}
