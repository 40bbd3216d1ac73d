// Package hist keeps latencies in a histogram whose buckets are at most 1/64 apart: small, exact to 1.6 %, and mergeable, so
// that percentiles of several rounds are those of all their operations and not a mean of percentiles.
package hist

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"time"
)

const (
	subBits = 6            // 64 buckets to each doubling
	sub     = 1 << subBits //
	buckets = (42 - subBits + 1) * sub
	// maxValue is the largest value recorded: 73 minutes. Longer durations count as this.
	maxValue = 1<<42 - 1
)

// Histogram counts durations. The zero value is empty and ready. It belongs to one goroutine at a time.
type Histogram struct {
	counts [buckets]uint32
	n      int64
	sum    int64
	max    int64
}

// index returns the bucket of a value in nanoseconds.
func index(v int64) int {
	if v < sub {
		return int(v)
	}
	exp := bits.Len64(uint64(v)) - 1 - subBits
	return (exp+1)*sub + int(v>>exp) - sub
}

// value returns the middle of a bucket.
func value(i int) int64 {
	if i < sub {
		return int64(i)
	}
	exp := i/sub - 1
	return int64(i%sub+sub)<<exp + int64(1)<<exp/2
}

// Record counts one duration; a negative one counts as 0.
func (h *Histogram) Record(d time.Duration) {
	v := min(max(int64(d), 0), maxValue)
	h.counts[index(v)]++
	h.n++
	h.sum += v
	h.max = max(h.max, v)
}

// Merge adds the counts of o.
func (h *Histogram) Merge(o *Histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Count returns the number of recorded durations.
func (h *Histogram) Count() int64 { return h.n }

// Max returns the longest duration.
func (h *Histogram) Max() time.Duration { return time.Duration(h.max) }

// Mean returns the mean, 0 for an empty histogram.
func (h *Histogram) Mean() time.Duration {
	if h.n == 0 {
		return 0
	}
	return time.Duration(h.sum / h.n)
}

// Quantile returns the duration that a fraction q of all durations do not exceed; 0 for an empty
// histogram.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := max(int64(math.Ceil(q*float64(h.n))), 1)
	var seen int64
	for i, c := range h.counts {
		if seen += int64(c); seen >= rank && c > 0 {
			return time.Duration(min(value(i), h.max))
		}
	}
	return 0
}

// Above returns the number of durations longer than d, to the width of a bucket.
func (h *Histogram) Above(d time.Duration) int64 {
	var n int64
	for _, c := range h.counts[index(min(max(int64(d), 0), maxValue))+1:] {
		n += int64(c)
	}
	return n
}

// wire is a histogram in JSON: pairs of bucket and count.
type wire struct {
	Buckets [][2]int64 `json:"buckets"`
	Sum     int64      `json:"sum_ns"`
	Max     int64      `json:"max_ns"`
}

// MarshalJSON writes the buckets that are not empty.
func (h *Histogram) MarshalJSON() ([]byte, error) {
	w := wire{Buckets: [][2]int64{}, Sum: h.sum, Max: h.max}
	for i, c := range h.counts {
		if c > 0 {
			w.Buckets = append(w.Buckets, [2]int64{int64(i), int64(c)})
		}
	}
	return json.Marshal(w)
}

// UnmarshalJSON refuses buckets that do not exist.
func (h *Histogram) UnmarshalJSON(data []byte) error {
	var w wire
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	*h = Histogram{sum: w.Sum, max: w.Max}
	for _, b := range w.Buckets {
		if b[0] < 0 || b[0] >= buckets || b[1] < 0 || b[1] > math.MaxUint32 {
			return fmt.Errorf("histogram: no bucket %d with count %d", b[0], b[1])
		}
		h.counts[b[0]] += uint32(b[1])
		h.n += b[1]
	}
	return nil
}
