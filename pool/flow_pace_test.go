package pool_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// A flow with a few waiters is not refused because another one has very many.
func TestFewWaitersBesideMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		w := &waiters{t: t, p: b.start(pool.Limits{MaxSize: 1, AcquireTimeout: time.Hour})}
		const hold = 10 * time.Millisecond
		w.add(in(1, time.Time{}, 0), 1, hold)
		w.add(in(1, time.Time{}, 0), 1, hold)
		for range 300 { // from which the pace is known
			w.add(in(1, time.Time{}, 0), 1, hold)
			time.Sleep(hold)
		}
		for range 1000 {
			w.add(in(1, time.Time{}, 0), 1, hold)
		}
		for flow := range 50 {
			w.add(in(uint64(100+flow), time.Time{}, 0), 2, hold)
		}
		for range 5 {
			w.add(in(2, time.Time{}, 0), 3, hold)
		}
		begin := time.Now()
		l, err := w.p.Acquire(in(2, begin.Add(2*time.Second), 0))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("served after %v", took)
		}
		l.Release()
		time.Sleep(30 * time.Second)
		b.end(w.p)
	})
}

// After a slow time, with a queue all along, requests are refused for a minute at most.
func TestPaceForgetsASlowTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		w := &waiters{t: t, p: b.start(pool.Limits{MaxSize: 1, AcquireTimeout: 24 * time.Hour})}
		const slow = 5 * time.Second
		for range 300 {
			w.add(in(1, time.Time{}, 0), 1, slow)
		}
		for w.p.Stats().Waiting > 0 {
			time.Sleep(time.Second)
		}
		time.Sleep(slow + time.Second)
		for second := range 300 {
			failed := len(w.errs)
			for flow := range 6 {
				w.add(in(uint64(flow), time.Now().Add(time.Second), 0), 1, 10*time.Millisecond)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if second > 60 && len(w.errs) > failed {
				t.Fatalf("refused %d s later: %v", second, w.errs[failed])
			}
		}
		b.end(w.p)
	})
}
