package upstream

import (
	"context"
	"errors"
	"slices"
	"time"
)

// ErrRebalanced is why a lease is interrupted that is to be taken again at another
// endpoint, see Config.Interrupt.
var ErrRebalanced = errors.New("upstream: interrupted to balance the load across endpoints")

// Rebalance moves long leases to endpoints that were added, or are in again: it interrupts leases
// of endpoints that have more than their share, the oldest first, one at a time, and its holder
// takes another. An endpoint's share is that of its weight among the endpoints that are in;
// endpoints of later priorities have none. Endpoints that are out are left to Health. With First
// and RingHash, which choose without regard to load, there is nothing to move.
type Rebalance struct {
	PerMinute int // leases interrupted within a minute, at most; 0 = none ever
	Excess    int // percent that an endpoint may have above its share
}

// rebalance is the goroutine that does it, until ctx ends.
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
		var leased []T
		if e.pool.Interrupt(func(v T) { leased = append(leased, v) }); len(leased) > 0 {
			u.cfg.Interrupt(leased[len(leased)-1], ErrRebalanced) // the last is the oldest
		}
	}
}

// crowded returns the endpoint that exceeds its share most, by one lease at least, if
// another one has room for a lease within its own share; nil if there is none.
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

// mostCrowded is crowded for numbers; -1 means none.
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

// setRebalance begins to rebalance as r says, in place of the previous setting. updating is held.
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
