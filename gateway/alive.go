package gateway

import (
	"context"

	"github.com/headpond/headpond/fiber"
)

// Alive returns nil once every thread that accepts connections has taken a turn, or ctx's error: what a watchdog asks.
func (g *Gateway) Alive(ctx context.Context) error {
	g.mu.Lock()
	sockets := make([]*socket, len(g.services))
	for i, s := range g.services {
		sockets[i] = s.socket
	}
	g.mu.Unlock()
	turned := make(chan struct{}, len(sockets))
	for _, s := range sockets {
		fiber.Spawn(s.Listener, func() { turned <- struct{}{} })
	}
	for range sockets {
		select {
		case <-turned:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
