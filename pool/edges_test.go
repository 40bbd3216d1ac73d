package pool_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// A resource that is being checked or closed is not leased: callers wait for it even where none may
// wait for leased ones.
func TestNobodyWaitsButForChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, gate := &backend{t: t}, make(chan error)
		p := b.start(pool.Limits{MaxSize: 1, MaxWaiters: -1, CheckInterval: time.Second}, func(c *pool.Config[*res]) {
			c.Check = func(context.Context, *res) error { return <-gate }
		})
		for _, err := range []error{nil, errDown} {
			acquire(t, p).Release()
			time.Sleep(2 * time.Second)
			synctest.Wait()
			want(t, "checked or closed", p.Stats().Busy, 1)
			r := begin(ctx, p)
			synctest.Wait()
			want(t, "done", r.done, false)
			gate <- err
			synctest.Wait()
			want(t, "error", r.err, nil)
			want(t, "served", r.done, true)
			wantErr(t, acquireErr(p), pool.ErrTooManyWaiters)
			r.lease.Release()
		}
		b.end(p)
	})
}

// When an attempt to open hangs after a failed one, nothing is done for waiters until it ends. (A timer that fires
// again and again lets no time pass here.)
func TestAttemptThatHangs(t *testing.T) {
	for name, limits := range map[string]pool.Limits{
		"callers": {MaxSize: 4, OpenTimeout: 5 * time.Second},
		"warm":    {MaxSize: 4, OpenTimeout: 5 * time.Second, MinIdle: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &backend{t: t, down: true}
				p := b.start(limits)
				wantErr(t, acquireErr(p), pool.ErrOpen, errDown)
				synctest.Wait()
				b.set(func() { b.gate = make(chan struct{}) }) // forever
				time.Sleep(2 * time.Second)
				first, second := begin(ctx, p), begin(ctx, p)
				synctest.Wait()
				want(t, "opening", p.Stats().Opening, 1)
				want(t, "waiting", p.Stats().Waiting, 2)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				for _, r := range []*result{first, second} {
					want(t, "done", r.done, true)
					wantErr(t, r.err, pool.ErrOpen)
				}
				b.end(p)
			})
		})
	}
}

// A resource that is being checked is warm: no other is opened in its place.
func TestChecksOpenNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		var fail atomic.Bool
		p := b.start(pool.Limits{MinIdle: 3, CheckInterval: time.Second}, func(c *pool.Config[*res]) {
			c.Check = func(context.Context, *res) error {
				time.Sleep(10 * time.Millisecond)
				if fail.Swap(false) {
					return errDown
				}
				return nil
			}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "opened", p.Stats().Opened, 3)
		fail.Store(true)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		want(t, "opened for one that failed its check", p.Stats().Opened, 4)
		want(t, "idle", p.Stats().Idle+p.Stats().Busy, 3)
		b.end(p)
	})
}

// The time that a caller waited is reported, whatever it waited for.
func TestAcquireSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, Overflow: pool.OverflowDirect}, func(c *pool.Config[*res]) {
			c.Open = func(ctx context.Context) (*res, error) { time.Sleep(time.Second); return b.Open(ctx) }
			c.Check = func(context.Context, *res) error { time.Sleep(time.Second); return nil }
		})
		pooled, direct := acquire(t, p), acquire(t, p)
		direct.Release()
		pooled.Release()
		time.Sleep(time.Minute)
		acquire(t, p).Release() // checked
		h := p.Stats().AcquireSeconds
		want(t, "counted", h.Count(), 3)
		want(t, "in all", h.Sum, 3*time.Second)
		want(t, "the quickest", h.Quantile(0), pool.BucketBound(20))
		acquire(t, p).Release()
		h = p.Stats().AcquireSeconds
		want(t, "counted", h.Count(), 4)
		want(t, "at once", h.Counts[0], 1)
		b.end(p)
	})
}

func TestDirectOpenEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, Overflow: pool.OverflowDirect, AcquireTimeout: time.Second})
		l := acquire(t, p)
		b.set(func() { b.gate = make(chan struct{}) }) // forever
		began := time.Now()
		e := wantErr(t, acquireErr(p), pool.ErrTimeout, context.DeadlineExceeded)
		want(t, "open failed", errors.Is(e, pool.ErrOpen), false)
		want(t, "waited", time.Since(began), time.Second)

		cctx, cancel := context.WithCancel(ctx)
		r := begin(cctx, p)
		synctest.Wait()
		cancel()
		synctest.Wait()
		e = wantErr(t, r.err, context.Canceled)
		want(t, "open failed", errors.Is(e, pool.ErrOpen), false)

		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		wantErr(t, acquireErrCtx(short, p), pool.ErrTimeout, context.DeadlineExceeded)
		s := p.Stats()
		want(t, "timed out", s.TimedOut, 2)
		want(t, "canceled", s.Canceled, 1)
		want(t, "open failed", s.OpenFailed, 0)
		want(t, "direct", s.Direct, 0)
		l.Release()
		b.end(p)
	})
}

// A caller whose time is over does not wait until a resource that did not answer is closed.
func TestCallerWaitsForNoClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, gate := &backend{t: t}, make(chan struct{})
		p := b.start(pool.Limits{MaxSize: 1}, stalls, func(c *pool.Config[*res]) {
			c.Close = func(r *res) { <-gate; b.Close(r) }
		})
		acquire(t, p).Release()
		time.Sleep(time.Minute)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		began := time.Now()
		wantErr(t, acquireErrCtx(short, p), pool.ErrTimeout)
		want(t, "waited", time.Since(began), time.Second)
		want(t, "closing", p.Stats().Busy, 1)
		close(gate)
		b.end(p)
	})
}

func TestDiscardAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, gate := &backend{t: t}, make(chan struct{})
		p := b.start(pool.Limits{MaxSize: 1}, func(c *pool.Config[*res]) {
			c.Close = func(r *res) { <-gate; b.Close(r) }
		})
		l := acquire(t, p)
		l.DiscardAsync()
		wantPanic(t, `pool "test": DiscardAsync`, l.DiscardAsync)
		wantPanic(t, `pool "test": Release`, l.Release)
		r := begin(ctx, p)
		synctest.Wait()
		want(t, "served before the place is free", r.done, false)
		close(gate)
		synctest.Wait()
		want(t, "served", r.done && r.err == nil, true)
		r.lease.Release()
		want(t, "discarded", p.Stats().Discarded, 1)
		b.end(p)
		wantPanic(t, "DiscardAsync of a zero Lease", pool.Lease[*res]{}.DiscardAsync)
	})
}

// Hooks that panic lose no lease and no place.
func TestHooksThatPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		seen := map[string]int{}
		p := b.start(pool.Limits{MaxSize: 3, Overflow: pool.OverflowDirect}, func(c *pool.Config[*res]) {
			c.Hooks = pool.Hooks{
				Acquired: func(context.Context, pool.AcquireEvent) { panic("acquired") },
				Opened:   func(time.Duration, error) { panic("opened") },
				Closed:   func(pool.Reason) { panic("closed") },
				Panicked: func(e *pool.PanicError) { b.set(func() { seen[e.Callback]++ }) },
			}
			c.LeakAfter, c.OnLeak = time.Minute, func(pool.Leak) { panic("leak") }
		})
		hold(t, p, 4) // one of them direct
		want(t, "idle", p.Stats().Idle, 3)
		if err := p.Resize(1); err != nil {
			t.Error(err)
		}
		want(t, "idle", p.Stats().Idle, 1)
		want(t, "closing", p.Stats().Busy, 0)
		l := acquire(t, p)
		time.Sleep(time.Hour)
		l.Release()
		b.end(p)
		for name, n := range map[string]int{"Hooks.Acquired": 5, "Hooks.Opened": 4, "Hooks.Closed": 4, "OnLeak": 1} {
			want(t, name, seen[name], n)
		}
	})
}

func TestDrainOfAnEmptyPool(t *testing.T) {
	b := &backend{t: t}
	over, cancel := context.WithCancel(ctx)
	cancel()
	for range 100 {
		if err := b.start(pool.Limits{}).Drain(over); err != nil {
			t.Fatal(err)
		}
	}
}
