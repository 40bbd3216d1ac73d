package pool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// replace replaces a lease in a goroutine; read the result after synctest.Wait.
func replace(ctx context.Context, l pool.Lease[*res]) *result {
	r := new(result)
	go func() {
		r.lease, r.err = l.Replace(ctx)
		r.done = true
	}()
	return r
}

func TestReplaceKeepsTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, limit: 1}
		p := b.start(pool.Limits{MaxSize: 1})
		l := acquire(t, p)
		first := l.Value()
		waiter := begin(ctx, p)
		synctest.Wait()
		b.set(func() { b.gate = make(chan struct{}) })
		r := replace(ctx, l)
		synctest.Wait()
		want(t, "opening", p.Stats().Opening, 1)
		want(t, "the old resource is closed", first.closed.Load(), true)
		close(b.gate)
		synctest.Wait()
		if r.err != nil || waiter.done {
			t.Fatalf("replaced: %v; the waiter got the slot: %v", r.err, waiter.done)
		}
		want(t, "another resource", r.lease.Value() != first, true)
		want(t, "reused", r.lease.Reused(), false)
		s := p.Stats()
		want(t, "in use", s.InUse, 1)
		want(t, "replaced", s.Replaced, 1)
		want(t, "acquired", s.Acquired, 2)
		want(t, "discarded", s.Discarded, 1)
		wantPanic(t, "released or discarded already", func() { l.Release() })
		r.lease.Release()
		synctest.Wait()
		want(t, "the waiter has it", waiter.err == nil && waiter.lease.Value() == r.lease.Value(), true)
		waiter.lease.Release()
		b.end(p)
	})
}

func TestReplaceThatCannotOpenFreesTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, limit: 1}
		p := b.start(pool.Limits{MaxSize: 1})
		l := acquire(t, p)
		b.set(func() { b.down = true })
		_, err := l.Replace(ctx)
		wantErr(t, err, pool.ErrOpen, errDown)
		want(t, "in use", p.Stats().InUse+p.Stats().Opening, 0)
		b.set(func() { b.down = false })
		l = acquire(t, p) // after the back-off
		l.Release()
		b.end(p)
	})
}

// TestReplaceable: after a failed open holders keep their leases for a while, or until an open succeeds.
func TestReplaceable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, limit: 3}
		p := b.start(pool.Limits{MaxSize: 3})
		l, other, third := acquire(t, p), acquire(t, p), acquire(t, p)
		want(t, "at first", l.Replaceable(), true)
		b.set(func() { b.down = true })
		_, err := l.Replace(ctx)
		wantErr(t, err, errDown)
		time.Sleep(10 * time.Second)
		want(t, "after a failure", other.Replaceable(), false)
		time.Sleep(time.Minute)
		want(t, "long after it", other.Replaceable(), true)
		_, err = other.Replace(ctx)
		wantErr(t, err, errDown)
		b.set(func() { b.down = false })
		time.Sleep(2 * time.Second)
		want(t, "after another failure", third.Replaceable(), false)
		l = acquire(t, p)
		want(t, "after a success", third.Replaceable(), true)
		_ = p.Pause()
		want(t, "paused", third.Replaceable(), false)
		p.Resume()
		l.Release()
		third.Release()
		b.end(p)
	})
}

func TestReplaceEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, limit: 1}
		p := b.start(pool.Limits{MaxSize: 1})
		l := acquire(t, p)
		waiter := begin(ctx, p)
		synctest.Wait()
		gate := make(chan struct{})
		b.set(func() { b.gate = gate })
		cctx, cancel := context.WithCancel(ctx)
		r := replace(cctx, l)
		synctest.Wait()
		b.set(func() { b.gate = nil })
		cancel()
		synctest.Wait()
		wantErr(t, r.err, context.Canceled)
		want(t, "the waiter is served", waiter.done && waiter.err == nil, true)
		want(t, "no failure of the backend", p.Stats().LastOpenError, error(nil))
		waiter.lease.Release()
		b.end(p)
	})
}

func TestReplaceInAPoolThatOpensNothing(t *testing.T) {
	for name, stop := range map[string]func(*pool.Pool[*res]){
		"closed":  func(p *pool.Pool[*res]) { p.Close() },
		"paused":  func(p *pool.Pool[*res]) { _ = p.Pause() },
		"smaller": func(p *pool.Pool[*res]) { _ = p.Resize(1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &backend{t: t}
				p := b.start(pool.Limits{MaxSize: 2})
				l, other := acquire(t, p), acquire(t, p)
				opens, _ := b.count()
				stop(p)
				if _, err := l.Replace(ctx); !errors.Is(err, pool.ErrNotReplaced) {
					t.Errorf("replaced: %v, want %v", err, pool.ErrNotReplaced)
				}
				n, open := b.count()
				want(t, "opened", n, opens)
				want(t, "open", open, 1)
				other.Release()
				p.Resume()
				b.end(p)
			})
		})
	}
}

// TestCloseBesideReplace: Close ends an open in progress, and no resource is left.
func TestCloseBesideReplace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, limit: 1}
		p := b.start(pool.Limits{MaxSize: 1})
		l := acquire(t, p)
		b.set(func() { b.gate = make(chan struct{}) })
		r := replace(ctx, l)
		synctest.Wait()
		p.Close()
		synctest.Wait()
		wantErr(t, r.err, pool.ErrClosed)
		b.end(p)
	})
}
