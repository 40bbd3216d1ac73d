package pool

import (
	"context"
	"errors"
	"time"
)

// open runs Config.Open once for the pool. round is the back-off round it
// started in.
func (p *Pool[T]) open(round uint64) {
	s := &slot[T]{pool: p, openingSince: p.now()}
	p.mu.Lock()
	timeout, opens := p.core.limits.OpenTimeout, p.opens
	p.mu.Unlock()
	finish := func(err error) {
		var e effects[T]
		p.mu.Lock()
		p.touch(p.now())
		p.core.openDone(s, round, err, &e)
		p.signalEmpty()
		p.unlock(&e)
	}
	err := p.givenUp(opens, p.callOpen(opens, timeout, s, finish))
	p.opened(err)
	finish(err)
}

// GiveUp is for a backend that is known not to answer. It fails the waiting callers with ErrOpen and cause, which must
// not be nil. It cancels the opens under way, those of Lease.Replace too, and the Checks that run in Acquire. Leases and
// later acquires and opens are not affected. A paused or closed pool ignores it.
func (p *Pool[T]) GiveUp(cause error) {
	var e effects[T]
	p.mu.Lock()
	if p.core.closed || p.core.paused {
		p.mu.Unlock()
		return
	}
	end := p.endOpens
	p.opens, p.endOpens = context.WithCancelCause(p.ctx)
	p.touch(p.now())
	p.core.giveUp(cause, &e)
	p.unlock(&e)
	end(cause)
}

// giveUp is GiveUp without the opens, whose failures say nothing to callers that come later.
func (c *core[T]) giveUp(cause error, e *effects[T]) {
	c.backoff.round++
	c.pauseRound = c.backoff.round
	c.failAll(ErrOpen, cause, e)
	c.dispatch(e) // also withdraws the needs from the Budget
}

// givenUp returns err, or the cause given to GiveUp if that has cancelled the open.
func (p *Pool[T]) givenUp(opens context.Context, err error) error {
	if err != nil && opens.Err() != nil && p.ctx.Err() == nil {
		return context.Cause(opens)
	}
	return err
}

// errExited is the error of an Open that ended its goroutine.
var errExited = errors.New("the Open callback called runtime.Goexit")

// callOpen runs Config.Open into s.value. If Open or the hook end the goroutine,
// exited is called with the result.
func (p *Pool[T]) callOpen(ctx context.Context, timeout time.Duration, s *slot[T], exited func(error)) error {
	began := p.now()
	within := Bound(ctx, p.start.Add(time.Duration(began)+timeout))
	defer within.End()
	err := p.guard("Open", func() (err error) {
		s.value, err = p.config.Open(within)
		return err
	}, func() { exited(errExited) })
	if h := p.hooks.Opened; h != nil {
		took := time.Duration(p.now() - began)
		_ = p.guard("Hooks.Opened", func() error { h(took, err); return nil }, func() { exited(err) })
	}
	return err
}

// openDirect opens an overflow resource, in the caller's goroutine and with its
// context, which Close ends too. The caller has counted it in core.direct.
func (p *Pool[T]) openDirect(caller context.Context, start int64) (Lease[T], error) {
	ctx, cancel := context.WithCancel(caller)
	defer cancel()
	p.mu.Lock()
	timeout, opens := min(p.core.limits.OpenTimeout, p.core.timeLeft(start)), p.opens
	p.mu.Unlock()
	defer context.AfterFunc(opens, cancel)()
	s := &slot[T]{pool: p, direct: true}
	var l Lease[T]
	var failure error
	finish := func(err error) {
		p.mu.Lock()
		p.touch(p.now())
		c := &p.core
		if err != nil {
			c.direct--
			failure = p.openError(caller, start, err)
		} else {
			c.born(s)
			c.overflowed++
			c.timed++
			p.waits.observe(time.Duration(c.clock - start))
			l = c.lease(s)
			p.hold(s)
		}
		p.signalEmpty()
		p.mu.Unlock()
	}
	finish(p.givenUp(opens, p.callOpen(ctx, timeout, s, func(err error) {
		if finish(err); err == nil {
			l.Release()
		}
	})))
	return l, failure
}

// openError counts and describes the failure of an open for one caller: the pool was closed, the caller's time
// was over, or Open failed with err. Under mu.
func (p *Pool[T]) openError(caller context.Context, start int64, err error) error {
	c := &p.core
	switch {
	case c.closed:
		return c.newError(ErrClosed, err, c.clock-start, 0)
	case caller.Err() != nil:
		return p.ctxError(caller, start, 0)
	case c.timeLeft(start) <= 0:
		c.timedOut++
		return c.newError(ErrTimeout, err, c.clock-start, 0)
	}
	c.openFailed++
	return c.newError(ErrOpen, err, c.clock-start, 0)
}
