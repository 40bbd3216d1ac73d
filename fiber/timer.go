package fiber

import (
	"math"
	"time"
)

// epoch is the origin of the loops' monotonic clock.
var epoch = time.Now()

// nanotime returns the time of the loops' clock.
func nanotime() int64 { return int64(time.Since(epoch)) }

// clockAt converts a time to the loops' clock. For a time without a monotonic reading it uses the present difference to
// the wall clock.
func clockAt(t time.Time) int64 {
	if t == t.Round(0) { //nolint:staticcheck // Equal does not tell whether there is a monotonic reading
		return later(time.Until(t))
	}
	return int64(t.Sub(epoch))
}

// later returns the time d from now in the loops' clock, or the largest possible one.
func later(d time.Duration) int64 { return after(nanotime(), d) }

// after returns the time d after now, or the largest possible one.
func after(now int64, d time.Duration) int64 { return now + min(int64(d), math.MaxInt64-now) }

// timer wakes a connection's waiters, or a fiber that sleeps.
type timer struct {
	when  int64
	conn  *Conn // its field timer has the index of this timer
	fiber *coroutine
}

// timers is a binary heap ordered by time. Deadlines are moved far more often than they are reached, so moving one
// later costs nothing: a connection's timer fires at the earliest time that it was ever armed for, and is then armed
// again. The heap changes about once for each time-out, not for each request. It belongs to its loop's thread.
type timers []timer

// arm makes the loop call c.expired at the time when, or earlier.
func (h *timers) arm(c *Conn, when int64) {
	switch i := int(c.timer); {
	case i == 0:
		h.add(timer{when: when, conn: c})
	case when < (*h)[i-1].when:
		(*h)[i-1].when = when
		h.up(i)
	}
}

// sleep makes f ready at the time when.
func (h *timers) sleep(f *coroutine, when int64) { h.add(timer{when: when, fiber: f}) }

func (h *timers) add(t timer) {
	*h = append(*h, t)
	h.placed(len(*h))
	h.up(len(*h))
}

// disarm removes the timer of c, if it has one.
func (h *timers) disarm(c *Conn) {
	if c.timer != 0 {
		h.remove(int(c.timer))
	}
}

// remove removes timer i, counted from 1.
func (h *timers) remove(i int) {
	n := len(*h)
	h.swap(i, n)
	if c := (*h)[n-1].conn; c != nil {
		c.timer = 0
	}
	(*h)[n-1] = timer{}
	*h = (*h)[:n-1]
	if i < n {
		h.down(i)
		h.up(i)
	}
	if len(*h) == 0 && cap(*h) > maxRoom {
		*h = nil
	}
}

// placed stores the index of timer i in its connection.
func (h timers) placed(i int) {
	if c := h[i-1].conn; c != nil {
		c.timer = int32(i)
	}
}

// next returns when the first timer fires; 0 = none is armed.
func (h timers) next() int64 {
	if len(h) == 0 {
		return 0
	}
	return h[0].when
}

func (h timers) swap(i, j int) {
	h[i-1], h[j-1] = h[j-1], h[i-1]
	h.placed(i)
	h.placed(j)
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
		l.timers.remove(1)
		if t.fiber != nil {
			l.ready(t.fiber)
		} else {
			t.conn.expired(l)
		}
	}
}
