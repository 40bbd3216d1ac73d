package admin

import (
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/traffic"
)

// Histogram counts durations since the start in buckets, by rising bounds; empty buckets are left out. /api/v1/status and
// /api/v1/pools have histograms with the parameter histograms=true only. Since gives those of the time between two
// answers.
type Histogram []Bucket

// Bucket counts durations above the bound of the bucket before it, and up to its own. The last bucket of all also counts
// those above it.
type Bucket struct {
	UpTo  float64 `json:"up_to"` // in seconds
	Count uint64  `json:"count"`
}

// Since returns what was counted after earlier: another answer about the same pool, listener or upstream of the same
// process. Counts that have become smaller, because a reload has removed a part, count as 0.
func (h Histogram) Since(earlier Histogram) (since Histogram) {
	for _, b := range h {
		for len(earlier) > 0 && earlier[0].UpTo < b.UpTo {
			earlier = earlier[1:]
		}
		if len(earlier) > 0 && earlier[0].UpTo == b.UpTo {
			b.Count -= min(b.Count, earlier[0].Count)
		}
		if b.Count > 0 {
			since = append(since, b)
		}
	}
	return since
}

// Add returns the counts of both histograms.
func (h Histogram) Add(other Histogram) (sum Histogram) {
	for len(h)+len(other) > 0 {
		switch {
		case len(other) == 0 || len(h) > 0 && h[0].UpTo < other[0].UpTo:
			sum, h = append(sum, h[0]), h[1:]
		case len(h) == 0 || other[0].UpTo < h[0].UpTo:
			sum, other = append(sum, other[0]), other[1:]
		default:
			sum = append(sum, Bucket{h[0].UpTo, h[0].Count + other[0].Count})
			h, other = h[1:], other[1:]
		}
	}
	return sum
}

// Quantile returns an upper bound of the q-quantile (0 ≤ q ≤ 1) in seconds. ok is false if nothing was counted.
func (h Histogram) Quantile(q float64) (seconds float64, ok bool) {
	var total, seen uint64
	for _, b := range h {
		total += b.Count
	}
	rank := uint64(min(max(q, 0), 1) * float64(total))
	for _, b := range h {
		if seen += b.Count; seen > rank || seen == total {
			return b.UpTo, true
		}
	}
	return 0, false
}

// acquireHistogram is a pool's histogram.
func acquireHistogram(h *pool.Histogram) Histogram {
	return histogram(h.Counts[:], func(i int) float64 { return pool.BucketBound(i).Seconds() })
}

// trafficHistogram is the histogram of requests or transactions.
func trafficHistogram(h *traffic.Histogram) Histogram {
	return histogram(h.Counts[:], func(i int) float64 { return time.Duration(traffic.Bound(i) * 1e9).Seconds() })
}

// histogram returns the buckets with a count. The last of counts has no bound, and is counted with the one before it.
func histogram(counts []uint64, bound func(int) float64) (h Histogram) {
	last := len(counts) - 2
	for i, n := range counts[:last+1] {
		if i == last {
			n += counts[last+1]
		}
		if n > 0 {
			h = append(h, Bucket{bound(i), n})
		}
	}
	return h
}
