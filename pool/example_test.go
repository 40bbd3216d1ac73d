package pool_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headpond/headpond/pool"
)

func Example() {
	n := 0
	p, err := pool.New(pool.Config[int]{
		Name:   "numbers",
		Open:   func(context.Context) (int, error) { n++; return n, nil },
		Close:  func(v int) { fmt.Println("closed", v) },
		Limits: pool.Limits{MaxSize: 1},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for range 2 {
		lease, err := p.Acquire(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("got", lease.Value(), "reused:", lease.Reused())
		lease.Release()
	}
	p.Close()
	_, err = p.Acquire(ctx)
	fmt.Println(err)
	// Output:
	// got 1 reused: false
	// got 1 reused: true
	// closed 1
	// pool "numbers": pool is closed
}

// A function that finds its resource broken returns ErrDiscard: the pool closes it and opens another.
func ExamplePool_With() {
	p, err := pool.New(pool.Config[*[]string]{
		Name:  "scratch",
		Open:  func(context.Context) (*[]string, error) { return new([]string), nil },
		Close: func(*[]string) {}, // nothing to close, but that has to be said
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	for _, fail := range []bool{false, true, false} {
		err := p.With(context.Background(), func(lines *[]string) error {
			*lines = append(*lines, "line")
			fmt.Println(len(*lines))
			if fail {
				return fmt.Errorf("the lines are torn: %w", pool.ErrDiscard)
			}
			return nil
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// 1
	// 2
	// the lines are torn: resource is not fit for reuse
	// 1
}

// A program keeps its callers waiting while the database is restarted.
func ExamplePool_Pause() {
	p, err := pool.New(pool.Config[string]{
		Name:  "database",
		Open:  func(context.Context) (string, error) { return "connection", nil },
		Close: func(string) {},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	within, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer p.Resume() // also if the leases are not released in time
	if err := errors.Join(p.Pause(), p.WaitPaused(within)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("connections:", p.Stats().Idle+p.Stats().InUse)
	// Restart the database here.

	// Output: connections: 0
}

// A caller that waits too long learns why: the pool is full, or nothing can be opened.
func ExampleError() {
	p, err := pool.New(pool.Config[int]{
		Name:   "one",
		Open:   func(context.Context) (int, error) { return 1, nil },
		Close:  func(int) {},
		Limits: pool.Limits{MaxSize: 1, AcquireTimeout: time.Millisecond},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	lease, err := p.Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release()
	_, err = p.Acquire(context.Background())
	if e, ok := errors.AsType[*pool.Error](err); ok && errors.Is(err, pool.ErrTimeout) {
		fmt.Printf("pool %s: %d of %d in use\n", e.Pool, e.InUse, e.MaxSize)
	}
	// Output: pool one: 1 of 1 in use
}
