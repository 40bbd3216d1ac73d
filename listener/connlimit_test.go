package listener_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/listener"
)

func TestConnLimitQueuesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listener.NewConnLimit(1, 3)
		if err := l.Acquire(time.Second); err != nil {
			t.Fatal(err)
		}
		var order []int
		for i := range 3 {
			go func() {
				if err := l.Acquire(time.Minute); err != nil {
					t.Error(err)
				}
				order = append(order, i)
			}()
			synctest.Wait()
		}
		if err := l.Acquire(time.Minute); !errors.Is(err, listener.ErrQueueFull) {
			t.Errorf("the fourth in the queue: %v, want ErrQueueFull", err)
		}
		for range 3 {
			l.Release()
			synctest.Wait()
		}
		if !slices.Equal(order, []int{0, 1, 2}) {
			t.Errorf("admitted in the order %v", order)
		}
	})
}

func TestConnLimitTimeoutResizeClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listener.NewConnLimit(1, 10)
		if err := l.Acquire(time.Second); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := l.Acquire(5 * time.Second); !errors.Is(err, listener.ErrQueueTimeout) || time.Since(start) != 5*time.Second {
			t.Errorf("%v after %v, want ErrQueueTimeout after 5s", err, time.Since(start))
		}
		got := make(chan error)
		go func() { got <- l.Acquire(time.Minute) }()
		synctest.Wait()
		l.Resize(2, 10)
		if err := <-got; err != nil {
			t.Errorf("after the limit was raised: %v", err)
		}
		go func() { got <- l.Acquire(time.Minute) }()
		synctest.Wait()
		l.Shut()
		if err := <-got; !errors.Is(err, listener.ErrDraining) {
			t.Errorf("waiting while it closes: %v, want ErrDraining", err)
		}
		if err := l.Acquire(time.Minute); !errors.Is(err, listener.ErrDraining) {
			t.Errorf("after it closed: %v, want ErrDraining", err)
		}
		if active, queued := l.Counts(); active != 2 || queued != 0 {
			t.Errorf("%d active, %d queued, want 2 and 0", active, queued)
		}
	})
}

// TestConnLimitStress has more holders than the limit; they release and time out at random.
func TestConnLimitStress(t *testing.T) {
	const limit = 4
	l := listener.NewConnLimit(limit, 16)
	var mu sync.Mutex
	inside, most := 0, 0
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 200 {
				if l.Acquire(time.Duration(rand.IntN(200))*time.Microsecond) != nil {
					continue
				}
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				mu.Lock()
				inside--
				mu.Unlock()
				l.Release()
			}
		})
	}
	wg.Wait()
	if most > limit {
		t.Errorf("%d at once, limit %d", most, limit)
	}
	if active, queued := l.Counts(); active != 0 || queued != 0 {
		t.Errorf("in the end %d active, %d queued", active, queued)
	}
}
