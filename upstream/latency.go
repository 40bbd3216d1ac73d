package upstream

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// latencyDecay is the time in which a latency loses two thirds of its weight. It is long enough to tell endpoints apart
// at a few requests a second, and short enough that a slow endpoint is tried again soon.
const latencyDecay = 10 * time.Second

const (
	// badFactor is the factor by which each consecutive bad answer makes an endpoint seem slower, and maxBad is how
	// often it applies: an endpoint that always fails quickly gets about one request a minute beside good ones. Each
	// good answer removes half of these factors, so that an endpoint that fails now and then keeps its share.
	badFactor = 4
	maxBad    = 5
	// firstBad is the latency of an endpoint that has never given a good answer.
	firstBad = time.Second
	// waitingFactor is how much more slowly a latency decays while leases wait for answers. An endpoint that has
	// stopped answering gets few requests; one that works is still tried again, although a stream or a long poll may
	// have no answer for hours.
	waitingFactor = 8
)

// latency measures how long an endpoint takes to answer. It is a moving average that follows each slower answer at
// once, and decays with time (peak EWMA, as in Twitter's Finagle). An endpoint that has had no request for a while
// seems quick, so that it is tried again; while requests wait for answers, the average decays more slowly.
type latency struct {
	mu      sync.Mutex   // held for a few instructions
	average float64      // in nanoseconds, as of at
	at      int64        // in sinceEpoch; 0 = no answer yet
	asked   int64        // in sinceEpoch, when leases were first seen to wait for the first answer; 0 = never
	bad     int          // how many times badFactor applies
	held    atomic.Int64 // leases that have got their answer and are still out
}

// observe records that a good answer took a time; now is in sinceEpoch.
func (l *latency) observe(took time.Duration, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	weight := decay(now - l.at)
	if old := l.average * weight; l.at == 0 || float64(took) >= old {
		l.average = float64(took)
	} else {
		l.average = old + float64(took)*(1-weight)
	}
	l.bad /= 2
	l.at = max(now, 1)
}

// failed records that a bad answer took a time. The endpoint does not seem quicker after it, even if the last answer
// was long ago.
func (l *latency) failed(took time.Duration, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == 0 {
		l.average = float64(firstBad)
	}
	l.average = max(l.average, float64(took))
	l.bad = min(l.bad+1, maxBad)
	l.at = max(now, 1)
}

// atLeast records a wait that ended without an answer. An endpoint that has never answered must not seem quick because
// a client left early.
func (l *latency) atLeast(took time.Duration, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == 0 {
		l.average, l.at = float64(max(took, firstBad)), max(now, 1)
	} else if float64(took) > l.average*decay(now-l.at) {
		l.average, l.at = float64(took), max(now, 1)
	}
}

// now returns the current average, where waiting leases have no answer yet. known is false if there was no answer, and
// no lease has waited longer than latencyDecay.
func (l *latency) now(waiting, now int64) (average float64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	average, at := l.average, l.at
	if at == 0 && waiting > 0 {
		if l.asked == 0 {
			l.asked = max(now, 1)
		}
		if now-l.asked < int64(latencyDecay) {
			return 0, false
		}
		average, at = float64(firstBad), l.asked
	}
	elapsed := now - at
	if waiting > 0 {
		elapsed /= waitingFactor
	}
	return average * decay(elapsed) * math.Pow(badFactor, float64(l.bad)), at != 0
}

func decay(elapsed int64) float64 {
	return math.Exp(-float64(max(elapsed, 0)) / float64(latencyDecay))
}

// maxCost bounds an endpoint's cost, in microseconds, so that its product with the largest weight fits an int64.
const maxCost = 1e11

// cost returns how long a new lease would wait, in microseconds, if the endpoint answered its leases one after the
// other. An endpoint without an answer gets one lease, and no further lease until the first is answered or has waited
// for latencyDecay, as long as there are other endpoints.
func (l *latency) cost(load, now int64) int64 {
	waiting := load - l.held.Load()
	average, known := l.now(waiting, now)
	if !known && waiting > 0 {
		return maxCost + min(load, maxCost)
	}
	return int64(min(max(average/float64(time.Microsecond), 1)*float64(load+1), maxCost))
}

// judgement says what an endpoint's answers are measured for. It is immutable.
type judgement struct {
	errors  bool          // see Ejection.Errors
	slow    time.Duration // see Ejection.Slow
	latency bool          // for PeakEWMA
}

// judgementOf returns nil if answers need not be measured.
func judgementOf(s Settings) *judgement {
	j := judgement{errors: s.Ejection.Errors, slow: s.Ejection.Slow, latency: s.Balance == PeakEWMA}
	if j == (judgement{}) {
		return nil
	}
	return &j
}

// Measures reports whether Answered and Unanswered have an effect; if not, the caller need not take the time.
func (l Lease[T]) Measures() bool { return l.endpoint.judgement.Load() != nil }

// Unmeasured tells Answered that the time of the answer is not known.
const Unmeasured time.Duration = -1

// Answered records how long the endpoint took to answer, or Unmeasured. Call it when the answer begins, however long
// the lease lasts after that. bad says that the answer is a server error: PeakEWMA then treats the endpoint as slower,
// never as quicker. failed reports whether Ejection counts the answer as a failure; if so, call Blame.
func (l *Lease[T]) Answered(took time.Duration, bad bool) (failed bool) {
	j := l.endpoint.judgement.Load()
	if j == nil {
		return false
	}
	if j.latency {
		at := &l.endpoint.latency
		if !l.held {
			l.held = true
			at.held.Add(1)
		}
		switch {
		case bad:
			at.failed(took, sinceEpoch(time.Now()))
		case took >= 0:
			at.observe(took, sinceEpoch(time.Now()))
		}
	}
	return j.errors && bad || j.slow > 0 && took > j.slow
}

// Unanswered records that the caller has waited for an answer for a time, and waits no longer. late says that it waited
// as long as an answer may take: that counts as an error, and as slower than any answer. failed is as in Answered.
func (l *Lease[T]) Unanswered(waited time.Duration, late bool) (failed bool) {
	j := l.endpoint.judgement.Load()
	if j == nil {
		return false
	}
	if j.latency {
		l.endpoint.latency.atLeast(waited, sinceEpoch(time.Now()))
	}
	return late && (j.errors || j.slow > 0) || j.slow > 0 && waited > j.slow
}

// Blame counts a failure that Answered or Unanswered has reported, with err as its cause. The way in which the lease
// ends does not count then.
func (l *Lease[T]) Blame(err error) {
	l.blamed = true
	l.endpoint.failed(err, true)
}
