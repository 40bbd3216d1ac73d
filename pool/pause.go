package pool

import (
	"context"
	"errors"
	"fmt"
)

// ErrResumed is the error of WaitPaused if the pool is not paused, or Resume ends the pause.
var ErrResumed = errors.New("the pool is not paused")

// Pause stops the use of the backend, for example while it is restarted or replaced by another. Until Resume no lease
// is given and nothing is opened. Idle resources are closed at once, leased ones when they are released: WaitPaused
// waits for that. Callers of Acquire wait; the pause does not count towards their AcquireTimeout, but their contexts
// and MaxWaiters still apply. Pause of a paused pool does nothing. The error wraps ErrClosed.
func (p *Pool[T]) Pause() error {
	var e effects[T]
	p.mu.Lock()
	c := &p.core
	if c.closed {
		err := c.newError(ErrClosed, nil, 0, 0)
		p.mu.Unlock()
		return err
	}
	if !c.paused {
		p.touch(p.now())
		c.pause(&e)
		p.quiet = make(chan struct{})
		p.signalEmpty()
	}
	p.unlockAsync(&e)
	return nil
}

// WaitPaused waits until every lease of a paused pool has been released and every resource closed. If ctx ends first,
// it returns ctx's error, and the pool stays paused. Other errors wrap ErrResumed or ErrClosed.
func (p *Pool[T]) WaitPaused(ctx context.Context) error {
	p.mu.Lock()
	c, quiet := &p.core, p.quiet
	p.mu.Unlock()
	if quiet != nil {
		select {
		case <-quiet:
		case <-ctx.Done():
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case c.closed:
		return c.newError(ErrClosed, nil, 0, 0)
	case quiet == nil || p.quiet != quiet:
		return fmt.Errorf("pool %q: wait for a pause: %w", p.name, ErrResumed)
	case c.empty():
		return nil
	}
	return fmt.Errorf("pool %q: paused, but leases are still out: %d, resources being opened or closed: %d: %w",
		p.name, c.inUse()+c.direct, c.opening+c.closing+c.checking, ctx.Err())
}

// Resume ends a pause: waiting callers are served in their order, and MinIdle resources are opened. It reports whether
// the pool was paused.
func (p *Pool[T]) Resume() bool {
	var e effects[T]
	p.mu.Lock()
	if !p.core.paused {
		p.mu.Unlock()
		return false
	}
	p.touch(p.now())
	p.endPause()
	p.core.resume(&e)
	p.unlock(&e)
	return true
}

// endPause wakes the callers of WaitPaused. Under mu.
func (p *Pool[T]) endPause() {
	if p.quiet != nil && !p.core.empty() { // signalEmpty has closed it otherwise
		close(p.quiet)
	}
	p.quiet = nil
}

// signalEmpty wakes Drain or WaitPaused when the last resource has been closed. Under mu.
func (p *Pool[T]) signalEmpty() {
	switch {
	case !p.core.empty():
	case p.core.closed:
		close(p.done)
	default:
		close(p.quiet)
	}
}
