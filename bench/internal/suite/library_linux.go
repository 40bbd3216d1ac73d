package suite

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/headpond/headpond/bench/internal/cpu"
	"github.com/headpond/headpond/bench/internal/hist"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
	"github.com/headpond/headpond/pool"
)

// library is an arm that runs in this process.
type library struct {
	op func(ctx context.Context) error
	// each is how many leases one call of op takes, and opened how many connections were opened so far; nil is one for each lease.
	each   int
	opened func() int64
	close  func()
}

// Stop frees what the arm holds.
func (l library) Stop() {
	if l.close != nil {
		l.close()
	}
}

// libraryMetrics are those of in-process arms. Processor time is this process's, without the server's.
var libraryMetrics = []string{result.NsOp, result.CPUNs, result.AllocsOp, result.BytesOp, result.P99, result.Reuse}

// callMeter calls an arm again and again from one goroutine.
type callMeter struct {
	library
	calls int64 // in all
}

func openLibrary(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
	return &callMeter{library: s.(library)}, nil
}

// Close has nothing to close.
func (*callMeter) Close() error { return nil }

// Round calls for about d.
func (m *callMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	var before, after runtime.MemStats
	h := new(hist.Histogram)
	runtime.GC()
	runtime.ReadMemStats(&before)
	start, began := cpu.Time(), time.Now()
	last := began
	for last.Sub(began) < d || h.Count() == 0 {
		if err := m.op(ctx); err != nil {
			return result.Sample{}, err
		}
		now := time.Now()
		h.Record(now.Sub(last))
		last = now
	}
	used, took := cpu.Time()-start, last.Sub(began)
	runtime.ReadMemStats(&after)
	n := float64(h.Count())
	m.calls += h.Count()
	return result.Sample{Latency: h, Values: map[string]float64{
		result.NsOp:     float64(took) / n,
		result.CPUNs:    float64(used) / n,
		result.AllocsOp: float64(after.Mallocs-before.Mallocs) / n,
		result.BytesOp:  float64(after.TotalAlloc-before.TotalAlloc) / n,
		result.P99:      micros(h.Quantile(0.99)),
		result.Reuse:    m.reuse(),
	}}, nil
}

// reuse is how many leases there were for each connection opened.
func (m *callMeter) reuse() float64 {
	if m.opened == nil {
		return 1
	}
	return float64(m.calls*int64(m.each)) / float64(max(m.opened(), 1))
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

// repeated is a library whose op is n times the given one.
func repeated(n int, op func(ctx context.Context) error) library {
	return library{each: n, op: func(ctx context.Context) error {
		for range n {
			if err := op(ctx); err != nil {
				return err
			}
		}
		return nil
	}}
}

// pooling adds what a pool tells and how it is closed.
func (l library) pooling(opened func() int64, end func()) library {
	l.opened, l.close = opened, end
	return l
}

// openedBy is what our own pools tell of the connections that they have opened.
func openedBy(stats func() pool.Stats) func() int64 {
	return func() int64 { return int64(stats().Opened) }
}
