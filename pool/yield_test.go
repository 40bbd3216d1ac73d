package pool_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/pool"
)

// servedFirst hands a resource over n times on one processor, and returns how often the waiter had used it by the
// time Release returned.
func servedFirst(t *testing.T, p *pool.Pool[*res], n int) (first int) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range n {
		l := acquire(t, p)
		var used atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			l, err := p.Acquire(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			used.Store(true)
			l.Release()
		}()
		waitFor(p)
		l.Release()
		if used.Load() {
			first++
		}
		<-done
	}
	return first
}

// A waiting goroutine runs before the one that handed the resource over to it continues.
func TestReleaseYields(t *testing.T) {
	b := &backend{t: t}
	p := b.start(pool.Limits{MaxSize: 1})
	const n = 40
	if first := servedFirst(t, p, n); first < n/2 { // the scheduler may prefer another one now and then
		t.Errorf("the waiter went first %d times of %d", first, n)
	}
	b.end(p)
}

// A pool that a Parker has waited in never yields: its callers may be fibers, and the processor their loop's.
func TestReleaseKeepsLoop(t *testing.T) {
	b := &backend{t: t}
	p := b.start(pool.Limits{MaxSize: 1})
	l := acquire(t, p)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if l, err := p.Acquire(at(1)); err != nil {
			t.Error(err)
		} else {
			l.Release()
		}
	}()
	waitFor(p)
	l.Release()
	<-done
	const n = 40
	if first := servedFirst(t, p, n); first > n/2 { // the runtime may preempt this goroutine now and then
		t.Errorf("the waiter went first %d times of %d", first, n)
	}
	b.end(p)
}

// A pool whose leases are long never yields.
func TestReleaseOfLongLeases(t *testing.T) {
	b := &backend{t: t}
	p := b.start(pool.Limits{MaxSize: 1}, func(c *pool.Config[*res]) { c.LongLeases = true })
	const n = 40
	if first := servedFirst(t, p, n); first > n/2 { // the runtime may preempt this goroutine now and then
		t.Errorf("the waiter went first %d times of %d", first, n)
	}
	b.end(p)
}

// waitFor returns when a caller waits.
func waitFor(p *pool.Pool[*res]) {
	for p.Stats().Waiting == 0 {
		runtime.Gosched()
	}
}
