package admin_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/traffic"
)

// toy is a schema of a protocol of another module.
var toy = &traffic.Schema{
	Labels: []string{"room"}, Counts: 2, Timings: 1,
	Views: []traffic.View{{
		Labels: []string{"room"},
		Counters: []traffic.Counter{
			{Name: "toy_words_total", Help: "Words.", Label: "kind", Value: "good", Read: traffic.Count(0)},
			{Name: "toy_words_total", Help: "Words.", Label: "kind", Value: "bad", Read: traffic.Count(1), Sparse: true},
		},
		Histograms: []traffic.Timer{{Name: "toy_talk_seconds", Help: "Talks.", Read: traffic.Time(0)}},
	}},
}

// toyMetrics serves the metrics of a listener that has counted a word and three talks.
func toyMetrics(t *testing.T) http.Handler {
	t.Helper()
	set := traffic.NewSet(toy)
	s := set.Cell(hostile).Shard(0)
	s.Add(0, 1)
	for _, d := range []time.Duration{0, 3 * time.Millisecond, time.Hour * 10} {
		s.Observe(0, d)
	}
	return newHandler(t, admin.Config{Snapshot: func() admin.Snapshot {
		return admin.Snapshot{Listeners: []listener.Stats{{Name: "l", Protocol: "toy", Traffic: []traffic.Snapshot{set.Snapshot()}}}}
	}})
}

// TestTrafficAsText has the few classic buckets.
func TestTrafficAsText(t *testing.T) {
	body := get(toyMetrics(t), "/metrics").Body.String()
	for _, line := range []string{
		`headpond_toy_words_total{kind="good",listener="l",protocol="toy",room="</script><img src=x onerror=alert(1)>\"'�"} 1`,
		`,le="0.0001220703125"} 1`, `,le="0.0078125"} 2`, `,le="16"} 2`, `,le="+Inf"} 3`,
	} {
		if !strings.Contains(body, line) {
			t.Errorf("no line with %s", line)
		}
	}
	if n := strings.Count(body, "headpond_toy_talk_seconds_bucket"); n != 9 {
		t.Errorf("%d classic buckets", n)
	}
	if strings.Contains(body, `kind="bad"`) {
		t.Error("a sparse counter is shown at 0")
	}
}

// TestTrafficAsNativeHistograms asks as Prometheus does that knows them, and reads the buckets by their bounds.
func TestTrafficAsNativeHistograms(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	toyMetrics(t).ServeHTTP(w, r)
	decoder := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header()))
	for {
		var family dto.MetricFamily
		if err := decoder.Decode(&family); err != nil {
			t.Fatalf("before the histogram: %v", err)
		}
		if family.GetName() != "headpond_toy_talk_seconds" {
			continue
		}
		h := family.Metric[0].Histogram
		buckets := nativeBuckets(h)
		if h.GetZeroCount() != 1 || h.GetSampleCount() != 3 || len(h.Bucket) != 8 {
			t.Errorf("histogram %v", h)
		}
		if len(buckets) != 2 || buckets["0.00276 … 0.00328"] != 1 || buckets["4096.00000 … 4870.99234"] != 1 {
			t.Errorf("buckets %v", buckets)
		}
		return
	}
}

// nativeBuckets returns the counts by the bounds that the format's specification gives them.
func nativeBuckets(h *dto.Histogram) map[string]int64 {
	out := map[string]int64{}
	index, n, k := 0, int64(0), 0
	for _, span := range h.PositiveSpan {
		index += int(span.GetOffset())
		for range span.GetLength() {
			n += h.PositiveDelta[k]
			base := math.Exp2(math.Exp2(-float64(h.GetSchema())))
			out[fmt.Sprintf("%.5f … %.5f", math.Pow(base, float64(index-1)), math.Pow(base, float64(index)))] += n
			index++
			k++
		}
	}
	return out
}
