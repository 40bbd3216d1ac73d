package http3

import (
	"context"
	"net"

	"github.com/headpond/headpond/gateway/protocols"
)

func init() {
	protocols.RegisterHTTP3(func(ctx context.Context, address string) (net.Listener, error) { return Listen(ctx, address) })
}
