package listener

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// reportBurst is how many lines a second Report writes for one reason.
const reportBurst = 10

// Report counts a problem of a session with CountError, and logs msg with the reason and args,
// alternating keys and values. So whoever looks for the cause of a counter finds its lines. It logs at most ten
// lines a second for each reason, because a dead backend can fail thousands of clients a second. The
// first line after omitted ones has their number in unlogged_before.
func (s *Server) Report(reason string, level slog.Level, msg string, args ...any) {
	s.CountError(reason)
	s.logLimited(reason, true, level, msg, args)
}

// LogLimited is like Report, but does not count, for events that are not errors of a session.
// reason is only the key of the rate limit.
func (s *Server) LogLimited(reason string, level slog.Level, msg string, args ...any) {
	s.logLimited(reason, false, level, msg, args)
}

func (s *Server) logLimited(reason string, show bool, level slog.Level, msg string, args []any) {
	log := s.config().Logger
	if !log.Enabled(context.Background(), level) {
		return
	}
	skipped, ok := s.reports.next(reason, time.Now())
	if !ok {
		return
	}
	if show {
		args = append([]any{"reason", reason}, args...)
	}
	if skipped > 0 {
		args = append(args, "unlogged_before", skipped)
	}
	log.Log(context.Background(), level, msg, args...)
}

// reportLimit permits reportBurst lines a second for each reason.
type reportLimit struct {
	mu      sync.Mutex
	reasons map[string]*reportWindow
}

// reportWindow counts the lines of one second, which begins with the first line.
type reportWindow struct {
	began   time.Time
	lines   int
	skipped int
}

// next reports whether to log a line now, and how many lines were omitted since the last one.
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
