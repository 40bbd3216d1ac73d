package upstream

import (
	"sync/atomic"
	"time"
)

// An endpoint is near if its checks take at most twice as long as the nearest one's, and a
// millisecond; it is far again beyond three times, and two milliseconds. So an endpoint between
// these bounds does not change with each check.
const (
	nearFactor, nearExtra = 2, time.Millisecond
	farFactor, farExtra   = 3, 2 * time.Millisecond
)

// distance is how long checks of an endpoint take: a moving average, in which the
// last one counts for a quarter. One that took long for another reason is forgotten
// soon.
type distance struct {
	average atomic.Int64 // nanoseconds; 0 = none has passed
	near    atomic.Bool  // at the last time that was decided
}

// passed takes the time of a check that has passed; one goroutine calls it.
func (d *distance) passed(took time.Duration) {
	average := d.average.Load()
	if average == 0 {
		average = int64(took)
	}
	d.average.Store(max(average+(int64(took)-average)/4, 1))
}

// near returns the near endpoints of list, in their order, and the others. Endpoints without a
// check yet are far, if there are others.
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
