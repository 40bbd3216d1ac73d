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
// alternating keys and values, so that an operator finds the lines of a counter by its reason. It logs at most ten
// lines a second for each reason, because a dead backend can fail thousands of clients a second. The
// first line after omitted ones has their number in unlogged_before. When no further line comes, the last omitted one
// is logged some seconds later.
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
	if show {
		args = append([]any{"reason", reason}, args...)
	}
	s.reports.log(reason, time.Now(), func(skipped int) {
		if skipped > 0 {
			args = append(args, "unlogged_before", skipped)
		}
		log.Log(context.Background(), level, msg, args...)
	})
}

// reportLimit permits reportBurst lines a second for each reason.
type reportLimit struct {
	mu      sync.Mutex
	reasons map[string]*reportWindow
	over    bool // no timer starts any more
}

// reportWindow counts the lines of one second, which begins with the first line.
type reportWindow struct {
	began   time.Time
	lines   int
	skipped int
	last    func(skipped int) // logs the last skipped one; nil = none is skipped
	timer   *time.Timer       // does so when no more come
}

// log calls line, with the number of lines that were omitted since the last one, or omits it. Of omitted lines that no
// other follows for some time, the last one is logged after all, so that the log has their number.
func (r *reportLimit) log(reason string, now time.Time, line func(skipped int)) {
	r.mu.Lock()
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
		if w.last = line; w.timer == nil && !r.over {
			w.timer = time.AfterFunc(2*time.Second, func() { r.settle(w) })
		}
		r.mu.Unlock()
		return
	}
	w.lines++
	skipped := w.skipped
	w.skipped, w.last = 0, nil
	r.mu.Unlock()
	line(skipped)
}

// settle logs the last omitted line if its second is over.
func (r *reportLimit) settle(w *reportWindow) {
	r.mu.Lock()
	left := time.Until(w.began.Add(time.Second))
	if w.last != nil && left > 0 && !r.over {
		w.timer.Reset(left + time.Second)
		r.mu.Unlock()
		return
	}
	w.timer = nil
	line, skipped := w.last, w.skipped
	w.skipped, w.last = 0, nil
	r.mu.Unlock()
	if line != nil {
		line(skipped - 1)
	}
}

// end logs what settle would log later.
func (r *reportLimit) end() {
	r.mu.Lock()
	r.over = true
	var open []*reportWindow
	for _, w := range r.reasons {
		if w.timer != nil && w.timer.Stop() {
			open = append(open, w)
		}
	}
	r.mu.Unlock()
	for _, w := range open {
		r.settle(w)
	}
}
