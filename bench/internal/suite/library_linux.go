package suite

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/headpond/headpond/bench/internal/hist"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// library is an arm that runs in this process.
type library struct {
	op    func(ctx context.Context) error
	close func()
}

// Stop frees what the arm holds.
func (l library) Stop() {
	if l.close != nil {
		l.close()
	}
}

// libraryMetrics are those of in-process arms. Processor time is this process's, without the server's.
var libraryMetrics = []string{result.NsOp, result.CPUNs, result.AllocsOp, result.BytesOp, result.P99}

// callMeter calls an arm again and again from one goroutine.
type callMeter struct {
	op func(ctx context.Context) error
}

func openLibrary(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
	return callMeter{s.(library).op}, nil
}

// Close has nothing to close.
func (callMeter) Close() error { return nil }

// Round calls for about d.
func (m callMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	var before, after runtime.MemStats
	h := new(hist.Histogram)
	runtime.GC()
	runtime.ReadMemStats(&before)
	cpu, began := ownCPU(), time.Now()
	last := began
	for last.Sub(began) < d || h.Count() == 0 {
		if err := m.op(ctx); err != nil {
			return result.Sample{}, err
		}
		now := time.Now()
		h.Record(now.Sub(last))
		last = now
	}
	used, took := ownCPU()-cpu, last.Sub(began)
	runtime.ReadMemStats(&after)
	n := float64(h.Count())
	return result.Sample{Latency: h, Values: map[string]float64{
		result.NsOp:     float64(took) / n,
		result.CPUNs:    float64(used) / n,
		result.AllocsOp: float64(after.Mallocs-before.Mallocs) / n,
		result.BytesOp:  float64(after.TotalAlloc-before.TotalAlloc) / n,
		result.P99:      micros(h.Quantile(0.99)),
	}}, nil
}

// ownCPU is the processor time of this process.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// libraryArm makes an arm of a function that makes its operation.
func libraryArm(name string, start func(ctx context.Context) (library, error)) run.Arm {
	return run.Arm{Name: name, Start: func(ctx context.Context) (run.Stopper, error) {
		l, err := start(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return l, nil
	}}
}

// times repeats an operation.
func times(n int, op func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		for range n {
			if err := op(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}
