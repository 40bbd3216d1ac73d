package tracing

import (
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// Status is the element of "tracing" in /api/v1/status.
type Status struct {
	Endpoint string `json:"endpoint"`
	Waiting  int    `json:"waiting"`         // spans, for the collector
	Sent     uint64 `json:"sent"`            // spans
	Dropped  uint64 `json:"dropped"`         // that found no room
	Failed   uint64 `json:"failed"`          // that the collector did not take
	Error    string `json:"error,omitempty"` // of the last request to the collector; empty: it succeeded
}

func (e *exporter) status() Status {
	s := Status{Endpoint: e.settings.url(), Waiting: e.waiting(), Sent: e.sent.Load(), Dropped: e.dropped.Load(), Failed: e.failed.Load()}
	if err := e.lastError.Load(); err != nil {
		s.Error = *err
	}
	return s
}

var report = admin.Report[Status]{
	Key: "tracing", Title: "Tracing",
	Columns: []admin.Column[Status]{
		admin.Text("collector", func(s Status) string { return s.Endpoint }),
		admin.Count("waiting", func(s Status) float64 { return float64(s.Waiting) }),
		admin.Count("sent", func(s Status) float64 { return float64(s.Sent) }),
		admin.Count("lost", func(s Status) float64 { return float64(s.Dropped + s.Failed) }),
		admin.Error("error", func(s Status) string { return s.Error }),
	},
	Labels: []string{"endpoint"},
	Values: func(s Status) []string { return []string{s.Endpoint} },
	Metrics: []admin.RowMetric[Status]{
		admin.Gauge("tracing_waiting_spans", "Spans that wait for the collector.", func(s Status) float64 { return float64(s.Waiting) }),
		admin.Counter("tracing_sent_spans_total", "Spans that the collector has taken.", func(s Status) float64 { return float64(s.Sent) }),
		admin.Counter("tracing_dropped_spans_total", "Spans that are lost because too many waited.", func(s Status) float64 { return float64(s.Dropped) }),
		admin.Counter("tracing_failed_spans_total", "Spans that are lost because the collector did not take them.", func(s Status) float64 { return float64(s.Failed) }),
	},
	Trouble: func(s Status, _ time.Time) string {
		if s.Error == "" {
			return ""
		}
		return "the collector of traces " + s.Endpoint + " takes no spans: " + s.Error
	},
}
