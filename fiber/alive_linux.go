//go:build linux && (amd64 || arm64)

package fiber

import (
	"context"
	"fmt"
)

// Alive returns nil once every loop has completed a tick, or an error that wraps ctx's and says how many have not: what a watchdog
// asks. An engine that is closed has no loops any more; the goroutine engine has none.
func (e *Engine) Alive(ctx context.Context) error {
	turned := make(chan struct{}, len(e.loops))
	missing := 0
	for _, l := range e.loops {
		if l.post(func() { turned <- struct{}{} }) {
			missing++
		}
	}
	for ; missing > 0; missing-- {
		select {
		case <-turned:
		case <-ctx.Done():
			return fmt.Errorf("fiber: loops that do not answer: %d of %d: %w", missing, len(e.loops), ctx.Err())
		}
	}
	return nil
}
