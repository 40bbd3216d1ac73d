package gateway

import (
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/internal/logfile"
	"github.com/headpond/headpond/listener"
)

// logPathsOf returns the fields of a listener that name files it writes.
func logPathsOf(l *config.Listener) []*config.LogPath {
	if p := extend.ProtocolOf(l.Protocol); p != nil && p.Logs != nil && l.Section != nil {
		return p.Logs(l)
	}
	return nil
}

// logPaths lists the files that the listeners of cfg write; nil has none.
func logPaths(cfg *config.Config) (paths []string) {
	if cfg == nil {
		return nil
	}
	for i := range cfg.Listeners {
		for _, path := range logPathsOf(&cfg.Listeners[i]) {
			paths = append(paths, string(*path))
		}
	}
	return paths
}

// planLogs opens the files of the access logs, also those that are open already: tools that rotate
// logs rename files and reload the gateway.
func (g *Gateway) planLogs(p *plan) error {
	o, err := g.accessLogs.Open(logPaths(p.New))
	if err != nil {
		return err
	}
	p.Abort = append(p.Abort, o.Abort)
	p.Swap = append(p.Swap, o.Commit)
	return nil
}

// logFile is extend.Listener.LogFile. In a check no file is open.
func (g *Gateway) logFile(path config.LogPath) listener.LineWriter {
	if g.accessLogs != nil {
		if f := g.accessLogs.File(string(path)); f != nil {
			return f
		}
	}
	return noLog{}
}

// noLog stands for the files of a configuration that is checked only.
type noLog struct{}

// WriteLine implements listener.LineWriter.
func (noLog) WriteLine(int, []byte) {}

// checkLogs reports files that a listener cannot write.
func checkLogs(l *config.Listener, report func(err error, at any)) {
	for _, path := range logPathsOf(l) {
		if err := logfile.Check(string(*path)); err != nil {
			report(err, path)
		}
	}
}

// AccessLogStatus is an element of "access_logs" in /api/v1/status: the counters of one file.
type AccessLogStatus struct {
	Path    string `json:"path"`
	Written uint64 `json:"written"`         // lines
	NoRoom  uint64 `json:"no_room"`         // lines lost because the file takes them too slowly
	Failed  uint64 `json:"failed"`          // lines lost because they could not be written
	Error   string `json:"error,omitempty"` // of the last write; empty: it succeeded
}

var accessLogReport = admin.Report[AccessLogStatus]{
	Key: "access_logs", Title: "Access logs",
	Columns: []admin.Column[AccessLogStatus]{
		admin.Text("file", func(s AccessLogStatus) string { return s.Path }),
		admin.Count("lines", func(s AccessLogStatus) float64 { return float64(s.Written) }),
		admin.Count("lost", func(s AccessLogStatus) float64 { return float64(s.NoRoom + s.Failed) }),
		admin.Error("error", func(s AccessLogStatus) string { return s.Error }),
	},
	Labels: []string{"path"},
	Values: func(s AccessLogStatus) []string { return []string{s.Path} },
	Metrics: []admin.RowMetric[AccessLogStatus]{
		admin.Counter("access_log_lines_total", "Lines written to the file of an access log.",
			func(s AccessLogStatus) float64 { return float64(s.Written) }),
		admin.Counter("access_log_lines_no_room_total", "Lines for an access log that are lost because its file takes them more slowly than they come.",
			func(s AccessLogStatus) float64 { return float64(s.NoRoom) }),
		admin.Counter("access_log_lines_failed_total", "Lines for an access log that are lost because they could not be written.",
			func(s AccessLogStatus) float64 { return float64(s.Failed) }),
	},
	Trouble: func(s AccessLogStatus, _ time.Time) string {
		if s.Error == "" {
			return ""
		}
		return "the access log " + s.Path + " cannot be written: " + s.Error
	},
}

// showLogs returns the rows of the access logs.
func (g *Gateway) showLogs() admin.Addition {
	var rows []AccessLogStatus
	if g.accessLogs != nil {
		for _, s := range g.accessLogs.States() {
			rows = append(rows, AccessLogStatus(s))
		}
	}
	return accessLogReport.Of(rows)
}
