package pool_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// A caller of another affinity gets its turn, however long the others of the resource's affinity hold it.
func TestNoFlowStarvesForItsAffinity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, AcquireTimeout: 5 * time.Second}, byID)
		var served [4]atomic.Int64
		var failed atomic.Int64
		end, stop := context.WithCancel(ctx)
		held := acquire(t, p)
		for flow := range served {
			affinity := 1
			if flow == 0 {
				affinity = 2
			}
			go func() {
				for end.Err() == nil {
					l, err := p.Acquire(in(uint64(flow), time.Time{}, affinity))
					if err != nil {
						failed.Add(1)
						continue
					}
					served[flow].Add(1)
					time.Sleep(time.Second)
					l.Release()
				}
			}()
			synctest.Wait()
		}
		held.Release()
		time.Sleep(200 * time.Second)
		stop()
		time.Sleep(20 * time.Second)
		if n := served[0].Load(); n < 40 || failed.Load() > 0 {
			t.Errorf("served %d times, others %d; %d time-outs", n, served[1].Load(), failed.Load())
		}
		b.end(p)
	})
}

// It is the flow with the most waiters now that makes room, also where another one had more before.
func TestLongestFlowMakesRoom(t *testing.T) {
	for leave := range 7 {
		synctest.Test(t, func(t *testing.T) {
			b := &backend{t: t}
			w := &waiters{t: t, p: b.start(pool.Limits{MaxSize: 1, MaxWaiters: 12})}
			held := acquire(t, w.p)
			leaving, cancel := context.WithCancel(ctx)
			for i := range 6 {
				c := in(1, time.Time{}, 0)
				if i < leave {
					var each context.CancelFunc
					c, each = context.WithCancel(c)
					context.AfterFunc(leaving, each)
				}
				w.add(c, 1, time.Millisecond)
			}
			for range 6 {
				w.add(in(2, time.Time{}, 0), 2, time.Millisecond)
			}
			cancel()
			synctest.Wait()
			for flow := range leave + 1 { // the last one needs room
				w.add(in(uint64(10+flow), time.Time{}, 0), 10+flow, time.Millisecond)
			}
			held.Release()
			time.Sleep(time.Second)
			synctest.Wait()
			n := map[int]int{}
			for _, id := range w.served {
				n[id]++
			}
			if newcomer := 10 + leave; n[newcomer] != 1 || leave > 0 && (n[1] != 6-leave || n[2] != 5) {
				t.Errorf("%d left: served %v", leave, n)
			}
			b.end(w.p)
		})
	}
}

// The time that opens take is not the pace of turns.
func TestPaceExcludesOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		w := &waiters{t: t, p: b.start(pool.Limits{MaxSize: 100, OpenConcurrency: 100}, func(c *pool.Config[*res]) {
			open := c.Open
			c.Open = func(ctx context.Context) (*res, error) {
				time.Sleep(100 * time.Millisecond)
				return open(ctx)
			}
		})}
		for range 10 {
			l, err := w.p.Acquire(in(1, time.Now().Add(time.Second), 0))
			if err != nil {
				t.Fatal(err)
			}
			l.Discard()
			time.Sleep(time.Second)
		}
		for range 40 {
			w.add(in(1, time.Now().Add(time.Second), 0), 1, time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		want(t, "refused", len(w.errs), 0)
		b.end(w.p)
	})
}

// After one stall callers are not refused for long.
func TestPaceRecoversFromAStall(t *testing.T) {
	for _, size := range []int{1, 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &backend{t: t}
				w := &waiters{t: t, p: b.start(pool.Limits{MaxSize: size, AcquireTimeout: 5 * time.Minute})}
				const hold = 10 * time.Millisecond
				for _, round := range []struct {
					n     int
					holds time.Duration
				}{{size, hold}, {2*size + 20, hold}, {size + 1, time.Minute}} {
					for range round.n {
						w.add(in(1, time.Time{}, 0), 1, round.holds)
					}
					time.Sleep(10 * time.Minute)
				}
				for range 20 {
					for range size + size/2 + 5 {
						w.add(in(1, time.Now().Add(time.Second), 0), 1, hold)
					}
					time.Sleep(time.Second)
				}
				synctest.Wait()
				if i := slices.IndexFunc(w.errs, func(err error) bool { return err != nil }); i >= 0 {
					t.Errorf("%d refused: %v", len(w.errs), w.errs[i])
				}
				b.end(w.p)
			})
		})
	}
}
