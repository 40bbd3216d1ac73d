package tcpproxy

import (
	"context"
	"time"

	"github.com/headpond/headpond/listener"
)

const (
	// drainSteps is the number of steps in which sessions are cut off. After the last step a tenth of the time is left
	// for them to end.
	drainSteps = 18
	drainParts = 20
	// leastDrainStep bounds how often a step runs.
	leastDrainStep = 10 * time.Millisecond
)

// stagger cuts off the remaining sessions shortly before ctx ends, in several steps. stop ends that, and returns how
// many sessions were cut off.
func (p *Proxy) stagger(ctx context.Context) (stop func() int) {
	end, limited := ctx.Deadline()
	spread := min(p.cfg.Load().DrainStagger, time.Until(end)/2)
	if !limited || spread <= 0 {
		return func() int { return 0 }
	}
	ctx, cancel := context.WithCancel(ctx)
	cut := make(chan int, 1)
	go func() { cut <- p.cutSlowly(ctx, end.Add(-spread), spread/drainParts) }()
	return func() int {
		cancel()
		return <-cut
	}
}

// cutSlowly cuts off sessions between begin and the end of ctx, and returns how many.
func (p *Proxy) cutSlowly(ctx context.Context, begin time.Time, step time.Duration) (cut int) {
	timer := time.NewTimer(time.Until(begin))
	defer timer.Stop()
	for left := drainSteps; ; left = max(left-1, 1) {
		select {
		case <-ctx.Done():
			return cut
		case <-timer.C:
		}
		var all []*session
		p.srv.Each(func(s listener.Session) {
			if s := s.(*session); s.isCut() == nil { //nolint:forcetypeassert // all are
				all = append(all, s)
			}
		})
		for _, s := range all[:(len(all)+left-1)/left] {
			if s.cutOff(errDrained) {
				cut++
			}
		}
		timer.Reset(max(step, leastDrainStep))
	}
}
