package fiber

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
)

// Kind names an engine.
type Kind string

// The engines.
const (
	Auto      Kind = "auto"      // the first of the others that works
	Uring     Kind = "uring"     // fibers on io_uring
	Epoll     Kind = "epoll"     // fibers on epoll
	Goroutine Kind = "goroutine" // a goroutine for each fiber; everywhere
)

// ParseKind returns the Kind of a name; "" is Auto. The error wraps ErrConfig.
func ParseKind(name string) (Kind, error) {
	switch k := Kind(name); k {
	case "":
		return Auto, nil
	case Auto, Uring, Epoll, Goroutine:
		return k, nil
	}
	return "", fmt.Errorf("%w: unknown engine %q: it is one of auto, uring, epoll, goroutine", ErrConfig, name)
}

// Errors of New.
var (
	// ErrConfig: the Config makes no sense.
	ErrConfig = errors.New("fiber: bad configuration")
	// ErrUnavailable: this system does not have the engine that was asked for; the error says why.
	ErrUnavailable = errors.New("fiber: engine not available")
)

// Config is what New needs; the zero value is a good one.
type Config struct {
	// Engine is the kind wanted; default Auto. Any other either works or is an error of New.
	Engine Kind
	// Loops is the number of threads that run fibers; default half of GOMAXPROCS, at
	// least 1. One
	// loop carries what one core can do; connections stay on the loop they were given.
	Loops int
	// Logger gets panics of fibers and the watchdog's findings; default slog.Default().
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

// DefaultLoops is the number of loops of an engine whose Config says none: half of the processors Go uses, at least one.
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

// Kind is the engine that was chosen, never Auto.
func (e *Engine) Kind() Kind { return e.kind }

// Reason says in a few words why that one.
func (e *Engine) Reason() string { return e.reason }

// Listen is net.Listen for the engine. network is tcp, tcp4, tcp6 or unix.
func (e *Engine) Listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	return e.Listener(l)
}

// Listener makes l, which package net made, one of the engine, so that its connections live on
// loops. It takes l over, also on an error. On the goroutine engine it returns l.
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
// addresses of a name in turn. On a fiber the connection is one of its loop. ctx bounds the
// connecting only.
func (e *Engine) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if e.kind == Goroutine {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
	return e.dial(ctx, network, address)
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
// it calls fn.
func RunOn(l any, fn func()) {
	s, ok := l.(spawner)
	if !ok {
		fn()
		return
	}
	var done Group
	done.Add(1)
	s.Go(func() {
		defer done.Done()
		fn()
	})
	done.Wait()
}
