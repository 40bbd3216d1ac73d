package fiber

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Kind names an engine.
type Kind string

// The engines.
const (
	Auto      Kind = "auto"      // the first of the others that works
	Uring     Kind = "uring"     // fibers on io_uring
	Epoll     Kind = "epoll"     // fibers on epoll
	Kqueue    Kind = "kqueue"    // fibers on kqueue (Darwin); never chosen by Auto, because it was compiled but never run
	Goroutine Kind = "goroutine" // a goroutine for each fiber; works everywhere
)

// ParseKind returns the Kind of a name; "" is Auto. The error wraps ErrConfig.
func ParseKind(name string) (Kind, error) {
	switch k := Kind(name); k {
	case "":
		return Auto, nil
	case Auto, Uring, Epoll, Kqueue, Goroutine:
		return k, nil
	}
	return "", fmt.Errorf("%w: unknown engine %q: it is one of auto, uring, epoll, kqueue, goroutine", ErrConfig, name)
}

// Errors of New.
var (
	// ErrConfig: the Config is invalid.
	ErrConfig = errors.New("fiber: bad configuration")
	// ErrUnavailable: this system does not support the requested engine; the error says why.
	ErrUnavailable = errors.New("fiber: engine not available")
)

// Config configures New; the zero value is useful.
type Config struct {
	// Engine is the kind of engine; default Auto. If a particular kind does not work, New returns an error.
	Engine Kind
	// Loops is the number of threads that run fibers; default half of GOMAXPROCS, at least 1. One loop uses one core;
	// connections stay on their loop.
	Loops int
	// Logger logs panics of fibers, the watchdog's findings, and at debug level errors of Close that no caller gets (see
	// StreamOf); default slog.Default().
	Logger *slog.Logger
}

// Verify reports what is wrong with the Config; the error wraps ErrConfig.
func (c Config) Verify() error {
	if c.Loops < 0 || c.Loops > maxLoops {
		return fmt.Errorf("%w: %d loops: between 1 and %d, or 0 for the default", ErrConfig, c.Loops, maxLoops)
	}
	_, err := ParseKind(string(c.Engine))
	return err
}

// maxLoops is far beyond any machine's cores.
const maxLoops = 1024

// DefaultLoops returns the default of Config.Loops: half of the processors that Go uses, at least one.
func DefaultLoops() int { return max(1, runtime.GOMAXPROCS(0)/2) }

func (c Config) withDefaults() Config {
	if c.Engine == "" {
		c.Engine = Auto
	}
	if c.Loops == 0 {
		c.Loops = DefaultLoops()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Engine is a set of loops; the goroutine engine has none. All methods may be called from any fiber
// or goroutine.
type Engine struct {
	cfg    Config
	kind   Kind
	reason string
	loops  []*loop

	stopWatch chan struct{}
	wakeWatch chan struct{} // capacity 1
	noWatch   atomic.Bool   // the watchdog sleeps until a loop wakes it
	watching  sync.WaitGroup
	closers   sync.WaitGroup // goroutines that close connections for fibers; fibers start them
	closing   sync.Once
}

// New starts an engine. The error wraps ErrConfig or ErrUnavailable.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	kinds := []Kind{cfg.Engine}
	if cfg.Engine == Auto {
		kinds = append(slices.Clone(automatic), Goroutine)
	}
	var missing []error
	for _, kind := range kinds {
		e := &Engine{cfg: cfg, kind: kind, stopWatch: make(chan struct{}), wakeWatch: make(chan struct{}, 1)}
		if kind == Goroutine {
			e.reason = because(cfg.Engine, "the only engine that Auto chooses on "+runtime.GOOS+"/"+runtime.GOARCH, missing)
			return e, nil
		}
		err := e.startAll()
		if err == nil {
			e.reason = because(cfg.Engine, "io_uring works", missing)
			if lacks := e.loops[0].lacks; lacks != nil {
				e.reason += "; messages are sent one by one: " + lacks.Error()
			}
			e.watching.Go(e.watch)
			return e, nil
		}
		missing = append(missing, fmt.Errorf("%s: %w", kind, err))
	}
	return nil, fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(missing...))
}

