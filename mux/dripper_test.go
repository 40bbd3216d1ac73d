package mux_test

import (
	"net"
	"sync/atomic"
	"time"
)

// dripper is a connection that, once slow, writes a byte each two seconds.
type dripper struct {
	net.Conn
	slow atomic.Bool
}

func (d *dripper) Write(p []byte) (int, error) {
	if !d.slow.Load() {
		return d.Conn.Write(p)
	}
	for i := range p {
		time.Sleep(2 * time.Second)
		if _, err := d.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}
