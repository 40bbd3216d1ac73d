package pool

import (
	"context"
	"errors"
	"time"
)

// open runs Config.Open once for the pool. round is the back-off round it
// started in.
func (p *Pool[T]) open(round uint64) {
	s := &slot[T]{pool: p}
	finish := func(err error) {
		var e effects[T]
		p.mu.Lock()
		p.touch(p.now())
		p.core.openDone(s, round, err, &e)
		if p.core.empty() {
			close(p.done)
		}
		p.unlock(&e)
	}
	p.mu.Lock()
	timeout := p.core.limits.OpenTimeout
	p.mu.Unlock()
	finish(p.callOpen(p.ctx, timeout, s, func() { finish(errExited) }))
}

// errExited is what waiters learn when Open ended its goroutine.
var errExited = errors.New("the Open callback called runtime.Goexit")

// callOpen runs Config.Open into s.value.
func (p *Pool[T]) callOpen(ctx context.Context, timeout time.Duration, s *slot[T], exited func()) error {
	began := p.now()
	within := &bounded{Context: ctx, at: time.Now().Add(timeout)}
	defer within.end()
	err := p.guard("Open", func() (err error) {
		s.value, err = p.config.Open(within)
		return err
	}, exited)
	if p.hooks.Opened != nil {
		p.hooks.Opened(time.Duration(p.now()-began), err)
	}
	return err
}

// openDirect opens an overflow resource, in the caller's goroutine and with its
// context, which Close ends too. The caller has counted it in core.direct.
func (p *Pool[T]) openDirect(ctx context.Context, start int64) (Lease[T], error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	s := &slot[T]{pool: p, direct: true}
	var l Lease[T]
	var failure error
	finish := func(err error) {
		p.mu.Lock()
		p.touch(p.now())
		c := &p.core
		if err != nil {
			c.direct--
			c.openFailed++
			kind := ErrOpen
			if c.closed {
				kind = ErrClosed
			}
			failure = c.newError(kind, err, c.clock-start)
		} else {
			c.born(s)
			c.overflowed++
			l = c.lease(s)
			p.hold(s)
		}
		if c.empty() {
			close(p.done)
		}
		p.mu.Unlock()
	}
	p.mu.Lock()
	timeout := p.core.limits.OpenTimeout
	p.mu.Unlock()
	finish(p.callOpen(ctx, timeout, s, func() { finish(errExited) }))
	return l, failure
}