// because formats the reason for the choice of an engine.
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

// Close ends the engine: it closes every connection and listener, and waits until all fibers have ended, and at most 10
// seconds for the Close of connections of other kinds that they have closed (StreamOf). It must not be called on a fiber of
// the engine, because it would wait for that fiber.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		e.stopAll()
		e.awaitClosers()
		close(e.stopWatch)
		e.watching.Wait()
	})
	return nil
}

// Trim asks the loops to free the memory that they keep for the next burst of connections, and does
// not wait for that. Call it after a burst; the next connections then cost some page faults.
func (e *Engine) Trim() {
	for _, l := range e.loops {
		l.post(l.poller.trim)
	}
}

// BuffersHeld returns the size in bytes of the buffers in which the loops of all engines hold written data that peers
// have not made room for.
func BuffersHeld() (n int64) {
	all := allLoops.Load()
	if all == nil {
		return 0
	}
	for _, l := range *all {
		n += l.unsent.Load()
	}
	return n
}

func (e *Engine) stopAll() {
	for _, l := range e.loops {
		l.post(l.shut)
	}
	for _, l := range e.loops {
		<-l.ended
	}
}

// shut closes everything that is open on the loop, so that the loop ends.
func (l *loop) shut() {
	l.closing = true
	l.table.each(func(owner any) {
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

// Conn converts an established connection of package net to one of the engine, on the caller's loop
// if the caller is a fiber. Conn owns c, also on an error. No data of c may have been read ahead.
// The goroutine engine returns c.
func (e *Engine) Conn(c net.Conn) (net.Conn, error) {
	if e.kind == Goroutine {
		return c, nil
	}
	l := e.lightest()
	if f := currentFiber(); f != nil && f.loop.engine == e {
		l = f.loop
	}
	fd, isUnix, err := takeSocket(c)
	_ = c.Close()
	if err != nil {
		return nil, fmt.Errorf("fiber: connection of %s: %w", c.RemoteAddr(), err)
	}
	return newConn(l, fd, isUnix, peer{}), nil
}

// Kind returns the engine that was chosen, never Auto.
func (e *Engine) Kind() Kind { return e.kind }

// Reason says in a few words why this engine was chosen.
func (e *Engine) Reason() string { return e.reason }

// Listen is net.Listen for the engine. network is tcp, tcp4, tcp6 or unix.
func (e *Engine) Listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	return e.Listener(l)
}

// Listener converts a listener of package net to one of the engine, whose connections live on
// loops. It owns l, also on an error. The goroutine engine returns l.
func (e *Engine) Listener(l net.Listener) (net.Listener, error) {
	if e.kind == Goroutine {
		return l, nil
	}
	a, err := e.listen(l)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return a, nil
}

// DialContext connects to a TCP address (tcp, tcp4, tcp6) or a Unix socket (unix), trying all
// addresses of a name in turn. On a fiber the connection belongs to its loop. ctx bounds only the
// dial.
func (e *Engine) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if e.kind == Goroutine {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
	return e.dial(ctx, network, address)
}

// Stats are the counters of an engine, all loops together.
type Stats struct {
	Loops  int
	Conns  int    // open connections
	Fibers int    // running or waiting
	Spare  int    // ended fibers, kept for reuse
	Panics uint64 // fibers that ended by a panic
	Held   uint64 // times the watchdog found a fiber holding its loop
	Ticks  uint64 // ticks of the loops; each is one call of the kernel
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

// Alive returns nil once every loop has completed a tick, or an error that wraps ctx's and says how many loops have
// not. It is for watchdogs. A closed engine, and the goroutine engine, have no loops.
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
