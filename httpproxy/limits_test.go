package httpproxy_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// TestUpdateOfLimits: an Update changes how large a head may be, and how many requests a new connection of HTTP/2 may have.
func TestUpdateOfLimits(t *testing.T) {
	got := make(chan int, 1)
	cfg := routeTo(newUpstream(t, serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) { got <- len(r.Header.Get("X-Large")) })))
	cfg.MaxHeaderBytes, cfg.MaxStreams = 16<<10, 3
	p := startProxy(t, cfg)
	const size = 300_000
	large := strings.Repeat("x", size)
	c, br := dialRaw(t, p.addr)
	if resp, _ := roundTrip(t, c, br, "GET / HTTP/1.1\r\nHost: a\r\nX-Large: "+large+"\r\n\r\n"); resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a head beyond the limit got %s", resp.Status)
	}
	streams := func() uint32 {
		t.Helper()
		c, br := dialRaw(t, p.addr)
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		f, err := http2.NewFramer(c, br).ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		n, _ := f.(*http2.SettingsFrame).Value(http2.SettingMaxConcurrentStreams)
		return n
	}
	if n := streams(); n != 3 {
		t.Errorf("a connection may have %d requests, want 3", n)
	}
	cfg.MaxHeaderBytes, cfg.MaxStreams = 512<<10, 5
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	c, br = dialRaw(t, p.addr)
	if resp, _ := roundTrip(t, c, br, "GET / HTTP/1.1\r\nHost: a\r\nX-Large: "+large+"\r\n\r\n"); resp.StatusCode != http.StatusOK || <-got != size {
		t.Errorf("a head within the new limit got %s", resp.Status)
	}
	if n := streams(); n != 5 {
		t.Errorf("a connection may have %d requests, want 5", n)
	}
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.addr+"/", nil)
	r.Header.Set("X-Large", large)
	transport := &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusOK || <-got != size {
		t.Errorf("a head within the new limit got %s", resp.Status)
	}
}
