package upstream

import (
	"errors"
	"slices"
	"syscall"
	"time"
)

// Why leases are interrupted, see Config.Interrupt.
var (
	ErrUnhealthy = errors.New("upstream: the endpoint is unhealthy")
	ErrRemoved   = errors.New("upstream: the endpoint was removed")
)

// UnhealthyPolicy says what happens to the leases of an endpoint that the active
// check has taken out. None is interrupted unless another endpoint has passed its
// check since this one began to fail, and is in.
type UnhealthyPolicy int

const (
	// KeepUnhealthy keeps leases. The default.
	KeepUnhealthy UnhealthyPolicy = iota
	// CloseUnhealthy interrupts the leases of a silent endpoint: one whose last Fall probes ran
	// into their Timeout, or found no route to its host. The leases of an endpoint that answers,
	// with a failure or by refusing connections, continue: it may be about to stop, and let them
	// end.
	CloseUnhealthy
	// DrainUnhealthy keeps leases for UnhealthyTimeout and interrupts them then.
	DrainUnhealthy
)

// silent reports whether a probe got no answer. expired says that its time was over.
func silent(err error, expired bool) bool {
	return err != nil && (expired || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ETIMEDOUT))
}

const (
	// evictSteps is in how many steps the leases of an endpoint are interrupted.
	evictSteps = 20
	// leastEvictStep bounds how often leases are looked for.
	leastEvictStep = 10 * time.Millisecond
	// lateEvictStep is how often an endpoint that stays out is looked at for leases
	// that it got all the same.
	lateEvictStep = time.Second
)

// mustEmpty reports whether leases are to be interrupted. mu is held.
func (e *endpoint[T]) mustEmpty() bool {
	if e.closed || !e.health.down {
		return false
	}
	switch e.onUnhealthy {
	case CloseUnhealthy:
		return e.health.silence >= e.health.fall
	case DrainUnhealthy:
		return e.unhealthyTimeout > 0 && time.Since(e.downSince) >= e.unhealthyTimeout
	}
	return false
}

// evict interrupts the leases of the endpoint, spread over its stagger, until it
// need not be empty any more. It is a goroutine, of which there is one at a time.
func (e *endpoint[T]) evict() {
	e.mu.Lock()
	stagger := e.stagger
	e.mu.Unlock()
	step := max(stagger/evictSteps, leastEvictStep)
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	interrupted := 0
	for left := evictSteps; ; {
		e.mu.Lock()
		since, on := e.failingSince, e.mustEmpty()
		e.evicting = on
		e.mu.Unlock()
		if !on {
			break
		}
		if e.proven(since) {
			interrupted += e.interruptSome(left)
			if left--; left == 0 {
				left = 1
				ticker.Reset(max(step, lateEvictStep))
			}
		} else if left < evictSteps {
			left = evictSteps // the remaining leases have no other endpoint now
			ticker.Reset(step)
		}
		select {
		case <-ticker.C:
		case <-e.ctx.Done():
		}
	}
	if interrupted > 0 {
		e.log.Warn("leases of an unhealthy endpoint were interrupted", "leases", interrupted)
	}
}

// interruptSome interrupts one of the given number of parts of the leases, at least one lease, and
// returns how many.
func (e *endpoint[T]) interruptSome(parts int) int {
	var leased []T
	all := e.pool.Interrupt(func(v T) { leased = append(leased, v) })
	n := (all + parts - 1) / parts
	for _, v := range leased[:n] {
		e.interrupt(v, ErrUnhealthy)
	}
	return n
}

// proven reports whether an endpoint is in that has passed its check since t.
func (u *Upstream[T]) proven(t time.Time) bool {
	return slices.ContainsFunc(u.set.Load().all, func(e *endpoint[T]) bool {
		return e.usable.Load() && e.passed.Load() > sinceEpoch(t)
	})
}
