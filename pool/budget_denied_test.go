package pool_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// TestBudgetAfterFailure has the back-off of a pool end while the Budget has no room for it: the pool must wait for the
// Budget, not try again at once and for ever, so that no time would pass here.
func TestBudgetAfterFailure(t *testing.T) {
	for _, minIdle := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			b := &backend{t: t}
			b.down = true
			shared, pools := b.shared(1, 1, pool.Limits{MaxSize: 1, MinIdle: minIdle})
			other := b.start(pool.Limits{MaxSize: 1}, func(c *pool.Config[*res]) { c.Budget = shared })
			if minIdle == 0 {
				_, err := pools[0].Acquire(ctx)
				wantErr(t, err, pool.ErrOpen)
			}
			synctest.Wait()
			b.set(func() { b.down = false })
			held := acquire(t, other)
			var r *result
			if minIdle == 0 {
				r = begin(ctx, pools[0])
			}
			time.Sleep(time.Minute)
			want(t, "used", shared.Used(), 1)
			held.Release()
			if minIdle == 0 {
				synctest.Wait()
				time.Sleep(time.Second)
				want(t, "served after the release", r.done && r.err == nil, true)
				r.lease.Release()
			}
			b.endAll(shared, append(pools, other))
		})
	}
}

// TestBudgetKeepsFastPath has MinIdle ask for more than the Budget has: the resource that there is can be leased at once
// all the same.
func TestBudgetKeepsFastPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, pools := b.shared(2, 2, pool.Limits{MaxSize: 2, MinIdle: 1})
		synctest.Wait()
		acquire(t, pools[0]).Release() // finds no room for another one
		for range 3 {
			l, ok := pools[0].TryAcquire(0)
			want(t, "leased at once", ok, true)
			if ok {
				l.Release()
			}
		}
		pools[1].Close()
		time.Sleep(time.Second) // a tick finds that there is room
		acquire(t, pools[0]).Release()
		time.Sleep(time.Second)
		l := acquire(t, pools[0])
		synctest.Wait()
		want(t, "warm beside the leased one", pools[0].Stats().Idle, 1)
		l.Release()
		b.endAll(shared, pools)
	})
}
