package pool_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// shared makes n pools with one Budget; Close takes a millisecond of fake time.
func (b *backend) shared(n, budget int, limits pool.Limits) (*pool.Budget, []*pool.Pool[*res]) {
	b.limit = budget
	shared := pool.NewBudget(budget, 0)
	var pools []*pool.Pool[*res]
	for i := range n {
		pools = append(pools, b.start(limits, func(c *pool.Config[*res]) {
			c.Name, c.Budget = fmt.Sprint(i), shared
			c.Close = func(r *res) { time.Sleep(time.Millisecond); b.Close(r) }
		}))
	}
	return shared, pools
}

// endAll closes the pools; the Budget must be empty then.
func (b *backend) endAll(shared *pool.Budget, pools []*pool.Pool[*res]) {
	b.t.Helper()
	for _, p := range pools {
		p.Close()
	}
	for _, p := range pools {
		if err := p.Drain(ctx); err != nil {
			b.t.Error(err)
		}
	}
	_, open := b.count()
	want(b.t, "open at the end", open, 0)
	want(b.t, "used at the end", shared.Used(), 0)
}

// TestBudgetServesInOrder has 50 pools share five resources: every caller gets one, in the order of their acquires.
func TestBudgetServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, pools := b.shared(50, 5, pool.Limits{MaxSize: 3, MaxIdle: 3})
		var mu sync.Mutex
		var asked, served []int
		var wg sync.WaitGroup
		next := 0
		for range 4 {
			for i, p := range pools {
				n := next
				next++
				asked = append(asked, n)
				wg.Go(func() {
					l, err := p.Acquire(ctx)
					if err != nil {
						t.Errorf("acquire %d in pool %d: %v", n, i, err)
						return
					}
					mu.Lock()
					served = append(served, n)
					mu.Unlock()
					time.Sleep(20 * time.Millisecond)
					l.Release()
				})
				synctest.Wait()
				time.Sleep(10 * time.Microsecond)
			}
		}
		wg.Wait()
		want(t, "served in order", slices.Equal(served, asked), true)
		want(t, "most open at once", b.most, 5)
		b.endAll(shared, pools)
	})
}

// TestBudgetClosesIdle takes the resource that has been idle longest, in any of the pools.
func TestBudgetClosesIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, pools := b.shared(5, 4, pool.Limits{MaxSize: 4})
		held := acquire(t, pools[1])
		for _, i := range []int{2, 0, 1} {
			l := acquire(t, pools[i])
			time.Sleep(time.Second)
			l.Release()
		}
		want(t, "used", shared.Used(), 4)
		acquire(t, pools[3]).Release()
		want(t, "idle in 2, which was used first", pools[2].Stats().Idle, 0)
		want(t, "closed as surplus", pools[2].Stats().ClosedSurplus, 1)
		want(t, "idle in 0", pools[0].Stats().Idle, 1)
		time.Sleep(time.Second)
		acquire(t, pools[4]).Release()
		want(t, "idle in 0", pools[0].Stats().Idle, 0)
		want(t, "idle in 1", pools[1].Stats().Idle, 1)
		held.Release()
		b.endAll(shared, pools)
	})
}

// TestBudgetReleases has a release serve the caller that has waited longest: one of its pool, or of another.
func TestBudgetReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, pools := b.shared(2, 1, pool.Limits{MaxSize: 1})
		l := acquire(t, pools[0])
		value := l.Value()
		own := begin(ctx, pools[0])
		time.Sleep(time.Millisecond)
		other := begin(ctx, pools[1])
		time.Sleep(time.Millisecond)
		last := begin(ctx, pools[0])
		synctest.Wait()
		want(t, "released at once", l.TryRelease(), false) // it may have to be closed
		l.Release()
		synctest.Wait()
		want(t, "the pool's first caller is served", own.done && own.err == nil && own.lease.Value() == value, true)
		own.lease.Release()
		synctest.Wait()
		want(t, "then the other's", other.done && other.err == nil && other.lease.Value() != value && !last.done, true)
		want(t, "all in use", pools[0].AllInUse() && pools[1].AllInUse(), true)
		other.lease.Release()
		synctest.Wait()
		want(t, "then the last", last.done && last.err == nil, true)
		want(t, "released at once", last.lease.TryRelease(), true)
		b.endAll(shared, pools)
	})
}

