package fiber

import (
	"net"
	"runtime"
	"time"
)

// Go runs fn as a fiber of the caller's loop, or as a goroutine if the caller is not a fiber.
func Go(fn func()) {
	if f := currentFiber(); f != nil {
		f.loop.spawn(fn)
		return
	}
	go fn()
}

// Block runs fn, which may wait for anything or compute for long, on a goroutine, and returns when fn has ended; other
// fibers run meanwhile. If the caller is a goroutine, it just calls fn. A panic of fn, or its runtime.Goexit, is raised
// in the caller.
func Block(fn func()) {
	f := currentFiber()
	if f == nil {
		fn()
		return
	}
	var end ending
	go func() {
		defer func() {
			end.trouble = recover()
			f.loop.post(func() { f.loop.ready(f) })
		}()
		fn()
		end.returned = true
	}()
	f.park()
	end.propagate()
}

// ending says how a function that ran on another goroutine or fiber ended.
type ending struct {
	trouble  any  // its panic
	returned bool // without panic and runtime.Goexit
}

// propagate makes the caller end as the function ended.
func (e *ending) propagate() {
	switch {
	case e.trouble != nil:
		panic(e.trouble)
	case !e.returned:
		runtime.Goexit()
	}
}

// Sleep is time.Sleep for fibers and goroutines.
func Sleep(d time.Duration) {
	if f := currentFiber(); f != nil {
		f.loop.sleep(d)
		return
	}
	time.Sleep(d)
}

// Serve accepts connections from l and runs handle for each, as a fiber of the connection's loop, or as a goroutine if
// l does not belong to an engine. handle owns its connection. Serve returns Accept's first error, which is
// net.ErrClosed after l was closed; sessions may still run then.
func Serve(l net.Listener, handle func(net.Conn)) error {
	var failed error
	accept := func() {
		for {
			c, err := l.Accept()
			if err != nil {
				failed = err
				return
			}
			Spawn(c, func() { handle(c) })
		}
	}
	RunOn(l, accept)
	return failed
}

// spawner is a connection or listener of a loop.
type spawner interface{ Go(fn func()) }

// Spawn runs fn as a fiber of c's loop, or as a goroutine if c has none.
func Spawn(c any, fn func()) {
	if s, ok := c.(spawner); ok {
		s.Go(fn)
		return
	}
	go fn()
}

// RunOn runs fn as a fiber of l's loop and waits until fn has ended; if l has no loop, RunOn calls fn. A panic of fn,
// or its runtime.Goexit, is raised in the caller; the fiber's panic is also logged with its stack.
func RunOn(l any, fn func()) {
	s, ok := l.(spawner)
	if !ok {
		fn()
		return
	}
	var end ending
	var done Group
	done.Add(1)
	s.Go(func() {
		defer done.Done()
		defer func() {
			if end.trouble = recover(); end.trouble != nil {
				panic(end.trouble) // the loop logs and counts it
			}
		}()
		fn()
		end.returned = true
	})
	done.Wait()
	end.propagate()
}
