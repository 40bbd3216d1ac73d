package pool_test

import (
	"testing"

	"github.com/headpond/headpond/pool"
)

// BenchmarkBudgetManyPools closes a resource of another pool for each acquire.
func BenchmarkBudgetManyPools(b *testing.B) {
	shared := pool.NewBudget(10, 0)
	back := &backend{t: b, limit: 10}
	var pools []*pool.Pool[*res]
	for range 1000 {
		pools = append(pools, back.start(pool.Limits{MaxSize: 3}, func(c *pool.Config[*res]) { c.Budget = shared }))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		acquire(b, pools[i%1000]).Release()
	}
	back.endAll(shared, pools)
}
