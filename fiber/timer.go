package fiber

import (
	"math"
	"time"
)

// epoch is the origin of the loops' monotonic clock.
var epoch = time.Now()

// nanotime returns the time of the loops' clock.
func nanotime() int64 { return int64(time.Since(epoch)) }

// Now returns the time. On a fiber it is the beginning of the loop's current tick, so that the
// clock need not be read.
func Now() time.Time {
	if f := currentFiber(); f != nil {
		return f.loop.began
	}
	return time.Now()
}

// clockAt converts a time to the loops' clock. For a time without a monotonic reading it uses the current difference to
// the wall clock.
func clockAt(t time.Time) int64 {
	if t == t.Round(0) { //nolint:staticcheck // Equal does not tell whether there is a monotonic reading
		return addClamped(time.Until(t))
	}
	return int64(t.Sub(epoch))
}

// addClamped returns the time d from now in the loops' clock, or the largest possible one.
func addClamped(d time.Duration) int64 { return after(nanotime(), d) }

// after returns the time d after now, or the largest possible one.
func after(now int64, d time.Duration) int64 { return now + min(int64(d), math.MaxInt64-now) }

// timer wakes a connection's waiters or a fiber that sleeps, or rings an Alarm.
type timer struct {
	when  int64
	owner timed
}

// timed is what a timer is for. Its methods are called on the loop's thread.
type timed interface {
	// placed stores the timer's index in the heap, from 1; 0 = it is not armed.
	placed(index int32)
	// expired is called when the timer has fired, and is no longer armed.
	expired(l *loop)
}

func (c *Conn) placed(index int32)   { c.timer = index }
func (*coroutine) placed(int32)      {} // a fiber sleeps to the end
func (f *coroutine) expired(l *loop) { l.ready(f) }

// timers is a binary heap ordered by time. Deadlines are moved far more often than they are reached, so moving one
// later costs nothing: a connection's timer fires at the earliest time that it was ever armed for, and is then armed
// again. The heap changes about once for each time-out, not for each request. It belongs to its loop's thread.
type timers []timer

// arm makes the loop call c.expired at the time when, or earlier.
func (h *timers) arm(c *Conn, when int64) {
	switch i := int(c.timer); {
	case i == 0:
		h.add(timer{when, c})
	case when < (*h)[i-1].when:
		(*h)[i-1].when = when
		h.up(i)
	}
}

// sleep makes f ready at the time when.
func (h *timers) sleep(f *coroutine, when int64) { h.add(timer{when, f}) }

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
	(*h)[n-1].owner.placed(0)
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

// placed tells the owner of timer i its index.
func (h timers) placed(i int) { h[i-1].owner.placed(int32(i)) }

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
		t.owner.expired(l)
	}
}
