package mux_test

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/headpond/headpond/mux"
)

// TestStreamIsANetConn runs the suite for net.Conn on streams of either side, over every transport.
func TestStreamIsANetConn(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				c, s := sessions(t, name, mux.Config{}, mux.Config{})
				a, err := c.OpenStream(bg, "nettest")
				if err != nil {
					return nil, nil, nil, err
				}
				b, err := s.AcceptStream(bg)
				stop = func() {
					a.Close()
					b.Close()
					c.Close()
					s.Close()
				}
				return a, b, stop, err
			})
		})
	}
}
