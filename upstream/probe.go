package upstream

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/headpond/headpond/internal/netaddr"
)

// DialFunc connects to an endpoint.
type DialFunc func(ctx context.Context, endpoint string) (net.Conn, error)

// TCPProbe returns a Probe that connects and hangs up.
func TCPProbe() Probe { return TCPProbeBy(netaddr.Dial) }

// TCPProbeBy is TCPProbe with connections of dial.
func TCPProbeBy(dial DialFunc) Probe {
	return func(ctx context.Context, endpoint string) error {
		c, err := dial(ctx, endpoint)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// ProbePort returns a Probe that runs p on another port of each endpoint, which
// must be a host:port.
func ProbePort(p Probe, port int) Probe {
	return func(ctx context.Context, endpoint string) error {
		network, address, err := netaddr.Split(endpoint)
		if err != nil {
			return err
		}
		host, _, err := net.SplitHostPort(address)
		if network != "tcp" || err != nil {
			return fmt.Errorf("health probe of port %d: endpoint %q has no host", port, endpoint)
		}
		return p(ctx, net.JoinHostPort(host, strconv.Itoa(port)))
	}
}
