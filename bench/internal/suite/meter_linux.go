package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headpond/headpond/bench/internal/result"
)

// Round runs the generator and measures the cost of the process under test. A round without any answer is repeated with
// twice the length: on a busy machine a short round may end before the process gets to run.
func (m *loadMeter) Round(ctx context.Context, d time.Duration, rate float64) (result.Sample, error) {
	for {
		s, answered, err := m.round(ctx, d, rate)
		if answered || err != nil {
			return s, err
		}
		d *= 2
	}
}

// round is Round with exactly this length. answered is false if nothing was answered within it.
func (m *loadMeter) round(ctx context.Context, d time.Duration, rate float64) (s result.Sample, answered bool, err error) {
	opened, err := m.accepted.count()
	if err != nil {
		return result.Sample{}, false, err
	}
	a, err := begin(m.target)
	if err != nil {
		return result.Sample{}, false, err
	}
	r, err := m.client.Run(ctx, d, rate)
	if err != nil {
		return result.Sample{}, false, err
	}
	cpu, peak, err := a.end()
	if err != nil {
		return result.Sample{}, false, err
	}
	switched := a.switched()
	if m.tooMany(r) || r.All == 0 && r.Err != nil {
		return result.Sample{}, false, fmt.Errorf("%d of %d operations failed: %w", r.Errors, r.All+r.Errors, r.Err)
	}
	if r.Ops == 0 {
		return result.Sample{}, false, nil
	}
	v := map[string]float64{
		result.Throughput: r.Throughput(),
		result.P50:        micros(r.Latency.Quantile(0.5)),
		result.P99:        micros(r.Latency.Quantile(0.99)),
		result.P999:       micros(r.Latency.Quantile(0.999)),
	}
	if r.Reconnects > 0 && !m.fresh {
		v[result.Closed] = 100 * float64(r.Reconnects) / float64(r.All)
	}
	if m.target.Proc != nil {
		v[result.CPU] = micros(cpu) / float64(r.All)
		v[result.Peak] = peak
		v[result.Switches] = float64(switched) / float64(r.All)
	}
	err = m.accepted.reuse(v, float64(r.All), opened)
	return result.Sample{Values: v, Latency: &r.Latency}, true, err
}

// traceTime is the duration of a trace.
const traceTime = 300 * time.Millisecond

// Extra counts the system calls per operation with strace. strace slows the process down, so this is not part of a
// round.
func (m *loadMeter) Extra(ctx context.Context, rate float64) (map[string]float64, error) {
	if m.target.Proc == nil {
		return nil, nil
	}
	trace, err := m.target.Proc.Trace()
	if err != nil {
		return nil, err
	}
	r, err := m.client.Run(ctx, traceTime, rate)
	calls, err2 := trace.End()
	if err := errors.Join(err, err2); err != nil || r.All == 0 {
		return nil, err
	}
	return map[string]float64{result.Syscalls: float64(calls) / float64(r.All)}, nil
}
