package admin

import (
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/traffic"
)

// collectTraffic sends the metrics that a schema makes of the counted rows. names and values are the owner's labels.
func collectTraffic(ch chan<- prometheus.Metric, s traffic.Snapshot, names, values []string) {
	for _, v := range s.Views {
		labels := slices.Concat(names, v.Labels)
		for _, row := range s.Of(v) {
			at := slices.Concat(values, row.Labels)
			for _, c := range v.Counters {
				n := c.Read(&row)
				switch {
				case n == 0 && c.Sparse:
				case c.Label == "":
					send(ch, desc(c.Name, c.Help, labels...), prometheus.CounterValue, n, at...)
				default:
					send(ch, desc(c.Name, c.Help, append(slices.Clip(labels), c.Label)...), prometheus.CounterValue, n, append(slices.Clip(at), c.Value)...)
				}
			}
			for _, t := range v.Histograms {
				h := t.Read(&row)
				sendHistogram(ch, desc(t.Name, t.Help, labels...), trafficTimes(&h), at)
			}
		}
	}
}

// times is a histogram from which both native and classic buckets are built.
type times struct {
	schema  int32
	zero    uint64        // up to traffic.ZeroThreshold
	native  map[int]int64 // by index; only buckets that are not empty
	classic map[float64]uint64
	count   uint64
	sum     time.Duration
}

// Scrapers that do not ask for native histograms get few buckets. Both kinds of histograms share these bounds. Most
// acquires take no time: the first bucket counts them.
var (
	trafficBounds = []int{-13, -10, -7, -5, -3, -1, 1, 4} // powers of two: 0.12 ms to 16 s
	acquireBounds = []int{-20, -13, -10, -7, -4, -1, 2, 5}
)

// acquireTimes is a pool's histogram, of schema 0.
func acquireTimes(h *pool.Histogram) times {
	const second = 20 // the bucket up to a second has index 0
	return timesOf(h.Counts[:], 0, func(i int) int { return i - second }, acquireBounds, h.Sum)
}

func trafficTimes(h *traffic.Histogram) times {
	return timesOf(h.Counts[:], traffic.Resolution, traffic.NativeIndex, trafficBounds, h.Sum)
}

// timesOf computes both kinds of buckets from counts: the first count is up to traffic.ZeroThreshold, the last has no
// upper bound.
func timesOf(counts []uint64, schema int32, index func(int) int, bounds []int, sum time.Duration) times {
	t := times{schema: schema, zero: counts[0], count: counts[0], native: map[int]int64{}, classic: map[float64]uint64{}, sum: sum}
	for _, exponent := range bounds {
		t.classic[math.Exp2(float64(exponent))] = t.zero
	}
	for i, n := range counts[1:] {
		if n == 0 {
			continue
		}
		k := index(i + 1)
		t.native[k] = int64(n)
		t.count += n
		for _, exponent := range bounds {
			if k <= exponent<<schema {
				t.classic[math.Exp2(float64(exponent))] += n
			}
		}
	}
	return t
}

// both is a histogram with native and classic buckets; a scraper uses the kind it supports.
type both struct {
	prometheus.Metric // with the native buckets
	classic           prometheus.Metric
}

// Write implements prometheus.Metric.
func (b both) Write(out *dto.Metric) error {
	var classic dto.Metric
	if err := b.classic.Write(&classic); err != nil {
		return err
	}
	if err := b.Metric.Write(out); err != nil {
		return err
	}
	out.Histogram.Bucket = classic.GetHistogram().GetBucket()
	out.Histogram.CreatedTimestamp = nil
	return nil
}

func sendHistogram(ch chan<- prometheus.Metric, d *prometheus.Desc, t times, labels []string) {
	labels = valid(labels)
	native, err := prometheus.NewConstNativeHistogram(d, t.count, t.sum.Seconds(), t.native, nil, t.zero, t.schema, traffic.ZeroThreshold, time.Time{}, labels...)
	if err != nil {
		sendOr(ch, d, nil, err)
		return
	}
	classic, err := prometheus.NewConstHistogram(d, t.count, t.sum.Seconds(), t.classic, labels...)
	sendOr(ch, d, both{native, classic}, err)
}
