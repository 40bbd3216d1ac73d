package fiber

import (
	"errors"
	"iter"
	"log/slog"
	"runtime/debug"
	"slices"

	"github.com/headpond/headpond/internal/goroutine"
)

// coroutine is a fiber. It runs on its loop's thread, between resume and park. All fields belong to
// the loop's thread. A coroutine without next has no stack: the loop calls alone's step until the
// step returns true; then a fiber continues.
type coroutine struct {
	loop     *loop
	next     func() (struct{}, bool)
	stop     func()
	yield    func(struct{}) bool
	g        uintptr
	fn       func()
	alone    stackless          // runs in place of fn; nil = none
	step     func() (over bool) // see parkUntil
	fault    any                // panic of step
	bulk     bool               // the fiber moves bulk or is in a TLS handshake, and runs after other fibers
	kept     *Parker            // list of Parkers that watch a context between two waits
	giveUpAt int64              // time-out of Conn.WaitReadableFor, WaitEither, TryRead or TryReadEither; 0 = none
	either   [2]*side           // sides that Conn.WaitEither or TryReadEither waits for; nil = none
}

// stackless is work that needs a stack only at its end.
type stackless interface {
	step() (over bool)
	runFiber() // runs on a fiber once step has returned true or has panicked
}

// fiberFor returns a fiber that runs runFiber.
func (l *loop) fiberFor(s stackless) *coroutine {
	f := l.takeFiber()
	f.alone = s
	return f
}

// maxSpareFibers bounds the ended coroutines that a loop keeps for reuse: making one costs a goroutine and five
// allocations.
const maxSpareFibers = 128

// spawn starts fn as a fiber in the loop's current tick.
func (l *loop) spawn(fn func()) { l.ready(l.newFiber(fn)) }

// newFiber returns a fiber that runs fn when it is first resumed.
func (l *loop) newFiber(fn func()) *coroutine {
	f := l.takeFiber()
	f.fn = fn
	return f
}

// takeFiber returns a spare or a new coroutine, with a stack.
func (l *loop) takeFiber() (f *coroutine) {
	l.fibers++
	if n := len(l.spare); n > 0 {
		f, l.spare[n-1] = l.spare[n-1], nil
		l.spare = l.spare[:n-1]
		return f
	}
	f = &coroutine{loop: l}
	f.next, f.stop = iter.Pull(f.runFunctions)
	return f
}

// launch runs fn as a fiber. Any thread may call it. If the loop has ended, fn runs on a goroutine, where it finds all
// connections closed; otherwise callers that wait for fn would wait forever.
func (l *loop) launch(fn func()) {
	if !l.post(func() { l.spawn(fn) }) {
		go fn()
	}
}

// runFunctions runs in the coroutine, and runs one function after the other.
func (f *coroutine) runFunctions(yield func(struct{}) bool) {
	l := f.loop
	f.yield = yield
	f.g = goroutine.ID()
	l.running.Store(f.g)
	for {
		f.runFunction()
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

// errGoexit is the panic that carries a runtime.Goexit to the loop.
var errGoexit = errors.New("fiber: runtime.Goexit")

// runFunction runs the fiber's function. A panic ends only this fiber. So does runtime.Goexit, for which iter.Pull
// would end the loop, too: it is turned into a panic, from which resumeFrom recovers.
func (f *coroutine) runFunction() {
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
			f.loop.running.Store(0) // see runFunctions
			panic(errGoexit)
		}
	}()
	if k := f.alone; k != nil {
		f.alone = nil
		k.runFiber()
	} else {
		f.fn()
	}
	returned = true
}

// park suspends f until ready (on other threads: wake) is called for it, once.
func (f *coroutine) park() { f.yield(struct{}{}) }

// parkUntil parks f until step returns true. It calls step first. After that the loop calls step, on the loop's stack,
// each time that f is woken, which saves the switches to f and back. step must not park; its panic is raised in the
// fiber.
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

// callStep calls step on the loop.
func (f *coroutine) callStep() (over bool) {
	defer func() {
		if p := recover(); p != nil {
			f.loop.logger().Error("a step that the loop ran for a fiber panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			f.fault, over = p, true
		}
	}()
	if f.alone != nil {
		return f.alone.step()
	}
	return f.step()
}

// resume runs f until it parks or ends. For a fiber in parkUntil and for one without a stack it runs the step first, and
// f only when the step is over.
func (l *loop) resume(f *coroutine) {
	if l.resumed++; l.resumed == 12 {
		l.resumed = 0
		l.dozens.Add(1)
	}
	l.current = f
	if f.step != nil || f.next == nil {
		if !f.callStep() {
			l.current = nil
			return
		}
		if f.step = nil; f.next == nil {
			f = l.fiberFor(f.alone)
			l.current = f
		}
	}
	l.running.Store(f.g)
	f.next()
	l.current = nil
}

// isCaller reports whether the caller runs on l: as a fiber, or as the loop itself.
func (l *loop) isCaller() bool {
	g := goroutine.ID()
	return l.running.Load() == g || l.self == g
}

// currentFiber returns the calling fiber, nil on a goroutine.
func currentFiber() *coroutine {
	if all := allLoops.Load(); all != nil {
		g := goroutine.ID()
		for _, l := range *all {
			if l.running.Load() == g {
				return l.current
			}
		}
	}
	return nil
}

// currentLoop returns the loop that the caller runs on: as a fiber, or as the loop itself. It is nil on other goroutines.
func currentLoop() *loop {
	if all := allLoops.Load(); all != nil {
		for _, l := range *all {
			if l.isCaller() {
				return l
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
