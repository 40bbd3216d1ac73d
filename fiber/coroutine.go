package fiber

import (
	"errors"
	"iter"
	"log/slog"
	"runtime/debug"
	"slices"
)

// coroutine is a fiber: it runs on its loop's thread, between resume and park. All of it
// belongs to the loop's thread. One without next has no stack: when its step is over, its fn runs as a fiber.
type coroutine struct {
	loop     *loop
	next     func() (struct{}, bool)
	stop     func()
	yield    func(struct{}) bool
	g        uintptr
	fn       func()
	step     func() (over bool) // see parkUntil
	fault    any                // a panic of step
	bulk     bool               // it moves bulk, and runs after the others
	kept     *Parker            // list of its Parkers that watch a context between two waits
	giveUpAt int64              // when Conn.WaitReadableFor, WaitEither or TryRead gives up; 0 = none is waiting
	either   [2]*side           // what Conn.WaitEither waits for; nil = it is not under way
}

// maxSpareFibers bounds the finished coroutines a loop keeps for the next sessions: making
// one costs a goroutine and five allocations.
const maxSpareFibers = 128

// spawn starts fn as a fiber in the loop's current tick.
func (l *loop) spawn(fn func()) { l.ready(l.newFiber(fn)) }

// newFiber returns a fiber that runs fn when it is resumed first.
func (l *loop) newFiber(fn func()) *coroutine {
	l.fibers++
	var f *coroutine
	if n := len(l.spare); n > 0 {
		f = l.spare[n-1]
		l.spare[n-1] = nil
		l.spare = l.spare[:n-1]
	} else {
		f = &coroutine{loop: l}
		f.next, f.stop = iter.Pull(f.life)
	}
	f.fn = fn
	return f
}

// launch runs fn as a fiber. Any thread may call it. When the loop has ended fn runs on a goroutine and finds
// all connections closed, so that callers waiting for fn do not wait for ever.
func (l *loop) launch(fn func()) {
	if !l.post(func() { l.spawn(fn) }) {
		go fn()
	}
}

// life runs in the coroutine: one function after the other.
func (f *coroutine) life(yield func(struct{}) bool) {
	l := f.loop
	f.yield = yield
	f.g = getg()
	l.running.Store(f.g)
	for {
		f.once()
		l.fibers--
		if len(l.spare) >= maxSpareFibers && !keepFibers || l.closing {
			break
		}
		l.spare = append(l.spare, f)
		if !yield(struct{}{}) {
			break
		}
	}
	l.running.Store(0) // the descriptor may serve another goroutine from now on
}

// errGoexit stands for a runtime.Goexit on its way to the loop.
var errGoexit = errors.New("fiber: runtime.Goexit")

// once runs the fiber's function; its panic ends only itself. So does runtime.Goexit: iter.Pull would
// pass that on to the loop, and passes on a panic instead, from which resumeFrom recovers.
func (f *coroutine) once() {
	returned := false
	defer func() {
		f.fn = nil
		for f.kept != nil {
			f.kept.forget()
		}
		if p := recover(); p != nil {
			f.loop.panics.Add(1)
			f.loop.logger().Error("fiber panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		} else if !returned {
			f.loop.running.Store(0) // see life
			panic(errGoexit)
		}
	}()
	f.fn()
	returned = true
}

// park suspends f until ready (or, from other threads, wake) is called for it, once.
func (f *coroutine) park() { f.yield(struct{}{}) }

// parkUntil parks f until step returns true. It calls step first; then the loop calls it, on the loop's stack, each time
// that f is woken, which saves the switches to f and back. step must not park; its panic is raised in the fiber.
func (f *coroutine) parkUntil(step func() (over bool)) {
	if step() {
		return
	}
	f.step = step
	f.park()
	if fault := f.fault; fault != nil {
		f.fault = nil
		panic(fault)
	}
}

// again calls step, for the loop.
func (f *coroutine) again() (over bool) {
	defer func() {
		if p := recover(); p != nil {
			f.loop.logger().Error("a step that the loop ran for a fiber panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			f.fault, over = p, true
		}
	}()
	return f.step()
}

// resume runs f until it parks or ends; of a fiber in parkUntil it runs the step first, and f only when that is over.
func (l *loop) resume(f *coroutine) {
	if l.resumed++; l.resumed == 12 {
		l.resumed = 0
		l.dozens.Add(1)
	}
	l.current = f
	if f.step != nil {
		if !f.again() {
			l.current = nil
			return
		}
		if f.step = nil; f.next == nil {
			f = l.newFiber(f.fn)
			l.current = f
		}
	}
	l.running.Store(f.g)
	f.next()
	l.current = nil
}

// here reports whether the caller is a fiber of l, or l itself.
func (l *loop) here() bool {
	g := getg()
	return l.running.Load() == g || l.self == g
}

// currentFiber returns the fiber the caller is, nil on a goroutine.
func currentFiber() *coroutine {
	if all := allLoops.Load(); all != nil {
		g := getg()
		for _, l := range *all {
			if l.running.Load() == g {
				return l.current
			}
		}
	}
	return nil
}

// onLoop reports whether the caller runs on the thread of a loop, which must not wait.
func onLoop() bool {
	all := allLoops.Load()
	if all == nil {
		return false
	}
	thread := threadID()
	return slices.ContainsFunc(*all, func(l *loop) bool { return l.thread == thread })
}

// onFiber reports whether the caller is a fiber.
func onFiber() bool { return currentFiber() != nil }
