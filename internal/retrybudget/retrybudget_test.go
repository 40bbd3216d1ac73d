package retrybudget_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/retrybudget"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func Example() {
	now := time.Unix(1e9, 0)
	b := retrybudget.New(10*time.Second, now)
	now = now.Add(time.Second)
	fmt.Println(b.Take(now, 1, 20)) // the only operation so far fails
	// Output: true
}

// TestLateCaller: a total that was read before another caller's changes nothing.
func TestLateCaller(t *testing.T) {
	now := time.Unix(1e9, 0)
	b := retrybudget.New(time.Second, now)
	if !b.Take(now.Add(1500*time.Millisecond), 1000, 20) {
		t.Fatal("no retry of 1000 operations")
	}
	n := 1
	for b.Take(now.Add(1500*time.Millisecond), 10, 20) {
		n++
	}
	if n != 66 { // a fifth of the half of 1000/1.5
		t.Errorf("%d retries, want 66", n)
	}
}

// TestConcurrent: callers together get no more than the floor.
func TestConcurrent(t *testing.T) {
	now := time.Unix(1e9, 0)
	b := retrybudget.New(time.Second, now)
	var taken atomic.Int32
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for b.Take(now, 0, 100) {
				taken.Add(1)
			}
		})
	}
	callers.Wait()
	if n := taken.Load(); n != retrybudget.Floor {
		t.Errorf("%d retries, want %d", n, retrybudget.Floor)
	}
}
