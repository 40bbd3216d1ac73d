package tunnel

import (
	"fmt"
	"net"
	"sync/atomic"

	"github.com/headpond/headpond/fiber"
)

// Pooled returns a connection through a tunnel as pools want it: once its session is drained or lost it is Dead, so that it is closed when it
// is idle, and reading fails, so that nobody waits for more. It is c's only user from then on.
func Pooled(c *Conn) fiber.Stream { return &pooled{Stream: fiber.StreamOf(c), inner: c} }

// pooled is what Pooled returns.
type pooled struct {
	fiber.Stream
	inner   *Conn
	leaving atomic.Bool
}

var errLeaving = fmt.Errorf("the tunnel drains: %w", net.ErrClosed)

// State implements fiber.Stream.
func (c *pooled) State() fiber.State {
	if c.inner.Leaving() {
		c.leaving.Store(true)
		return fiber.Dead
	}
	return c.Stream.State()
}

// Read implements net.Conn.
func (c *pooled) Read(p []byte) (int, error) {
	if c.leaving.Load() {
		return 0, errLeaving
	}
	return c.Stream.Read(p)
}
