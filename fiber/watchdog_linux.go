//go:build linux && (amd64 || arm64)

package fiber

import (
	"runtime"
	"strings"
	"time"
)

// The watchdog looks every watchInterval; a fiber seen running in the same turn of its loop at
// two looks has held it for at least that long.
const watchInterval = 10 * time.Millisecond

// watch names the fibers that hold a loop. While nothing runs it costs a timer.
func (e *Engine) watch() {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	seen := make([]uint64, len(e.loops))
	told := make([]uint64, len(e.loops))
	for {
		select {
		case <-e.stopWatch:
			return
		case <-ticker.C:
		}
		for i, l := range e.loops {
			turn := l.turn.Load()
			if l.active.Load() && turn == seen[i] && turn != told[i] {
				told[i] = turn
				l.held.Add(1)
				l.logger().Warn("a fiber holds its loop", "for_more_than", watchInterval, "stack", l.stack())
			}
			seen[i] = turn
		}
	}
}

// stack returns what the loop's fiber does at this moment, as far as a look at all goroutines
// tells.
func (l *loop) stack() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for _, g := range strings.Split(string(buf), "\n\n") {
		head, _, _ := strings.Cut(g, "\n")
		if strings.Contains(g, "fiber.(*coroutine).life") && !strings.Contains(head, "coroutine") {
			return g
		}
	}
	return "unknown"
}
