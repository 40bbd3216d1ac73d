package fiber_test

import (
	"context"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// connsOfLoops returns connections of every loop, alternating between loops.
func connsOfLoops(t *testing.T, e *fiber.Engine, loops int) (conns []net.Conn) {
	t.Helper()
	for range loops { // the loops share evenly
		c, s := pair(t, e, "tcp")
		t.Cleanup(func() { _, _ = c.Close(), s.Close() })
		conns = append(conns, c, s)
	}
	for i := 1; i < loops; i++ {
		if e.Kind() != fiber.Goroutine && fiber.SameLoop(conns[i-1], conns[i]) {
			t.Fatal("two connections in a row live on one loop")
		}
	}
	return conns
}

// Fibers of all loops wake each other all the time, in a ring, while goroutines wake any of them for nothing: no wake-up
// is lost, whether the waiter's context is watched or not.
func TestNoWakeupIsLost(t *testing.T) {
	const loops, fibers, rounds = 3, 30, 300
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue
		}
		e := newEngine(t, fiber.Config{Engine: kind, Loops: loops})
		at := connsOfLoops(t, e, loops)
		var due [fibers]atomic.Int64
		var parkers [fibers]*fiber.Parker
		wake := func(i int) {
			due[i%fibers].Add(1)
			parkers[i%fibers].Unpark()
		}
		watched, cancel := context.WithCancel(t.Context())
		var made, all fiber.Group
		made.Add(fibers)
		for i := range fibers {
			all.Add(1)
			fiber.Spawn(at[i%len(at)], func() {
				defer all.Done()
				parkers[i] = fiber.NewParker()
				made.Done()
				made.Wait()
				for r := range int64(rounds) {
					for due[i].Load() <= r {
						ctx := watched
						if r%3 == 0 {
							ctx = context.Background()
						}
						if err := parkers[i].Park(ctx); err != nil {
							t.Error(err)
							return
						}
					}
					wake(i + 1)
				}
			})
		}
		made.Wait()
		var over atomic.Bool
		var others fiber.Group
		for range 2 {
			others.Go(func() {
				for !over.Load() {
					parkers[rand.IntN(fibers)].Unpark()
				}
			})
		}
		for i := range fibers {
			wake(i)
		}
		all.Wait()
		over.Store(true)
		others.Wait()
		cancel()
	}
}
