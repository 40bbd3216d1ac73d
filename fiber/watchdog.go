package fiber

import (
	"cmp"
	"runtime"
	"runtime/metrics"
	"strings"
	"time"
)

// watchInterval is how long a fiber may hold its loop, and how often the watchdog looks at a running loop.
const watchInterval = 10 * time.Millisecond

// watchPause is how often the watchdog looks while all loops wait. Under a light load each look
// wakes a sleeping thread, which costs more than many requests.
const watchPause = 100 * time.Millisecond

// busyTime is the processor time of a fiber that has computed for a watchInterval; it is a little less because ticks
// are not exact.
const busyTime = watchInterval * 9 / 10

// observation is the result of the watchdog's last look at a loop.
type observation struct {
	at       moment        // what the loop did at the last look
	reported moment        // the last moment that was reported
	since    time.Time     // when the moment was first seen unchanged; zero = not yet
	ran      time.Duration // processor time of the thread at since
	waited   bool          // the thread was asleep at a look after since
}

// moment identifies what a loop is doing. The number of the tick is not enough, because a tick in which many fibers run
// may be long.
type moment struct {
	tick, dozens uint64
	fiber        uintptr
}

func (l *loop) timeNow() moment {
	return moment{tick: l.tick.Load(), dozens: l.dozens.Load(), fiber: l.running.Load()}
}

// watch logs the stacks of fibers that hold a loop. It sleeps while no loop runs.
func (e *Engine) watch() {
	interval := watchPause
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	observed := make([]observation, len(e.loops))
	for {
		select {
		case <-e.stopWatch:
			return
		case <-e.wakeWatch:
			ticker.Reset(interval)
		case <-ticker.C:
		}
		calm, next := true, watchPause
		for i, l := range e.loops {
			active := l.active.Load()
			calm = calm && !active && observed[i].at == l.timeNow()
			if active {
				next = watchInterval
			}
			if stack, held := observed[i].held(l); held {
				l.held.Add(1)
				l.logger().Warn("a fiber holds its loop", "for_more_than", watchInterval, "stack", stack)
			}
		}
		if next != interval {
			interval = next
			ticker.Reset(interval)
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

// watchAgain wakes the watchdog; a loop calls it after each wait.
func (e *Engine) watchAgain() {
	if e.noWatch.Load() && e.noWatch.CompareAndSwap(true, false) {
		select {
		case e.wakeWatch <- struct{}{}:
		default:
		}
	}
}

// held reports, once, that a fiber has held its loop for more than watchInterval, and returns the
// stacks of the candidates. Elapsed time is not enough, because on an overloaded machine every
// fiber takes long. A fiber that computes must have used its thread's processor time, and a fiber
// that waits must be seen waiting twice. Neither is true of a fiber whose thread or goroutine gets
// no processor, or which waits for the garbage collector.
func (k *observation) held(l *loop) (stacks string, held bool) {
	at := l.timeNow()
	if !l.active.Load() || at != k.at || at == k.reported {
		k.at, k.since, k.waited = at, time.Time{}, false
		return "", false
	}
	ran := cpuTime(l.thread)
	switch {
	case k.since.IsZero():
		k.since, k.ran = time.Now(), ran
		return "", false
	case ran-k.ran >= busyTime:
		stacks, _ = fiberStacks(func(state string) bool { return !waits(state) })
	case time.Since(k.since) < busyTime || !asleep(l.thread) || runnable() > 0:
		return "", false
	case !k.waited:
		k.waited = true
		return "", false
	default:
		var complete bool
		if stacks, complete = fiberStacks(waits); stacks == "" && complete {
			return "", false
		}
	}
	k.reported = at
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

// fiberStacks returns the stacks of the fibers of all loops whose state satisfies are, without parked fibers, from a
// dump of all goroutines. The result is complete unless there are very many goroutines.
func fiberStacks(are func(state string) bool) (stacks string, complete bool) {
	buf := make([]byte, 1<<20)
	n := runtime.Stack(buf, true)
	var found []string
	for g := range strings.SplitSeq(string(buf[:n]), "\n\n") {
		head, _, _ := strings.Cut(g, "\n")
		_, state, _ := strings.Cut(head, "[")
		isFiber := strings.Contains(g, "fiber.(*coroutine).runFunctions") || strings.Contains(g, "fiber.(*coroutine).callStep") // callStep runs a step for a fiber
		if isFiber && !strings.HasPrefix(state, "coroutine") && are(state) {
			found = append(found, g)
		}
	}
	return strings.Join(found, "\n\n"), n < len(buf)
}

// waits reports whether a goroutine in a state waits for something other than the runtime.
func waits(state string) bool {
	for _, s := range []string{"running", "runnable", "preempted", "copystack", "GC ", "wait until GC", "stopping the world"} {
		if strings.HasPrefix(state, s) {
			return false
		}
	}
	return true
}
