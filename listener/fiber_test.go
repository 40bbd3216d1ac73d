package listener_test

import (
	"context"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pool"
)

var _ pool.Parker = (*fiber.Parker)(nil)

// Sessions of every loop wait for one pool that is much too small.
func TestPoolAcrossLoops(t *testing.T) {
	for _, kind := range []fiber.Kind{fiber.Auto, fiber.Epoll, fiber.Goroutine} {
		e, err := fiber.New(fiber.Config{Engine: kind, Loops: 3})
		if err != nil {
			t.Logf("without %s: %v", kind, err) // epoll is Linux's
			continue
		}
		p, err := pool.New(pool.Config[int]{
			Open: func(context.Context) (int, error) { return 0, nil }, Close: func(int) {},
			Limits: pool.Limits{MaxSize: 2},
		})
		if err != nil {
			t.Fatal(err)
		}
		var all fiber.Group
		for range 60 {
			all.Add(1)
			e.Go(func() {
				defer all.Done()
				ctx := context.Background()
				if p := fiber.NewParker(); p != nil {
					ctx = pool.WithParker(ctx, p)
				}
				for range 50 {
					l, err := p.Acquire(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					fiber.Sleep(time.Microsecond)
					l.Release()
				}
			})
		}
		all.Wait()
		p.Close()
		_ = e.Close()
	}
}
