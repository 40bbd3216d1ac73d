package upstream

import (
	"context"
	"errors"
	"slices"
	"time"
)

// ErrRebalanced is passed to Config.Interrupt for a lease whose holder should acquire a new one, at another endpoint.
var ErrRebalanced = errors.New("upstream: interrupted to balance the load across endpoints")

// Rebalance moves long leases to endpoints that were added, or are in again. It interrupts leases of endpoints that
// have more than their share, in the given order (with several tenants: those of the tenant with the most leases there),
// one at a time; each holder acquires a new lease. An endpoint's share is by
// its weight among the endpoints that are in; endpoints of later priorities have no share. Leases of endpoints that are
// out are left to Health. Rebalance has no effect with First and RingHash, which choose regardless of load.
type Rebalance struct {
	PerMinute int // highest number of leases interrupted per minute; 0 = none
	Excess    int // percentage by which an endpoint may exceed its share
	Order     RebalanceOrder
}

// RebalanceOrder says which of an endpoint's leases are interrupted first. They are ordered by the time at which their
// connections were opened.
type RebalanceOrder int

const (
	// OldestFirst interrupts each holder once, because a new lease is the last to be interrupted. The default.
	OldestFirst RebalanceOrder = iota
	// NewestFirst keeps the leases that have lasted longest. A holder whose new lease is at the same endpoint again is
	// interrupted again.
	NewestFirst
)

// rebalance interrupts leases as r says, until ctx ends.
func (u *Upstream[T]) rebalance(ctx context.Context, r Rebalance) {
	ticker := time.NewTicker(time.Minute / time.Duration(r.PerMinute))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		e := u.set.Load().crowded(r.Excess)
		if e == nil {
			continue
		}
		if v, ok := e.pools.movable(r.Order); ok {
			u.cfg.Interrupt(v, ErrRebalanced)
		}
	}
}

// crowded returns the endpoint that exceeds its share most, by at least one lease, if another endpoint has room for a
// lease within its own share; else nil.
func (s *set[T]) crowded(excess int) *endpoint[T] {
	if s.failOpen || s.balance == First || s.balance == RingHash || len(s.in.list) == 0 {
		return nil
	}
	users := slices.Concat(s.in.list, s.others)
	loads, weights := make([]int64, len(users)), make([]int, len(users))
	for i, e := range users {
		loads[i] = e.load.Load()
		if i < len(s.in.list) {
			weights[i] = s.in.weight(i)
		}
	}
	if i := mostCrowded(loads, weights, excess); i >= 0 {
		return users[i]
	}
	return nil
}

// mostCrowded is crowded for numbers of leases; it returns an index, -1 for none.
func mostCrowded(loads []int64, weights []int, excess int) int {
	var total, weight float64
	for i := range loads {
		total += float64(loads[i])
		weight += float64(weights[i])
	}
	most, worst, room := -1, 0.0, false
	for i := range loads {
		share := total * float64(weights[i]) / weight
		load := float64(loads[i])
		room = room || load+1 <= share
		if over := load - share*(1+float64(excess)/100); over >= 1 && over > worst {
			most, worst = i, over
		}
	}
	if !room {
		return -1
	}
	return most
}

// setRebalance starts to rebalance as r says, and stops the previous rebalancing. The caller holds updating.
func (u *Upstream[T]) setRebalance(r Rebalance) {
	if u.rebalancing != nil {
		if r == u.settings.Rebalance {
			return
		}
		u.rebalancing()
		u.rebalancing = nil
	}
	if r.PerMinute > 0 {
		ctx, cancel := context.WithCancel(u.ctx)
		u.rebalancing = cancel
		u.tasks.Go(func() { u.rebalance(ctx, r) })
	}
}
