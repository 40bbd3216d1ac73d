package pool_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/headpond/headpond/pool"
)

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 2})
		l1, l2 := acquire(t, p), acquire(t, p)
		waiting := begin(ctx, p)
		l2.Release()
		synctest.Wait()
		waiting.lease.Release()
		waiting = begin(ctx, p)
		synctest.Wait()
		waiting.lease.Release()
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := p.Drain(short); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "leases still out: 1") {
			t.Errorf("error %v", err)
		}
		wantErr(t, acquireErr(p), pool.ErrClosed)
		want(t, "leased is open", l1.Value().closed.Load(), false)
		drained := make(chan error)
		go func() { drained <- p.Drain(ctx) }()
		synctest.Wait()
		l1.Release()
		want(t, "error", <-drained, nil)
		b.end(p)
	})
}

func TestShrinkAndGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 4})
		var ls []pool.Lease[*res]
		for range 4 {
			ls = append(ls, acquire(t, p))
		}
		ls[0].Release()
		if err := p.Resize(1); err != nil {
			t.Error(err)
		}
		want(t, "idle is closed at once", ls[0].Value().closed.Load(), true)
		r := begin(ctx, p)
		synctest.Wait()
		ls[1].Release()
		ls[2].Release()
		synctest.Wait()
		want(t, "the waiter waits until the pool has shrunk", r.done, false)
		ls[3].Release()
		synctest.Wait()
		want(t, "and is handed the last one", r.done && r.lease.Value() == ls[3].Value(), true)
		r2 := begin(ctx, p)
		synctest.Wait()
		if err := p.Update(pool.Limits{MaxSize: 2, MinIdle: 1}); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		want(t, "growing serves the waiter", r2.done, true)
		r.lease.Release()
		r2.lease.Release()
		b.end(p)
	})
}

// Callbacks panic or end their goroutine at random; the pool keeps its counts.
func TestPanics(t *testing.T) {
	for name, blow := range map[string]func(){
		"panic": func() { panic(errDown) }, "goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testPanics(t, blow) })
		})
	}
}

func testPanics(t *testing.T, blow func()) {
	b := &backend{t: t}
	arm := map[string]bool{}
	var mu sync.Mutex
	var seen []string
	fuse := func(name string) {
		mu.Lock()
		armed := arm[name]
		arm[name] = false
		mu.Unlock()
		if armed {
			blow()
		}
	}
	p := b.start(pool.Limits{MaxSize: 2, CheckInterval: time.Minute}, func(c *pool.Config[*res]) {
		c.Open = func(ctx context.Context) (*res, error) { fuse("Open"); return b.Open(ctx) }
		c.Close = func(r *res) { b.Close(r); fuse("Close") }
		c.Check = func(context.Context, *res) error { fuse("Check"); return nil }
		c.Reset = func(context.Context, *res) error { fuse("Reset"); return nil }
		c.Hooks.Panicked = func(e *pool.PanicError) {
			mu.Lock()
			seen = append(seen, e.Callback)
			mu.Unlock()
			if !strings.Contains(e.Error(), e.Callback) || len(e.Stack) == 0 {
				t.Errorf("error %v", e)
			}
			panic("a hook that panics itself")
		}
	})
	set := func(name string) { mu.Lock(); arm[name] = true; mu.Unlock() }
	apart := func(f func()) { // blow may end the goroutine
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		<-done
		synctest.Wait()
	}
	set("Open")
	wantErr(t, acquireErr(p), pool.ErrOpen)
	set("Reset")
	l := acquire(t, p)
	apart(l.Release)
	want(t, "closed", l.Value().closed.Load(), true)
	hold(t, p, 2)
	time.Sleep(2 * time.Second)
	set("Check")
	apart(func() {
		if l, err := p.Acquire(ctx); err == nil {
			l.Release()
		}
	})
	want(t, "closed by Check", p.Stats().ClosedCheck, 1)
	set("Check")
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	want(t, "closed by background Check", p.Stats().ClosedCheck, 2)
	hold(t, p, 2)
	set("Close")
	apart(p.Close)
	b.end(p)
	want(t, "panics", p.Stats().Panics, 5)
	want(t, "hooks", strings.Join(seen, " "), "Open Reset Check Check Close")
}

func TestLeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		var mu sync.Mutex
		var leaks []pool.Leak
		p := b.start(pool.Limits{Overflow: pool.OverflowDirect, MaxSize: 1}, func(c *pool.Config[*res]) {
			c.LeakAfter = time.Minute
			c.OnLeak = func(l pool.Leak) {
				mu.Lock()
				defer mu.Unlock()
				leaks = append(leaks, l)
			}
		})
		acquire(t, p).Release()
		time.Sleep(2 * time.Minute)
		forgotten, direct := acquire(t, p), acquire(t, p)
		time.Sleep(50 * time.Second)
		direct.Release()
		direct = acquire(t, p)
		time.Sleep(time.Hour)
		synctest.Wait()
		want(t, "leaks", len(leaks), 2)
		for _, l := range leaks {
			if l.Pool != "test" || l.Held < time.Minute || l.Held > 61*time.Second || !strings.Contains(l.Site, "pool_test.acquire") {
				t.Errorf("leak %+v", l)
			}
		}
		if strings.Contains(leaks[0].Site, "Pool[") {
			t.Errorf("the site begins inside the pool: %s", leaks[0].Site)
		}
		direct.Release()
		forgotten.Release()
		b.end(p)
	})
}

// TestRareLeakIsFound: the call stacks of few acquires are taken, but a leak that happens a second time is found.
func TestRareLeakIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		found := make(chan pool.Leak, 3)
		p := b.start(pool.Limits{MaxSize: 5}, func(c *pool.Config[*res]) {
			c.LeakAfter, c.OnLeak = time.Minute, func(l pool.Leak) { found <- l }
		})
		for range 17 { // further ones are sampled, the next at 32
			acquire(t, p).Release()
		}
		first := acquire(t, p)
		if l := <-found; l.Site != "" {
			t.Fatalf("the first leak was to be one without a call stack: %+v", l)
		}
		second := acquire(t, p)
		if l := <-found; !strings.Contains(l.Site, "pool_test.acquire") {
			t.Errorf("the second leak has no call stack: %+v", l)
		}
		third := acquire(t, p)
		if l := <-found; l.Site != "" {
			t.Errorf("call stacks are still taken for all acquires: %+v", l)
		}
		for _, l := range []pool.Lease[*res]{first, second, third} {
			l.Release()
		}
		b.end(p)
	})
}

// A running pool keeps nothing of closed resources.
func TestClosedResourcesAreForgotten(t *testing.T) {
	b := &backend{t: t}
	p := b.start(pool.Limits{MaxSize: 4})
	var closed []weak.Pointer[res]
	func() {
		hold(t, p, 4)
		var ls []pool.Lease[*res]
		for range 4 {
			ls = append(ls, acquire(t, p))
		}
		for i, l := range ls {
			if i == 1 || i == 2 {
				closed = append(closed, weak.Make(l.Value()))
				l.Discard()
			}
		}
		ls[0].Release()
		ls[3].Release()
	}()
	runtime.GC()
	for _, r := range closed {
		want(t, "still there", r.Value() != nil, false)
	}
	b.end(p)
}

// The first lease of a resource reuses nothing, also where it was opened ahead of demand.
func TestFirstLeaseIsNoReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MinIdle: 2, MaxSize: 2})
		synctest.Wait()
		first, second := acquire(t, p), acquire(t, p)
		want(t, "a first lease reuses", first.Reused() || second.Reused(), false)
		want(t, "reused", p.Stats().Reused, 0)
		first.Release()
		second.Release()
		want(t, "reuses", acquire(t, p).Reused(), true)
		want(t, "reused", p.Stats().Reused, 1)
		p.Close()
	})
}

func TestHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		var acquires []pool.AcquireEvent
		var opens int
		var closes []string
		p := b.start(pool.Limits{MaxSize: 1, AcquireTimeout: time.Second}, func(c *pool.Config[*res]) {
			c.Hooks = pool.Hooks{
				Acquired: func(_ context.Context, e pool.AcquireEvent) { acquires = append(acquires, e) },
				Opened:   func(_ time.Duration, err error) { opens++; want(t, "open error", err, nil) },
				Closed:   func(why pool.Reason) { closes = append(closes, why.String()) },
			}
		})
		acquire(t, p).Release()
		l := acquire(t, p)
		_ = acquireErr(p)
		l.Discard()
		b.end(p)
		want(t, "acquires", len(acquires), 3)
		want(t, "first", acquires[0].Waited && !acquires[0].Reused, true)
		want(t, "second", !acquires[1].Waited && acquires[1].Reused, true)
		want(t, "third", acquires[2].Took, time.Second)
		wantErr(t, acquires[2].Err, pool.ErrTimeout)
		want(t, "opens", opens, 1)
		want(t, "closes", strings.Join(closes, " "), "discarded")
		want(t, "unknown", pool.Reason(99).String(), "unknown")
	})
}

// parker waits on its own channel, as a fiber would on its loop.
type parker struct {
	ch      chan struct{}
	unparks int
}

func (p *parker) Park(ctx context.Context) error {
	select {
	case <-p.ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *parker) Unpark() { p.unparks++; p.ch <- struct{}{} }

func TestParker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1})
		holder := acquire(t, p)
		served := &parker{ch: make(chan struct{}, 1)}
		gone := &parker{ch: make(chan struct{}, 1)}
		cctx, cancel := context.WithCancel(ctx)
		r1 := begin(pool.WithParker(cctx, gone), p)
		synctest.Wait()
		r2 := begin(pool.WithParker(ctx, served), p)
		synctest.Wait()
		cancel()
		synctest.Wait()
		wantErr(t, r1.err, context.Canceled)
		holder.Release()
		synctest.Wait()
		want(t, "served", r2.done && r2.err == nil, true)
		want(t, "unparks", served.unparks, 1)
		want(t, "unparks of one that left", gone.unparks, 0)
		r2.lease.Release()
		b.end(p)
	})
}

func TestHistogram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1})
		acquire(t, p).Release()
		l := acquire(t, p)
		r := begin(ctx, p)
		time.Sleep(3 * time.Second)
		l.Release()
		synctest.Wait()
		r.lease.Release()
		h := p.Stats().AcquireSeconds
		want(t, "count", h.Count(), 3)
		want(t, "at once", h.Counts[0], 2)
		want(t, "sum", h.Sum, 3*time.Second)
		want(t, "median", h.Quantile(0.5), pool.BucketBound(0))
		want(t, "maximum", h.Quantile(1), 4*time.Second)
		want(t, "empty", pool.Histogram{}.Quantile(0.5), 0)
		b.end(p)
	})
}

// Everything at once, on real time: for the race detector.
func TestStress(t *testing.T) {
	b := &backend{t: t}
	p := b.start(pool.Limits{MaxSize: 4, MinIdle: 1, IdleTimeout: 20 * time.Millisecond, MaxLifetime: 50 * time.Millisecond,
		CheckAfter: time.Millisecond, CheckInterval: 5 * time.Millisecond, AcquireTimeout: time.Second}, func(c *pool.Config[*res]) {
		c.Check = func(context.Context, *res) error { return nil }
	})
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 500 {
				cctx, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(2000))*time.Microsecond)
				l, err := p.Acquire(cctx)
				cancel()
				if err != nil {
					wantErr(t, err, pool.ErrTimeout)
					continue
				}
				if l.Value().leased.Swap(true) {
					t.Error("leased twice")
				}
				runtime.Gosched()
				l.Value().leased.Store(false)
				if rand.IntN(20) == 0 {
					l.Discard()
				} else {
					l.Release()
				}
			}
		})
	}
	for i := range 50 {
		if err := p.Resize(1 + i%6); err != nil {
			t.Error(err)
		}
		p.Stats()
		runtime.Gosched()
	}
	wg.Wait()
	s := p.Stats()
	want(t, "leases returned", s.Released+s.Discarded, s.Acquired)
	b.end(p)
}
