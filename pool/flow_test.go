package pool_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// flowParker is a parker of a caller in a flow, with an affinity.
type flowParker struct {
	affineParker
	flow  uint64
	until time.Time
}

func (p *flowParker) Flow() (uint64, time.Time) { return p.flow, p.until }

// in is the context of a caller in a flow.
func in(flow uint64, until time.Time, affinity int) context.Context {
	return pool.WithParker(ctx, &flowParker{affineParker{parker{ch: make(chan struct{}, 1)}, affinity}, flow, until})
}

// waiters are acquires that wait, and the order in which they are served.
type waiters struct {
	t      *testing.T
	p      *pool.Pool[*res]
	mu     sync.Mutex // guards served and errs
	served []int
	errs   []error
}

// add begins an acquire, which releases its lease after a while.
func (w *waiters) add(ctx context.Context, id int, holds time.Duration) {
	go func() {
		l, err := w.p.Acquire(ctx)
		w.mu.Lock()
		if err != nil {
			w.errs = append(w.errs, err)
			w.mu.Unlock()
			return
		}
		w.served = append(w.served, id)
		w.mu.Unlock()
		time.Sleep(holds)
		l.Release()
	}()
	synctest.Wait()
}

// Whoever has many waiters delays others by one at most: flows take turns.
func TestFlowsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		w := &waiters{t: t, p: b.start(pool.Limits{MaxSize: 1})}
		held := acquire(t, w.p)
		for range 6 {
			w.add(in(1, time.Time{}, 0), 1, time.Millisecond)
		}
		w.add(in(2, time.Time{}, 0), 2, time.Millisecond)
		w.add(in(2, time.Time{}, 0), 2, time.Millisecond)
		w.add(in(3, time.Time{}, 0), 3, time.Millisecond)
		w.add(ctx, 0, time.Millisecond)
		held.Release()
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "order", fmt.Sprint(w.served), fmt.Sprint([]int{1, 2, 3, 0, 1, 2, 1, 1, 1, 1}))
		b.end(w.p)
	})
}

// TestFlowsAgainstModel: waiters that come, give up and are served in any order, beside lists of lists.
func TestFlowsAgainstModel(t *testing.T) {
	type caller struct {
		id, flow int
		cancel   context.CancelFunc
	}
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			b := &backend{t: t}
			p := b.start(pool.Limits{MaxSize: 1})
			var leases []pool.Lease[*res]
			var served, expected []int
			var ring [][]caller // by flow, in turn
			queue := func(id int) {
				flow := rnd.IntN(4)
				ctx, cancel := context.WithCancel(in(uint64(flow), time.Time{}, 0))
				go func() {
					if l, err := p.Acquire(ctx); err == nil {
						leases, served = append(leases, l), append(served, id)
					}
				}()
				i := slices.IndexFunc(ring, func(l []caller) bool { return l[0].flow == flow })
				if i < 0 {
					ring, i = append(ring, nil), len(ring)
				}
				ring[i] = append(ring[i], caller{id, flow, cancel})
			}
			leases = append(leases, acquire(t, p))
			for id := range 200 {
				switch n := rnd.IntN(10); {
				case n < 5:
					queue(id)
				case len(ring) == 0:
				case n < 7:
					i := rnd.IntN(len(ring))
					j := rnd.IntN(len(ring[i]))
					ring[i][j].cancel()
					if ring[i] = slices.Delete(ring[i], j, j+1); len(ring[i]) == 0 {
						ring = slices.Delete(ring, i, i+1)
					}
				default:
					first := ring[0]
					expected = append(expected, first[0].id)
					defer first[0].cancel()
					if ring = slices.Delete(ring, 0, 1); len(first) > 1 {
						ring = append(ring, first[1:])
					}
					l := leases[0]
					leases = leases[1:]
					l.Release()
				}
				synctest.Wait()
				if !slices.Equal(served, expected) {
					t.Fatalf("seed %d: served %v, want %v", seed, served, expected)
				}
			}
			for _, l := range slices.Concat(ring...) {
				l.cancel()
			}
			synctest.Wait()
			leases[0].Release()
			b.end(p)
		})
	}
}

