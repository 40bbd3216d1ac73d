package upstream

import (
	"sync/atomic"
	"time"
)

// An endpoint becomes near if its checks take at most twice as long as those of the nearest endpoint plus a
// millisecond, and far again beyond three times plus two milliseconds. The gap keeps an endpoint between these bounds
// from changing with each check.
const (
	nearFactor, nearExtra = 2, time.Millisecond
	farFactor, farExtra   = 3, 2 * time.Millisecond
)

// distance is the time that checks of an endpoint take: a moving average in which the last check counts for a quarter,
// so that a single slow check is soon forgotten.
type distance struct {
	average atomic.Int64 // in nanoseconds; 0 = no check has passed
	near    atomic.Bool  // the last decision
}

// passed records the time of a check that has passed. One goroutine calls it.
func (d *distance) passed(took time.Duration) {
	average := d.average.Load()
	if average == 0 {
		average = int64(took)
	}
	d.average.Store(max(average+(int64(took)-average)/4, 1))
}

// near returns the near endpoints of list, in their order, and the others. Endpoints without a passed check are far if
// there are others.
func near[T any](list []*endpoint[T]) (near, far []*endpoint[T]) {
	best := int64(0)
	for _, e := range list {
		if d := e.distance.average.Load(); d > 0 && (best == 0 || d < best) {
			best = d
		}
	}
	if best == 0 {
		return list, nil
	}
	for _, e := range list {
		limit := nearFactor*best + int64(nearExtra)
		if e.distance.near.Load() {
			limit = farFactor*best + int64(farExtra)
		}
		d := e.distance.average.Load()
		is := d > 0 && d <= limit
		e.distance.near.Store(is)
		if is {
			near = append(near, e)
		} else {
			far = append(far, e)
		}
	}
	return near, far
}
