package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// Pause stops leases from all endpoints and closes their connections, as pool.Pool.Pause does, and waits as it does.
// Endpoints that are added later are paused too. Health checks continue. The pause ends with Resume, or by itself after
// limit, which is from 1 ns to MaxPause; Pause of a paused Upstream sets another limit. Errors wrap ErrConfig,
// pool.ErrResumed, pool.ErrClosed or ctx's error, and name the endpoints.
func (u *Upstream[T]) Pause(ctx context.Context, limit time.Duration) error {
	if limit <= 0 || limit > MaxPause {
		return fmt.Errorf("%w: upstream %q: a pause of %v is not from 1ns to %v", ErrConfig, u.cfg.Name, limit, MaxPause)
	}
	all, err := u.beginPause(limit)
	if err != nil {
		return err
	}
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, e := range all {
		wg.Go(func() { errs[i] = e.pool.Pause(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// beginPause is Pause without the wait.
func (u *Upstream[T]) beginPause(limit time.Duration) ([]*endpoint[T], error) {
	u.updating.Lock()
	defer u.updating.Unlock()
	if u.closed {
		return nil, fmt.Errorf("upstream %q: pause: %w", u.cfg.Name, pool.ErrClosed)
	}
	p := &pause{until: time.Now().Add(limit)}
	p.timer = time.AfterFunc(limit, func() {
		if u.resume(p) {
			u.cfg.Logger.Warn("the pause is over its limit, the upstream is in use again", "upstream", u.cfg.Name, "limit", limit)
		}
	})
	u.setPause(p)
	all := u.set.Load().all
	for _, e := range all {
		e.pause()
	}
	return all, nil
}

// setPause replaces the present pause; nil = none. The caller holds updating.
func (u *Upstream[T]) setPause(p *pause) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.paused != nil {
		u.paused.timer.Stop()
	}
	u.paused = p
}

// Resume ends a Pause: the callers that wait are served in their order. It reports whether the Upstream was paused.
func (u *Upstream[T]) Resume() bool { return u.resume(nil) }

// resume ends the pause p, or any if p is nil.
func (u *Upstream[T]) resume(p *pause) bool {
	u.updating.Lock()
	defer u.updating.Unlock()
	if u.paused == nil || p != nil && u.paused != p {
		return false
	}
	u.setPause(nil)
	for _, e := range u.set.Load().all {
		e.pool.Resume()
	}
	return true
}

// pause pauses the pool and does not wait for its leases.
func (e *endpoint[T]) pause() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = e.pool.Pause(ended) // an error says that it would have to wait, or that the pool is closed
}
