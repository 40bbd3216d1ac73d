package pool_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// hold leases n resources and releases them all.
func hold(t *testing.T, p *pool.Pool[*res], n int) {
	t.Helper()
	var ls []pool.Lease[*res]
	for range n {
		ls = append(ls, acquire(t, p))
	}
	for _, l := range ls {
		l.Release()
	}
}

func TestSurplusAgesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MinIdle: 1, IdleTimeout: time.Minute})
		hold(t, p, 5)
		for range 7 { // one of them stays in use
			time.Sleep(10 * time.Second)
			acquire(t, p).Release()
		}
		synctest.Wait()
		if n := p.Stats().Idle; n > 2 { // the one used, and one opened ahead of demand meanwhile
			t.Errorf("%d idle", n)
		}
		time.Sleep(time.Hour)
		want(t, "MinIdle stays", p.Stats().Idle, 1)
		if n := p.Stats().ClosedIdle; n < 3 {
			t.Errorf("%d closed for being idle", n)
		}
		if err := p.Update(pool.Limits{IdleTimeout: -1}); err != nil {
			t.Error(err)
		}
		hold(t, p, 3)
		time.Sleep(1000 * time.Hour)
		want(t, "idle without a timeout", p.Stats().Idle, 3)
		b.end(p)
	})
}

func TestMaxIdle(t *testing.T) {
	b := &backend{t: t}
	p := b.start(pool.Limits{MaxIdle: 2})
	hold(t, p, 5)
	want(t, "idle", p.Stats().Idle, 2)
	want(t, "surplus", p.Stats().ClosedSurplus, 3)
	b.end(p)
}

func TestLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxLifetime: time.Minute, IdleTimeout: -1})
		idle, leased := acquire(t, p), acquire(t, p)
		idle.Release()
		time.Sleep(54*time.Second - time.Millisecond)
		synctest.Wait()
		want(t, "idle in its lifetime", p.Stats().Idle, 1)
		time.Sleep(6*time.Second + 2*time.Millisecond)
		synctest.Wait()
		want(t, "idle past its lifetime", p.Stats().Idle, 0)
		want(t, "leased past its lifetime", leased.Value().closed.Load(), false)
		leased.Release()
		want(t, "released past its lifetime", leased.Value().closed.Load(), true)
		want(t, "closed", p.Stats().ClosedLifetime, 2)
		b.end(p)
	})
}

// A lifetime set later applies to existing resources, too.
func TestLifetimeOfWhatIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{IdleTimeout: -1})
		acquire(t, p).Release()
		time.Sleep(time.Hour)
		want(t, "idle without a lifetime", p.Stats().Idle, 1)
		if err := p.Update(pool.Limits{IdleTimeout: -1, MaxLifetime: 2 * time.Hour}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		want(t, "idle past its lifetime", p.Stats().Idle, 0)
		b.end(p)
	})
}

// In a busy pool, too, a lease past its lifetime is the last of its resource.
func TestLifetimeInABusyPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxLifetime: time.Minute})
		leased := acquire(t, p)
		for range 610 {
			time.Sleep(100 * time.Millisecond)
			acquire(t, p).Release()
		}
		leased.Release()
		want(t, "closed", leased.Value().closed.Load(), true)
		b.end(p)
	})
}

func TestReplacedBeforeExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MinIdle: 2, MaxLifetime: 10 * time.Second})
		b.set(func() { b.gate = nil })
		synctest.Wait()
		for range 2000 {
			time.Sleep(50 * time.Millisecond)
			synctest.Wait()
			if n := p.Stats().Idle; n < 2 || n > 4 {
				t.Fatalf("%d idle", n)
			}
		}
		if n := p.Stats().ClosedLifetime; n < 16 || n > 30 {
			t.Errorf("%d expired in ten lifetimes of two", n)
		}
		b.end(p)
	})
}

// checked adds a Check that fails for bad resources and counts its calls.
func checked(calls *int) func(*pool.Config[*res]) {
	return func(c *pool.Config[*res]) {
		c.Check = func(_ context.Context, r *res) error {
			*calls++
			if r.bad.Load() {
				return errDown
			}
			return nil
		}
	}
}

func TestCheckOnAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, calls := &backend{t: t}, 0
		p := b.start(pool.Limits{CheckAfter: 2 * time.Second}, checked(&calls))
		hold(t, p, 2)
		time.Sleep(2 * time.Second)
		acquire(t, p).Release()
		want(t, "checks too early", calls, 0)
		time.Sleep(2*time.Second + time.Millisecond)
		l := acquire(t, p)
		want(t, "checks", calls, 1)
		want(t, "reused", l.Reused(), true)
		l.Value().bad.Store(true)
		l.Release()
		time.Sleep(time.Minute)
		next := acquire(t, p)
		want(t, "checks", calls, 3)
		want(t, "bad one closed", l.Value().closed.Load(), true)
		s := p.Stats()
		want(t, "closed by checks", s.ClosedCheck, 1)
		want(t, "acquired", s.Acquired, 5)
		want(t, "reused", s.Reused, 3)
		next.Release()
		b.end(p)
	})
}

func TestCheckInBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, calls := &backend{t: t}, 0
		p := b.start(pool.Limits{CheckInterval: time.Minute, IdleTimeout: -1, CheckAfter: -1}, checked(&calls))
		l1, l2, l3 := acquire(t, p), acquire(t, p), acquire(t, p)
		l1.Value().bad.Store(true)
		l1.Release()
		l2.Release()
		l3.Release()
		time.Sleep(61 * time.Second)
		synctest.Wait()
		want(t, "idle", p.Stats().Idle, 2)
		want(t, "bad one closed", l1.Value().closed.Load(), true)
		want(t, "checks", calls, 3)
		want(t, "used last is still first", acquire(t, p).Value(), l3.Value())
		want(t, "then the one before", acquire(t, p).Value(), l2.Value())
		want(t, "checks of a leased resource", calls, 3)
		for _, s := range []func(){p.Close, func() { time.Sleep(time.Hour) }} {
			s()
		}
		want(t, "idle", p.Stats().Idle, 0)
	})
}

// A check is no use: the last used resource is still leased first.
func TestCheckInBackgroundIsNoUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, calls := &backend{t: t}, 0
		p := b.start(pool.Limits{CheckInterval: time.Minute, IdleTimeout: -1, CheckAfter: time.Hour}, checked(&calls))
		first, last := acquire(t, p), acquire(t, p)
		first.Release()
		time.Sleep(30 * time.Second)
		last.Release()
		time.Sleep(50 * time.Second)
		synctest.Wait()
		want(t, "checks", calls, 1)
		want(t, "leased", acquire(t, p).Value(), last.Value())
		p.Close()
	})
}

// A resource that is checked in the background goes to its waiter, or is closed with the pool.
func TestBackgroundCheckUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		gate := make(chan struct{})
		p := b.start(pool.Limits{MaxSize: 1, CheckInterval: time.Second}, func(c *pool.Config[*res]) {
			c.Check = func(ctx context.Context, _ *res) error {
				select {
				case <-gate:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		acquire(t, p).Release()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		want(t, "busy", p.Stats().Busy, 1)
		r := begin(ctx, p)
		synctest.Wait()
		gate <- struct{}{}
		synctest.Wait()
		want(t, "served", r.done && r.err == nil, true)
		r.lease.Release()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		want(t, "busy", p.Stats().Busy, 1)
		b.end(p)
	})
}

func TestReset(t *testing.T) {
	b, calls := &backend{t: t}, 0
	p := b.start(pool.Limits{}, func(c *pool.Config[*res]) {
		c.Reset = func(ctx context.Context, r *res) error {
			calls++
			if _, ok := ctx.Deadline(); !ok {
				t.Error("Reset has no deadline")
			}
			if r.bad.Load() {
				return errDown
			}
			return nil
		}
	})
	l := acquire(t, p)
	l.Release()
	l = acquire(t, p)
	l.Value().bad.Store(true)
	l.Release()
	want(t, "closed", l.Value().closed.Load(), true)
	want(t, "closed by Reset", p.Stats().ClosedReset, 1)
	acquire(t, p).Discard()
	want(t, "resets", calls, 2)
	b.end(p)
}

// stalls makes p's Check wait for its context, and returns how many wait.
func stalls(c *pool.Config[*res]) {
	c.Check = func(ctx context.Context, _ *res) error {
		<-ctx.Done()
		return ctx.Err()
	}
}

func TestCheckThatHangsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 3, AcquireTimeout: 4 * time.Second, OpenTimeout: 3 * time.Second}, stalls)
		hold(t, p, 3)
		time.Sleep(time.Minute)
		began := time.Now()
		_, err := p.Acquire(ctx) // a check of three seconds, one of one
		wantErr(t, err, pool.ErrTimeout)
		want(t, "waited", time.Since(began), 4*time.Second)
		synctest.Wait()
		want(t, "timed out", p.Stats().TimedOut, 1)
		want(t, "closed by checks", p.Stats().ClosedCheck, 2)

		if err := p.Update(pool.Limits{MaxSize: 3, OpenTimeout: 3 * time.Second}); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		acquire(t, p).Release() // the last one is checked in vain, and a new one opened
		want(t, "waited without AcquireTimeout", time.Since(began), 3*time.Second)
		b.end(p)
	})
}

func TestWaitAfterAFailedCheckCountsFromTheBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, AcquireTimeout: time.Second}, func(c *pool.Config[*res]) {
			c.Check = func(context.Context, *res) error {
				time.Sleep(600 * time.Millisecond)
				return errDown
			}
		})
		hold(t, p, 1)
		time.Sleep(time.Minute)
		b.set(func() { b.gate = make(chan struct{}) })
		first := begin(ctx, p) // checks
		time.Sleep(100 * time.Millisecond)
		second := begin(ctx, p) // waits for the resource of the first one
		time.Sleep(900 * time.Millisecond)
		synctest.Wait()
		if !first.done {
			t.Fatal("the first waits for longer than a second")
		}
		want(t, "waiting", p.Stats().Waiting, 1)
		want(t, "waited", wantErr(t, first.err, pool.ErrTimeout).Waited, time.Second)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		wantErr(t, second.err, pool.ErrTimeout)
		b.end(p)
	})
}

