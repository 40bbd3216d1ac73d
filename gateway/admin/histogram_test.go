package admin_test

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/traffic"
)

func TestHistogramOfAnInterval(t *testing.T) {
	before := admin.Histogram{{0.001, 5}, {0.002, 7}, {1, 2}}
	now := admin.Histogram{{0.001, 5}, {0.002, 97}, {0.5, 10}, {1, 1}} // a reload has removed what took a second
	since := now.Since(before)
	if want := (admin.Histogram{{0.002, 90}, {0.5, 10}}); !reflect.DeepEqual(since, want) {
		t.Errorf("%v", since)
	}
	for q, want := range map[float64]float64{0: 0.002, 0.5: 0.002, 0.89: 0.002, 0.95: 0.5, 1: 0.5} {
		if got, ok := since.Quantile(q); !ok || got != want {
			t.Errorf("quantile %v is %v", q, got)
		}
	}
	if _, ok := now.Since(now).Quantile(0.5); ok {
		t.Error("nothing has a quantile")
	}
	if want := (admin.Histogram{{0.001, 10}, {0.002, 104}, {0.5, 10}, {1, 3}}); !reflect.DeepEqual(now.Add(before), want) || !reflect.DeepEqual(before.Add(now), want) {
		t.Errorf("%v", now.Add(before))
	}
}

// TestStatusServesHistograms: on request the status has what was counted since the start, of each upstream of the
// protocol and in histograms.
func TestStatusServesHistograms(t *testing.T) {
	schema := &traffic.Schema{Labels: []string{"upstream"}, Counts: 1, Timings: 1, Summary: &traffic.Summary{
		Unit: "transactions", Done: traffic.Counted(0), Failed: traffic.Count(0), Time: traffic.Time(0),
	}}
	set := traffic.NewSet(schema)
	pg, other := set.Cell("pg").Shard(0), set.Cell("other").Shard(0)
	for range 99 {
		pg.Observe(0, time.Millisecond)
	}
	pg.Observe(0, 100*time.Hour)
	pg.Add(0, 3)
	other.Observe(0, time.Second)
	h := newHandler(t, admin.Config{Snapshot: func() admin.Snapshot {
		s := snapshot()
		s.Listeners = []listener.Stats{{Name: "db", Protocol: "postgres", Traffic: []traffic.Snapshot{set.Snapshot()}}, {Name: "raw", Protocol: "tcp"}}
		s.Process = admin.ProcessUse{CPU: 90 * time.Second, CPUs: 4, Resident: 1 << 20}
		return s
	}})
	for query, with := range map[string]bool{"": false, "?histograms=false": false, "?histograms=true": true} {
		answer := get(h, "/api/v1/status"+query)
		var s admin.Status
		if err := json.Unmarshal(answer.Body.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		l, u := s.Listeners[0].Served, s.Upstreams[0].Served
		if l == nil || l.Done != 101 || l.Failed != 3 || l.Unit != "transactions" || u == nil || u.Done != 100 || u.Failed != 3 || s.Listeners[1].Served != nil || s.Upstreams[1].Served != nil {
			t.Errorf("%s: %+v, %+v", query, l, u)
		}
		if (len(u.Histogram) == 2) != with || strings.Contains(answer.Body.String(), "acquire_histogram") != with {
			t.Errorf("%s: %v", query, u.Histogram)
		}
		if with {
			p50, _ := u.Histogram.Quantile(0.5)
			p100, _ := u.Histogram.Quantile(1)
			acquires, _ := s.Upstreams[0].Endpoints[0].Pool.AcquireHistogram.Quantile(1)
			if p50 < 0.001 || p50 > 0.0012 || p100 != 4096 || acquires != 32 {
				t.Errorf("quantiles %v, %v and %v", p50, p100, acquires)
			}
		}
		if want := (admin.Process{CPUSeconds: 90, CPUs: 4, ResidentBytes: 1 << 20}); s.Process != want {
			t.Errorf("%+v", s.Process)
		}
	}
	for _, path := range []string{"/api/v1/status", "/api/v1/pools"} {
		if answer := get(h, path+"?histograms=maybe"); answer.Code != http.StatusBadRequest || !strings.Contains(answer.Body.String(), "want true or false") {
			t.Errorf("%s: %d %s", path, answer.Code, answer.Body)
		}
	}
	if answer := get(h, "/api/v1/pools?histograms=true"); strings.Count(answer.Body.String(), "acquire_histogram") != 3 {
		t.Errorf("%s", answer.Body)
	}
}
