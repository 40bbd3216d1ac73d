package tcpproxy_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/tcpproxy"
)

// TestOpensAtOnce: clients that come together are connected together, however far away the server is.
func TestOpensAtOnce(t *testing.T) {
	const clients = 100
	var dials atomic.Int32
	all := make(chan struct{})
	_, addr := start(t, []string{conntest.Serve(t, conntest.Echo)}, tcpproxy.UpstreamOptions{
		Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
			if dials.Add(1) == clients {
				close(all)
			}
			fiber.Block(func() { <-all })
			return enginetest.Dial(ctx, endpoint)
		},
	}, nil)
	var conns []net.Conn
	for range clients {
		conns = append(conns, conntest.Dial(t, addr))
	}
	for _, c := range conns {
		conntest.Exchange(t, c, "hello")
	}
}
