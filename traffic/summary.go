package traffic

import (
	"sync"
	"time"
)

// Summary says which figures of a Row an operator looks at first.
type Summary struct {
	Unit   string // the counted things, in the plural: "requests", "transactions"
	Done   func(*Row) float64
	Failed func(*Row) float64 // failures among Done, or their errors
	Time   func(*Row) Histogram
	// Failure says what a failure of an endpoint is, such as "a status of 500 or more", and Tolerated which share of Done may
	// fail before an operator is told. They are for schemas of endpoints.
	Failure   string
	Tolerated float64
}

// Total is the sum of rows, as a Summary reads it.
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

// since returns the counts of t after earlier.
func (t Total) since(earlier *Total) Total {
	t.Done -= earlier.Done
	t.Failed -= earlier.Failed
	for i, n := range earlier.Time.Counts {
		t.Time.Counts[i] -= n
	}
	t.Time.Sum -= earlier.Time.Sum
	return t
}

// Window is the last minute of a Total, which shows the current load. NewWindow makes one. All methods may be called
// from any goroutine.
type Window struct {
	mu      sync.Mutex
	samples []sample // oldest first
}

// NewWindow returns the Window of a Total that begins now.
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

// Keep records the count at a moment, and forgets those older than a minute.
func (w *Window) Keep(at time.Time, t Total) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := 0
	for old < len(w.samples) && at.Sub(w.samples[old].at) > windowLength {
		old++
	}
	w.samples = append(w.samples[:copy(w.samples, w.samples[old:])], sample{at, t})
}

// Since returns the count from the oldest kept moment to now, and the time between: up to a minute and a step. t is the
// present count.
func (w *Window) Since(now time.Time, t Total) (Total, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	oldest := &w.samples[0]
	return t.since(&oldest.total), now.Sub(oldest.at)
}
