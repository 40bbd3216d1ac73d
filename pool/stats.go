package pool

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Stats is a snapshot of a pool, consistent but for AcquireSeconds, which may
// lag behind by the callers being woken. Counters count since New.
type Stats struct {
	Name    string
	MaxSize int
	MinIdle int
	// WarmTarget is the number of idle resources that the pool keeps ready now,
	// from MinIdle to MaxWarm.
	WarmTarget int
	MaxWarm    int
	Idle       int
	InUse      int
	Opening    int
	// Busy resources are being checked in the background or closed.
	// Idle + InUse + Opening + Busy never exceeds MaxSize, unless that was
	// made smaller while the resources were leased.
	Busy    int
	Waiting int
	// OldestWait is how long the first waiting caller has waited; 0 if none waits.
	OldestWait time.Duration
	// Paused says that Pause is in force: Waiting callers wait for Resume.
	Paused bool
	// Direct is the number of overflow resources out, beyond MaxSize.
	Direct int

	Opened, OpenFailed uint64
	Acquired           uint64 // leases given
	Reused             uint64 // leases of a resource that had been leased before
	Waited             uint64 // acquires that had to wait, also for a resource to be opened
	TimedOut           uint64 // acquires ended by AcquireTimeout or the context's deadline
	Rejected           uint64 // acquires refused, or waits ended for those of other flows: too many waiters
	GaveUp             uint64 // acquires refused: their turn would have come too late; see FlowParker
	Canceled           uint64 // acquires whose context was cancelled
	Released           uint64
	Discarded          uint64 // leases ended by Discard or Replace
	Replaced           uint64 // leases that got another resource; see Lease.Replace
	Overflowed         uint64 // resources opened outside the pool

	ClosedIdle, ClosedLifetime, ClosedCheck, ClosedReset, ClosedSurplus uint64
	Panics                                                              uint64 // callbacks that panicked

	// Since is when the pool was made.
	Since time.Time
	// PeakInUse is the largest InUse so far, of resources that passed their check.
	PeakInUse int
	// LastRefused is when an acquire was last counted by TimedOut, Rejected or GaveUp;
	// zero if none was.
	LastRefused time.Time

	// AcquireSeconds is how long successful acquires took, checks and direct opens
	// included. Those served at once count in the lowest bucket and read no clock.
	AcquireSeconds Histogram
	// OpenTime is how long Open takes: a moving average of the opens for the pool that
	// succeeded, overflow resources excluded; 0 if there was none.
	OpenTime time.Duration
	// LastOpenError is the newest open error, nil if the newest open succeeded.
	LastOpenError error
}

// HistogramBuckets is the number of buckets of a Histogram: 2^-20 s (about a
// microsecond), 2^-19 s … 32 s, and one without an upper bound.
const HistogramBuckets = 27

// histogramOctaves is the index of the bucket whose bound is a second.
const histogramOctaves = 20

// Histogram counts durations in buckets whose bounds double: those of a native
// histogram of Prometheus, schema 0.
type Histogram struct {
	// Counts holds the durations above BucketBound(i-1) and up to BucketBound(i).
	Counts [HistogramBuckets]uint64
	Sum    time.Duration // of all; those served at once count as 0
}

// BucketBound returns the inclusive upper bound of bucket i; the last bucket
// has none and the largest Duration is returned.
func BucketBound(i int) time.Duration {
	if i >= HistogramBuckets-1 {
		return never
	}
	return time.Second >> max(histogramOctaves-i, 0) << max(i-histogramOctaves, 0)
}

// Add adds the durations that another Histogram has counted.
func (h *Histogram) Add(other Histogram) {
	for i, n := range other.Counts {
		h.Counts[i] += n
	}
	h.Sum += other.Sum
}

