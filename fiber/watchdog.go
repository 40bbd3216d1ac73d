package fiber

import (
	"cmp"
	"runtime"
	"runtime/metrics"
	"strings"
	"time"
)

// watchInterval is how often the watchdog looks, and how long a fiber may hold its loop.
const watchInterval = 10 * time.Millisecond

// enough is what a fiber must have used of watchInterval at least, for the ticks do not come to the microsecond.
const enough = watchInterval * 9 / 10

// look is what the watchdog knows of a loop.
type look struct {
	at     moment        // of the last look
	told   moment        // that it has spoken about
	since  time.Time     // when the moment was first seen to last; zero = it was not
	ran    time.Duration // how long the thread had run then
	waited bool          // it has been seen waiting since
}

// moment identifies what a loop is doing. The tick alone does not: it may last long when many fibers
// have something to do.
type moment struct {
	tick, dozens uint64
	fiber        uintptr
}

func (l *loop) moment() moment {
	return moment{tick: l.tick.Load(), dozens: l.dozens.Load(), fiber: l.running.Load()}
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
			if stack, held := looks[i].held(l); held {
				l.held.Add(1)
				l.logger().Warn("a fiber holds its loop", "for_more_than", watchInterval, "stack", stack)
			}
		}
		if calm {
			e.sleepUntilBusy(ticker)
		}
	}
}

// sleepUntilBusy stops the ticker until a loop runs again. A loop sets active and then reads noWatch; here
// noWatch is set before active is read, so that one of the two sees the other.
func (e *Engine) sleepUntilBusy(ticker *time.Ticker) {
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

// held reports, once, that a fiber has held its loop for more than watchInterval, and the stacks of those that may
// be the one. What counts is what the fiber does, for on a machine that has too much to do time passes for everybody: one
// that computes has used up its thread's time, and one that waits is seen waiting twice. One whose thread or
// goroutine gets no processor, or has to wait for the collector, does neither.
func (k *look) held(l *loop) (stacks string, held bool) {
	at := l.moment()
	if !l.active.Load() || at != k.at || at == k.told {
		k.at, k.since, k.waited = at, time.Time{}, false
		return "", false
	}
	ran := cpuTime(l.thread)
	switch {
	case k.since.IsZero():
		k.since, k.ran = time.Now(), ran
		return "", false
	case ran-k.ran >= enough:
		stacks, _ = fibersThat(func(state string) bool { return !waits(state) })
	case time.Since(k.since) < enough || !asleep(l.thread) || runnable() > 0:
		return "", false
	case !k.waited:
		k.waited = true
		return "", false
	default:
		var complete bool
		if stacks, complete = fibersThat(waits); stacks == "" && complete {
			return "", false
		}
	}
	k.told = at
	return cmp.Or(stacks, "unknown"), true
}

// runnable returns how many goroutines wait for a processor.
func runnable() uint64 {
	sample := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}
	if metrics.Read(sample); sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}

// fibersThat returns the stacks of the fibers that are in some state, of all loops, as far as a look at all
// goroutines tells: those that have parked are left out. It is complete unless there are very many goroutines.
func fibersThat(are func(state string) bool) (stacks string, complete bool) {
	buf := make([]byte, 1<<20)
	n := runtime.Stack(buf, true)
	var found []string
	for g := range strings.SplitSeq(string(buf[:n]), "\n\n") {
		head, _, _ := strings.Cut(g, "\n")
		_, state, _ := strings.Cut(head, "[")
		isFiber := strings.Contains(g, "fiber.(*coroutine).life") || strings.Contains(g, "fiber.(*coroutine).again") // a step, which the loop runs
		if isFiber && !strings.HasPrefix(state, "coroutine") && are(state) {
			found = append(found, g)
		}
	}
	return strings.Join(found, "\n\n"), n < len(buf)
}

// waits reports whether a goroutine in a state waits for something that is not the runtime's.
func waits(state string) bool {
	for _, s := range []string{"running", "runnable", "preempted", "copystack", "GC ", "wait until GC", "stopping the world"} {
		if strings.HasPrefix(state, s) {
			return false
		}
	}
	return true
}
