package pool_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// arrivals are callers that come at random to a pool of resources that are used once, each of which takes openTakes to open.
type arrivals struct {
	p   *pool.Pool[int]
	rnd *rand.Rand
}

const openTakes = 20 * time.Millisecond

func arrive(t *testing.T, limits pool.Limits) *arrivals {
	t.Helper()
	p, err := pool.New(pool.Config[int]{
		Open:  func(context.Context) (int, error) { time.Sleep(openTakes); return 0, nil },
		Close: func(int) {}, Limits: limits,
	})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	return &arrivals{p: p, rnd: rand.New(rand.NewPCG(1, 2))}
}

// come has callers arrive for d, perSecond of them on average, and returns how many there were and how many of them waited.
func (a *arrivals) come(d time.Duration, perSecond float64) (came, waited uint64) {
	before, began := a.p.Stats(), time.Now()
	for {
		time.Sleep(time.Duration(a.rnd.ExpFloat64() / perSecond * float64(time.Second)))
		if time.Since(began) >= d {
			break
		}
		go func() {
			if l, err := a.p.Acquire(ctx); err == nil {
				l.Discard()
			}
		}()
	}
	time.Sleep(10 * openTakes)
	synctest.Wait()
	after := a.p.Stats()
	return after.Acquired - before.Acquired, after.Waited - before.Waited
}

// TestWarmRisesAtOnceAndFalls: within a second of the first arrivals the target is near its height, never above MaxWarm, and without
// arrivals the pool is back at MinIdle when what it had kept has expired.
func TestWarmRisesAtOnceAndFalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := arrive(t, pool.Limits{MinIdle: 1, MaxWarm: 20, MaxSize: 10_000, OpenConcurrency: 1000, MaxLifetime: 20 * time.Second})
		defer a.p.Close()
		want(t, "target at first", a.p.Stats().WarmTarget, 1)
		a.come(time.Second, 300)
		if got := a.p.Stats().WarmTarget; got < 11 {
			t.Errorf("after a second the target is %d", got)
		}
		a.come(5*time.Second, 5000)
		want(t, "target at most", a.p.Stats().WarmTarget, 20)
		want(t, "idle at most", a.p.Stats().Idle, 20)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		want(t, "target in the end", a.p.Stats().WarmTarget, 1)
		want(t, "idle in the end", a.p.Stats().Idle, 1)
		opened := a.p.Stats().Opened
		time.Sleep(time.Minute)
		if more := a.p.Stats().Opened - opened; more > 4 {
			t.Errorf("%d were opened in a quiet minute", more)
		}
		a.come(300*time.Millisecond, 5) // the clock has stood still: the minute counts for nothing
		if got := a.p.Stats().WarmTarget; got > 3 {
			t.Errorf("after some arrivals the target is %d", got)
		}
	})
}

// TestWarmOfBursts: callers that come ten at a time need more than random ones, and after some bursts find it.
func TestWarmOfBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := arrive(t, pool.Limits{MinIdle: 2, MaxWarm: 100, MaxSize: 1000, OpenConcurrency: 100, MaxLifetime: 20 * time.Second})
		defer a.p.Close()
		bursts := func(n int) (waited uint64) {
			before := a.p.Stats().Waited
			for range n {
				for range 10 {
					go func() {
						if l, err := a.p.Acquire(ctx); err == nil {
							l.Discard()
						}
					}()
				}
				time.Sleep(time.Duration(a.rnd.ExpFloat64() * float64(200*time.Millisecond)))
			}
			return a.p.Stats().Waited - before
		}
		bursts(200)
		if waited := bursts(300); waited > 150 {
			t.Errorf("%d of 3000 waited", waited)
		}
		if got := a.p.Stats().WarmTarget; got < 10 || got > 60 {
			t.Errorf("the target is %d", got)
		}
		time.Sleep(time.Minute)
		want(t, "target in the end", a.p.Stats().WarmTarget, 2)
	})
}

// TestWarmFromZero: without MinIdle nothing is kept ready until callers arrive, nor for some that come every minute.
func TestWarmFromZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := arrive(t, pool.Limits{MaxWarm: 8, MaxSize: 100, MaxLifetime: 20 * time.Second})
		defer a.p.Close()
		want(t, "opened", a.p.Stats().Opened, 0)
		a.come(5*time.Second, 50)
		if got := a.p.Stats().Idle; got < 4 || got > 8 {
			t.Errorf("%d are ready", got)
		}
		time.Sleep(2 * time.Minute)
		want(t, "idle in the end", a.p.Stats().Idle, 0)
		came, _ := a.come(10*time.Minute, 1.0/60)
		if opened := a.p.Stats().Opened; opened > a.p.Stats().Acquired+8+2*came {
			t.Errorf("%d were opened for %d callers", opened, a.p.Stats().Acquired)
		}
	})
}

// TestWarmCountsNewResources: callers that share a few resources use none up.
func TestWarmCountsNewResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MinIdle: 1, MaxWarm: 50, MaxSize: 100}, func(c *pool.Config[*res]) {
			c.Open = func(ctx context.Context) (*res, error) { time.Sleep(openTakes); return b.Open(ctx) }
		})
		for range 2000 {
			acquire(t, p).Release()
			time.Sleep(time.Millisecond)
		}
		if got := p.Stats(); got.WarmTarget > 3 || got.Opened > 4 {
			t.Errorf("target %d, opened %d", got.WarmTarget, got.Opened)
		}
		b.end(p)
	})
}

func TestWarmOfChangedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := arrive(t, pool.Limits{MinIdle: 1, MaxWarm: 50, MaxSize: 100, OpenConcurrency: 100})
		defer a.p.Close()
		a.come(3*time.Second, 500)
		for _, c := range []struct{ least, most, target int }{{1, 5, 5}, {4, 0, 4}, {7, 9, 7}} {
			if err := a.p.Update(pool.Limits{MinIdle: c.least, MaxWarm: c.most, MaxSize: 100}); err != nil {
				t.Fatal(err)
			}
			want(t, "target", a.p.Stats().WarmTarget, c.target)
		}
		if err := a.p.Resize(2); err != nil {
			t.Fatal(err)
		}
		want(t, "target of a small pool", a.p.Stats().WarmTarget, 2)
		want(t, "MaxWarm of a small pool", a.p.Stats().MaxWarm, 2)
		for _, l := range []pool.Limits{{MaxWarm: -1}, {MaxWarm: 11}, {MinIdle: 3, MaxWarm: 2}, {MaxIdle: 4, MaxWarm: 5}} {
			if l.Verify() == nil {
				t.Errorf("%+v is accepted", l)
			}
		}
	})
}
