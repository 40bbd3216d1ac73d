package protocols

import (
	"slices"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/httpproxy"
)

// AccessLog is a file with a line for each request; see httpproxy.AccessLog.
type AccessLog struct {
	Path   config.LogPath `conf:"path" required:"true"`  // listeners with the same path share the file
	Format string         `conf:"format" default:"json"` // json, common, combined, or a text with variables
	Query  bool           `conf:"query"`                 // log queries, which may hold secrets
}

// settings returns the proxy's form.
func (a *AccessLog) settings(l extend.Listener) *httpproxy.AccessLog {
	if a == nil {
		return nil
	}
	return &httpproxy.AccessLog{To: l.LogFile(a.Path), Format: a.Format, Query: a.Query}
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
