package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/internal/tlsclient"
)

// probeHeaderBytes bounds what a probed HTTP server may answer with.
const probeHeaderBytes = 64 << 10

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

// HTTPProbe returns a Probe that asks for path with GET over HTTP/1.1 and wants
// a status from 200 to 399; redirects are not followed.
func HTTPProbe(path string) Probe { return HTTPProbeBy(netaddr.Dial, path, nil) }

// HTTPSProbe is HTTPProbe over TLS, with sessions that are resumed. Without a
// ServerName in cfg the endpoint's host is used.
func HTTPSProbe(path string, cfg *tls.Config) Probe {
	if cfg == nil {
		cfg = &tls.Config{}
	}
	return HTTPProbeBy(netaddr.Dial, path, cfg)
}

// HTTPProbeBy is HTTPProbe with connections of dial, or HTTPSProbe if cfg is not
// nil. It names the endpoint's host to the server, without the zone of an IPv6
// address, which means nothing there, and "localhost" for what has none.
func HTTPProbeBy(dial DialFunc, path string, cfg *tls.Config) Probe {
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	cfg = tlsclient.WithSessions(cfg)
	return func(ctx context.Context, endpoint string) error {
		network, host, err := netaddr.Split(endpoint)
		if err != nil {
			return err
		}
		if network != "tcp" {
			host = "localhost"
		}
		c, err := dial(ctx, endpoint)
		if err != nil {
			return err
		}
		defer c.Close()
		stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		if cfg == nil {
			return ask(ctx, c, host, path)
		}
		return ask(ctx, tls.Client(c, tlsclient.For(cfg, endpoint)), host, path)
	}
}

// ask does one request on c and judges the status.
func ask(ctx context.Context, c net.Conn, host, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return fmt.Errorf("health probe GET %s: %w", path, err)
	}
	req.Host = host
	req.Close = true
	req.Header.Set("User-Agent", "headpond-health-probe")
	if err := req.Write(c); err != nil {
		return fmt.Errorf("health probe GET %s: %w", path, err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(c, probeHeaderBytes)), req) //nolint:bodyclose // closing c ends it; Close would read the rest
	if err != nil {
		return fmt.Errorf("health probe GET %s: %w", path, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("health probe GET %s: status %s, want 200 to 399", path, resp.Status)
	}
	return nil // closing c ends the body
}
