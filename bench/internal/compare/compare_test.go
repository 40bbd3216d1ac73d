package compare_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/headpond/headpond/bench/internal/compare"
	"github.com/headpond/headpond/bench/internal/result"
)

// results has one case with an arm and its baseline.
func results(gateway, peer []float64) *result.Results {
	c := &result.Case{ID: "W1c/64", Metrics: []string{result.CPU, result.Peak}, Baseline: "haproxy"}
	for name, values := range map[string][]float64{"gateway-uring": gateway, "haproxy": peer} {
		a := &result.Arm{Name: name}
		for _, v := range values {
			a.Add(result.Sample{Values: map[string]float64{result.CPU: v}})
		}
		c.Arms = append(c.Arms, a)
	}
	return &result.Results{Cases: []*result.Case{c}}
}

func verdictOf(t *testing.T, old, now *result.Results) compare.Change {
	t.Helper()
	for _, c := range compare.Compare(old, now) {
		if c.Arm == "gateway-uring" && c.Metric == result.CPU {
			return c
		}
	}
	t.Fatal("nothing compared")
	return compare.Change{}
}

func TestVerdicts(t *testing.T) {
	base := results([]float64{10, 10.1, 9.9, 10, 10}, []float64{20, 20, 20.1, 20, 20})
	for _, c := range []struct {
		name          string
		gateway, peer []float64
		want          compare.Verdict
	}{
		{"the same", []float64{10, 10, 10.2, 9.9, 10}, []float64{20, 20, 20, 20, 20}, compare.Same},
		{"the whole machine is slower", []float64{15, 15, 15.1, 15, 15}, []float64{30, 30, 30, 30, 30.1}, compare.Same},
		{"we are slower", []float64{12, 12, 12.1, 12, 12}, []float64{20, 20, 20, 20, 20}, compare.Worse},
		{"the peer alone is faster", []float64{10, 10, 10.1, 10, 10}, []float64{15, 15, 15.1, 15, 15}, compare.Same},
		{"we are faster", []float64{8, 8, 8.1, 8, 8}, []float64{20, 20, 20, 20, 20}, compare.Better},
		{"who knows", []float64{5, 30, 10, 18, 12}, []float64{20, 20, 20, 20, 20}, compare.Noise},
	} {
		if got := verdictOf(t, base, results(c.gateway, c.peer)); got.Verdict != c.want || !got.Relative {
			t.Errorf("%s: %+v, want %s", c.name, got, c.want)
		}
	}
}

func TestPrint(t *testing.T) {
	base := results([]float64{10, 10, 10}, []float64{20, 20, 20})
	var b strings.Builder
	err := compare.Print(&b, base, results([]float64{13, 13, 13}, []float64{20, 20, 20}))
	if !errors.Is(err, compare.ErrRegression) || !strings.Contains(b.String(), "worse   W1c/64 gateway-uring, CPU µs/op: × 1.30") {
		t.Errorf("%v\n%s", err, b.String())
	}
	b.Reset()
	if err := compare.Print(&b, base, base); err != nil || !strings.Contains(b.String(), "0 worse, 0 better, 1 the same") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// TestAgreement compares with a run whose ratio differs by 20 %, and with one that is noise.
func TestAgreement(t *testing.T) {
	base := results([]float64{10, 10, 10}, []float64{20, 20, 20})
	for _, c := range []struct {
		name    string
		gateway []float64
		want    string
	}{
		{"the same", []float64{10.5, 10.5, 10.5}, "1 of 1 agree within 10 %; of 0 more"},
		{"other", []float64{12, 12, 12}, "differs  W1c/64 gateway-uring, CPU µs/op to the baseline: 0.50 ±0 %, then 0.60 ±0 %\nRatios to the baselines: 0 of 1 agree"},
		{"noise", []float64{10, 12, 15}, "0 of 0 agree within 10 %; of 1 more that a run has marked as noise, 0 do"},
	} {
		var b strings.Builder
		if err := compare.Print(&b, base, results(c.gateway, []float64{20, 20, 20})); err != nil && !errors.Is(err, compare.ErrRegression) || !strings.Contains(b.String(), c.want) {
			t.Errorf("%s: %v\n%s", c.name, err, b.String())
		}
	}
}