// Where no more may wait, those that wait of the flow with the most make room for others; a flow does not for itself.
func TestFlowsShareMaxWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		w := &waiters{t: t, p: b.start(pool.Limits{MaxSize: 1, MaxWaiters: 4})}
		held := acquire(t, w.p)
		for id := range 6 {
			w.add(in(1, time.Time{}, 0), 10+id, time.Millisecond)
		}
		want(t, "refused of the first flow", len(w.errs), 2)
		for id := range 3 {
			w.add(in(2, time.Time{}, 0), 20+id, time.Millisecond)
		}
		want(t, "refused of both", len(w.errs), 5)
		for _, err := range w.errs {
			if !errors.Is(err, pool.ErrTooManyWaiters) {
				t.Error(err)
			}
		}
		want(t, "counted", w.p.Stats().Rejected, 5)
		held.Release()
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "order", fmt.Sprint(w.served), fmt.Sprint([]int{10, 20, 11, 21}))
		b.end(w.p)
	})
}

// An acquire whose turn would come too late fails at once, by the pace of those before; one that would be the first in the queue, or whose flow has
// fewer waiters, waits.
func TestRefusedBeforeItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		w := &waiters{t: t, p: b.start(pool.Limits{MaxSize: 2})}
		soon := func() time.Time { return time.Now().Add(time.Second) }
		fill := func(n int) {
			for range n {
				w.add(in(1, time.Time{}, 0), 1, 400*time.Millisecond)
			}
		}
		fill(12) // of which 10 wait, for 200 ms each
		w.add(in(1, soon(), 0), 1, 0)
		want(t, "refused before anything is known", len(w.errs), 0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		want(t, "served", len(w.served), 13)

		fill(12)
		begin := time.Now()
		w.add(in(1, soon(), 0), 1, 0)
		if len(w.errs) != 1 {
			t.Fatalf("%v", w.errs)
		}
		failed, ok := errors.AsType[*pool.Error](w.errs[0])
		if !ok || !errors.Is(failed, pool.ErrNoTime) || failed.Expected < 1500*time.Millisecond || failed.Expected > 3*time.Second || failed.Waiting != 10 {
			t.Errorf("%+v", failed)
		}
		want(t, "took", time.Since(begin), 0)
		want(t, "counted", w.p.Stats().GaveUp, 1)
		w.add(in(2, soon(), 0), 2, 0)
		want(t, "refused of another flow", len(w.errs), 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		want(t, "served of another flow", slices.Contains(w.served, 2), true)

		fill(2)
		w.add(in(1, time.Now().Add(time.Nanosecond), 0), 3, 0) // the test's parkers do not heed the time
		want(t, "refused as the first in the queue", len(w.errs), 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		want(t, "served as the first in the queue", slices.Contains(w.served, 3), true)
		b.end(w.p)
	})
}

// A caller that waits only for a resource to be opened is not refused, however slow the pace was.
func TestNotRefusedWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		w := &waiters{t: t, p: b.start(pool.Limits{MaxSize: 2})}
		for range 20 {
			w.add(in(1, time.Time{}, 0), 1, time.Second)
		}
		time.Sleep(time.Minute)
		if err := w.p.Update(pool.Limits{MaxSize: 50}); err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		b.gate = make(chan struct{})
		b.mu.Unlock()
		for range 20 {
			w.add(in(1, time.Now().Add(time.Millisecond), 0), 1, time.Second)
		}
		close(b.gate)
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "refused", len(w.errs), 0)
		want(t, "served", len(w.served), 40)
		b.end(w.p)
	})
}

// A flow of another affinity lets others pass, but not forever.
func TestFlowOfAnotherAffinity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		w := &waiters{t: t, p: b.start(pool.Limits{MaxSize: 1}, byID)}
		held := acquire(t, w.p)
		w.add(in(2, time.Time{}, 2), 2, time.Millisecond)
		for range 30 {
			w.add(in(1, time.Time{}, 1), 1, time.Millisecond)
		}
		held.Release()
		time.Sleep(time.Second)
		synctest.Wait()
		if i := slices.Index(w.served, 2); i < 1 || i > 10 {
			t.Errorf("served after %d others", i)
		}
		b.end(w.p)
	})
}
