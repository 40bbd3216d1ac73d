package pool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// TestRenewAfterFailures mends a backend while its pool waits between attempts.
func TestRenewAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := errDown
		p, err := pool.New(pool.Config[int]{
			Name:   "p",
			Open:   func(context.Context) (int, error) { return 0, fails },
			Close:  func(int) {},
			Limits: pool.Limits{MaxSize: 2, AcquireTimeout: time.Minute},
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			if _, err := p.Acquire(t.Context()); !errors.Is(err, pool.ErrOpen) {
				t.Fatal(err)
			}
		}
		fails = nil
		if _, err := p.Acquire(t.Context()); !errors.Is(err, errDown) {
			t.Fatalf("%v: the pool does not wait between attempts, so that the test shows nothing", err)
		}
		p.Renew()
		began := time.Now()
		l, err := p.Acquire(t.Context())
		if err != nil || time.Since(began) > 0 {
			t.Fatalf("after Renew: %v in %v", err, time.Since(began))
		}
		l.Release()
		p.Close()
		p.Renew()
	})
}

// TestRenewServesWaiters has a caller wait for the next attempt when Renew comes.
func TestRenewServesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 2, AcquireTimeout: time.Minute})
		held := acquire(t, p)
		b.set(func() { b.down = true })
		_, _ = p.Acquire(t.Context())
		waits := begin(ctx, p) // a connection is in use, so that the pool may wait before the next attempt
		synctest.Wait()
		want(t, "waiting", p.Stats().Waiting, 1)
		b.set(func() { b.down = false })
		began := time.Now()
		p.Renew()
		synctest.Wait()
		if !waits.done || waits.err != nil || time.Since(began) > 0 {
			t.Fatalf("the waiter: served %v, %v after %v", waits.done, waits.err, time.Since(began))
		}
		waits.lease.Release()
		held.Release()
		b.end(p)
	})
}

// TestRenewReplacesAll renews a pool with resources that are idle, leased and being opened. None of them is leased again,
// also after new limits; what is opened later is kept.
func TestRenewReplacesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened, slow := 0, make(chan struct{})
		p, err := pool.New(pool.Config[int]{
			Name: "p",
			Open: func(context.Context) (int, error) {
				opened++
				n := opened
				if n == 3 {
					<-slow
				}
				return n, nil
			},
			Close:  func(int) {},
			Limits: pool.Limits{MaxSize: 4, AcquireTimeout: time.Minute},
		})
		if err != nil {
			t.Fatal(err)
		}
		acquire := func() pool.Lease[int] {
			l, err := p.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		leased, idle := acquire(), acquire()
		got := make(chan pool.Lease[int])
		go func() {
			l, err := p.Acquire(context.Background())
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		synctest.Wait()
		idle.Release()
		if l := <-got; l.Value() != 2 {
			t.Fatalf("the waiter has %d", l.Value())
		} else {
			l.Release()
		}
		time.Sleep(time.Millisecond)
		p.Renew()
		synctest.Wait()
		want(t, "idle", p.Stats().Idle, 0)
		close(slow)
		synctest.Wait()
		if err := p.Update(pool.Limits{MaxSize: 3, AcquireTimeout: time.Minute}); err != nil {
			t.Fatal(err)
		}
		leased.Release()
		for range 2 {
			l := acquire()
			if l.Value() != 4 {
				t.Errorf("got resource %d, want the first one opened after Renew, 4", l.Value())
			}
			l.Release()
		}
		want(t, "closed at the end of their life", p.Stats().ClosedLifetime, 3)
		p.Close()
	})
}
