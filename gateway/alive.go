package gateway

import "context"

// Alive returns nil once every loop, those that accept and those that only serve, has completed a tick, or an error
// that wraps ctx's. Watchdogs and /livez use it. The goroutine engine has no loops.
func (g *Gateway) Alive(ctx context.Context) error { return g.engine.Alive(ctx) }
