package traffic

import (
	"sync"
	"time"
)

// Summary says which figures of a Row an operator looks at first.
type Summary struct {
	Unit   string // what is counted, in the plural: "requests", "transactions"
	Done   func(*Row) float64
	Failed func(*Row) float64 // those of Done that failed, or the errors that they had
	Time   func(*Row) Histogram
}

// Total is what rows have counted, as a Summary reads it.
type Total struct {
	Done, Failed float64
	Time         Histogram
}

// Total adds up all rows. The Schema must have a Summary.
func (s Snapshot) Total() (t Total) {
	for i := range s.Rows {
		r := &s.Rows[i]
		t.Done += s.Summary.Done(r)
		t.Failed += s.Summary.Failed(r)
		h := s.Summary.Time(r)
		t.Time.Add(&h)
	}
	return t
}

// since returns what t counted after earlier.
func (t Total) since(earlier *Total) Total {
	t.Done -= earlier.Done
	t.Failed -= earlier.Failed
	for i, n := range earlier.Time.Counts {
		t.Time.Counts[i] -= n
	}
	t.Time.Sum -= earlier.Time.Sum
	return t
}

// Window is the last minute of a Total, to tell what is going on now. NewWindow makes one. All methods may be called from any goroutine.
type Window struct {
	mu      sync.Mutex
	samples []sample // oldest first
}

// NewWindow returns the Window of what begins to count now.
func NewWindow(now time.Time) *Window { return &Window{samples: []sample{{at: now}}} }

type sample struct {
	at    time.Time
	total Total
}

// WindowStep is how often Keep should be called, and windowLength how far back a Window reaches.
const (
	WindowStep   = 10 * time.Second
	windowLength = time.Minute
)

// Keep notes what had been counted at a moment, and forgets what is longer ago than a minute.
func (w *Window) Keep(at time.Time, t Total) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := 0
	for old < len(w.samples) && at.Sub(w.samples[old].at) > windowLength {
		old++
	}
	w.samples = append(w.samples[:copy(w.samples, w.samples[old:])], sample{at, t})
}

// Since returns what was counted from the oldest moment that is kept to now, and how long that is: up to a minute and a step. t is
// the present count.
func (w *Window) Since(now time.Time, t Total) (Total, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	oldest := &w.samples[0]
	return t.since(&oldest.total), now.Sub(oldest.at)
}
