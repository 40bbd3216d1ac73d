package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/headpond/headpond/upstream"
)

// farTCP is upstream.TCPProbe through a tunnel.
func farTCP(dial func(ctx context.Context, endpoint string) (net.Conn, error)) upstream.Probe {
	return func(ctx context.Context, endpoint string) error {
		c, err := dial(ctx, endpoint)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// farHTTP is upstream.HTTPProbe, or with TLS HTTPSProbe, through a tunnel.
func farHTTP(path string, tlsConfig *tls.Config, dial func(ctx context.Context, endpoint string) (net.Conn, error)) upstream.Probe {
	return func(ctx context.Context, endpoint string) error {
		scheme, host := "http", endpoint
		if tlsConfig != nil {
			scheme = "https"
		}
		if strings.HasPrefix(endpoint, "unix:") || strings.HasPrefix(endpoint, "upstream:") {
			host = "localhost"
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+host+path, nil)
		if err != nil {
			return err
		}
		req.Header.Set("User-Agent", "headpond-health-probe")
		transport := &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: tlsConfig, MaxResponseHeaderBytes: 64 << 10,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, endpoint) },
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return fmt.Errorf("health probe GET %s: %w", path, err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode < 200 || resp.StatusCode > 399 {
			return fmt.Errorf("health probe GET %s: status %s, want 200 to 399", path, resp.Status)
		}
		return nil
	}
}