// TestBudgetEndsWaits has waits end by time and by the caller: the resource that would have been closed for them is kept.
func TestBudgetEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, pools := b.shared(2, 1, pool.Limits{MaxSize: 2, AcquireTimeout: time.Second, MaxWaiters: 1})
		l := acquire(t, pools[0])
		_, err := pools[1].Acquire(ctx)
		e := wantErr(t, err, pool.ErrTimeout)
		want(t, "budget in the error", e.Budget, 1)
		want(t, "text", strings.Contains(err.Error(), "all pools together are at their limit of 1"), true)
		within, cancel := context.WithCancel(ctx)
		r := begin(within, pools[1])
		synctest.Wait()
		_, err = pools[1].Acquire(ctx)
		wantErr(t, err, pool.ErrTooManyWaiters)
		cancel()
		synctest.Wait()
		wantErr(t, r.err, context.Canceled)
		value := l.Value()
		want(t, "released at once", l.TryRelease(), true)
		l = acquire(t, pools[0])
		want(t, "the same", l.Value(), value)
		r = begin(ctx, pools[1])
		synctest.Wait()
		pools[1].Close()
		synctest.Wait()
		wantErr(t, r.err, pool.ErrClosed)
		want(t, "released at once", l.TryRelease(), true)
		b.endAll(shared, pools)
	})
}

// TestBudgetPassesOn has pools that cannot use what they are granted leave it to others: while they are paused, and
// while they cannot open.
func TestBudgetPassesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, pools := b.shared(3, 1, pool.Limits{MaxSize: 1})
		l := acquire(t, pools[0])
		paused := begin(ctx, pools[1])
		time.Sleep(time.Millisecond)
		r := begin(ctx, pools[2])
		synctest.Wait()
		if err := pools[1].Pause(); err != nil {
			t.Fatal(err)
		}
		l.Release()
		synctest.Wait()
		want(t, "served in place of the paused", r.done && r.err == nil && !paused.done, true)
		pools[1].Resume()
		b.set(func() { b.down = true })
		r.lease.Release()
		synctest.Wait()
		wantErr(t, paused.err, pool.ErrOpen)
		b.set(func() { b.down = false })
		acquire(t, pools[2]).Release()
		b.endAll(shared, pools)
	})
}

// TestBudgetOfPausedPool closes nothing for a paused pool.
func TestBudgetOfPausedPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, pools := b.shared(2, 1, pool.Limits{MaxSize: 1})
		l := acquire(t, pools[0])
		paused := begin(ctx, pools[1])
		synctest.Wait()
		if err := pools[1].Pause(); err != nil {
			t.Fatal(err)
		}
		want(t, "released at once", l.TryRelease(), true)
		pools[1].Resume()
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "served after the pause", paused.done && paused.err == nil, true)
		paused.lease.Release()
		b.endAll(shared, pools)
	})
}

// TestBudgetTakesUnleased has a caller wait while the only resource is being opened ahead of demand, or is checked, by
// another pool: it is closed for the caller as soon as it is idle.
func TestBudgetTakesUnleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, gate: make(chan struct{})}
		shared, pools := b.shared(2, 1, pool.Limits{MaxSize: 1, MinIdle: 1})
		r := begin(ctx, pools[1])
		synctest.Wait()
		want(t, "opening in the other pool", pools[0].Stats().Opening, 1)
		close(b.gate)
		time.Sleep(2 * time.Millisecond) // the time of Close, but less than a tick
		synctest.Wait()
		want(t, "served", r.done && r.err == nil, true)
		r.lease.Release()
		b.endAll(shared, pools)
	})
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, checks := pool.NewBudget(1, 0), make(chan struct{})
		var pools []*pool.Pool[*res]
		for range 2 {
			pools = append(pools, b.start(pool.Limits{MaxSize: 1, CheckInterval: time.Second}, func(c *pool.Config[*res]) {
				c.Budget = shared
				c.Check = func(context.Context, *res) error { <-checks; return nil }
			}))
		}
		acquire(t, pools[0]).Release()
		time.Sleep(2 * time.Second)
		want(t, "being checked", pools[0].Stats().Busy, 1)
		r := begin(ctx, pools[1])
		synctest.Wait()
		close(checks)
		synctest.Wait()
		want(t, "served", r.done && r.err == nil, true)
		r.lease.Release()
		b.endAll(shared, pools)
	})
}

