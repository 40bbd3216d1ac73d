package pool_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// affineParker is a parker of a caller with an affinity.
type affineParker struct {
	parker
	affinity int
}

func (p *affineParker) Affinity() int { return p.affinity }

// at is the context of a caller there.
func at(affinity int) context.Context {
	return pool.WithParker(ctx, &affineParker{parker{ch: make(chan struct{}, 1)}, affinity})
}

// byID gives each resource its own affinity.
func byID(c *pool.Config[*res]) { c.Affinity = func(r *res) int { return r.id } }

// Of the idle resources a caller gets one of its affinity, or else the one used last, be the pool's clock fresh or not.
func TestIdleOfTheCallersAffinity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 3}, byID)
		for range 2 {
			held := []pool.Lease[*res]{acquire(t, p), acquire(t, p), acquire(t, p)}
			for id := 1; id <= 3; id++ { // 3 is used last
				for _, l := range held {
					if l.Value().id == id {
						l.Release()
					}
				}
			}
			for _, c := range []struct{ affinity, want int }{{1, 1}, {2, 2}, {3, 3}, {7, 3}, {0, 3}, {2, 2}, {0, 2}} {
				l, err := p.Acquire(at(c.affinity))
				if err != nil {
					t.Fatal(err)
				}
				want(t, "resource", l.Value().id, c.want)
				l.Release()
			}
			time.Sleep(time.Second) // the clock is stopped
		}
		b.end(p)
	})
}

// A released resource goes to a waiter of its affinity, unless another has waited for a millisecond longer.
func TestWaiterOfTheResourcesAffinity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1}, byID)
		held := acquire(t, p) // of affinity 1
		var waiters []*result
		wait := func(affinity int, after time.Duration) {
			time.Sleep(after)
			waiters = append(waiters, begin(at(affinity), p))
			synctest.Wait()
		}
		wait(2, 0)
		wait(0, 500*time.Microsecond)
		wait(1, 500*time.Microsecond)
		wait(1, time.Microsecond)
		wait(2, time.Microsecond)
		for _, next := range []int{2, 0, 3, 1, 4} { // 3 is too late to overtake 0, and not 1
			held.Release()
			synctest.Wait()
			if w := waiters[next]; !w.done || w.err != nil {
				t.Fatalf("waiter %d has not got it: %v", next, w.err)
			}
			held = waiters[next].lease
		}
		held.Release()
		b.end(p)
	})
}

// Above the place an affinity has a kind: an equal affinity is preferred to an equal kind, that to an equal place, and that to others.
func TestKindOfAnAffinity(t *testing.T) {
	of := func(place, kind int) int { return place | kind<<pool.AffinityPlace }
	affinities := []int{0, of(1, 1), of(1, 2), of(2, 1)} // by resource
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 3}, func(c *pool.Config[*res]) { c.Affinity = func(r *res) int { return affinities[r.id] } })
		held := []pool.Lease[*res]{acquire(t, p), acquire(t, p), acquire(t, p)}
		for id := 1; id <= 3; id++ { // 3 is used last
			for _, l := range held {
				if l.Value().id == id {
					l.Release()
				}
			}
		}
		for _, c := range []struct{ affinity, want int }{
			{of(1, 1), 1}, {of(1, 2), 2}, {of(1, 3), 2}, {of(2, 3), 3}, {of(2, 1), 3}, {of(1, 1), 1}, {of(3, 1), 1}, {of(2, 2), 2}, {of(3, 3), 2}, {0, 2},
		} {
			l, err := p.Acquire(at(c.affinity))
			if err != nil {
				t.Fatal(err)
			}
			want(t, "resource", l.Value().id, c.want)
			l.Release()
		}
		b.end(p)
	})
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1}, func(c *pool.Config[*res]) { c.Affinity = func(*res) int { return of(1, 1) } })
		held := acquire(t, p)
		var waiters []*result
		for _, affinity := range []int{of(1, 2), of(2, 3), of(2, 1), of(1, 1), 0, of(1, 3)} {
			waiters = append(waiters, begin(at(affinity), p))
			synctest.Wait()
		}
		for _, next := range []int{3, 2, 0, 5, 1, 4} {
			held.Release()
			synctest.Wait()
			if w := waiters[next]; !w.done || w.err != nil {
				t.Fatalf("waiter %d has not got it: %v", next, w.err)
			}
			held = waiters[next].lease
		}
		held.Release()
		b.end(p)
	})
}