// Count returns the number of durations counted.
func (h Histogram) Count() uint64 {
	var n uint64
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// Quantile returns the upper bound of the bucket that holds the q-quantile
// (0 ≤ q ≤ 1), and 0 when nothing was counted. In the bucket without a bound it
// returns the highest bound there is.
func (h Histogram) Quantile(q float64) time.Duration {
	total := h.Count()
	if total == 0 {
		return 0
	}
	rank := uint64(min(max(q, 0), 1) * float64(total))
	var seen uint64
	for i, c := range h.Counts {
		seen += c
		if seen > rank || seen == total {
			return BucketBound(min(i, HistogramBuckets-2))
		}
	}
	return BucketBound(HistogramBuckets - 2)
}

// bucketOf returns the bucket d belongs to.
func bucketOf(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	if d > BucketBound(HistogramBuckets-2) {
		return HistogramBuckets - 1
	}
	// In 2^-20 s, rounded up: 2^20/10^9 is 2^11/5^9.
	units := (uint64(d)<<11 + 1953124) / 1953125
	return bits.Len64(units - 1)
}

// histogram is a Histogram several goroutines may add to.
type histogram struct {
	counts [HistogramBuckets]atomic.Uint64
	sum    atomic.Int64
}

func (h *histogram) observe(d time.Duration) {
	h.counts[bucketOf(d)].Add(1)
	h.sum.Add(int64(d))
}

func (h *histogram) snapshot() (s Histogram) {
	for i := range h.counts {
		s.Counts[i] = h.counts[i].Load()
	}
	s.Sum = time.Duration(h.sum.Load())
	return s
}

// Add adds the statistics of another pool, for a sum over pools of one kind. Gauges, limits, counters and AcquireSeconds
// are summed. PeakInUse is summed too, so that it is no less than the peak of all pools together. OldestWait is the longer
// one, Paused whether one of them is paused, Since that of the oldest pool, and LastRefused the latest. OpenTime is the mean by numbers of opens.
// LastOpenError is kept if there is one, and is the other's if not. Name is kept. The zero Stats plus other is other, but
// for the Name.
func (s *Stats) Add(other Stats) {
	if other.OpenTime > 0 {
		if s.OpenTime == 0 {
			s.OpenTime = other.OpenTime
		} else {
			own, others := float64(max(s.Opened, 1)), float64(max(other.Opened, 1))
			s.OpenTime = time.Duration((float64(s.OpenTime)*own + float64(other.OpenTime)*others) / (own + others))
		}
	}
	for _, of := range [...]struct {
		sum *int
		n   int
	}{
		{&s.MaxSize, other.MaxSize}, {&s.MinIdle, other.MinIdle}, {&s.WarmTarget, other.WarmTarget}, {&s.MaxWarm, other.MaxWarm},
		{&s.Idle, other.Idle}, {&s.InUse, other.InUse}, {&s.Opening, other.Opening}, {&s.Busy, other.Busy},
		{&s.Waiting, other.Waiting}, {&s.Direct, other.Direct}, {&s.PeakInUse, other.PeakInUse},
	} {
		*of.sum += of.n
	}
	for _, of := range [...]struct {
		sum *uint64
		n   uint64
	}{
		{&s.Opened, other.Opened}, {&s.OpenFailed, other.OpenFailed}, {&s.Acquired, other.Acquired}, {&s.Reused, other.Reused},
		{&s.Waited, other.Waited}, {&s.TimedOut, other.TimedOut}, {&s.Rejected, other.Rejected}, {&s.GaveUp, other.GaveUp},
		{&s.Canceled, other.Canceled}, {&s.Released, other.Released}, {&s.Discarded, other.Discarded}, {&s.Replaced, other.Replaced}, {&s.Overflowed, other.Overflowed},
		{&s.ClosedIdle, other.ClosedIdle}, {&s.ClosedLifetime, other.ClosedLifetime}, {&s.ClosedCheck, other.ClosedCheck},
		{&s.ClosedReset, other.ClosedReset}, {&s.ClosedSurplus, other.ClosedSurplus}, {&s.Panics, other.Panics},
	} {
		*of.sum += of.n
	}
	s.OldestWait = max(s.OldestWait, other.OldestWait)
	s.Paused = s.Paused || other.Paused
	if s.Since.IsZero() || !other.Since.IsZero() && other.Since.Before(s.Since) {
		s.Since = other.Since
	}
	if other.LastRefused.After(s.LastRefused) {
		s.LastRefused = other.LastRefused
	}
	s.AcquireSeconds.Add(other.AcquireSeconds)
	if s.LastOpenError == nil {
		s.LastOpenError = other.LastOpenError
	}
}

// AllInUse reports whether an Acquire would have to wait for another caller's Release, or for Resume: MaxSize resources
// are leased, none is idle and callers wait for the Budget, or the pool is paused.
func (p *Pool[T]) AllInUse() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.core
	full := c.inUse() >= c.limits.MaxSize || len(c.idle) == 0 && c.share.isPressed()
	return c.paused || c.limits.Overflow != OverflowDirect && full
}

// Crowded reports whether an Acquire that has to wait would be refused: as many wait as Limits.MaxWaiters allows.
func (p *Pool[T]) Crowded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.full()
}

// Interrupt calls f with each leased resource, and returns their number. f must make the holder notice, as net.Conn's
// Close does. The leases continue, and some may have ended when f is called: f may run concurrently with Config.Close,
// or after it.
func (p *Pool[T]) Interrupt(f func(T)) int {
	var leased []T
	p.mu.Lock()
	for s := p.core.all; s != nil; s = s.nxt {
		if s.gen%2 == 1 {
			leased = append(leased, s.value)
		}
	}
	p.mu.Unlock()
	for _, v := range leased {
		f(v)
	}
	return len(leased)
}

// Stats returns a snapshot, in constant time.
func (p *Pool[T]) Stats() Stats {
	p.mu.Lock()
	c := &p.core
	s := Stats{
		Name: p.name, MaxSize: c.limits.MaxSize, MinIdle: c.limits.MinIdle,
		WarmTarget: c.warm.target, MaxWarm: c.limits.MaxWarm, Idle: len(c.idle), InUse: c.inUse(), Opening: c.opening,
		Busy: c.closing + c.checking, Waiting: c.waiters.n, Paused: c.paused, Direct: c.direct,
		Opened: c.opened, OpenFailed: c.openFailed, Acquired: c.acquired, Reused: c.acquired - c.fresh,
		Waited: c.waited, TimedOut: c.timedOut, Rejected: c.rejected, GaveUp: c.gaveUp, Canceled: c.canceled,
		Released: c.released, Discarded: c.discarded, Replaced: c.replacements, Overflowed: c.overflowed,
		ClosedIdle: c.closedFor[ReasonIdle], ClosedLifetime: c.closedFor[ReasonLifetime],
		ClosedCheck: c.closedFor[ReasonCheck], ClosedReset: c.closedFor[ReasonReset],
		ClosedSurplus: c.closedFor[ReasonSurplus], Panics: p.panics.Load(),
		LastOpenError: c.lastErr, Since: p.start, PeakInUse: c.peak, OpenTime: time.Duration(c.openTime),
	}
	if first := c.waiters.head; first != nil {
		s.OldestWait = time.Duration(max(p.now()-first.since, 0))
	}
	if c.lastRefused > 0 {
		s.LastRefused = p.start.Add(time.Duration(c.lastRefused))
	}
	immediate := c.acquired - c.timed
	p.mu.Unlock()
	s.AcquireSeconds = p.waits.snapshot()
	s.AcquireSeconds.Counts[0] += immediate
	return s
}
