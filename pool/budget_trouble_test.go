package pool_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// TestBudgetInTrouble has opens, checks and resets fail and panic, while pools are paused and closed, callers give up and
// the limit changes. Nobody may wait for ever, and nothing may stay counted.
func TestBudgetInTrouble(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			b := &backend{t: t}
			shared := pool.NewBudget(3)
			var mu sync.Mutex
			rnd := rand.New(rand.NewPCG(seed, 1))
			n := func(below int) int { mu.Lock(); defer mu.Unlock(); return rnd.IntN(below) }
			pause := func() { time.Sleep(time.Duration(n(5000)) * time.Microsecond) }
			fails := func(context.Context, *res) error {
				if pause(); n(8) == 0 {
					return errDown
				}
				return nil
			}
			change := func(c *pool.Config[*res]) {
				c.Budget, c.Check = shared, fails
				if n(2) == 0 {
					c.Reset = fails
				}
				c.Open = func(ctx context.Context) (*res, error) {
					pause()
					switch n(10) {
					case 0:
						panic("open")
					case 1, 2:
						return nil, errDown
					}
					return b.Open(ctx)
				}
				c.Close = func(r *res) { pause(); b.Close(r) }
			}
			use := func(p *pool.Pool[*res]) {
				within, cancel := context.WithCancel(ctx)
				if n(4) == 0 {
					within, cancel = context.WithTimeout(ctx, time.Duration(n(20))*time.Millisecond)
				}
				defer cancel()
				l, err := p.Acquire(within)
				if err != nil {
					return
				}
				if pause(); n(5) == 0 {
					l.Discard()
				} else if !l.TryRelease() {
					l.Release()
				}
			}
			var pools sync.WaitGroup
			for i := range 12 {
				pools.Go(func() {
					for range 3 {
						p := b.start(pool.Limits{MaxSize: 2, MinIdle: i % 3, MaxWaiters: 4 * (i % 2), CheckInterval: 10 * time.Millisecond}, change)
						var users sync.WaitGroup
						for range 4 {
							users.Go(func() {
								for range 15 {
									use(p)
								}
							})
						}
						for range 3 {
							pause()
							switch n(3) {
							case 0:
								_ = p.Pause()
								pause()
								p.Resume()
							case 1:
								shared.SetLimit(n(6))
							}
						}
						if n(2) == 0 {
							users.Wait()
						}
						_ = p.Drain(ctx)
						users.Wait()
					}
				})
			}
			pools.Wait()
			_, open := b.count()
			want(t, "open at the end", open, 0)
			want(t, "used at the end", shared.Used(), 0)
		})
	}
}
