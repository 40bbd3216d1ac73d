package traffic_test

import (
	"testing"
	"time"

	"github.com/headpond/headpond/traffic"
)

var summed = &traffic.Schema{
	Labels: []string{"room"}, Counts: 1, Timings: 1,
	Summary: &traffic.Summary{Unit: "talks", Done: traffic.Counted(0), Failed: traffic.Count(0), Time: traffic.Time(0)},
}

// TestWindow: the figures of the last minute are the counts in it, of all rows.
func TestWindow(t *testing.T) {
	set := traffic.NewSet(summed)
	now := time.Now()
	w := traffic.NewWindow(now)
	talk := func(room string, n int, took time.Duration) {
		s := set.Cell(room).Shard(0)
		for range n {
			s.Observe(0, took)
		}
		s.Add(0, 1)
	}
	check := func(when string, done, failed float64, over, p50 time.Duration) {
		t.Helper()
		got, d := w.Since(now, set.Snapshot().Total())
		if got.Done != done || got.Failed != failed || d != over || float64(got.Time.Count()) != done {
			t.Errorf("%s: %v talks, %v failed, in %v; want %v, %v, %v", when, got.Done, got.Failed, d, done, failed, over)
		}
		if q := got.Time.Quantile(0.5); q < p50 || q > p50*6/5 {
			t.Errorf("%s: the median is %v, want about %v", when, q, p50)
		}
	}
	check("at the start", 0, 0, 0, 0)
	talk("a", 10, time.Millisecond)
	now = now.Add(5 * time.Second)
	check("before anything is kept", 10, 1, 5*time.Second, time.Millisecond)
	for range 8 { // 7 talks in each step
		now = now.Add(traffic.WindowStep)
		talk("a", 4, time.Second)
		talk("b", 3, time.Second)
		w.Keep(now, set.Snapshot().Total())
	}
	check("after 85 s", 42, 12, time.Minute, time.Second)
	now = now.Add(traffic.WindowStep)
	check("a step later", 42, 12, 70*time.Second, time.Second)
	for range 8 {
		w.Keep(now, set.Snapshot().Total())
		now = now.Add(traffic.WindowStep)
	}
	check("after a quiet minute", 0, 0, 70*time.Second, 0)
}
