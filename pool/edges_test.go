package pool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// A resource that is being checked or closed is in nobody's hands: where nobody may wait
// for those of others, callers wait for it.
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

func TestDirectOpenEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, Overflow: pool.OverflowDirect, AcquireTimeout: time.Second})
		l := acquire(t, p)
		b.set(func() { b.gate = make(chan struct{}) }) // for ever
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

// Whose time is over is not made to wait until a resource that did not answer is closed.
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
