package hist

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestQuantilesAgreeWithSorting compares with a sorted list.
func TestQuantilesAgreeWithSorting(t *testing.T) {
	for _, limit := range []int64{10, 1000, 1e6, 1e9, 1e11} {
		var a, b Histogram
		var all []int64
		for i := range 10_000 {
			v := rand.Int64N(limit)
			all = append(all, v)
			if i%2 == 0 {
				a.Record(time.Duration(v))
			} else {
				b.Record(time.Duration(v))
			}
		}
		a.Merge(&b)
		slices.Sort(all)
		for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
			want := all[max(int(q*float64(len(all))+0.999999)-1, 0)]
			got := int64(a.Quantile(q))
			if diff := max(got-want, want-got); diff > want/sub+1 {
				t.Errorf("limit %d: quantile %v is %d, sorted says %d", limit, q, got, want)
			}
		}
		if a.Count() != 10_000 || int64(a.Max()) != all[len(all)-1] {
			t.Errorf("limit %d: count %d, max %d; want 10000, %d", limit, a.Count(), a.Max(), all[len(all)-1])
		}
	}
}

func TestSurvivesJSON(t *testing.T) {
	var h, back Histogram
	for _, d := range []time.Duration{-1, 0, 1, time.Millisecond, time.Hour, 100 * time.Hour} {
		h.Record(d)
	}
	data, err := json.Marshal(&h)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &back); err != nil || back != h {
		t.Fatalf("%v, or not the same after %s", err, data)
	}
	if err := json.Unmarshal([]byte(`{"buckets":[[99999,1]]}`), &back); err == nil {
		t.Error("a bucket that does not exist is accepted")
	}
}

func TestBucketsAreOrderedAndComplete(t *testing.T) {
	last := -1
	for v := int64(0); v < 1<<20; v++ {
		i := index(v)
		if i != last && i != last+1 {
			t.Fatalf("value %d is in bucket %d after bucket %d", v, i, last)
		}
		last = i
	}
	if i := index(maxValue); i != buckets-1 {
		t.Errorf("the longest is in bucket %d of %d", i, buckets)
	}
}

func TestAboveAndEmpty(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Mean() != 0 || h.Above(0) != 0 {
		t.Error("an empty histogram is not zero")
	}
	for i := range 100 {
		h.Record(time.Duration(i) * time.Millisecond)
	}
	if n := h.Above(49500 * time.Microsecond); n != 50 {
		t.Errorf("%d above 49.5 ms, want 50", n)
	}
}
