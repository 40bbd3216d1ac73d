package suite

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
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
	// each is the number of leases in one call of op. opened returns the number of connections opened so far; nil means
	// one per lease.
	each   int
	opened func() int64
	close  func()
}

// Stop releases the arm's resources.
func (l library) Stop() {
	if l.close != nil {
		l.close()
	}
}

// libraryMetrics are the metrics of in-process arms. Processor time is that of this process, without the server.
var libraryMetrics = []string{result.NsOp, result.CPUNs, result.AllocsOp, result.BytesOp, result.P99, result.Reuse}

// callMeter calls an arm repeatedly.
type callMeter struct {
	library
	goroutines int   // 0 is one
	calls      int64 // in all
}

func openLibrary(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
	return &callMeter{library: s.(library)}, nil
}

// Close does nothing.
func (*callMeter) Close() error { return nil }

// Round calls the arm for about d.
func (m *callMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start, began := cpu.Time(), time.Now()
	h, err := m.call(ctx, began.Add(d))
	used, took := cpu.Time()-start, time.Since(began)
	if err != nil {
		return result.Sample{}, err
	}
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

// call calls the arm until the given time, at least once on each goroutine.
func (m *callMeter) call(ctx context.Context, until time.Time) (*hist.Histogram, error) {
	n := max(m.goroutines, 1)
	h := make([]hist.Histogram, n)
	errs := make([]error, n)
	loop := func(i int) {
		for last := time.Now(); errs[i] == nil && (last.Before(until) || h[i].Count() == 0); {
			errs[i] = m.op(ctx)
			now := time.Now()
			h[i].Record(now.Sub(last))
			last = now
		}
	}
	var others sync.WaitGroup
	for i := 1; i < n; i++ {
		others.Go(func() { loop(i) })
	}
	loop(0)
	others.Wait()
	for i := 1; i < n; i++ {
		h[0].Merge(&h[i])
	}
	return &h[0], errors.Join(errs...)
}

// reuse returns the number of leases per opened connection.
func (m *callMeter) reuse() float64 {
	if m.opened == nil {
		return 1
	}
	return float64(m.calls*int64(m.each)) / float64(max(m.opened(), 1))
}

// libraryArm makes an arm from a function that starts its operation.
func libraryArm(name string, start func(ctx context.Context) (library, error)) run.Arm {
	return run.Arm{Name: name, Start: func(ctx context.Context) (run.Stopper, error) {
		l, err := start(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return l, nil
	}}
}

// repeated returns a library whose op runs the given one n times.
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

// pooling adds a pool's count of opened connections, and the function that closes it.
func (l library) pooling(opened func() int64, end func()) library {
	l.opened, l.close = opened, end
	return l
}

// openedBy returns the number of connections that one of our pools has opened.
func openedBy(stats func() pool.Stats) func() int64 {
	return func() int64 { return int64(stats().Opened) }
}