// TestBudgetChanges changes the limit.
func TestBudgetChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, pools := b.shared(3, 6, pool.Limits{MaxSize: 4, MinIdle: 2})
		synctest.Wait()
		want(t, "warm", shared.Used(), 6)
		l1, l2 := acquire(t, pools[0]), acquire(t, pools[0])
		b.set(func() { b.limit = 0 })
		shared.SetLimit(1, 0)
		synctest.Wait()
		time.Sleep(time.Second)
		want(t, "used", shared.Used(), 2)
		l1.Release()
		time.Sleep(time.Second)
		want(t, "used", shared.Used(), 1)
		r := begin(ctx, pools[1])
		synctest.Wait()
		want(t, "waits", r.done, false)
		shared.SetLimit(2, 0)
		synctest.Wait()
		want(t, "served", r.done && r.err == nil, true)
		shared.SetLimit(0, 0)
		time.Sleep(time.Second)
		acquire(t, pools[2]).Release()
		r.lease.Release()
		l2.Release()
		b.endAll(shared, pools)
	})
}

// TestBudgetAtOnce has many callers of many pools, which also end waits, discard, pause, close and change the limit. It
// ends only if nobody waits in vain.
func TestBudgetAtOnce(t *testing.T) {
	b := &backend{t: t}
	const limit, size = 3, 20
	shared := pool.NewBudget(limit, 0)
	b.limit = limit
	start := func(i int) *pool.Pool[*res] {
		return b.start(pool.Limits{MaxSize: 2, MinIdle: i % 2, CheckInterval: 10 * time.Millisecond}, func(c *pool.Config[*res]) {
			c.Budget = shared
			c.Check = func(context.Context, *res) error { return nil }
		})
	}
	var wg sync.WaitGroup
	var leases atomic.Int64
	for i := range size {
		wg.Go(func() {
			for range 3 {
				p := start(i)
				var users sync.WaitGroup
				for n := range 3 {
					users.Go(func() {
						for k := range 20 {
							useBudget(t, p, n+k)
							leases.Add(1)
						}
					})
				}
				if i%4 == 0 {
					if err := p.Pause(); err != nil {
						t.Error(err)
					}
					p.Resume()
				}
				users.Wait()
				if err := p.Drain(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	want(t, "acquires", leases.Load(), int64(size*3*3*20))
	_, open := b.count()
	want(t, "open at the end", open, 0)
	want(t, "used at the end", shared.Used(), 0)
}

// useBudget acquires in one of the ways there are, and ends the lease in one of the ways there are.
func useBudget(t *testing.T, p *pool.Pool[*res], way int) {
	within := ctx
	if way%7 == 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(300))*time.Microsecond)
		defer cancel()
	}
	l, err := p.Acquire(within)
	if err != nil {
		if within.Err() == nil || !errors.Is(err, pool.ErrTimeout) {
			t.Error(err)
		}
		return
	}
	switch {
	case way%5 == 0:
		l.Discard()
	case way%3 != 0 || !l.TryRelease():
		l.Release()
	}
}

// TestGiveUpNeedsNoBudget: once a pool's callers have been sent away, no other pool closes a resource for them.
func TestGiveUpNeedsNoBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, pools := b.shared(2, 1, pool.Limits{MaxSize: 1})
		held := acquire(t, pools[0])
		waiting := begin(ctx, pools[1])
		synctest.Wait()
		pools[1].GiveUp(errDown)
		synctest.Wait()
		want(t, "over", waiting.done, true)
		held.Release()
		want(t, "idle", pools[0].Stats().Idle, 1)
		b.endAll(shared, pools)
	})
}
