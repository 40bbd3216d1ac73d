package upstream

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/headpond/headpond/pool"
)

// configure applies the settings of the checks, initially and at each Update. The endpoint keeps its state, except that
// it is healthy without a Probe.
func (e *endpoint[T]) configure(s Settings) {
	e.stopProbing()
	h := s.Health.withDefaults()
	e.judgement.Store(judgementOf(s))
	e.mu.Lock()
	e.ejector.cfg = s.Ejection.withDefaults()
	e.trialTime = cmp.Or(s.Limits.OpenTimeout, pool.DefaultOpenTimeout)
	if e.ejector.cfg.Failures < 0 {
		e.ejector.clear()
		e.stopReadmit()
	}
	e.health.rise, e.health.fall = h.Rise, h.Fall
	e.onUnhealthy, e.unhealthyTimeout, e.stagger = h.OnUnhealthy, h.UnhealthyTimeout, h.Stagger
	if h.Probe == nil {
		e.health = health{}
	} else {
		ctx, cancel := context.WithCancel(context.Background())
		e.stopProbe, e.probing = cancel, make(chan struct{})
		go e.probe(ctx, h, e.probing)
	}
	changed := e.updateUsable()
	e.mu.Unlock()
	if changed {
		e.changed()
	}
	if s.Target == TargetAny {
		e.stopAsking()
	} else {
		e.startAsking()
	}
}

// againSooner divides the pause before the next probe, after an unanswered probe that leaves the endpoint in: its
// clients wait for the Timeout already.
const againSooner = 4

// probe checks the endpoint at once, and then once per interval until ctx ends.
func (e *endpoint[T]) probe(ctx context.Context, h Health, over chan<- struct{}) {
	defer close(over)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		expired, err := probeOnce(ctx, h, e.addr)
		if ctx.Err() != nil {
			return
		}
		pause := h.Interval
		if e.probed(began, err, silent(err, expired)) {
			pause /= againSooner
		}
		jitter := (rand.Float64()*2 - 1) * float64(pause) / 10
		timer.Reset(pause + time.Duration(jitter))
	}
}

// probeOnce runs one probe; a panic counts as a failure. expired says that the probe's time had passed.
func probeOnce(ctx context.Context, h Health, addr string) (expired bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("health probe panicked: %v", p)
		}
	}()
	err = h.Probe(ctx, addr)
	if expired = ctx.Err() != nil; expired && err != nil {
		err = fmt.Errorf("no answer within %v: %w", h.Timeout, err)
	}
	return expired, err
}

// stopProbing ends the probe's goroutine and waits for it.
func (e *endpoint[T]) stopProbing() {
	e.mu.Lock()
	stop, over := e.stopProbe, e.probing
	e.stopProbe, e.probing = nil, nil
	e.mu.Unlock()
	if stop != nil {
		stop()
		<-over
	}
}
