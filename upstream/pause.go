package upstream

import (
	"context"
	"fmt"
	"time"

	"github.com/headpond/headpond/pool"
)

// MaxPause bounds the limit of a Pause.
const MaxPause = 24 * time.Hour

// pause is one pause.
type pause struct {
	until time.Time
	timer *time.Timer
}

// Pause stops leases from all endpoints and closes their connections, as pool.Pool.Pause does; Status shows how many are
// still leased. Endpoints that are added later are paused too. Health checks continue, and Narrow.Wait bounds no wait
// that begins in the pause. The pause ends with Resume, or by itself after limit, which is from 1 ns to MaxPause; Pause
// of a paused Upstream sets another limit. The error wraps ErrConfig or pool.ErrClosed.
func (u *Upstream[T]) Pause(limit time.Duration) error {
	if limit <= 0 || limit > MaxPause {
		return fmt.Errorf("%w: upstream %q: a pause of %v is not from 1ns to %v", ErrConfig, u.cfg.Name, limit, MaxPause)
	}
	u.updating.Lock()
	defer u.updating.Unlock()
	if u.closed {
		return fmt.Errorf("upstream %q: pause: %w", u.cfg.Name, pool.ErrClosed)
	}
	p := &pause{until: time.Now().Add(limit)}
	p.timer = time.AfterFunc(limit, func() {
		if u.resume(p) {
			u.cfg.Logger.Warn("the pause has reached its limit, the upstream is in use again", "upstream", u.cfg.Name, "limit", limit)
		}
	})
	u.setPause(p)
	for _, e := range u.set.Load().all {
		e.pause()
	}
	u.refresh() // waits for a role have no time limit during the pause
	u.askAll()  // which closes the connections kept for asking
	return nil
}

// setPause replaces the present pause; nil = none. The caller holds updating.
func (u *Upstream[T]) setPause(p *pause) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch now := time.Now(); {
	case u.paused != nil:
		u.paused.timer.Stop()
		if p == nil {
			u.pauseEnded = now
		}
	case p != nil:
		u.pauseBegan = now
	}
	u.paused = p
}

// withoutPause returns the length of a wait that ends now, without the part in the last pause.
func (u *Upstream[T]) withoutPause(waited time.Duration) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	began, ended := now.Add(-waited), u.pauseEnded
	if u.paused != nil {
		ended = now
	}
	if u.pauseBegan.After(began) {
		began = u.pauseBegan
	}
	return waited - max(ended.Sub(began), 0)
}

// Resume ends a Pause: the callers that wait are served in their order. With a Target, the endpoints are asked for their
// roles first, and the order is not kept. It reports whether the Upstream was paused.
func (u *Upstream[T]) Resume() bool { return u.resume(nil) }

// resume ends the pause p, or any if p is nil.
func (u *Upstream[T]) resume(p *pause) bool {
	u.updating.Lock()
	defer u.updating.Unlock()
	if u.paused == nil || p != nil && u.paused != p {
		return false
	}
	u.setPause(nil)
	u.forgetRoles() // the servers may have been replaced
	for _, e := range u.set.Load().all {
		e.resume()
	}
	u.refresh()
	u.askAll()
	return true
}

// AwaitResume waits while the Upstream is paused, as acquires do. The error is ctx's, or wraps pool.ErrClosed or
// pool.ErrTooManyWaiters.
func (u *Upstream[T]) AwaitResume(ctx context.Context) error {
	err := u.own.until(ctx, new(roleWait), nil, func(s *set[T]) bool { return !s.paused() })
	if err != nil {
		return fmt.Errorf("upstream %q is paused: %w", u.cfg.Name, err)
	}
	return nil
}

// Follow makes u open connections for its own acquires as next does. It is for an Upstream that next has replaced
// during a pause: callers that wait for the end of the pause then get connections by the new settings. Update sets the
// endpoints. Follow closes no open connections; the pause does.
func (u *Upstream[T]) Follow(next *Upstream[T]) { u.follows.Store(next) }

// opening returns how connections are opened now.
func (t *Tenant[T]) opening() func(ctx context.Context, endpoint string) (T, error) {
	if next := t.up.follows.Load(); next != nil && t == &t.up.own {
		return next.own.cfg.Open
	}
	return t.cfg.Open
}

// pause pauses the pools, and those that are made later.
func (e *endpoint[T]) pause() {
	e.paused.Store(true)
	for _, s := range e.pools.now() {
		_ = s.pool.Pause() // an error says that it is closed
	}
}

// resume ends the pause of the pools.
func (e *endpoint[T]) resume() {
	e.paused.Store(false)
	for _, s := range e.pools.now() {
		s.pool.Resume()
	}
}
