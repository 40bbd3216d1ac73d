package acme

import (
	"fmt"
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// CertificateStatus is the certificate for one name, in /api/v1/status.
type CertificateStatus struct {
	Name      string     `json:"name"`
	State     State      `json:"state"`
	Expires   *time.Time `json:"expires"` // null: there is none yet
	Obtained  uint64     `json:"obtained"`
	Failed    uint64     `json:"failed"`     // attempts
	LastError string     `json:"last_error"` // of the last attempt, empty if it went well
	LastTried *time.Time `json:"last_tried"` // when that was; null: there was none since the start
}

// State is the state of a certificate.
type State string

// States of a certificate.
const (
	StateMissing  State = "missing"  // there is none yet
	StateOrdering State = "ordering" // one is being obtained or renewed
	StateValid    State = "valid"
	StateExpired  State = "expired"
)

// rowsOf returns the rows of a manager, which may be nil.
func rowsOf(m *manager) (rows []CertificateStatus) {
	if m == nil {
		return nil
	}
	now := time.Now()
	for _, d := range m.domains.all() {
		row := CertificateStatus{Name: d.name, State: StateMissing, Obtained: d.obtained, Failed: d.failed}
		if end := m.expires(d.name); !end.IsZero() {
			row.Expires, row.State = &end, StateValid
			if end.Before(now) {
				row.State = StateExpired
			}
		}
		if d.ordering {
			row.State = StateOrdering
		}
		if d.err != nil {
			row.LastError = d.err.Error()
		}
		if !d.tried.IsZero() {
			row.LastTried = &d.tried
		}
		rows = append(rows, row)
	}
	return rows
}

var levels = map[State]admin.Level{StateMissing: admin.Bad, StateOrdering: admin.Warn, StateValid: admin.Good, StateExpired: admin.Bad}

var report = admin.Report[CertificateStatus]{
	Key: "acme", Title: "Certificates obtained",
	Columns: []admin.Column[CertificateStatus]{
		admin.Text("certificate", func(s CertificateStatus) string { return s.Name }),
		admin.State("state", func(s CertificateStatus) (admin.Level, string) { return levels[s.State], string(s.State) }),
		admin.Text("expires", func(s CertificateStatus) string {
			if s.Expires == nil {
				return ""
			}
			return s.Expires.UTC().Format("2006-01-02 15:04 MST")
		}),
		admin.Error("error", func(s CertificateStatus) string { return s.LastError }),
	},
	Details: []admin.Column[CertificateStatus]{
		admin.Count("obtained", func(s CertificateStatus) float64 { return float64(s.Obtained) }),
		admin.Count("failed", func(s CertificateStatus) float64 { return float64(s.Failed) }),
	},
	Labels: []string{"name"},
	Values: func(s CertificateStatus) []string { return []string{s.Name} },
	Metrics: []admin.RowMetric[CertificateStatus]{
		admin.Gauge("acme_certificate_expiry_timestamp_seconds", "When the certificate expires; 0 while there is none.", func(s CertificateStatus) float64 {
			if s.Expires == nil {
				return 0
			}
			return float64(s.Expires.Unix())
		}),
		admin.Counter("acme_obtained_total", "Certificates obtained, renewals included.", func(s CertificateStatus) float64 { return float64(s.Obtained) }),
		admin.Counter("acme_failed_total", "Attempts to obtain a certificate that failed.", func(s CertificateStatus) float64 { return float64(s.Failed) }),
	},
	Trouble: func(s CertificateStatus, _ time.Time) string {
		switch {
		case s.LastError != "":
			return fmt.Sprintf("no new certificate for %s is obtained: %s", s.Name, s.LastError)
		case s.State == StateExpired:
			return fmt.Sprintf("the certificate for %s has expired", s.Name)
		}
		return ""
	},
}
