package pool_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// loopParker is a caller that does not wait in Park: Unpark calls it.
type loopParker struct {
	parker
	told chan struct{}
}

func newLoopParker() *loopParker {
	return &loopParker{parker{ch: make(chan struct{}, 1)}, make(chan struct{}, 1)}
}

func (p *loopParker) Unpark() { p.parker.Unpark(); p.told <- struct{}{} }

func (p *loopParker) TryPark() bool {
	select {
	case <-p.ch:
		return true
	default:
		return false
	}
}

// beginAndWait is Acquire by Begin, and Wait at once.
func beginAndWait(ctx context.Context, p *pool.Pool[*res]) (pool.Lease[*res], error) {
	l, w, ok := p.Begin(newLoopParker())
	switch {
	case !ok:
		return p.Acquire(ctx)
	case !w.Begun():
		return l, nil
	}
	return w.Wait(ctx)
}

// beginAndBeNotified is Acquire by Begin, and Wait when that does not wait.
func beginAndBeNotified(ctx context.Context, p *pool.Pool[*res]) (pool.Lease[*res], error) {
	by := newLoopParker()
	l, w, ok := p.Begin(by)
	switch {
	case !ok:
		return p.Acquire(ctx)
	case !w.Begun():
		return l, nil
	}
	if ready, _ := w.Ready(); ready { // the resource it opened is there already
		return w.Wait(ctx)
	}
	select {
	case <-by.told:
		ready, granted := w.Ready()
		l, err := w.Wait(ctx)
		if !ready || granted != (err == nil) {
			panic("unparked, and not ready, or not the granted resource")
		}
		return l, err
	case <-ctx.Done():
		return w.Wait(ctx)
	}
}

func TestBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, AcquireTimeout: time.Second})
		_, w, ok := p.Begin(newLoopParker()) // nothing is open yet
		want(t, "begun", ok && w.Begun(), true)
		synctest.Wait()
		ready, granted := w.Ready()
		want(t, "ready with a lease", ready && granted, true)
		held, err := w.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "begun after its end", w.Begun(), false)

		_, w, _ = p.Begin(newLoopParker())
		time.Sleep(time.Second)
		synctest.Wait()
		ready, granted = w.Ready()
		want(t, "ready", ready, true)
		want(t, "granted when the time is over", granted, false)
		_, err = w.Wait(ctx)
		wantErr(t, err, pool.ErrTimeout)

		want(t, "released", held.TryRelease(), true)
		l, w, ok := p.Begin(newLoopParker())
		want(t, "leased", ok && !w.Begun(), true)
		s := p.Stats()
		want(t, "acquired", s.Acquired, 2)
		want(t, "reused", s.Reused, 1)
		want(t, "waited", s.Waited, 2)
		want(t, "counted", s.AcquireSeconds.Count(), 2)
		l.Release()
		b.end(p)
		_, _, ok = p.Begin(newLoopParker())
		want(t, "begun after Close", ok, false)
	})
}

// Operations that may wait are left to Acquire and Release.
func TestBeginLeavesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		watched := b.start(pool.Limits{MaxSize: 1}, func(c *pool.Config[*res]) {
			c.Hooks.Acquired = func(context.Context, pool.AcquireEvent) {}
		})
		_, _, ok := watched.Begin(newLoopParker())
		want(t, "begun with a hook", ok, false)
		b.end(watched)

		resets := b.start(pool.Limits{MaxSize: 1}, func(c *pool.Config[*res]) {
			c.Reset = func(context.Context, *res) error { return nil }
		})
		l := acquire(t, resets)
		want(t, "released without Reset", l.TryRelease(), false)
		l.Release()
		b.end(resets)

		old := b.start(pool.Limits{MaxSize: 1, MaxLifetime: time.Minute})
		l = acquire(t, old)
		time.Sleep(time.Hour)
		want(t, "released after its lifetime", l.TryRelease(), false)
		l.Release()
		want(t, "closed", l.Value().closed.Load(), true)

		full := b.start(pool.Limits{MaxSize: 1, MaxWaiters: -1})
		l = acquire(t, full)
		_, _, ok = full.Begin(newLoopParker())
		want(t, "begun where no caller may wait", ok, false)
		full.Close()
		want(t, "released to a closed pool", l.TryRelease(), false)
		l.Release()
		b.end(full)
		b.end(old)
	})
}

func TestTryReleaseTwice(t *testing.T) {
	b := &backend{t: t}
	p := b.start(pool.Limits{MaxSize: 1})
	defer b.end(p)
	l := acquire(t, p)
	want(t, "released", l.TryRelease(), true)
	defer func() {
		if recover() == nil {
			t.Error("a second TryRelease does not panic")
		}
	}()
	l.TryRelease()
}

// TryAcquire leases what is idle, and does nothing else.
func TestTryAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1})
		_, ok := p.TryAcquire(0)
		want(t, "leased before anything is open", ok, false)
		l := acquire(t, p)
		_, ok = p.TryAcquire(0)
		want(t, "leased twice", ok, false)
		l.Release()
		l, ok = p.TryAcquire(0)
		want(t, "leased", ok, true)
		want(t, "reused", l.Reused(), true)
		s := p.Stats()
		want(t, "acquired", s.Acquired, 2)
		want(t, "waiting", s.Waiting, 0)
		l.Release()
		b.end(p)
		_, ok = p.TryAcquire(0)
		want(t, "leased after Close", ok, false)
	})
}
