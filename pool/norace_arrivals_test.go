//go:build !race

package pool_test // tens of thousands of callers each; the other tests of paces and warm connections have the race detector

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// The expected wait is right where resources come back together, after bursts: within a third of the real one.
func TestPaceOfBursts(t *testing.T) {
	for _, c := range []struct {
		size, callers int
		hold          time.Duration
	}{{1, 150, 5 * time.Millisecond}, {20, 120, 2 * time.Second}, {100, 1000, 3 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			b := &backend{t: t}
			w := &waiters{t: t, p: b.start(pool.Limits{MaxSize: c.size, OpenConcurrency: c.size, AcquireTimeout: time.Hour})}
			burst := func() {
				for range c.callers {
					w.add(in(1, time.Time{}, 0), 1, c.hold)
				}
			}
			for range 20 {
				burst()
				for w.p.Stats().Waiting > 0 {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(2 * c.hold)
			}
			burst()
			time.Sleep(1)
			_, err := w.p.Acquire(in(1, time.Now(), 0))
			want := time.Duration(c.callers-c.size+1) * c.hold / time.Duration(c.size)
			var refused *pool.Error
			if !errors.As(err, &refused) || !errors.Is(err, pool.ErrNoTime) || refused.Expected < want*2/3 || refused.Expected > want*4/3 {
				t.Errorf("size %d: %v, want it to expect %v", c.size, err, want)
			}
			time.Sleep(2 * want)
			synctest.Wait()
			b.end(w.p)
		})
	}
}

// TestWarmFollowsArrivals: about 2 of 1000 callers wait at any rate, where with a fixed number most do, and no more is kept
// ready than it takes.
func TestWarmFollowsArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixed := arrive(t, pool.Limits{MinIdle: 2, MaxSize: 10_000, OpenConcurrency: 1000})
		defer fixed.p.Close()
		if came, waited := fixed.come(10*time.Second, 500); waited*2 < came {
			t.Errorf("%d of %d waited for one of a fixed number", waited, came)
		}
		want(t, "fixed target", fixed.p.Stats().WarmTarget, 2)
		a := arrive(t, pool.Limits{MinIdle: 2, MaxWarm: 200, MaxSize: 10_000, OpenConcurrency: 1000, MaxLifetime: 20 * time.Second})
		defer a.p.Close()
		for _, c := range []struct {
			perSecond   float64
			least, most int // of the target: the rate × openTakes, three times its square root, and what chance adds
		}{{500, 17, 26}, {5, 2, 3}, {2000, 54, 70}, {50, 4, 7}} {
			a.come(5*time.Second, c.perSecond)
			for range 6 { // until the rate before is forgotten
				a.come(5*time.Second, c.perSecond)
			}
			came, waited := a.come(20*time.Second, c.perSecond)
			if waited*200 > came+200 {
				t.Errorf("%v a second: %d of %d waited", c.perSecond, waited, came)
			}
			a.come(time.Second, c.perSecond)
			if got := a.p.Stats().WarmTarget; got < c.least || got > c.most {
				t.Errorf("%v a second: the target is %d, not from %d to %d", c.perSecond, got, c.least, c.most)
			}
		}
	})
}
