package traffic

import (
	"math"
	"sync/atomic"
	"time"
)

// Bounds of a Histogram. 19 % from one bucket to the next leaves an error of at most 9 % in a quantile.
const (
	// Resolution is the number of buckets in each doubling, as a power of two: the schema of Prometheus' native histograms.
	Resolution = 2
	// minExponent and maxExponent bound the resolved range: from 2^-20 s (about a microsecond) to 2^12 s (more than an
	// hour).
	minExponent = -20
	maxExponent = 12

	perOctave = 1 << Resolution
	// Buckets is the number of buckets of a Histogram: one up to ZeroThreshold, then four for each doubling, and one without a bound.
	Buckets = 2 + (maxExponent-minExponent)*perOctave
)

// ZeroThreshold is the upper bound of the first bucket, in seconds.
const ZeroThreshold = 1.0 / (1 << -minExponent)

// Histogram counts durations in buckets whose bounds grow by a quarter of a power of two.
type Histogram struct {
	// Counts holds the durations above Bound(i-1) and up to Bound(i).
	Counts [Buckets]uint64
	Sum    time.Duration
}

// Bound returns the inclusive upper bound of bucket i in seconds; the last one's is +Inf.
func Bound(i int) float64 {
	if i >= Buckets-1 {
		return math.Inf(1)
	}
	return math.Exp2(minExponent + float64(max(i, 0))/perOctave)
}

// NativeIndex returns the index that a Prometheus native histogram of schema Resolution has for bucket i, which must not be 0. The bucket
// without a bound is shown as the one after the last.
func NativeIndex(i int) int { return i + minExponent*perOctave }

// quarters are the fractions of 2^(1/4), 2^(2/4) and 2^(3/4), as a float64 holds them.
var quarters = [perOctave - 1]uint64{
	math.Float64bits(math.Exp2(0.25)) & fraction, math.Float64bits(math.Exp2(0.5)) & fraction, math.Float64bits(math.Exp2(0.75)) & fraction,
}

const (
	fraction     = 1<<52 - 1
	exponentBias = 1023
)

// bucketOf returns the bucket of a duration.
func bucketOf(d time.Duration) int {
	x := float64(d) / (1e9 * ZeroThreshold) // in units of ZeroThreshold
	if x <= 1 {
		return 0
	}
	bits := math.Float64bits(x)
	i, frac := (int(bits>>52)-exponentBias)*perOctave, bits&fraction
	if frac > 0 {
		i++
	}
	for _, q := range quarters {
		if frac > q {
			i++
		}
	}
	return min(i, Buckets-1)
}

// Count returns the number of durations.
func (h *Histogram) Count() uint64 {
	var n uint64
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// Quantile returns an upper bound of the q-quantile (0 ≤ q ≤ 1), and 0 when nothing was counted. In the bucket without a bound it is
// the highest there is.
func (h *Histogram) Quantile(q float64) time.Duration {
	total := h.Count()
	if total == 0 {
		return 0
	}
	rank := uint64(min(max(q, 0), 1) * float64(total))
	var seen uint64
	i := 0
	for ; i < Buckets-2; i++ {
		if seen += h.Counts[i]; seen > rank || seen == total {
			break
		}
	}
	return time.Duration(Bound(i) * 1e9)
}

// Add adds other's durations.
func (h *Histogram) Add(other *Histogram) {
	for i, c := range other.Counts {
		h.Counts[i] += c
	}
	h.Sum += other.Sum
}

// histogram is a Histogram that is being written.
type histogram struct {
	counts [Buckets]atomic.Uint64
	sum    atomic.Int64
}

func (h *histogram) addTo(out *Histogram) {
	for i := range h.counts {
		out.Counts[i] += h.counts[i].Load()
	}
	out.Sum += time.Duration(h.sum.Load())
}
