//go:build linux && (amd64 || arm64)

package fiber

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Engine is a set of loops, or nothing but a name on the goroutine engine. All methods may be
// called from anywhere.
type Engine struct {
	cfg    Config
	kind   Kind
	reason string
	loops  []*loop

	stopWatch chan struct{}
	wakeWatch chan struct{} // capacity 1
	noWatch   atomic.Bool   // the watchdog sleeps until a loop wakes it
	watching  sync.WaitGroup
	closing   sync.Once
}

// New starts an engine. The error wraps ErrConfig or ErrUnavailable.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	var missing []error
	for _, kind := range []Kind{Uring, Epoll, Goroutine} {
		if cfg.Engine != Auto && cfg.Engine != kind {
			continue
		}
		e := &Engine{cfg: cfg, kind: kind, stopWatch: make(chan struct{}), wakeWatch: make(chan struct{}, 1)}
		if kind == Goroutine {
			e.reason = because(cfg.Engine, "neither io_uring nor epoll works", missing)
			return e, nil
		}
		err := e.startAll()
		if err == nil {
			e.reason = because(cfg.Engine, "io_uring works", missing)
			if p, ok := e.loops[0].poller.(*epoll); ok && p.single != nil {
				e.reason += "; messages are sent one by one: " + p.single.Error()
			}
			e.watching.Go(e.watch)
			return e, nil
		}
		missing = append(missing, fmt.Errorf("%s: %w", kind, err))
	}
	return nil, fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(missing...))
}

// because words the reason for a choice.
func because(asked Kind, best string, missing []error) string {
	switch {
	case asked != Auto:
		return "configured"
	case len(missing) == 0:
		return best
	}
	return errors.Join(missing...).Error()
}

func (e *Engine) startAll() error {
	for range e.cfg.Loops {
		l, err := e.start(e.kind)
		if err != nil {
			e.stopAll()
			return err
		}
		e.loops = append(e.loops, l)
	}
	return nil
}

// Close ends the engine: it closes every connection and listener that is left and waits until
// all fibers have ended. On a fiber of the engine it would wait for itself.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		e.stopAll()
		close(e.stopWatch)
		e.watching.Wait()
	})
	return nil
}

// Trim gives memory back to the system that loops keep for the next rush, soon. It costs the next
// connections some page faults, so it is for when a rush is over.
func (e *Engine) Trim() {
	for _, l := range e.loops {
		l.post(l.poller.trim)
	}
}

func (e *Engine) stopAll() {
	for _, l := range e.loops {
		l.post(l.shut)
	}
	for _, l := range e.loops {
		<-l.ended
	}
}

// shut closes everything that is open on the loop, which then ends.
func (l *loop) shut() {
	l.closing = true
	l.poller.each(func(owner any) {
		switch o := owner.(type) {
		case *Conn:
			o.close(l)
		case *Listener:
			o.shut()
		}
	})
}

// Go runs fn as a fiber of the loop with the fewest connections, or as a goroutine, also after Close.
func (e *Engine) Go(fn func()) {
	if e.kind == Goroutine {
		go fn()
		return
	}
	e.lightest().launch(fn)
}

func (e *Engine) lightest() *loop {
	best := e.loops[0]
	for _, l := range e.loops[1:] {
		if l.conns.Load() < best.conns.Load() {
			best = l
		}
	}
	return best
}

// Conn makes an established connection of package net one of the engine, on the caller's loop if
// it is a fiber. It takes c over, also on an error; nothing may have been read ahead of it. On
// the goroutine engine it returns c.
func (e *Engine) Conn(c net.Conn) (net.Conn, error) {
	if e.kind == Goroutine {
		return c, nil
	}
	l := e.lightest()
	if f := currentFiber(); f != nil && f.loop.engine == e {
		l = f.loop
	}
	fd, isUnix, err := takeSocket(c)
	if err == nil {
		if err = unix.SetNonblock(fd, true); err != nil {
			_ = unix.Close(fd)
		}
	}
	_ = c.Close()
	if err != nil {
		return nil, fmt.Errorf("fiber: connection of %s: %w", c.RemoteAddr(), err)
	}
	return newConn(l, fd, isUnix, peer{}), nil
}

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
	var trouble any
	returned := false
	go func() {
		defer func() {
			trouble = recover()
			f.loop.post(func() { f.loop.ready(f) })
		}()
		fn()
		returned = true
	}()
	f.park()
	switch {
	case trouble != nil:
		panic(trouble)
	case !returned:
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

// Stats are the counters of an engine, all loops together.
type Stats struct {
	Loops  int
	Conns  int    // open connections
	Fibers int    // running or waiting
	Spare  int    // ended, and kept for the next
	Panics uint64 // fibers ended by one
	Held   uint64 // times the watchdog found a fiber holding its loop
	Ticks  uint64 // of the loops: each asks the kernel once
}

// Stats returns the state of the loops as of their last tick.
func (e *Engine) Stats() Stats {
	s := Stats{Loops: len(e.loops)}
	for _, l := range e.loops {
		s.Conns += int(l.conns.Load())
		s.Fibers += int(l.shown.Load())
		s.Spare += int(l.kept.Load())
		s.Panics += l.panics.Load()
		s.Held += l.held.Load()
		s.Ticks += l.tick.Load()
	}
	return s
}
