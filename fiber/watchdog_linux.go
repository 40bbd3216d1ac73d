//go:build linux && (amd64 || arm64)

package fiber

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// watchInterval is how often the watchdog looks, and how long a fiber may hold its loop.
const watchInterval = 10 * time.Millisecond

// look is what the watchdog knows of a loop.
type look struct {
	at     moment        // of the last look
	told   moment        // that it has spoken about
	since  time.Time     // when the moment was first seen to last; zero = it was not
	queued time.Duration // how long the thread had waited for a processor then
}

// moment tells what a loop does from what it did before: a turn may last long when many fibers have
// something to do.
type moment struct {
	turn, dozens uint64
	fiber        uintptr
}

func (l *loop) moment() moment {
	return moment{turn: l.turn.Load(), dozens: l.dozens.Load(), fiber: l.running.Load()}
}

// watch names the fibers that hold a loop. While nothing runs it sleeps.
func (e *Engine) watch() {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	looks := make([]look, len(e.loops))
	for {
		select {
		case <-e.stopWatch:
			return
		case <-e.wakeWatch:
			ticker.Reset(watchInterval)
		case <-ticker.C:
		}
		calm := true
		for i, l := range e.loops {
			calm = calm && !l.active.Load() && looks[i].at == l.moment()
			if looks[i].held(l) {
				l.held.Add(1)
				l.logger().Warn("a fiber holds its loop", "for_more_than", watchInterval, "stack", l.stack())
			}
		}
		if calm {
			e.rest(ticker)
		}
	}
}

// rest stops the ticker until a loop runs again: the loop says that it does and then looks at
// noWatch, which is set here before the loops are looked at.
func (e *Engine) rest(ticker *time.Ticker) {
	e.noWatch.Store(true)
	for _, l := range e.loops {
		if l.active.Load() {
			e.noWatch.Store(false)
			return
		}
	}
	ticker.Stop()
}

// watchAgain wakes the watchdog; a loop that goes on calls it.
func (e *Engine) watchAgain() {
	if e.noWatch.Load() && e.noWatch.CompareAndSwap(true, false) {
		select {
		case e.wakeWatch <- struct{}{}:
		default:
		}
	}
}

// held reports, once, that a fiber has been running for more than watchInterval: a loop whose thread
// gets no processor is not held by anybody.
func (k *look) held(l *loop) bool {
	at := l.moment()
	if !l.active.Load() || at != k.at || at == k.told {
		k.at, k.since = at, time.Time{}
		return false
	}
	queued := queuedFor(l.thread)
	if k.since.IsZero() {
		k.since, k.queued = time.Now(), queued
		return false
	}
	if time.Since(k.since)-(queued-k.queued) < watchInterval*9/10 {
		return false
	}
	k.told = at
	return true
}

// queuedFor returns how long a thread has waited for a processor, since it began.
func queuedFor(thread int) time.Duration {
	var ran, queued time.Duration
	if b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", thread)); err == nil {
		_, _ = fmt.Sscan(string(b), &ran, &queued)
	}
	return queued
}

// stack returns what the loop's fiber does at this moment, as far as a look at all goroutines
// tells.
func (l *loop) stack() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for g := range strings.SplitSeq(string(buf), "\n\n") {
		head, _, _ := strings.Cut(g, "\n")
		if strings.Contains(g, "fiber.(*coroutine).life") && !strings.Contains(head, "coroutine") {
			return g
		}
	}
	return "unknown"
}
