// Package ratelimit bounds how often something may happen for each of many keys, such as the addresses of clients.
package ratelimit

import (
	"sync"
	"time"
)

// Rate is how often an event may happen: Count times at once after a pause, and then once each
// Per/Count. Both must be more than 0.
type Rate struct {
	Count int
	Per   time.Duration
}

// MaxKeys bounds the keys in a Table, in two halves. They take about 3 MiB. When half as many other
// keys or more come within Rate.Per, as in a flood from many addresses, a key may be forgotten. Its
// next event then counts as its first.
const MaxKeys = 1 << 16

// Table has the recent events of keys. The zero value is ready. All methods may be called from any
// goroutine.
type Table[K comparable] struct {
	mu sync.Mutex // held for a few instructions
	// due is when a key has its full rate again, in nanoseconds by the caller's clock; in older it is
	// before turned.
	due, older map[K]int64
	turned     int64
}

// Take counts an event of a key and returns 0, or returns how long the caller must wait and counts
// nothing. now is by a clock of the caller's that never goes back far. All calls should use the same
// rate. The algorithm is the generic cell rate algorithm: each event moves the time at which the key
// has its full rate again one step further, but no further than r.Per away.
func (t *Table[K]) Take(key K, r Rate, now time.Duration) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, per := int64(now), int64(r.Per)
	step := max(per/int64(r.Count), 1)
	if t.due == nil || len(t.due) >= MaxKeys/2 || at-t.turned > per { // the entries of older are due by now, or are forgotten
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

// Left returns how many events of a key Take would count now, one after the other. It counts nothing.
func (t *Table[K]) Left(key K, r Rate, now time.Duration) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, per := int64(now), int64(r.Per)
	due, ok := t.due[key]
	if !ok {
		due = t.older[key]
	}
	step := max(per/int64(r.Count), 1)
	return int(max(per-(max(due, at)-at), 0) / step)
}

// Known returns the number of keys in the table.
func (t *Table[K]) Known() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.due) + len(t.older)
}
