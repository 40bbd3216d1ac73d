package pool_test

import (
	"context"
	"slices"
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

// TestExpireSome expires some of the resources, idle, leased and lingering ones: these are not leased again, also after new
// limits, and the others are.
func TestExpireSome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened, closed := 0, make(chan int, 6)
		limits := pool.Limits{MaxSize: 6, AcquireTimeout: time.Minute}
		p, err := pool.New(pool.Config[int]{
			Name: "p", Limits: limits,
			Open:  func(context.Context) (int, error) { opened++; return opened, nil },
			Close: func(n int) { closed <- n },
		})
		if err != nil {
			t.Fatal(err)
		}
		acquire := func(n int) (all []pool.Lease[int]) {
			for range n {
				l, err := p.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, l)
			}
			return all
		}
		all := acquire(6)
		all[0].Release()
		all[1].Release()
		for _, l := range all[2:4] {
			if _, ok := l.Linger(time.Minute); !ok {
				t.Fatal("it does not linger")
			}
		}
		if expired, others := p.Expire(func(n int) bool { return n%2 == 0 }); expired != 3 || others != 3 {
			t.Errorf("%d expired, %d others; want 3 and 3", expired, others)
		}
		if err := p.Update(limits); err != nil {
			t.Error(err)
		}
		all[4].Release()
		all[5].Release()
		gone := []int{<-closed, <-closed, <-closed}
		if slices.Sort(gone); !slices.Equal(gone, []int{2, 4, 6}) {
			t.Errorf("closed: %v, want 2, 4 and 6", gone)
		}
		for _, l := range acquire(2) {
			if v := l.Value(); v != 1 && v != 5 {
				t.Errorf("resource %d was leased, want 1 and 5", v)
			}
			l.Release()
		}
		if err := p.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
