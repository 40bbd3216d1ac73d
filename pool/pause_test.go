package pool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// pausing pauses p and waits in a goroutine of its own until it is.
func pausing(t *testing.T, p *pool.Pool[*res]) <-chan error {
	t.Helper()
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.WaitPaused(ctx) }()
	synctest.Wait()
	return ended
}

// TestPause restarts a backend under a caller with a lease, and one that waits for longer than AcquireTimeout.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 3, MinIdle: 2, AcquireTimeout: time.Second})
		synctest.Wait()
		holder := acquire(t, p)
		synctest.Wait()
		want(t, "idle before", p.Stats().Idle, 2)
		paused := pausing(t, p)
		_, open := b.count()
		want(t, "open with a lease out", open, 1)
		r := begin(ctx, p)
		time.Sleep(900 * time.Millisecond)
		holder.Release()
		want(t, "pause", <-paused, error(nil))
		want(t, "pause again", p.Pause(), error(nil))
		want(t, "wait again", p.WaitPaused(ctx), error(nil))
		opens, open := b.count()
		want(t, "open", open, 0)
		b.set(func() { b.down = true })
		time.Sleep(time.Hour)
		b.set(func() { b.down = false })
		s := p.Stats()
		want(t, "waiting", s.Waiting, 1)
		want(t, "paused", s.Paused, true)
		want(t, "all in use", p.AllInUse(), true)
		if now, _ := b.count(); now != opens {
			t.Errorf("%d opens during the pause", now-opens)
		}
		want(t, "resumed", p.Resume(), true)
		synctest.Wait()
		want(t, "served", r.done && r.err == nil, true)
		want(t, "idle after", p.Stats().Idle, 2)
		want(t, "resumed again", p.Resume(), false)
		r.lease.Release()
		b.end(p)
	})
}

// TestPauseCountsWaitsBefore has a caller whose AcquireTimeout began before the pause and ends after it.
func TestPauseCountsWaitsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, AcquireTimeout: 10 * time.Second})
		holder := acquire(t, p)
		r := begin(ctx, p)
		time.Sleep(6 * time.Second)
		paused := pausing(t, p)
		time.Sleep(time.Minute)
		p.Resume()
		if err := <-paused; !errors.Is(err, pool.ErrResumed) {
			t.Errorf("pause ended by Resume: %v", err)
		}
		time.Sleep(3 * time.Second)
		want(t, "gave up early", p.Stats().TimedOut, 0)
		time.Sleep(1300 * time.Millisecond) // to the tick after it
		synctest.Wait()
		want(t, "gave up", r.done && errors.Is(r.err, pool.ErrTimeout), true)
		holder.Release()
		b.end(p)
	})
}

// TestPauseDuringOpens pauses while opens are under way, of which one succeeds and one fails.
func TestPauseDuringOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, down := range []bool{false, true} {
			b := &backend{t: t, gate: make(chan struct{})}
			p := b.start(pool.Limits{MaxSize: 2})
			r := begin(ctx, p)
			synctest.Wait()
			paused := pausing(t, p)
			b.set(func() { b.down = down })
			close(b.gate)
			want(t, "pause", <-paused, error(nil))
			want(t, "caller waits", r.done, false)
			b.set(func() { b.down = false })
			p.Resume()
			synctest.Wait()
			want(t, "served", r.done && r.err == nil, true)
			r.lease.Release()
			b.end(p)
		}
	})
}

// TestPauseOutlivedByAnOpen has an open that began before a pause fail after it, which says nothing about the backend.
func TestPauseOutlivedByAnOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		fail := make(chan struct{})
		p := b.start(pool.Limits{MaxSize: 2}, func(c *pool.Config[*res]) {
			first := true // opens follow each other
			c.Open = func(ctx context.Context) (*res, error) {
				if first {
					first = false
					<-fail
					return nil, errDown
				}
				return b.Open(ctx)
			}
		})
		r := begin(ctx, p)
		synctest.Wait()
		_ = pausing(t, p)
		p.Resume()
		close(fail)
		synctest.Wait()
		want(t, "failed opens", p.Stats().OpenFailed, 1)
		want(t, "served", r.done && r.err == nil, true)
		r.lease.Release()
		b.end(p)
	})
}

// TestPauseOverflow: a pause holds for overflow resources too.
func TestPauseOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, Overflow: pool.OverflowDirect})
		inside, direct := acquire(t, p), acquire(t, p)
		paused := pausing(t, p)
		rs := []*result{begin(ctx, p), begin(ctx, p), begin(ctx, p)}
		synctest.Wait()
		inside.Release()
		synctest.Wait()
		want(t, "paused with an overflow resource out", len(paused), 0)
		direct.Release()
		want(t, "pause", <-paused, error(nil))
		want(t, "waiting", p.Stats().Waiting, len(rs))
		p.Resume()
		synctest.Wait()
		for _, r := range rs {
			want(t, "served", r.done && r.err == nil, true)
		}
		want(t, "overflow resources", p.Stats().Direct, len(rs)-1)
		for _, r := range rs {
			r.lease.Release()
		}
		b.end(p)
	})
}

// TestPauseChangesOverflow has an acquire of Begin wait in a pause, in which the pool gets overflow resources.
func TestPauseChangesOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1})
		want(t, "pause", p.Pause(), error(nil))
		by := newLoopParker()
		_, w, ok := p.Begin(by)
		want(t, "waits", ok && w.Begun(), true)
		want(t, "update", p.Update(pool.Limits{MaxSize: 1, Overflow: pool.OverflowDirect}), error(nil))
		p.Resume()
		l, err := w.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
		b.end(p)
	})
}

// TestPauseEnds covers a context that ends, and Close.
func TestPauseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{})
		l := acquire(t, p)
		within, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		want(t, "pause", p.Pause(), error(nil))
		if err := p.WaitPaused(within); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("pause with a lease out: %v", err)
		}
		want(t, "stays paused", p.Stats().Paused, true)
		paused := pausing(t, p)
		r := begin(ctx, p)
		synctest.Wait()
		p.Close()
		synctest.Wait()
		wantErr(t, <-paused, pool.ErrClosed)
		wantErr(t, r.err, pool.ErrClosed)
		wantErr(t, p.Pause(), pool.ErrClosed)
		wantErr(t, p.WaitPaused(ctx), pool.ErrClosed)
		want(t, "resumed", p.Resume(), false)
		l.Release()
		b.end(p)
	})
}
