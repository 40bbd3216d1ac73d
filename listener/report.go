package listener

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// reportBurst is how many lines a second Report writes for one reason.
const reportBurst = 10

// Report counts a problem of a session under a reason (see the Reason constants) and logs msg with
// args, key and value in turn. It logs at most ten lines a second for each reason, because a dead
// backend fails thousands of clients a second. The first line after a gap has the number of omitted
// lines in unlogged_before; the counters count all.
func (s *Server) Report(reason string, level slog.Level, msg string, args ...any) {
	s.CountError(reason)
	s.LogLimited(reason, level, msg, args...)
}

// LogLimited is Report without the counting, for events that are not errors of the session. reason is the key of the
// rate limit.
func (s *Server) LogLimited(reason string, level slog.Level, msg string, args ...any) {
	log := s.config().Logger
	if !log.Enabled(context.Background(), level) {
		return
	}
	skipped, ok := s.reports.next(reason, time.Now())
	if !ok {
		return
	}
	if skipped > 0 {
		args = append(args, "unlogged_before", skipped)
	}
	log.Log(context.Background(), level, msg, args...)
}

// reportLimit lets reportBurst lines a second through for each reason.
type reportLimit struct {
	mu      sync.Mutex
	reasons map[string]*reportWindow
}

// reportWindow is a second, beginning with its first line.
type reportWindow struct {
	began   time.Time
	lines   int
	skipped int
}

// next reports whether to log now, and how many lines were left out since the last.
func (r *reportLimit) next(reason string, now time.Time) (skipped int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.reasons[reason]
	if w == nil {
		if r.reasons == nil {
			r.reasons = make(map[string]*reportWindow)
		}
		w = &reportWindow{began: now}
		r.reasons[reason] = w
	}
	if now.Sub(w.began) >= time.Second {
		w.began, w.lines = now, 0
	}
	if w.lines >= reportBurst {
		w.skipped++
		return 0, false
	}
	w.lines++
	skipped, w.skipped = w.skipped, 0
	return skipped, true
}
