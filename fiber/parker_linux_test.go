//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// watchedContext lives longer than a fiber, as a server's does, and counts its watchers.
type watchedContext struct {
	context.Context
	done    chan struct{}
	watches atomic.Int64
}

func (c *watchedContext) Done() <-chan struct{} { return c.done }

func (*watchedContext) Value(any) any { return nil }

// AfterFunc is called by context.AfterFunc.
func (c *watchedContext) AfterFunc(func()) (stop func() bool) {
	c.watches.Add(1)
	return func() bool {
		c.watches.Add(-1)
		return true
	}
}

// A fiber that has waited again and again leaves nothing at a context that lives on.
func TestParkerLeavesItsContext(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		ctx := &watchedContext{Context: t.Context(), done: make(chan struct{})}
		for range 3 {
			c, _ := pair(t, e, "tcp")
			on(c, func() {
				p := fiber.NewParker()
				for range 5 {
					go p.Unpark()
					if err := p.Park(ctx); err != nil {
						t.Error(err)
					}
				}
			})
		}
		_ = e.Close() // and with it the fibers' ends
		if n := ctx.watches.Load(); n != 0 {
			t.Errorf("%d watches are left", n)
		}
	})
}
