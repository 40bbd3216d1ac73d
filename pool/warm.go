package pool

import (
	"math"
	"time"
)

const (
	// rateRises and rateFalls are how quickly the measured rate follows the real one: within a second when more resources are used up,
	// and within some seconds when fewer are, so that the second of two bursts finds what the first one needed.
	rateRises = 500 * time.Millisecond
	rateFalls = 5 * time.Second
	// rateSample is the least time in which leases are counted for one sample.
	rateSample = int64(100 * time.Millisecond)
	// minRate is the rate, in leases a second, below which nothing is kept beyond MinIdle: with one every ten seconds, what is kept
	// ready would mostly expire unused.
	minRate = 0.1
	// minSpread is the least number of standard deviations of random arrivals (Poisson) that are kept
	// ready beyond their mean. With three, about one in a thousand arrivals finds no resource ready.
	// Arrivals in bursts need more: while one in maxMissed or more has to wait, the number grows by
	// spreadGrows with each sample, up to maxSpread.
	minSpread, maxSpread = 3.0, 16.0
	spreadGrows          = 1.25
	maxMissed            = 50
	// spreadFalls is how quickly the number falls again: slowly, so that most of it is left for the next
	// burst.
	spreadFalls = 30 * time.Second
)

// warmth decides how many idle resources a pool keeps ready: from MinIdle to MaxWarm, as many as callers use up while one is opened.
type warmth struct {
	target int
	rate   float64 // leases of resources that were never leased before, per second
	spread float64 // standard deviations of the arrivals that are kept beyond their mean
	fresh  uint64  // core.fresh at the beginning of the sample
	waited uint64  // core.waited at the beginning of the sample
	since  int64   // the beginning of the sample
}

// follow ends the sample if it is long enough, and sets the target. It is called by each tick.
func (c *core[T]) follow() {
	w := &c.warm
	took := c.clock - w.since
	if c.limits.MaxWarm <= c.limits.MinIdle || took < rateSample {
		return
	}
	seconds := time.Duration(took).Seconds()
	// An acquire whose resource fails its check is taken back, so fresh may have become less.
	sample := max(float64(int64(c.fresh-w.fresh)), 0) / seconds //nolint:gosec // a small difference
	constant := rateFalls
	if sample > w.rate {
		constant = rateRises
	}
	w.rate += (sample - w.rate) * (1 - math.Exp(-seconds/constant.Seconds()))
	if missed := c.waited - w.waited; missed > 0 && float64(missed)*maxMissed > sample*seconds {
		w.spread = min(max(w.spread, minSpread)*spreadGrows, maxSpread)
	} else {
		w.spread = minSpread + max(w.spread-minSpread, 0)*math.Exp(-seconds/spreadFalls.Seconds())
	}
	w.since, w.fresh, w.waited = c.clock, c.fresh, c.waited
	w.aim(c.limits, c.openTime)
}

// resumeSample begins a sample when the clock starts: the time without leases before is not part of it.
func (c *core[T]) resumeSample() {
	w := &c.warm
	if quiet := c.clock - w.since; quiet > 0 && w.rate > 0 {
		w.rate *= math.Exp(-time.Duration(quiet).Seconds() / rateFalls.Seconds())
		w.aim(c.limits, c.openTime) // samples may stay too short for follow, as long as expired resources are replaced
	}
	w.since, w.fresh, w.waited = c.clock, c.fresh, c.waited
}

// aim sets the target. During one open, rate × openTime resources are used up on average.
func (w *warmth) aim(l Limits, openTime int64) {
	need := 0.0
	if w.rate >= minRate {
		mean := w.rate * time.Duration(openTime).Seconds()
		need = math.Ceil(mean + w.spread*math.Sqrt(mean))
	}
	w.target = max(l.MinIdle, int(min(need, float64(l.MaxWarm))))
}
