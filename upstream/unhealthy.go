package upstream

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Errors for Config.Interrupt.
var (
	ErrUnhealthy = errors.New("upstream: the endpoint is unhealthy")
	ErrRemoved   = errors.New("upstream: the endpoint was removed")
)

// UnhealthyPolicy says what happens to the leases of an endpoint that the active check has taken out. Leases are
// interrupted only if another endpoint is in that has passed its check since this one began to fail.
type UnhealthyPolicy int

const (
	// KeepUnhealthy keeps the leases. The default.
	KeepUnhealthy UnhealthyPolicy = iota
	// CloseUnhealthy interrupts the leases of a silent endpoint: its last Fall probes found no route to its host, or
	// reached their Timeout while nothing was received from the endpoint, neither for a user (Config.Heard, Lease.Heard)
	// nor as a late answer to a probe. It keeps the leases of an endpoint that is only slow, because they could overload
	// the other endpoints, too; and of one that answers, with a failure or by refusing connections, because that endpoint
	// may be stopping and may let its connections finish. For a minute after an endpoint was slow, or another one lost its
	// leases to this policy, it takes three times Fall probes to count as silent. With this policy a Probe may run beside
	// another of the same endpoint, and its context lasts Fall+1 times the Timeout.
	CloseUnhealthy
	// DrainUnhealthy keeps the leases for UnhealthyTimeout and then interrupts them.
	DrainUnhealthy
)

// silent reports whether a probe got no answer. expired says that the probe's time had passed.
func silent(err error, expired bool) bool {
	return err != nil && (expired || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ETIMEDOUT))
}

const (
	// evictSteps is the number of steps in which an endpoint's leases are interrupted.
	evictSteps = 20
	// minEvictStep bounds how often evict runs a step.
	minEvictStep = 10 * time.Millisecond
	// lateEvictStep is how often evict looks for further leases of an endpoint that stays out.
	lateEvictStep = time.Second
)

// An endpoint that was slow in the last slowMemory is silent after slowPatience times as many probes as others: an
// overloaded endpoint is silent now and then, and its leases would overload the others. With the settings for API
// servers that is eight seconds, less than connect_timeout, within which a client that waits for its first byte can
// still move to another endpoint.
const (
	slowMemory   = time.Minute
	slowPatience = 3
)

// silentAfter returns how many probes in a row show that the endpoint is silent. An endpoint that fell silent after
// another one was emptied, and may have got its users, has as much time as one that was slow. The caller holds mu.
func (e *endpoint[T]) silentAfter() int {
	if !e.slowAt.IsZero() && time.Since(e.slowAt) < slowMemory || e.emptied.burdens(e.addr, e.failingSince) {
		return slowPatience * e.health.fall
	}
	return e.health.fall
}

// wasSlow records that an endpoint that does not answer its probes in time is not silent. The caller holds mu.
func (e *endpoint[T]) wasSlow() { e.slowAt, e.health.silence = time.Now(), 0 }

// mustEmpty reports whether the endpoint's leases must be interrupted. The caller holds mu.
func (e *endpoint[T]) mustEmpty() bool {
	if e.over || !e.health.down {
		return false
	}
	switch e.onUnhealthy {
	case CloseUnhealthy:
		return e.health.silence >= e.silentAfter()
	case DrainUnhealthy:
		return e.unhealthyTimeout > 0 && time.Since(e.downSince) >= e.unhealthyTimeout
	}
	return false
}

// evict interrupts the endpoint's leases, spread over its stagger, until mustEmpty is false. It runs on a goroutine,
// one at a time.
func (e *endpoint[T]) evict() {
	e.mu.Lock()
	stagger := e.stagger
	e.mu.Unlock()
	step := max(stagger/evictSteps, minEvictStep)
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	interrupted, looked := 0, time.Now()
	for left := evictSteps; ; {
		heard := e.heardSince(looked)
		looked = time.Now()
		e.mu.Lock()
		if heard {
			e.wasSlow()
		}
		since, on := e.failingSince, e.mustEmpty()
		e.evicting = on
		e.mu.Unlock()
		if !on {
			break
		}
		if e.proven(since) {
			n := e.interruptSome(left)
			if n > 0 && interrupted == 0 {
				e.emptied.add(e.addr)
			}
			interrupted += n
			if left--; left == 0 {
				left = 1
				ticker.Reset(max(step, lateEvictStep))
			}
		} else if left < evictSteps {
			left = evictSteps // no other endpoint could take the remaining leases
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

// interruptSome interrupts 1/parts of the leases, rounded up, and returns how many.
func (e *endpoint[T]) interruptSome(parts int) int {
	var leased []T
	all := e.leased(func(v T) { leased = append(leased, v) })
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

// emptied says when the last eviction at an address took its first lease. It outlives endpoints that leave the set: a
// server that hangs is often taken from the set while its users move to the others.
type emptied struct {
	mu sync.Mutex // taken last
	at map[string]time.Time
}

// add records an eviction that has begun, and forgets those that no longer matter.
func (m *emptied) add(address string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at == nil {
		m.at = map[string]time.Time{}
	}
	maps.DeleteFunc(m.at, func(_ string, at time.Time) bool { return time.Since(at) > 10*slowMemory })
	m.at[address] = time.Now()
}

// burdens reports whether an endpoint with another address was emptied in the slowMemory before t.
func (m *emptied) burdens(address string, t time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other, at := range m.at {
		if other != address && at.Before(t) && t.Sub(at) < slowMemory {
			return true
		}
	}
	return false
}
