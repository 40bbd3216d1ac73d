// Package ratelimit bounds how often something may happen for each of many keys, such as the addresses of clients.
package ratelimit

import (
	"sync"
	"time"
)

// Rate is how often something may happen: Count times at once after a pause, and then once each Per/Count. Both are more
// than 0.
type Rate struct {
	Count int
	Per   time.Duration
}

// MaxKeys is how many keys a Table knows at most, in two halves. They take about 3 MiB. When half as many others or more come
// within Rate.Per, as in a flood from everywhere, a key may be forgotten, and counts as if it came for the first time.
const MaxKeys = 1 << 16

// Table has the keys that have happened lately. The zero value is ready. All methods may be called from any goroutine.
type Table[K comparable] struct {
	mu sync.Mutex // held for a few instructions
	// due is when a key has used nothing of its rate any more, in nanoseconds by the caller's clock; older is due before turned.
	due, older map[K]int64
	turned     int64
}

// Take counts that a key happens now, by a clock of the caller's that never goes back far, and returns 0; or it returns
// how long the caller must wait, and counts nothing. The rates of all calls should be the same. It is the generic cell
// rate algorithm: each time moves the moment at which the key has used nothing any more one step further, and that moment
// is never more than r.Per away.
func (t *Table[K]) Take(key K, r Rate, now time.Duration) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, per := int64(now), int64(r.Per)
	step := max(per/int64(r.Count), 1)
	if t.due == nil || len(t.due) >= MaxKeys/2 || at-t.turned > per { // entries of older have been due by then, or are forgotten
		if t.due, t.older = t.older, t.due; t.due == nil {
			t.due = make(map[K]int64)
		}
		clear(t.due)
		t.turned = at
	}
	due, ok := t.due[key]
	if !ok {
		due = t.older[key]
	}
	if due = max(due, at); due-at > per-step {
		return time.Duration(due - at - (per - step))
	}
	t.due[key] = due + step
	return 0
}

// Known is how many keys the table knows.
func (t *Table[K]) Known() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.due) + len(t.older)
}
