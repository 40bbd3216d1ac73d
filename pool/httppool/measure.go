package httppool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// measured is a Lease that measures answers, for the endpoint's ejection and for balances by latency. *upstream.Lease
// implements it.
type measured interface {
	Measures() bool
	Answered(took time.Duration, bad bool) (failed bool)
	Unanswered(waited time.Duration, late bool) (failed bool)
	Blame(cause error)
}

// unmeasured is upstream.Unmeasured.
const unmeasured time.Duration = -1

// measures returns the lease if answers are measured, nil otherwise. It is called before the exchange
// begins: the fiber or goroutine that sends the body must not use the lease.
func (x *exchange) measures() measured {
	if x.lease == Lease(&x.own) {
		return nil
	}
	if m, ok := x.lease.(measured); ok && m.Measures() {
		return m
	}
	return nil
}

// isSent records that the whole request is written, or about to be in one write.
func (x *exchange) isSent() {
	if x.judge == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent = time.Now()
}

// waited returns how long the server has had the whole request; unmeasured while a part of it is still
// to be written.
func (x *exchange) waited() time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sent.IsZero() {
		return unmeasured
	}
	return max(time.Since(x.sent), 0)
}

// measureAnswer measures the final answer, whose head has arrived.
func (x *exchange) measureAnswer() {
	if x.judge == nil {
		return
	}
	if waited := x.waited(); x.judge.Answered(waited, httpwire.ServerFailed(x.head.status)) {
		x.judge.Blame(fmt.Errorf("status %d after %v", x.head.status, max(waited, 0).Round(time.Millisecond)))
	}
}

// measureSilence records that no head has arrived when the exchange stops waiting. ctx is the request's: its end is the
// server's fault if ErrResponseTimeout ended it.
func (x *exchange) measureSilence(ctx context.Context, step string) {
	if x.judge == nil || step != "receive" {
		return
	}
	waited := x.waited()
	x.mu.Lock()
	answered := x.headRead
	x.mu.Unlock()
	if answered || waited == unmeasured {
		return
	}
	late := ctx.Err() == nil
	if full := x.headerTimeout(); !late && errors.Is(context.Cause(ctx), ErrResponseTimeout) {
		late = full > 0 && httpwire.HadItsTime(waited, full)
	}
	if x.judge.Unanswered(waited, late) {
		x.judge.Blame(fmt.Errorf("no answer within %v", waited.Round(time.Millisecond)))
	}
}
