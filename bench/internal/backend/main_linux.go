package backend

import (
	"context"
	"fmt"
	"net"
)

// Main serves a kind at address until ctx ends, and tells whoever connects to the stats address how many connections it has had.
func Main(ctx context.Context, kind Kind, address, stats string) error {
	if kind == Stream {
		return serveStream(ctx, address)
	}
	l, err := net.Listen("tcp", stats)
	if err != nil {
		return err
	}
	defer l.Close()
	b, err := Listen(address, kind)
	if err != nil {
		return err
	}
	go b.tell(l)
	return b.Serve(ctx)
}

// tell ends when the listener is closed.
func (b *Backend) tell(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = fmt.Fprintln(c, b.Accepted())
		_ = c.Close()
	}
}