// TestEndlessLimits: the largest duration is a way to say never. It must not
// overflow into a time that has passed, after which the timer would be set for
// nothing else.
func TestEndlessLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const endless = time.Duration(1<<63 - 1)
		b := &backend{t: t}
		checks := 0
		p := b.start(pool.Limits{
			MaxSize: 1, IdleTimeout: time.Minute, MaxLifetime: endless, AcquireTimeout: endless,
			CheckAfter: endless, CheckInterval: endless, OpenTimeout: endless,
		}, func(c *pool.Config[*res]) {
			c.Check = func(context.Context, *res) error { checks++; return nil }
		})
		time.Sleep(time.Hour)
		l := acquire(t, p)
		r := begin(ctx, p)
		time.Sleep(time.Hour)
		synctest.Wait()
		want(t, "done", r.done, false)
		l.Release()
		synctest.Wait()
		r.lease.Release()
		time.Sleep(2 * time.Minute)
		want(t, "idle", p.Stats().Idle, 0)
		want(t, "closed for being idle", p.Stats().ClosedIdle, 1)
		want(t, "checks", checks, 0)
		b.end(p)
	})
}

// TestContextOfACheck: it is the caller's in all but its end.
func TestContextOfACheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		b := &backend{t: t}
		var kept context.Context
		look := func(context.Context) {}
		p := b.start(pool.Limits{MaxSize: 1, OpenTimeout: 3 * time.Second}, func(c *pool.Config[*res]) {
			c.Check = func(ctx context.Context, _ *res) error {
				kept = ctx
				look(ctx)
				return nil
			}
		})
		check := func(ctx context.Context, f func(context.Context)) {
			t.Helper()
			look = f
			time.Sleep(time.Minute)
			kept = nil
			l, err := p.Acquire(ctx)
			if err != nil {
				t.Fatal(err)
			}
			l.Release()
			if kept == nil {
				t.Fatal("no check")
			}
			<-kept.Done()
			want(t, "over afterwards", kept.Err() != nil, true)
		}
		acquire(t, p).Release()
		parent, cancelParent := context.WithCancel(context.WithValue(ctx, key{}, "value"))
		defer cancelParent()
		check(parent, func(ctx context.Context) {
			want(t, "value", ctx.Value(key{}), any("value"))
			want(t, "error", ctx.Err(), nil)
			at, ok := ctx.Deadline()
			want(t, "deadline", ok && at.Equal(time.Now().Add(3*time.Second)), true)
			<-ctx.Done()
			want(t, "ended by", ctx.Err(), context.DeadlineExceeded)
			want(t, "cause", context.Cause(ctx), context.DeadlineExceeded)
			want(t, "ended at its deadline", time.Until(at), 0)
		})
		sooner, cancel := context.WithTimeout(ctx, time.Minute+time.Second)
		defer cancel()
		check(sooner, func(ctx context.Context) {
			at, _ := ctx.Deadline()
			want(t, "deadline", time.Until(at), time.Second)
			child, stop := context.WithCancel(ctx)
			stop()
			<-child.Done()
		})
		check(ctx, func(context.Context) {}) // it is not used
		b.end(p)
	})
}

// Reset's context ends with OpenTimeout, and in a Reset that does not wait for that it costs no timer.
func TestResetTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		wait := false
		p := b.start(pool.Limits{OpenTimeout: time.Second}, func(c *pool.Config[*res]) {
			c.Reset = func(ctx context.Context, _ *res) error {
				if !wait {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			}
		})
		if n := testing.AllocsPerRun(100, func() { acquire(t, p).Release() }); n > 1 {
			t.Errorf("a lease with a Reset allocates %v times", n)
		}
		held := acquire(t, p)
		wait = true
		start := time.Now()
		held.Release()
		want(t, "time in Release", time.Since(start), time.Second)
		want(t, "closed by Reset", p.Stats().ClosedReset, 1)
		b.end(p)
	})
}

// TestOldestWait is how long the first of the waiters has waited, also while another one waits on.
func TestOldestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1})
		held := acquire(t, p)
		want(t, "wait of nobody", p.Stats().OldestWait, 0)
		leases := make(chan pool.Lease[*res], 2)
		for range cap(leases) {
			go func() { leases <- acquire(t, p) }()
			synctest.Wait()
			time.Sleep(time.Second)
		}
		want(t, "wait of the first", p.Stats().OldestWait, 2*time.Second)
		held.Release()
		held = <-leases
		want(t, "wait of the second", p.Stats().OldestWait, time.Second)
		held.Release()
		(<-leases).Release()
		want(t, "wait of nobody", p.Stats().OldestWait, 0)
		b.end(p)
	})
}
