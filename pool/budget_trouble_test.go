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
			x := &trouble{backend: &backend{t: t}, shared: pool.NewBudget(3, int(seed%3)), rnd: rand.New(rand.NewPCG(seed, 1))}
			var pools sync.WaitGroup
			for i := range 12 {
				pools.Go(func() {
					for range 3 {
						x.lifeOfPool(i)
					}
				})
			}
			pools.Wait()
			_, open := x.count()
			want(t, "open at the end", open, 0)
			want(t, "used at the end", x.shared.Used(), 0)
		})
	}
}

// trouble makes pools with a common Budget, in which all goes wrong.
type trouble struct {
	*backend
	shared *pool.Budget
	mu     sync.Mutex
	rnd    *rand.Rand
}

func (x *trouble) n(below int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.rnd.IntN(below)
}

func (x *trouble) pause() { time.Sleep(time.Duration(x.n(5000)) * time.Microsecond) }

// fails is a Check or Reset.
func (x *trouble) fails(context.Context, *res) error {
	if x.pause(); x.n(8) == 0 {
		return errDown
	}
	return nil
}

func (x *trouble) change(c *pool.Config[*res]) {
	c.Budget, c.Check = x.shared, x.fails
	if x.n(2) == 0 {
		c.Reset = x.fails
	}
	c.Open = func(ctx context.Context) (*res, error) {
		x.pause()
		switch x.n(10) {
		case 0:
			panic("open")
		case 1, 2:
			return nil, errDown
		}
		return x.Open(ctx)
	}
	c.Close = func(r *res) { x.pause(); x.Close(r) }
}

// use acquires once.
func (x *trouble) use(p *pool.Pool[*res]) {
	within, cancel := context.WithCancel(ctx)
	if x.n(4) == 0 {
		within, cancel = context.WithTimeout(ctx, time.Duration(x.n(20))*time.Millisecond)
	}
	defer cancel()
	l, err := p.Acquire(within)
	if err != nil {
		return
	}
	if x.pause(); x.n(5) == 0 {
		l.Discard()
	} else if !l.TryRelease() {
		l.Release()
	}
}

// lifeOfPool makes a pool, has it used and changed, and drains it.
func (x *trouble) lifeOfPool(i int) {
	p := x.start(pool.Limits{MaxSize: 2, MinIdle: i % 3, MaxWaiters: 4 * (i % 2), CheckInterval: 10 * time.Millisecond}, x.change)
	var users sync.WaitGroup
	for range 4 {
		users.Go(func() {
			for range 15 {
				x.use(p)
			}
		})
	}
	for range 3 {
		x.pause()
		switch x.n(3) {
		case 0:
			_ = p.Pause()
			x.pause()
			p.Resume()
		case 1:
			x.shared.SetLimit(x.n(6), x.n(3))
		}
	}
	if x.n(2) == 0 {
		users.Wait()
	}
	_ = p.Drain(ctx)
	users.Wait()
}
