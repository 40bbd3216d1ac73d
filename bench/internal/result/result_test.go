package result_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/headpond/headpond/bench/internal/result"
)

func armOf(values ...float64) *result.Arm {
	a := &result.Arm{}
	for _, v := range values {
		a.Add(result.Sample{Values: map[string]float64{result.CPU: v}})
	}
	return a
}

func TestRatio(t *testing.T) {
	for _, c := range []struct {
		name           string
		a, b           *result.Arm
		text           string
		noise, differs bool
	}{
		{"steady", armOf(8.7, 8.7, 8.7), armOf(10, 10, 10), "0.87 ±0 %", false, true},
		{"slow phases hit both", armOf(8, 16, 32), armOf(10, 20, 40), "0.80 ±0 %", false, true},
		{"noise", armOf(5, 10, 20), armOf(10, 10, 10), "1.00 ±75 % noise", true, false},
		{"one bad round in nine", armOf(9, 9, 9, 9, 30, 9, 9, 9, 9), armOf(10, 10, 10, 10, 10, 10, 10, 10, 10), "0.90 ±0 %", false, true},
		{"one bad round of the peer in six", armOf(9, 9, 9, 9, 9, 9), armOf(10, 10, 10, 20, 10, 10), "0.90 ±25 % noise", true, true},
		{"a round less", armOf(9, 9, 9), armOf(10, 10, 10, 99), "0.90 ±0 %", false, true},
		{"small", armOf(1, 1, 1), armOf(150, 150, 150), "1/150 ±0 %", false, true},
		{"too few rounds", armOf(1, 1), armOf(2, 2), "0.50 of 2 round(s), noise", true, false},
		{"nothing to divide by", armOf(1, 1), armOf(0, 0), "–", false, false},
		{"not measured", armOf(), armOf(1), "–", false, false},
	} {
		r := result.RatioOf(c.a, c.b, result.CPU)
		if r.String() != c.text || r.Noise() != c.noise || r.Valid() && r.Differs() != c.differs {
			t.Errorf("%s: %v, noise %v, differs %v", c.name, r, r.Noise(), r.Differs())
		}
		if again := result.RatioOf(c.a, c.b, result.CPU); again != r {
			t.Errorf("%s: another time it is %v", c.name, again)
		}
	}
	var none *result.Arm
	if r := result.Independent(none, armOf(1), result.CPU); r.Valid() {
		t.Errorf("an arm that is not there has ratio %v", r)
	}
}

// TestDisturbedCaseIsNoise: a case that other programs disturbed is noise.
func TestDisturbedCaseIsNoise(t *testing.T) {
	for others, want := range map[float64]string{0.05: "0.50 ±0 %", 0.3: "0.50 ±0 % noise"} {
		c := &result.Case{Others: others}
		if got := c.Ratio(armOf(1, 1, 1), armOf(2, 2, 2), result.CPU).String(); got != want {
			t.Errorf("others had %v of the machine: %q, want %q", others, got, want)
		}
		c.Metrics = []string{result.Peak, result.CPU}
		if c.Disturbed() {
			t.Errorf("others had %v of the machine: memory is disturbed", others)
		}
	}
}

func TestStat(t *testing.T) {
	if s := armOf(3, 1, 2, 10).Stat(result.CPU); s != (result.Stat{N: 4, Min: 1, Median: 2.5, Max: 10}) {
		t.Errorf("%+v", s)
	}
	if s := armOf(3).Stat(result.P99); s.N != 0 {
		t.Errorf("%+v", s)
	}
}

func TestFormat(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0001: "0.0001", 0.126: "0.13", 9.994: "9.99", 9.996: "10.0", 99.94: "99.9", 99.96: "100", 1234.5: "1,235", -1234567: "-1,234,567", math.Inf(1): "–", math.NaN(): "–",
	} {
		if got := result.Format(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}

func TestLoadRefusesOtherSchemas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	r := &result.Results{Schema: result.Schema, Cases: []*result.Case{{ID: "x", Metrics: []string{result.CPU}, Arms: []*result.Arm{armOf(1)}}}}
	if err := r.Save(path); err != nil {
		t.Fatal(err)
	}
	back, err := result.Load(path)
	if err != nil || back.Case("x") == nil || back.Case("y") != nil {
		t.Fatal(err, back)
	}
	if err := os.WriteFile(path, []byte(`{"schema": 99}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := result.Load(path); !errors.Is(err, result.ErrSchema) {
		t.Errorf("schema 99: %v", err)
	}
	for _, damaged := range []string{"", "[1]", `{"schema": "one"}`, `{"schema": 1, "cases": [{`, `{"schema": 1, "cases": [null]}`, `{"schema": 1, "cases": [{"id": "x"}]}`, `{"schema": 1, "cases": [{"id": "x", "metrics": ["y"], "arms": [null]}]}`} {
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := result.Load(path); !errors.Is(err, result.ErrFormat) {
			t.Errorf("%q: %v", damaged, err)
		}
	}
}

// TestIntervalsHoldTheTruth draws samples around a known ratio: about 95 of 100 intervals contain it, for any
// distribution of the noise.
func TestIntervalsHoldTheTruth(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for name, noise := range map[string]func() float64{
		"normal":      func() float64 { return 0.05 * rng.NormFloat64() },
		"with spikes": func() float64 { return 0.02*rng.NormFloat64() + 0.5*float64(rng.IntN(8)/7) },
	} {
		sample := func(center float64, n int) *result.Arm {
			a := armOf()
			for range n {
				a.Add(result.Sample{Values: map[string]float64{result.CPU: center * math.Exp(noise())}})
			}
			return a
		}
		const tries = 2000
		paired, apart, both := 0, 0, 0
		in := func(r result.Ratio) int {
			if r.Low <= 0.8 && 0.8 <= r.High {
				return 1
			}
			return 0
		}
		for range tries {
			a, b, c, d := sample(8, 9), sample(10, 9), sample(12, 9), sample(12, 9)
			paired += in(result.RatioOf(a, b, result.CPU))
			apart += in(result.Independent(a, b, result.CPU))
			both += in(result.Independent2(a, b, c, d, result.CPU))
		}
		for what, n := range map[string]int{"RatioOf": paired, "Independent": apart, "Independent2": both} {
			if share := float64(n) / tries; share < 0.94 || share > 0.985 {
				t.Errorf("%s, noise %s: %.1f %% of the intervals hold the truth", what, name, 100*share)
			}
		}
	}
}
