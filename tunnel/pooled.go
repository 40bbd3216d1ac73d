package tunnel

import (
	"fmt"
	"net"
	"sync/atomic"

	"github.com/headpond/headpond/fiber"
)

// Pooled adapts a connection for a pool: once its session is drained or lost, its State is Dead, so that the pool
// closes it when it is idle, and Read fails, so that no reader waits for more. Afterwards c must be used only through
// the result.
func Pooled(c *Conn) fiber.Stream { return &pooled{Conn: c} }

// pooled is the result of Pooled.
type pooled struct {
	*Conn
	draining atomic.Bool
}

var errDraining = fmt.Errorf("the tunnel is draining: %w", net.ErrClosed)

// State implements fiber.Stream.
func (c *pooled) State() fiber.State {
	if c.Draining() {
		c.draining.Store(true)
		return fiber.Dead
	}
	return c.Conn.State()
}

// Read implements net.Conn.
func (c *pooled) Read(p []byte) (int, error) {
	if c.draining.Load() {
		return 0, errDraining
	}
	return c.Conn.Read(p)
}

// CopyTo implements fiber.Stream.
func (c *pooled) CopyTo(dst net.Conn, moved, _ func(n int)) (readErr, writeErr error) {
	return fiber.Copy(c, dst, moved)
}
