package backend

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
)

// Main runs a backend at address until ctx ends. A connection to the stats address receives the number of connections
// accepted so far.
func Main(ctx context.Context, kind Kind, address, stats string) error {
	l, err := net.Listen("tcp", stats)
	if err != nil {
		return err
	}
	defer l.Close()
	switch kind {
	case Stream:
		return serveStream(ctx, address)
	case EchoTLS:
		var accepted atomic.Int64
		go tell(l, accepted.Load)
		return serveEchoTLS(ctx, address, &accepted)
	case GRPC:
		var accepted atomic.Int64
		go tell(l, accepted.Load)
		server, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		return serveGRPC(ctx, server, &accepted)
	case Std, StdTLS:
		var accepted atomic.Int64
		go tell(l, accepted.Load)
		web, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		return serveStd(ctx, web, kind == StdTLS, &accepted)
	}
	b, err := Listen(address, kind)
	if err != nil {
		return err
	}
	go tell(l, b.Accepted)
	return b.Serve(ctx)
}

// tell writes the count to each connection of l, until l is closed.
func tell(l net.Listener, accepted func() int64) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = fmt.Fprintln(c, accepted())
		_ = c.Close()
	}
}
