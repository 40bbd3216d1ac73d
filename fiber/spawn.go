package fiber

import (
	"net"
	"runtime"
	"time"
)

// Go runs fn as a fiber of the caller's loop, or as a goroutine when the caller is no fiber.
func Go(fn func()) {
	if f := currentFiber(); f != nil {
		f.loop.spawn(fn)
		return
	}
	go fn()
}

// Block runs fn, which may wait for anything or compute for long, on a goroutine, and returns
// when it has ended; other fibers run meanwhile. On a goroutine it calls fn. A panic of fn, or its
// runtime.Goexit, is the caller's.
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
	end.raise()
}

// ending is how a function ended that ran elsewhere.
type ending struct {
	trouble  any  // its panic
	returned bool // without panic and runtime.Goexit
}

// raise ends the caller as the function ended.
func (e *ending) raise() {
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

// Serve accepts from l and runs handle for each connection, which it owns, as a fiber of the
// connection's loop, or as a goroutine when l is none of an engine's. It returns Accept's
// first error, net.ErrClosed after l was closed; sessions may still run then.
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

// Spawn runs fn as a fiber of the loop c lives on, or as a goroutine when it lives on none.
func Spawn(c any, fn func()) {
	if s, ok := c.(spawner); ok {
		s.Go(fn)
		return
	}
	go fn()
}

// RunOn runs fn as a fiber of the loop l lives on and waits for its end; when it lives on none,
// it calls fn. A panic of fn, or its runtime.Goexit, is the caller's; the fiber's panic is logged
// with its stack, too.
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
	end.raise()
}
