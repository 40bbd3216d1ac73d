// Package enginetest runs a package's tests on the engine that HEADPOND_ENGINE names (auto, uring,
// epoll or goroutine; default auto), so that the same tests show that all engines behave alike.
//
//	func TestMain(m *testing.M) { leaktest.Main(enginetest.Runner(m)) }
package enginetest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/netaddr"
)

var engine *fiber.Engine

// Tests is implemented by testing.M.
type Tests interface{ Run() int }

type runner struct{ tests Tests }

// Runner returns tests that run with an engine.
func Runner(tests Tests) Tests { return runner{tests} }

// Run implements Tests.
func (r runner) Run() int {
	kind, err := fiber.ParseKind(os.Getenv("HEADPOND_ENGINE"))
	if err == nil {
		engine, err = fiber.New(fiber.Config{Engine: kind, Loops: 2, Logger: slog.New(slog.DiscardHandler)})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := r.tests.Run()
	if err := engine.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// Kind returns the engine in use.
func Kind() fiber.Kind { return engine.Kind() }

// Fibers returns the number of fibers that run or wait, 0 on the goroutine engine.
func Fibers() int { return engine.Stats().Fibers }

// Listener adapts l to the engine.
func Listener(l net.Listener) (net.Listener, error) { return engine.Listener(l) }

// Listen listens on a port of 127.0.0.1, on the engine.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := engine.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Poll returns when every loop has asked the kernel for events since the call. Until then, a loop that is starved may hold a connection
// for open that its peer has closed.
func Poll(t testing.TB) {
	t.Helper()
	for range 2 { // the first may run in a tick that began before the call
		if err := engine.Alive(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Dial connects to "host:port" or "unix:/path" on the engine.
func Dial(ctx context.Context, endpoint string) (net.Conn, error) {
	network, address, err := netaddr.Split(endpoint)
	if err != nil {
		return nil, err
	}
	return engine.DialContext(ctx, network, address)
}
