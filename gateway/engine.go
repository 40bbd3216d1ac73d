package gateway

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/internal/netaddr"
)

// newEngine starts the engine on which sessions run.
func (g *Gateway) newEngine(cfg *config.Config) error {
	engine, err := fiber.New(fiber.Config{Engine: fiber.Kind(cfg.Engine), Loops: cfg.Loops, Logger: g.logger})
	if err != nil {
		return fmt.Errorf("engine %q: %w", cfg.Engine, err)
	}
	g.engine = engine
	return nil
}

// dial connects to an endpoint for a session: the connection lives on the engine.
func (g *Gateway) dial(ctx context.Context, endpoint string) (net.Conn, error) {
	network, address, err := netaddr.Split(endpoint)
	if err != nil {
		return nil, err
	}
	return g.engine.DialContext(ctx, network, address)
}

// dialKept is dial for connections that are kept and reused by several clients. It sets keep-alive, also for
// connections to this machine: their address may be translated to another machine's, which can vanish silently.
// Keep-alive costs four system calls, too much for a connection of one TCP session only.
func (g *Gateway) dialKept(ctx context.Context, endpoint string) (net.Conn, error) {
	c, err := g.dial(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	if to, ok := c.RemoteAddr().(*net.TCPAddr); ok && to.IP.IsLoopback() {
		_ = fiber.StreamOf(c).SetKeepAlive(true)
	}
	return c, nil
}

// dialFrom returns a dial function for connections from other addresses than this machine's; k has their options, if any.
func (g *Gateway) dialFrom(k *config.KeepAlive) func(ctx context.Context, from netip.Addr, endpoint string) (net.Conn, error) {
	return func(ctx context.Context, from netip.Addr, endpoint string) (net.Conn, error) {
		return dialWith(k, func(ctx context.Context, endpoint string) (net.Conn, error) {
			network, address, err := netaddr.Split(endpoint)
			if err != nil {
				return nil, err
			}
			return g.engine.DialFrom(ctx, from, network, address)
		})(ctx, endpoint)
	}
}

// tcpOptions translates a section of the configuration, nil if there is none.
func tcpOptions(k *config.KeepAlive) fiber.TCPOptions {
	if k == nil {
		return fiber.TCPOptions{}
	}
	return fiber.TCPOptions{KeepAliveIdle: k.Idle, KeepAliveInterval: k.Interval, KeepAliveCount: k.Count, UserTimeout: k.UserTimeout}
}

// dialWith is a dial function whose connections have options.
func dialWith(k *config.KeepAlive, dial func(ctx context.Context, endpoint string) (net.Conn, error)) func(ctx context.Context, endpoint string) (net.Conn, error) {
	if k == nil {
		return dial
	}
	options := tcpOptions(k)
	return func(ctx context.Context, endpoint string) (net.Conn, error) {
		c, err := dial(ctx, endpoint)
		if err != nil {
			return nil, err
		}
		if err := options.Apply(c); err != nil {
			_ = c.Close()
			return nil, err
		}
		return c, nil
	}
}

// onFibers reports whether the sessions of a listener run on the engine.
func onFibers(l *config.Listener, cfg *config.Config) bool {
	offLoop := extend.ProtocolOf(l.Protocol).OffLoop
	return offLoop == nil || !offLoop(cfg, l)
}

// adopt makes the socket's connections live on the engine. Nothing has been accepted from it yet, and no other
// goroutine has it.
func (s *socket) adopt(e *fiber.Engine) error {
	l, err := e.Listener(s.Listener)
	if err != nil {
		return err
	}
	if u, ok := l.(unlinker); ok {
		u.SetUnlinkOnClose(s.unlink)
	}
	s.Listener = l
	return nil
}

// unlinker is a listener on a unix socket.
type unlinker interface{ SetUnlinkOnClose(unlink bool) }
