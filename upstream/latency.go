package upstream

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// latencyDecay is the time in which a latency loses two thirds of its weight: long enough to tell endpoints apart at a
// few requests a second, short enough that a slow endpoint is tried again soon.
const latencyDecay = 10 * time.Second

const (
	// badFactor is how many times as slow each bad answer makes an endpoint seem that follows others, and maxBad how often it does: an endpoint
	// that fails always, and quickly, gets a request a minute beside good ones. Each good answer takes half of them back, so that an endpoint
	// which fails now and then keeps its share.
	badFactor = 4
	maxBad    = 5
	// firstBad is the latency of an endpoint that has never answered well.
	firstBad = time.Second
	// waitingFactor is how many times as slowly a latency decays while leases wait for answers: an endpoint that has stopped answering gets few
	// requests, and one that works is asked again although a stream or a long poll has no answer for hours.
	waitingFactor = 8
)

// latency is how long an endpoint takes to answer: a moving average that follows each slower answer at once, and decays
// with time (peak EWMA, as in Twitter's Finagle). An endpoint that has not been asked for a while seems quick, so that it
// is asked again; one that has been asked and does not answer is forgotten more slowly.
type latency struct {
	mu      sync.Mutex   // held for a few instructions
	average float64      // in nanoseconds, at the time at
	at      int64        // sinceEpoch; 0 = there has been no answer
	asked   int64        // sinceEpoch, when leases were first seen to wait for the first answer; 0 = never
	bad     int          // what is left of bad answers, see badFactor
	held    atomic.Int64 // leases that have been answered and go on
}

// observe takes the time of a good answer that comes at now, which is sinceEpoch.
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

// failed takes the time of a bad answer. The endpoint seems no quicker after it, also if the last answer was long ago.
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

// atLeast takes how long an answer has been waited for in vain. An endpoint that has never answered does not seem quick because a client has
// left early.
func (l *latency) atLeast(took time.Duration, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == 0 {
		l.average, l.at = float64(max(took, firstBad)), max(now, 1)
	} else if float64(took) > l.average*decay(now-l.at) {
		l.average, l.at = float64(took), max(now, 1)
	}
}

// now is how slow the endpoint seems. waiting leases have not been answered. known is false if there has been no answer, and none has been
// waited for longer than latencyDecay.
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

// maxCost bounds the cost of an endpoint, in microseconds: times the largest weight it still fits an int64.
const maxCost = 1e11

// cost is how long a new lease of the endpoint would wait, in microseconds, if its leases were answered one after the
// other. An endpoint without an answer yet gets one lease, and no other before that is answered or has waited for
// latencyDecay, as long as there are other endpoints.
func (l *latency) cost(load, now int64) int64 {
	waiting := load - l.held.Load()
	average, known := l.now(waiting, now)
	if !known && waiting > 0 {
		return maxCost + min(load, maxCost)
	}
	return int64(min(max(average/float64(time.Microsecond), 1)*float64(load+1), maxCost))
}

// judgement says what an endpoint's answers are measured for; it never changes.
type judgement struct {
	errors  bool          // see Ejection.Errors
	slow    time.Duration // see Ejection.Slow
	latency bool          // for the balance PeakEWMA
}

// judgementOf returns nil if answers need not be measured.
func judgementOf(s Settings) *judgement {
	j := judgement{errors: s.Ejection.Errors, slow: s.Ejection.Slow, latency: s.Balance == PeakEWMA}
	if j == (judgement{}) {
		return nil
	}
	return &j
}

// Measures reports whether Answered and Unanswered have any effect, so that the time need not be taken otherwise.
func (l Lease[T]) Measures() bool { return l.endpoint.judgement.Load() != nil }

// Unmeasured is for Answered: nobody knows how long the endpoint has taken.
const Unmeasured time.Duration = -1

// Answered records how long the endpoint has taken to answer, or Unmeasured. It is to be called when the answer begins, however long the lease
// goes on. bad says that the answer is an error of the server: for PeakEWMA the endpoint is then no quicker than before, but slower.
// failed reports whether the answer counts as a failure of the endpoint, by Ejection: then Blame is to be called.
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

// Unanswered records that the endpoint has had a request for so long, and that its answer is not waited for any more. late says that it was
// waited for as long as an answer of this endpoint may take: that is an error, and slower than any answer. failed is that of Answered.
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

// Blame counts a failure of the endpoint that Answered or Unanswered has reported, with err as its cause. How the lease ends says nothing more
// of the endpoint then.
func (l *Lease[T]) Blame(err error) {
	l.blamed = true
	l.endpoint.failed(err, true)
}
