package upstream

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
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
	if e.onUnhealthy != h.OnUnhealthy {
		e.health.silence = 0 // other policies do not wait for late answers
	}
	e.onUnhealthy, e.unhealthyTimeout, e.stagger = h.OnUnhealthy, h.UnhealthyTimeout, h.Stagger
	switch {
	case h.Probe == nil:
		e.health = health{}
	case !e.over:
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

// againSooner divides the pause before the next probe, after an unanswered probe that decides nothing: the endpoint's
// clients wait for the Timeout already.
const againSooner = 4

// grace divides the Timeout of the first unanswered probe in a row. Data received in that part of the time does not
// show that the endpoint is only slow: it may have been in flight when the endpoint began to hang.
const grace = 8

// probe checks the endpoint at once, and then once per interval until ctx ends.
func (e *endpoint[T]) probe(ctx context.Context, h Health, over chan<- struct{}) {
	defer close(over)
	var late sync.WaitGroup // probes that have not returned
	defer late.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var seen evidence
	var since time.Time    // data received after it shows that the endpoint is not silent
	var listen *time.Timer // calls heardOnLeases at that time, which forgets earlier data
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		if !seen.silent {
			since = began.Add(h.Timeout / grace)
			listen = time.AfterFunc(h.Timeout/grace, func() { e.heardOnLeases() })
		}
		expired, err := e.probeOnce(ctx, h, &late)
		listen.Stop()
		if ctx.Err() != nil {
			return
		}
		seen.unanswered = silent(err, expired)
		seen.silent = seen.unanswered && !(expired && e.heardSince(since))
		since = time.Now()
		pause := h.Interval
		if e.probed(began, err, seen) {
			pause /= againSooner
		}
		jitter := (rand.Float64()*2 - 1) * float64(pause) / 10
		timer.Reset(pause + time.Duration(jitter))
	}
}

// evidence is what a failed probe shows beside its error.
type evidence struct {
	unanswered bool // the probe got no answer in time
	silent     bool // and nothing else was received from the endpoint meanwhile
}

// probeOnce runs one probe. expired says that its time had passed. With CloseUnhealthy, for which it matters whether
// the endpoint is silent or only slow, the probe keeps waiting for an answer while later probes run, until the
// endpoint's leases could have been interrupted.
func (e *endpoint[T]) probeOnce(ctx context.Context, h Health, late *sync.WaitGroup) (expired bool, err error) {
	if h.OnUnhealthy != CloseUnhealthy {
		ctx, cancel := context.WithTimeout(ctx, h.Timeout)
		defer cancel()
		err = runProbe(ctx, h.Probe, e.addr)
		if expired = ctx.Err() != nil; expired && err != nil {
			err = fmt.Errorf("no answer within %v: %w", h.Timeout, err)
		}
		return expired, err
	}
	result := make(chan error, 1)
	var at atomic.Value
	late.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(h.Fall+1)*h.Timeout)
		defer cancel()
		ctx = context.WithValue(ctx, stageKey{}, &at)
		err := runProbe(ctx, h.Probe, e.addr)
		if !silent(err, ctx.Err() != nil) {
			e.answered.Store(sinceEpoch(time.Now()))
		}
		result <- err
	})
	timer := time.NewTimer(h.Timeout)
	defer timer.Stop()
	select {
	case err = <-result:
		return false, err
	case <-timer.C:
		if stage, ok := at.Load().(string); ok {
			return true, fmt.Errorf("no answer within %v: %s", h.Timeout, stage)
		}
		return true, fmt.Errorf("no answer within %v", h.Timeout)
	}
}

// stageKey is the key of an *atomic.Value in contexts of probes: the stage that the probe has reached, for the error
// about a probe that has not returned.
type stageKey struct{}

// setStage records the stage that a probe has reached.
func setStage(ctx context.Context, stage string) {
	if at, ok := ctx.Value(stageKey{}).(*atomic.Value); ok {
		at.Store(stage)
	}
}

// runProbe runs a probe; a panic counts as a failure.
func runProbe(ctx context.Context, probe Probe, addr string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("health probe panicked: %v", p)
		}
	}()
	return probe(ctx, addr)
}

// heardSince reports whether a user or a probe has received anything from the endpoint since t, or a lease since the
// last call of heardOnLeases.
func (e *endpoint[T]) heardSince(t time.Time) bool {
	onLeases, answered := e.heardOnLeases(), e.answered.Load()
	return onLeases || e.heard.Load() > t.UnixNano() || answered != 0 && answered > sinceEpoch(t)
}

// heardOnLeases reports whether anything was received on a lease since the last call.
func (e *endpoint[T]) heardOnLeases() (heard bool) {
	if e.hears != nil {
		e.leased(func(v T) { heard = e.hears(v) || heard })
	}
	return heard
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
