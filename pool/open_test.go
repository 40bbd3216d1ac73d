package pool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

func TestGrowsAtOnceWhenCold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, gate: make(chan struct{})}
		p := b.start(pool.Limits{MaxSize: 20, OpenConcurrency: 8})
		var rs []*result
		for range 20 {
			rs = append(rs, begin(ctx, p))
		}
		synctest.Wait()
		want(t, "opening", p.Stats().Opening, 8)
		close(b.gate)
		synctest.Wait()
		for _, r := range rs {
			r.lease.Release()
		}
		want(t, "most at once", b.dials, 8)
		want(t, "idle", p.Stats().Idle, 20)
		b.end(p)
	})
}

func TestReleaseBeatsSlowOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 2})
		first := acquire(t, p)
		b.set(func() { b.gate = make(chan struct{}) })
		r := begin(ctx, p)
		synctest.Wait()
		want(t, "opening", p.Stats().Opening, 1)
		first.Release()
		synctest.Wait()
		want(t, "handed over", r.done && r.err == nil && r.lease.Value() == first.Value(), true)
		close(b.gate) // the open without a waiter is kept
		synctest.Wait()
		want(t, "idle", p.Stats().Idle, 1)
		r.lease.Release()
		b.end(p)
	})
}

func TestOpenOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, gate: make(chan struct{})}
		p := b.start(pool.Limits{})
		cctx, cancel := context.WithCancel(ctx)
		r := begin(cctx, p)
		synctest.Wait()
		cancel()
		synctest.Wait()
		wantErr(t, r.err, context.Canceled)
		close(b.gate)
		synctest.Wait()
		l := acquire(t, p)
		want(t, "reused", l.Reused(), false)
		want(t, "opened", p.Stats().Opened, 1)
		l.Release()
		b.end(p)
	})
}

func TestOneFailedOpenFailsOneCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, gate: make(chan struct{}), down: true}
		p := b.start(pool.Limits{MaxSize: 1})
		r1, r2 := begin(ctx, p), (*result)(nil)
		synctest.Wait()
		r2 = begin(ctx, p)
		synctest.Wait()
		close(b.gate)
		synctest.Wait()
		e := wantErr(t, r1.err, pool.ErrOpen, errDown)
		want(t, "last open error", e.LastOpenError, errDown)
		want(t, "the second waits", r2.done, false)
		b.set(func() { b.down = false })
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		want(t, "the second is served", r2.done && r2.err == nil, true)
		want(t, "last open error", p.Stats().LastOpenError, nil)
		r2.lease.Release()
		b.end(p)
	})
}

// A thousand callers of a backend that is down all fail at once, with few opens,
// and are served within a second of its return.
func TestBackendDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, down: true}
		p := b.start(pool.Limits{})
		for range 60 {
			rs := make([]*result, 1000)
			for i := range rs {
				rs[i] = begin(ctx, p)
			}
			time.Sleep(50 * time.Millisecond)
			synctest.Wait()
			for _, r := range rs {
				if !r.done {
					t.Fatal("a caller is not failed yet")
				}
				wantErr(t, r.err, pool.ErrOpen, errDown)
			}
			time.Sleep(time.Second)
		}
		if opens, _ := b.count(); opens > 200 {
			t.Errorf("%d opens in a minute", opens)
		}
		b.set(func() { b.down = false })
		time.Sleep(time.Second)
		acquire(t, p).Release()
		b.end(p)
	})
}

// Opens that fail together are one failure, and a success ends the row: the next failure waits for 10 ms at most.
func TestBackoffAfterOneFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 8, OpenConcurrency: 8})
		for range 5 {
			gate := make(chan struct{})
			b.set(func() { b.gate, b.down = gate, true })
			rs := []*result{begin(ctx, p), begin(ctx, p), begin(ctx, p), begin(ctx, p)}
			synctest.Wait()
			close(gate)
			synctest.Wait()
			for _, r := range rs {
				wantErr(t, r.err, pool.ErrOpen, errDown)
			}
			b.set(func() { b.gate, b.down = nil, false })
			start := time.Now()
			acquire(t, p).Discard()
			if d := time.Since(start); d > 10*time.Millisecond {
				t.Errorf("waited for %v", d)
			}
		}
		want(t, "failed", p.Stats().OpenFailed, 20)
		b.end(p)
	})
}

func TestBackendDownWhileOthersAreInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 2})
		holder := acquire(t, p)
		b.set(func() { b.down = true })
		r1 := begin(ctx, p)
		synctest.Wait()
		want(t, "the caller waits for the one in use", r1.done, false)
		holder.Release()
		synctest.Wait()
		want(t, "and gets it", r1.done && r1.err == nil, true)
		r2 := begin(ctx, p)
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		wantErr(t, r2.err, pool.ErrOpen, errDown) // three attempts, nothing was released
		r1.lease.Release()
		b.end(p)
	})
}

func TestOpenTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, gate: make(chan struct{})}
		p := b.start(pool.Limits{OpenTimeout: 3 * time.Second})
		began := time.Now()
		wantErr(t, acquireErr(p), pool.ErrOpen, context.DeadlineExceeded)
		want(t, "took", time.Since(began), 3*time.Second)
		r := begin(ctx, p)
		synctest.Wait()
		p.Close() // cancels the open under way
		synctest.Wait()
		wantErr(t, r.err, pool.ErrClosed)
		b.end(p)
	})
}

func TestOverflowDirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, Overflow: pool.OverflowDirect})
		pooled, direct := acquire(t, p), acquire(t, p)
		s := p.Stats()
		want(t, "direct", s.Direct, 1)
		want(t, "in use", s.InUse, 1)
		want(t, "all in use", p.AllInUse(), false)
		direct.Release()
		want(t, "direct closed", direct.Value().closed.Load(), true)
		acquire(t, p).Discard()
		b.set(func() { b.down = true })
		wantErr(t, acquireErr(p), pool.ErrOpen, errDown)
		b.set(func() { b.down = false })
		last := acquire(t, p)
		p.Close()
		pooled.Release()
		last.Release()
		want(t, "overflowed", p.Stats().Overflowed, 3)
		b.end(p)
	})
}

func TestMinIdleIsRefilledAheadOfDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MinIdle: 2, MaxSize: 4})
		synctest.Wait()
		want(t, "warm", p.Stats().Idle, 2)
		var ls []pool.Lease[*res]
		for i, idle := range []int{2, 2, 1, 0} {
			ls = append(ls, acquire(t, p))
			synctest.Wait()
			want(t, "idle", p.Stats().Idle, idle)
			want(t, "in use", p.Stats().InUse, i+1)
		}
		ls[0].Discard()
		synctest.Wait()
		want(t, "idle after a discard", p.Stats().Idle, 1)
		b.set(func() { b.down = true })
		ls[1].Discard()
		time.Sleep(10 * time.Second)
		b.set(func() { b.down = false })
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "idle after an outage", p.Stats().Idle, 2)
		ls[2].Release()
		ls[3].Release()
		b.end(p)
	})
}

func TestCloseEndsAnOverflowOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, Overflow: pool.OverflowDirect})
		l := acquire(t, p)
		b.set(func() { b.gate = make(chan struct{}) }) // forever
		r := begin(ctx, p)
		synctest.Wait()
		want(t, "direct", p.Stats().Direct, 1)
		began := time.Now()
		p.Close()
		synctest.Wait()
		want(t, "done", r.done, true)
		want(t, "time", time.Since(began), 0)
		wantErr(t, r.err, pool.ErrClosed)
		l.Release()
		b.end(p)
	})
}

// TestOpenTime: it is the time of the first open, follows when opens take longer, and leaves failed opens out.
func TestOpenTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes, fails := 10*time.Millisecond, error(nil)
		p, err := pool.New(pool.Config[int]{
			Open:  func(context.Context) (int, error) { time.Sleep(takes); return 0, fails },
			Close: func(int) {}, Limits: pool.Limits{MaxSize: 1000},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		open := func() {
			l, err := p.Acquire(ctx)
			if (err == nil) != (fails == nil) {
				t.Fatal(err)
			}
			if err == nil {
				l.Discard()
			}
		}
		want(t, "before the first", p.Stats().OpenTime, 0)
		open()
		want(t, "after the first", p.Stats().OpenTime, takes)
		takes, fails = time.Second, errDown
		open()
		want(t, "after a failure", p.Stats().OpenTime, 10*time.Millisecond)
		takes, fails = 50*time.Millisecond, nil
		for range 100 {
			open()
		}
		if got := p.Stats().OpenTime.Round(time.Millisecond); got != takes {
			t.Errorf("after a hundred opens of %v the time is %v", takes, got)
		}
	})
}

