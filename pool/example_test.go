package pool_test

import (
	"context"
	"fmt"

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
