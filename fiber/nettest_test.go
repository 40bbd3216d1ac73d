package fiber_test

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/headpond/headpond/fiber"
)

func TestConn(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			engines(t, func(t *testing.T, e *fiber.Engine) {
				nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
					c, s := pair(t, e, network)
					return c, s, func() { _ = c.Close(); _ = s.Close() }, nil
				})
			})
		})
	}
}