// TestGiveUp: the callers that wait for an open or a release fail at once with the cause, which Open's own error does not replace. Leases and
// later acquires are not affected.
func TestGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 2, OpenTimeout: time.Hour, AcquireTimeout: time.Hour})
		held := acquire(t, p)
		b.set(func() { b.gate = make(chan struct{}) })
		opening, queued := begin(ctx, p), begin(ctx, p)
		synctest.Wait()
		p.GiveUp(errDown)
		synctest.Wait()
		for name, r := range map[string]*result{"the first": opening, "the second": queued} {
			if !r.done || !errors.Is(r.err, pool.ErrOpen) || !errors.Is(r.err, errDown) || errors.Is(r.err, context.Canceled) {
				t.Errorf("%s: done %v: %v", name, r.done, r.err)
			}
		}
		want(t, "opening", p.Stats().Opening, 0)
		b.set(func() { b.gate = nil })
		later := acquire(t, p)
		later.Release()
		held.Release()
		b.end(p)
	})
}

// TestGiveUpOfADirectOpen is the same for a caller that opens for itself.
func TestGiveUpOfADirectOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, Overflow: pool.OverflowDirect, OpenTimeout: time.Hour, AcquireTimeout: time.Hour})
		held := acquire(t, p)
		b.set(func() { b.gate = make(chan struct{}) })
		direct := begin(ctx, p)
		synctest.Wait()
		p.GiveUp(errDown)
		synctest.Wait()
		if !direct.done || !errors.Is(direct.err, pool.ErrOpen) || !errors.Is(direct.err, errDown) || errors.Is(direct.err, context.Canceled) {
			t.Errorf("done %v: %v", direct.done, direct.err)
		}
		held.Release()
		b.end(p)
	})
}

// TestGiveUpInAPause: the callers wait until its end, as in every pause.
func TestGiveUpInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, AcquireTimeout: time.Hour})
		if err := p.Pause(); err != nil {
			t.Fatal(err)
		}
		r := begin(ctx, p)
		synctest.Wait()
		p.GiveUp(errDown)
		synctest.Wait()
		want(t, "over", r.done, false)
		p.Resume()
		synctest.Wait()
		if !r.done || r.err != nil {
			t.Fatalf("done %v: %v", r.done, r.err)
		}
		r.lease.Release()
		b.end(p)
	})
}

// TestGiveUpFailsNoLaterCaller: an open that GiveUp has canceled, and that ends late, does not fail those that came after it.
func TestGiveUpFailsNoLaterCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		first := true
		p := b.start(pool.Limits{MaxSize: 1, OpenTimeout: time.Hour, AcquireTimeout: time.Hour}, func(c *pool.Config[*res]) {
			c.Open = func(ctx context.Context) (*res, error) {
				if first {
					first = false
					<-ctx.Done()
					time.Sleep(time.Second)
					return nil, ctx.Err()
				}
				return b.Open(ctx)
			}
		})
		before := begin(ctx, p)
		synctest.Wait()
		p.GiveUp(errDown)
		after := begin(ctx, p)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !before.done || !errors.Is(before.err, errDown) || !after.done || after.err != nil {
			t.Fatalf("before: %v %v, after: %v %v", before.done, before.err, after.done, after.err)
		}
		after.lease.Release()
		b.end(p)
	})
}

// TestGiveUpOfAReplacement is TestGiveUp for a caller of Replace.
func TestGiveUpOfAReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, OpenTimeout: time.Hour})
		held := acquire(t, p)
		b.set(func() { b.gate = make(chan struct{}) })
		var err error
		began := time.Now()
		go func() {
			time.Sleep(time.Second)
			p.GiveUp(errDown)
		}()
		_, err = held.Replace(ctx)
		if took := time.Since(began); took != time.Second || !errors.Is(err, errDown) || errors.Is(err, context.Canceled) {
			t.Errorf("after %v: %v", took, err)
		}
		b.set(func() { b.gate = nil })
		acquire(t, p).Release()
		b.end(p)
	})
}

// TestGiveUpOfACheck is TestGiveUp for a caller that waits for the Check of an idle resource.
func TestGiveUpOfACheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		hangs := true
		p := b.start(pool.Limits{MaxSize: 2, CheckAfter: time.Second, OpenTimeout: time.Hour, AcquireTimeout: time.Hour, IdleTimeout: -1}, func(c *pool.Config[*res]) {
			c.Check = func(ctx context.Context, _ *res) error {
				if hangs {
					<-ctx.Done()
				}
				return ctx.Err()
			}
		})
		first, second := acquire(t, p), acquire(t, p)
		first.Release()
		second.Release()
		time.Sleep(time.Minute)
		checks := begin(ctx, p)
		synctest.Wait()
		p.GiveUp(errDown)
		synctest.Wait()
		if !checks.done || !errors.Is(checks.err, pool.ErrOpen) || !errors.Is(checks.err, errDown) {
			t.Fatalf("done %v: %v", checks.done, checks.err)
		}
		want(t, "idle, not checked", p.Stats().Idle, 1)
		hangs = false
		acquire(t, p).Release()
		b.end(p)
	})
}
