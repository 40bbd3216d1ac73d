package pool_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// placed is a parker of a caller in some place.
type placed struct {
	parker
	place int
}

func (p *placed) Place() int { return p.place }

// at is the context of a caller there.
func at(place int) context.Context {
	return pool.WithParker(ctx, &placed{parker{ch: make(chan struct{}, 1)}, place})
}

// byID gives each resource a place of its own.
func byID(c *pool.Config[*res]) { c.Place = func(r *res) int { return r.id } }

// Of the idle resources a caller gets one of its place, or else the one used last, be the pool's clock fresh or not.
func TestIdleOfTheCallersPlace(t *testing.T) {
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
			for _, c := range []struct{ place, want int }{{1, 1}, {2, 2}, {3, 3}, {7, 3}, {0, 3}, {2, 2}, {0, 2}} {
				l, err := p.Acquire(at(c.place))
				if err != nil {
					t.Fatal(err)
				}
				want(t, "resource", l.Value().id, c.want)
				l.Release()
			}
			time.Sleep(time.Second) // the clock rests
		}
		b.end(p)
	})
}

// What is released goes to who waits where it is, until somebody has waited for a millisecond longer.
func TestWaiterInTheResourcesPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1}, byID)
		held := acquire(t, p) // in place 1
		var waiters []*result
		wait := func(place int, after time.Duration) {
			time.Sleep(after)
			waiters = append(waiters, begin(at(place), p))
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
