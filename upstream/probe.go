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

// TCPProbe returns a Probe that connects and hangs up.
func TCPProbe() Probe {
	return func(ctx context.Context, endpoint string) error {
		c, err := netaddr.Dial(ctx, endpoint)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// HTTPProbe returns a Probe that asks for path with GET over HTTP/1.1 and wants
// a status from 200 to 399; redirects are not followed.
func HTTPProbe(path string) Probe { return httpProbe(path, nil) }

// HTTPSProbe is HTTPProbe over TLS, with sessions that are resumed. Without a
// ServerName in cfg the endpoint's host is used.
func HTTPSProbe(path string, cfg *tls.Config) Probe {
	if cfg == nil {
		cfg = &tls.Config{}
	}
	return httpProbe(path, tlsclient.WithSessions(cfg))
}

func httpProbe(path string, tlsConfig *tls.Config) Probe {
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return func(ctx context.Context, endpoint string) error {
		network, host, err := netaddr.Split(endpoint)
		if err != nil {
			return err
		}
		if network == "unix" {
			host = "localhost"
		}
		c, err := netaddr.Dial(ctx, endpoint)
		if err != nil {
			return err
		}
		defer c.Close()
		stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		if tlsConfig == nil {
			return ask(ctx, c, host, path)
		}
		return ask(ctx, tls.Client(c, tlsclient.For(tlsConfig, endpoint)), host, path)
	}
}

// ask does one request on c and judges the status.
func ask(ctx context.Context, c net.Conn, host, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+path, nil)
	if err != nil {
		return err
	}
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
