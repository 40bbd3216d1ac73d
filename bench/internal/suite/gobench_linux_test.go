package suite_test

import (
	"testing"

	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/suite"
)

func TestGoBenchmarkLines(t *testing.T) {
	name, values, ok := suite.ParseGo("BenchmarkPoolAcquire/puddle/g=1-2  \t 100\t 12.5 ns/op\t 3 B/op\t 1 allocs/op\t 900 p99-ns")
	if !ok || name != "PoolAcquire/puddle/g=1" || values[result.NsOp] != 12.5 || values[result.BytesOp] != 3 || values[result.AllocsOp] != 1 || values["p99-ns"] != 900 {
		t.Errorf("%q, %v, %v", name, values, ok)
	}
	for _, line := range []string{"", "PASS", "ok  \tx\t1s", "BenchmarkX", "BenchmarkX-2 1 x ns/op"} {
		if name, _, ok := suite.ParseGo(line); ok {
			t.Errorf("%q is taken for benchmark %q", line, name)
		}
	}
	for name, want := range map[string][2]string{
		"PoolAcquire/puddle/g=1": {"PoolAcquire/g=1", "puddle"},
		"Route/json/gin":         {"Route/json", "gin"},
		"Send1KiB/raw":           {"Send1KiB", "raw"},
		"PoolChecked":            {"PoolChecked", "headpond"},
	} {
		if id, arm := suite.SplitGo(name); id != want[0] || arm != want[1] {
			t.Errorf("%s is case %s of arm %s", name, id, arm)
		}
	}
}
