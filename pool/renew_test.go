package pool_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

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
