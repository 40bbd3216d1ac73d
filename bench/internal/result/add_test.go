package result

import (
	"math"
	"path/filepath"
	"testing"
)

// TestAddWithoutNumbers: results can be saved whatever a busy machine has measured.
func TestAddWithoutNumbers(t *testing.T) {
	a := &Arm{}
	a.Add(Sample{Values: map[string]float64{CPU: math.Inf(1), RSS: 3, IdleCPU: math.NaN()}})
	if v := a.Rounds[0].Values; len(v) != 1 || v[RSS] != 3 {
		t.Errorf("got %v", v)
	}
	r := &Results{Cases: []*Case{{Arms: []*Arm{a}}}}
	if err := r.Save(filepath.Join(t.TempDir(), "results.json")); err != nil {
		t.Error(err)
	}
}
