package mux_test

import (
	"net"
	"slices"
	"sync/atomic"
	"time"
)

// dripper is a connection that, once slow, writes a byte, or a larger piece, each two seconds.
type dripper struct {
	net.Conn
	slow  atomic.Bool
	piece int
}

func (d *dripper) Write(p []byte) (n int, err error) {
	if !d.slow.Load() {
		return d.Conn.Write(p)
	}
	for piece := range slices.Chunk(p, max(d.piece, 1)) {
		time.Sleep(2 * time.Second)
		if m, err := d.Conn.Write(piece); err != nil {
			return n + m, err
		}
		n += len(piece)
	}
	return n, nil
}
