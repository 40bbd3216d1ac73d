// Package retrybudget bounds retries as a share of all operations: servers that fail because they are
// overloaded must not get several times as many requests.
package retrybudget

import (
	"sync"
	"time"
)

// Floor is the number of retries that a window allows at any rate of operations.
const Floor = 10

// Budget bounds retries in a sliding window. The caller counts the operations, so an operation without
// retry costs nothing. All methods may be called from any goroutine.
type Budget struct {
	window time.Duration

	mu         sync.Mutex // held for a few dozen instructions
	total      uint64     // operations, at the last Take
	began      time.Time  // of the current window
	before     uint64     // total when it began
	retries    int        // in it
	operations float64    // in the window before
	earlier    float64    // retries in the window before
}

// New returns a Budget whose first window begins now.
func New(window time.Duration, now time.Time) *Budget { return &Budget{window: window, began: now} }

// Take reports whether an operation may be tried again, and counts the retry. In the last window,
// retries are at most percent of the operations, or Floor if that is more. total is the number of
// operations since New; it only grows.
// more, in the last window. total is how many operations there have been since New; it only grows.
func (b *Budget) Take(now time.Time, total uint64, percent int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total = max(b.total, total) // another caller may have read a later total, and called first
	b.slide(now)
	share := 1 - float64(now.Sub(b.began))/float64(b.window) // the part of the previous window that is in the last one
	operations := float64(b.total-b.before) + share*b.operations
	if float64(b.retries)+share*b.earlier+1 > max(Floor, operations*float64(percent)/100) {
		return false
	}
	b.retries++
	return true
}

// slide begins a new window if the current one is over.
func (b *Budget) slide(now time.Time) {
	elapsed := now.Sub(b.began)
	if elapsed < b.window {
		return
	}
	b.operations = float64(b.total-b.before) * float64(b.window) / float64(elapsed)
	b.earlier, b.began = float64(b.retries), b.began.Add(b.window)
	if elapsed >= 2*b.window { // every retry was in the first of these windows
		b.earlier, b.began = 0, now
	}
	b.before, b.retries = b.total, 0
}
