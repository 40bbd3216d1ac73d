package gateway

import (
	"sync"
	"time"

	"github.com/headpond/headpond/traffic"
	"github.com/headpond/headpond/upstream"
)

// recentAnswers are the counters of an upstream's endpoints in the last minute. The zero value is usable.
type recentAnswers struct {
	mu      sync.Mutex
	windows map[string]*traffic.Window // by address
}

// keep records the counters, and forgets those of endpoints that have left.
func (r *recentAnswers) keep(now time.Time, s *upstream.Status) {
	if s.Traffic == nil || s.Traffic.Summary == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	windows := make(map[string]*traffic.Window, len(s.Endpoints))
	for i := range s.Endpoints {
		address := s.Endpoints[i].Address
		w := r.windows[address]
		if w == nil {
			w = traffic.NewWindow(time.Time{}) // Keep forgets that beginning: what was counted before now may be of any age
		}
		w.Keep(now, countOf(s, i))
		windows[address] = w
	}
	r.windows = windows
}

// since returns what each endpoint has counted in the last minute, nil if the protocol has no figures of that kind. Endpoints
// that were never kept have counted nothing.
func (r *recentAnswers) since(now time.Time, s *upstream.Status) []traffic.Total {
	if s.Traffic == nil || s.Traffic.Summary == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]traffic.Total, len(s.Endpoints))
	for i := range s.Endpoints {
		if w := r.windows[s.Endpoints[i].Address]; w != nil {
			list[i], _ = w.Since(now, countOf(s, i))
		}
	}
	return list
}

// countOf returns the present counters of an endpoint, zero if an operator has removed it.
func countOf(s *upstream.Status, i int) (t traffic.Total) {
	if s.Endpoints[i].Absent {
		return t
	}
	return traffic.Snapshot{Schema: s.Traffic, Rows: []traffic.Row{s.Endpoints[i].Traffic}}.Total()
}
