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
