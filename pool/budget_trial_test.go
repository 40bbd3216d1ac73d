package pool_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// onTrial makes a pool that holds all four resources of a Budget with one trial, and one whose opens take a millisecond and
// fail as long as *down.
func (b *backend) onTrial() (shared *pool.Budget, full, other *pool.Pool[*res], held []pool.Lease[*res], down *bool) {
	shared, down = pool.NewBudget(4, 1), new(bool)
	b.limit = 5
	full = b.start(pool.Limits{MaxSize: 4, IdleTimeout: time.Hour}, func(c *pool.Config[*res]) { c.Budget = shared })
	other = b.start(pool.Limits{MaxSize: 1, AcquireTimeout: time.Minute}, func(c *pool.Config[*res]) {
		c.Budget = shared
		c.Open = func(ctx context.Context) (*res, error) {
			if time.Sleep(time.Millisecond); *down {
				return nil, errDown
			}
			return b.Open(ctx)
		}
	})
	for range 4 {
		held = append(held, acquire(b.t, full))
	}
	return shared, full, other, held, down
}

// TestBudgetTrial has a pool with a full Budget be refused, and then let in: an idle resource is closed only then.
func TestBudgetTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, full, other, held, down := b.onTrial()
		for _, l := range held {
			l.Release()
		}
		for range 3 {
			*down = true
			for range 5 {
				_, err := other.Acquire(ctx)
				wantErr(t, err, pool.ErrOpen, errDown)
				time.Sleep(time.Minute) // the pool waits between attempts
			}
			want(t, "idle", full.Stats().Idle, 4)
			want(t, "used", shared.Used(), 4)
			*down = false
			l := acquire(t, other)
			synctest.Wait()
			want(t, "idle", full.Stats().Idle, 3)
			want(t, "used", shared.Used(), 4)
			l.Discard()
			acquire(t, other).Discard()
			want(t, "idle", full.Stats().Idle, 3)
			var again []pool.Lease[*res]
			for range 4 {
				again = append(again, acquire(t, full))
			}
			for _, l := range again {
				l.Release()
			}
		}
		b.endAll(shared, []*pool.Pool[*res]{full, other})
	})
}

// TestBudgetTrialWaits has a pool be let in while no resource is idle: its caller waits for its turn.
func TestBudgetTrialWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, full, other, held, _ := b.onTrial()
		waits := begin(ctx, other)
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "used", shared.Used(), 4)
		want(t, "served", waits.done, false)
		want(t, "trials", other.Stats().ClosedSurplus, 1)
		younger := begin(ctx, full)
		synctest.Wait()
		held[0].Release()
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "served after a release", waits.done && waits.err == nil, true)
		want(t, "the younger one is served", younger.done, false)
		waits.lease.Release()
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "the younger one is served then", younger.done && younger.err == nil, true)
		younger.lease.Release()
		for _, l := range held[1:] {
			l.Release()
		}
		b.endAll(shared, []*pool.Pool[*res]{full, other})
	})
}

// TestBudgetFailedReplace has replacements fail: they leave their places to others.
func TestBudgetFailedReplace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, full, other, held, _ := b.onTrial()
		b.set(func() { b.down = true })
		for _, l := range held {
			_, err := l.Replace(ctx)
			wantErr(t, err, pool.ErrOpen)
			time.Sleep(time.Minute)
		}
		want(t, "used", shared.Used(), 0)
		b.set(func() { b.down = false })
		acquire(t, other).Release()
		b.endAll(shared, []*pool.Pool[*res]{full, other})
	})
}

// TestBudgetTrialHangs has the open of a pool on trial hang: it takes the place of an idle resource after a second, and does
// not keep out other pools.
func TestBudgetTrialHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		shared, full, other, held, _ := b.onTrial()
		hanging := func() *pool.Pool[*res] {
			return b.start(pool.Limits{MaxSize: 3, OpenTimeout: time.Minute}, func(c *pool.Config[*res]) {
				c.Budget = shared
				c.Open = func(ctx context.Context) (*res, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
			})
		}
		hangs, alsoHangs := hanging(), hanging()
		for _, l := range held {
			l.Release()
		}
		var hung []*result
		for range 3 { // waits for a trial that has not ended, however many callers there are
			hung = append(hung, begin(ctx, hangs), begin(ctx, alsoHangs))
		}
		time.Sleep(time.Millisecond) // they are before the next caller
		began := time.Now()
		acquire(t, other).Release()
		if waited := time.Since(began); waited > 3*time.Second {
			t.Errorf("another pool's caller has waited for %v", waited)
		}
		synctest.Wait()
		want(t, "idle", full.Stats().Idle, 1)
		want(t, "used", shared.Used(), 4)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for _, a := range hung {
			want(t, "hangs", a.done, true)
		}
		b.endAll(shared, []*pool.Pool[*res]{full, other, hangs, alsoHangs})
	})
}
