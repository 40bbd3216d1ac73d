// Package ratelimit bounds how often something may happen for each of many keys, such as the addresses of clients.
package ratelimit

import (
	"math"
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

// maxDebt bounds how far Spend goes beyond a rate, in multiples of Rate.Per.
const maxDebt = 100

// Table has the recent events of keys. The zero value is ready. All methods may be called from any
// goroutine.
type Table[K comparable] struct {
	mu sync.Mutex // held for a few instructions
	// due is when a key has its full rate again, in nanoseconds by the caller's clock; in older it is
	// before turned.
	due, older map[K]int64
	turned     int64
	last       int64 // the greatest in due, and lastOlder that in older
	lastOlder  int64
}

// Take counts an event of a key and returns 0, or returns how long the caller must wait and counts
// nothing. now is by a clock of the caller's that never goes back far. All calls for a key
// should use the same rate, and all keys the same Per. The algorithm is the generic cell rate algorithm: each event moves the time at which the key
// has its full rate again one step further, but no further than r.Per away.
func (t *Table[K]) Take(key K, r Rate, now time.Duration) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, per := int64(now), int64(r.Per)
	step := r.step()
	t.turn(at, per)
	due := t.dueOf(key, at)
	if due-at > per-step {
		return time.Duration(due - at - (per - step))
	}
	t.set(key, due+step)
	return 0
}

// Spend counts n events of a key at once, also beyond its rate: the key then owes them, up to a hundred times its rate. A
// negative n gives back events that were counted too many.
func (t *Table[K]) Spend(key K, r Rate, n int64, now time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spend(key, r, n, now)
}

// spend is Spend. mu is held.
func (t *Table[K]) spend(key K, r Rate, n int64, now time.Duration) {
	at, per := int64(now), int64(r.Per)
	t.turn(at, per)
	most := maxDebt * float64(per)
	cost := min(max(float64(n)*float64(per)/float64(r.Count), -most), most)
	t.set(key, min(t.dueOf(key, at)+int64(cost), at+maxDebt*per))
}

// Reserve returns what is left of a key's rate. If that is at least 1, it counts n events of the key, as Spend does.
func (t *Table[K]) Reserve(key K, r Rate, n int64, now time.Duration) Level {
	t.mu.Lock()
	defer t.mu.Unlock()
	level := t.level(key, r, now)
	if level.Wait == 0 && n > 0 {
		t.spend(key, r, n, now)
	}
	return level
}

// turn drops the entries that are due, or half of all if there are too many. mu is held.
func (t *Table[K]) turn(at, per int64) {
	if t.due != nil && len(t.due) < MaxKeys/2 && (at-t.turned <= per || at < t.lastOlder) {
		return
	}
	if t.due, t.older = t.older, t.due; t.due == nil {
		t.due = make(map[K]int64)
	}
	clear(t.due)
	t.turned, t.last, t.lastOlder = at, 0, t.last
}

// dueOf returns when a key has its full rate again: now or later. mu is held.
func (t *Table[K]) dueOf(key K, at int64) int64 {
	due, ok := t.due[key]
	if !ok {
		due = t.older[key]
	}
	return max(due, at)
}

func (t *Table[K]) set(key K, due int64) {
	t.due[key] = due
	t.last = max(t.last, due)
}

// step is the time of one event.
func (r Rate) step() int64 { return max(int64(r.Per)/int64(r.Count), 1) }

// Level is what is left of a key's rate.
type Level struct {
	Left int64         // events; negative: so many are owed
	Wait time.Duration // until Left is at least 1
	Full time.Duration // until the key has its full rate
}

// Level returns what is left of a key's rate. It counts nothing.
func (t *Table[K]) Level(key K, r Rate, now time.Duration) Level {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.level(key, r, now)
}

// level is Level. mu is held.
func (t *Table[K]) level(key K, r Rate, now time.Duration) Level {
	full, per := t.dueOf(key, int64(now))-int64(now), int64(r.Per)
	return Level{
		Left: int64(math.Floor(float64(per-full)/float64(per)*float64(r.Count) + 1e-6) /* of rounding */),
		Wait: time.Duration(max(full-(per-r.step()), 0)), Full: time.Duration(full),
	}
}

// Left returns how many events of a key Take would count now, one after the other. It counts nothing.
func (t *Table[K]) Left(key K, r Rate, now time.Duration) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, per := int64(now), int64(r.Per)
	return int(max(per-(t.dueOf(key, at)-at), 0) / r.step())
}

// Known returns the number of keys in the table.
func (t *Table[K]) Known() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.due) + len(t.older)
}
