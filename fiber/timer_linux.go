//go:build linux && (amd64 || arm64)

package fiber

import (
	"math"
	"time"
)

// epoch is what the loops' clock counts from; it is monotonic.
var epoch = time.Now()

// nanotime is the loops' clock.
func nanotime() int64 { return int64(time.Since(epoch)) }

// later is a time from now in the loops' clock, or its end.
func later(d time.Duration) int64 {
	now := nanotime()
	if int64(d) > math.MaxInt64-now {
		return math.MaxInt64
	}
	return now + int64(d)
}

// timer wakes a connection's waiters or one fiber. It is embedded, so that arming allocates
// nothing, and belongs to its loop's thread.
type timer struct {
	when  int64
	place int // in the heap, from 1; 0 = not armed
	conn  *Conn
	fiber *coroutine
}

// timers is a binary heap by time. Deadlines are moved far more often than they are reached, so
// moving one later costs nothing: a connection's timer fires at the earliest time it was ever
// armed for, and is armed again then. The heap changes about once per time-out, not per request.
type timers []*timer

func (h *timers) arm(t *timer, when int64) {
	switch {
	case t.place == 0:
		t.when = when
		*h = append(*h, t)
		t.place = len(*h)
		h.up(t.place)
	case when < t.when:
		t.when = when
		h.up(t.place)
	}
}

func (h *timers) disarm(t *timer) {
	if t.place == 0 {
		return
	}
	i, n := t.place, len(*h)
	h.swap(i, n)
	(*h)[n-1] = nil
	*h = (*h)[:n-1]
	t.place = 0
	if i < n {
		h.down(i)
		h.up(i)
	}
}

// next is when the first timer fires; 0 = none is armed.
func (h timers) next() int64 {
	if len(h) == 0 {
		return 0
	}
	return h[0].when
}

func (h timers) swap(i, j int) {
	h[i-1], h[j-1] = h[j-1], h[i-1]
	h[i-1].place, h[j-1].place = i, j
}

func (h timers) up(i int) {
	for i > 1 && h[i/2-1].when > h[i-1].when {
		h.swap(i, i/2)
		i /= 2
	}
}

func (h timers) down(i int) {
	for {
		c := 2 * i
		if c > len(h) {
			return
		}
		if c < len(h) && h[c].when < h[c-1].when {
			c++
		}
		if h[i-1].when <= h[c-1].when {
			return
		}
		h.swap(i, c)
		i = c
	}
}

// expire fires every timer that is due.
func (l *loop) expire() {
	for len(l.timers) > 0 && l.timers[0].when <= l.now {
		t := l.timers[0]
		l.timers.disarm(t)
		switch {
		case t.fiber != nil:
			l.ready(t.fiber)
		default:
			t.conn.expired(l)
		}
	}
}
