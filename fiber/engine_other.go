//go:build !(linux && (amd64 || arm64))

package fiber

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"time"
)

// Engine is a set of loops, or nothing but a name on the goroutine engine. All methods may be
// called from anywhere.
type Engine struct {
	kind   Kind
	reason string
}

// New starts an engine. The error wraps ErrConfig or ErrUnavailable.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if cfg.Engine != Auto && cfg.Engine != Goroutine {
		return nil, fmt.Errorf("%w: %s is for Linux on amd64 and arm64, this is %s/%s",
			ErrUnavailable, cfg.Engine, runtime.GOOS, runtime.GOARCH)
	}
	return &Engine{kind: Goroutine, reason: "the only one on " + runtime.GOOS + "/" + runtime.GOARCH}, nil
}

// Close ends the engine.
func (e *Engine) Close() error { return nil }

// Alive returns nil: there are no loops that could hang.
func (e *Engine) Alive(context.Context) error { return nil }

// Trim has nothing to give back.
func (e *Engine) Trim() {}

// Go runs fn as a goroutine.
func (e *Engine) Go(fn func()) { go fn() }

// Conn returns c.
func (e *Engine) Conn(c net.Conn) (net.Conn, error) { return c, nil }

func (e *Engine) listen(l net.Listener) (net.Listener, error) { return l, nil }

func (e *Engine) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// Go runs fn as a goroutine.
func Go(fn func()) { go fn() }

// Block calls fn.
func Block(fn func()) { fn() }

// onFiber reports false: there are none.
func onFiber() bool { return false }

// Sleep is time.Sleep.
func Sleep(d time.Duration) { time.Sleep(d) }

// Parker lets a fiber wait; without loops there is none.
type Parker struct{}

// NewParker returns nil.
func NewParker() *Parker { return nil }

// Park returns ctx's error.
func (*Parker) Park(ctx context.Context) error { return ctx.Err() }

// Unpark does nothing.
func (*Parker) Unpark() {}

// TryPark returns false.
func (*Parker) TryPark() bool { return false }

// Nudge does nothing.
func (*Parker) Nudge() {}

// Affinity returns 0.
func (*Parker) Affinity() int { return 0 }

func (*Parker) mine() bool { return false }

// Stats are the counters of an engine; without loops all are 0.
type Stats struct {
	Loops, Conns, Fibers, Spare int
	Panics, Held, Ticks         uint64
}

// Stats returns zeros.
func (e *Engine) Stats() Stats { return Stats{} }

// waiter is a goroutine that waits to be woken once.
type waiter struct{ done chan struct{} }

func newWaiter() *waiter { return &waiter{done: make(chan struct{})} }
func (w *waiter) wait()  { <-w.done }
func (w *waiter) wake()  { close(w.done) }
