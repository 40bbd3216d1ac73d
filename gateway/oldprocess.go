package gateway

import (
	"fmt"
	"strconv"
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// OldProcess is an element of "old_processes" in /api/v1/status: a process that this one has taken over from, and whose
// sessions have not ended.
type OldProcess struct {
	PID      int       `json:"pid"`
	Version  string    `json:"version"`
	Sessions int       `json:"sessions"`
	Since    time.Time `json:"since,omitzero"`    // when it stopped accepting; missing: it has not
	Until    time.Time `json:"until,omitzero"`    // when its sessions are cut off; missing: it does not drain yet
	Silent   bool      `json:"silent"`            // it does not answer; the other fields are from its last answer
	Answered time.Time `json:"answered,omitzero"` // when that was; missing: there was none
	now      time.Time // of the report
}

// state returns what the process does, in words.
func (p OldProcess) state() (admin.Level, string) {
	switch {
	case p.Silent:
		return admin.Bad, "does not answer"
	case p.Until.IsZero():
		return admin.Neutral, "handing over"
	}
	return admin.Neutral, "draining"
}

var oldProcessReport = admin.Report[OldProcess]{
	Key: "old_processes", Title: "Old processes",
	Columns: []admin.Column[OldProcess]{
		admin.Text("old process", func(p OldProcess) string { return strconv.Itoa(p.PID) }),
		admin.State("state", OldProcess.state),
		admin.Count("sessions", func(p OldProcess) float64 { return float64(p.Sessions) }),
		admin.Text("for", func(p OldProcess) string { return span(p.now.Sub(p.Since), !p.Since.IsZero()) }),
		admin.Text("ends within", OldProcess.endsWithin),
		admin.Text("version", func(p OldProcess) string { return p.Version }),
	},
	Labels: []string{"pid"},
	Values: func(p OldProcess) []string { return []string{strconv.Itoa(p.PID)} },
	Metrics: []admin.RowMetric[OldProcess]{
		admin.Gauge("old_process_sessions", "Sessions of a process that drains after an upgrade.",
			func(p OldProcess) float64 { return float64(p.Sessions) }),
	},
	Trouble: func(p OldProcess, _ time.Time) string {
		if !p.Silent {
			return ""
		}
		return fmt.Sprintf("the old process %d does not answer: its sessions are not shown, and cancel requests for them are lost; "+
			"if it still runs after its drain_timeout, end it with kill -9 %d", p.PID, p.PID)
	},
}

// endsWithin formats how long the process may still drain.
func (p OldProcess) endsWithin() string {
	left := p.Until.Sub(p.now)
	if left > forever/2 { // drain_timeout: never
		return "never"
	}
	return span(left, !p.Until.IsZero())
}

// span formats a duration in whole seconds; "-" if it is not known.
func span(d time.Duration, known bool) string {
	if !known {
		return "-"
	}
	return max(d, 0).Round(time.Second).String()
}

// statuses returns the progress of the older processes.
func (ps *processes) statuses(now time.Time) (rows []OldProcess) {
	for _, p := range ps.older() {
		p.mu.Lock()
		s, at := p.status, p.statusAt
		p.mu.Unlock()
		rows = append(rows, OldProcess{
			PID: p.pid, Version: s.Version, Sessions: s.Sessions, Since: s.Since, Until: s.Until, Silent: p.silent.Load(), Answered: at, now: now,
		})
	}
	return rows
}
