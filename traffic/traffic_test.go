package traffic_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/traffic"
)

const (
	requests = iota
	bytes
	counts
)

var schema = &traffic.Schema{
	Labels: []string{"upstream", "user"}, Limit: 4, Kept: 1, Counts: counts, Timings: 2,
	Views: []traffic.View{{
		Labels:     []string{"upstream", "user"},
		Counters:   []traffic.Counter{{Name: "requests_total", Read: traffic.Count(requests)}},
		Histograms: []traffic.Timer{{Name: "seconds", Read: traffic.Time(0, 1)}},
	}, {
		Labels:   []string{"upstream"},
		Counters: []traffic.Counter{{Name: "timed_total", Read: traffic.Counted(0, 1)}},
	}},
}

// TestBucketsAreThoseOfPrometheus compares the bucket of durations with the bounds that schema 2 has.
func TestBucketsAreThoseOfPrometheus(t *testing.T) {
	durations := []time.Duration{-1, 0, 1, 953, 954, 1907, 1908, time.Second - 1, time.Second, time.Second + 1, 4096 * time.Second, math.MaxInt64}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		durations = append(durations, time.Duration(r.Uint64()>>1>>r.UintN(62)))
	}
	for i := range traffic.Buckets - 1 { // the last whole nanosecond of each bucket, and the first of the next
		b := time.Duration(traffic.Bound(i) * 1e9)
		durations = append(durations, b-1, b, b+1)
	}
	for _, d := range durations {
		cell := traffic.NewCell(schema)
		cell.Shard(0).Observe(0, d)
		row := cell.Row()
		i := slices.Index(row.Timings[0].Counts[:], 1)
		seconds := float64(d) / 1e9
		if i < 0 || seconds > traffic.Bound(i)*(1+1e-15) || i > 0 && seconds <= traffic.Bound(i-1)*(1-1e-15) {
			t.Fatalf("%v is in bucket %d, up to %v", d, i, traffic.Bound(i))
		}
		if row.Timings[0].Sum != d {
			t.Fatalf("sum %v of %v", row.Timings[0].Sum, d)
		}
	}
	for i := 1; i < traffic.Buckets-1; i++ {
		if native := math.Exp2(float64(traffic.NativeIndex(i)) / (1 << traffic.Resolution)); math.Abs(native/traffic.Bound(i)-1) > 1e-12 {
			t.Errorf("bucket %d ends at %v, Prometheus' bucket %d at %v", i, traffic.Bound(i), traffic.NativeIndex(i), native)
		}
	}
}

// TestQuantiles compares with the sorted list: a quantile is not below it, and less than 20 % above.
func TestQuantiles(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	cell := traffic.NewCell(schema)
	if row := cell.Row(); row.Timings[0].Quantile(0.5) != 0 {
		t.Error("nothing counted has a quantile")
	}
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(math.Exp(r.NormFloat64()) * 1e6)
		all = append(all, d)
		cell.Shard(0).Observe(0, d)
	}
	slices.Sort(all)
	row := cell.Row()
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 1} {
		want, got := all[min(int(q*10_000), 9999)], row.Timings[0].Quantile(q)
		if got < want || float64(got) > 1.2*float64(want) {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
}

// TestShards adds in many places at once and finds the sum.
func TestShards(t *testing.T) {
	set := traffic.NewSet(schema)
	var wg sync.WaitGroup
	for loop := range 50 {
		wg.Go(func() {
			s := set.Cell("a", "b").Shard(traffic.ShardOf(loop))
			for range 1000 {
				s.Add(requests, 1)
				s.Observe(loop%2, time.Millisecond)
			}
		})
	}
	_ = set.Snapshot()
	wg.Wait()
	rows := set.Snapshot().Rows
	if len(rows) != 1 || rows[0].Counts[requests] != 50_000 || rows[0].Counts[bytes] != 0 {
		t.Fatalf("rows %v", rows)
	}
	all := schema.Views[0].Histograms[0].Read(&rows[0])
	if n := all.Count(); n != 50_000 || all.Sum != 50*time.Second || schema.Views[1].Counters[0].Read(&rows[0]) != 50_000 {
		t.Errorf("%d durations, %v", n, all.Sum)
	}
}

// TestLimit keeps the number of cells bounded, whatever the labels are.
func TestLimit(t *testing.T) {
	set := traffic.NewSet(schema)
	for i := range 100 {
		for _, user := range []string{"x", "y", "z"} {
			set.Cell("upstream"+strconv.Itoa(i), user+strconv.Itoa(i)).Shard(0).Add(requests, 1)
		}
	}
	first := set.Cell("upstream0", "x0")
	if first != set.Cell("upstream0", "x0") {
		t.Error("a label set has two cells")
	}
	snapshot := set.Snapshot()
	if n := len(snapshot.Rows); n > 2*schema.Limit+1 {
		t.Errorf("%d cells", n)
	}
	sums := map[string]float64{}
	total := 0.0
	for _, v := range schema.Views[:1] {
		for _, row := range snapshot.Of(v) {
			sums[row.Labels[0]+" "+row.Labels[1]] += v.Counters[0].Read(&row)
			total += v.Counters[0].Read(&row)
		}
	}
	if total != 300 || sums["upstream0 x0"] != 1 || sums["upstream2 other"] != 3 || sums["other other"] == 0 {
		t.Errorf("total %v: %v", total, sums)
	}
}

// TestViewSums leaves a label out and adds up rows that differ in it.
func TestViewSums(t *testing.T) {
	set := traffic.NewSet(schema)
	for _, user := range []string{"x", "y"} {
		set.Cell("a", user).Shard(1).Observe(0, time.Second)
		set.Cell("b", user).Shard(2).Observe(1, time.Second)
	}
	rows := set.Snapshot().Of(schema.Views[1])
	if len(rows) != 2 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows {
		if n := schema.Views[1].Counters[0].Read(&row); len(row.Labels) != 1 || n != 2 {
			t.Errorf("%v: %v", row.Labels, n)
		}
	}
}

// TestCountingDoesNotAllocate: sessions rely on it.
func TestCountingDoesNotAllocate(t *testing.T) {
	s := traffic.NewCell(schema).Shard(traffic.ShardOf(0))
	s.Observe(0, 0)
	if n := testing.AllocsPerRun(1000, func() {
		s.Add(requests, 1)
		s.Observe(0, 300*time.Microsecond)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	s := traffic.NewCell(schema).Shard(0)
	for i := range b.N {
		s.Observe(0, time.Duration(i))
	}
}
