package httpproxy_test

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/watchtest"
	"github.com/headpond/headpond/upstream"
)

func TestMain(m *testing.M) { leaktest.Main(enginetest.Runner(m)) }

const patience = conntest.Patience

var eventually = conntest.Eventually

// serveHTTP starts a net/http backend and returns its address.
func serveHTTP(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// serveRaw starts a backend that gives each connection to f and closes it afterwards.
func serveRaw(t testing.TB, f func(net.Conn)) string {
	t.Helper()
	return conntest.Serve(t, func(c *net.TCPConn) {
		_ = c.SetDeadline(time.Now().Add(patience))
		f(c)
	})
}

func newUpstream(t testing.TB, endpoints ...string) *httpproxy.Upstream {
	t.Helper()
	return newUpstreamWith(t, httpproxy.UpstreamOptions{}, endpoints...)
}

func newUpstreamWith(t testing.TB, o httpproxy.UpstreamOptions, endpoints ...string) *httpproxy.Upstream {
	t.Helper()
	o.Endpoints = upstream.Endpoints(endpoints...)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Go = fiber.Go; o.Dial == nil {
		o.Dial = enginetest.Dial
	}
	u, err := httpproxy.NewUpstream("api", patiently(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := u.Drain(ctx); err != nil {
			t.Errorf("a lease was not released: %v", err)
		}
	})
	return u
}

// patiently makes the limits longer that a test leaves to their defaults: a busy machine may need those for an ordinary request.
func patiently(o httpproxy.UpstreamOptions) httpproxy.UpstreamOptions {
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, patience)
	o.Limits.OpenTimeout = cmp.Or(o.Limits.OpenTimeout, patience)
	o.Limits.AcquireTimeout = cmp.Or(o.Limits.AcquireTimeout, patience)
	return o
}

type running struct {
	*httpproxy.Proxy
	addr, url string
}

// startProxy runs a Proxy until the test ends.
func startProxy(t testing.TB, cfg httpproxy.Config) running {
	t.Helper()
	if cfg.Listener.Logger == nil {
		cfg.Listener.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.ReadHeaderTimeout = cmp.Or(cfg.ReadHeaderTimeout, patience)
	p, err := httpproxy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var upstreams []*httpproxy.Upstream // the test may change the routes
	for _, r := range cfg.Routes {
		if r.Upstream != nil {
			upstreams = append(upstreams, r.Upstream)
		}
	}
	watchtest.Watch(t, p, func() {
		for _, u := range upstreams {
			u.Status()
		}
	})
	addr := conntest.Run(t, enginetest.Listen(t), p.Serve, func() {
		http.DefaultClient.CloseIdleConnections()
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // whatever a test leaves open is cut off
		_ = p.Drain(ctx)
		eventually(t, "the memory of all requests is given back", func() bool { return p.Stats().Buffered == 0 })
	})
	scheme := "http://"
	if cfg.TLS != nil {
		scheme = "https://"
	}
	return running{p, addr, scheme + addr}
}

// do sends req and returns the response with its body.
func do(t testing.TB, req *http.Request) (*http.Response, string) {
	t.Helper()
	return doWith(t, http.DefaultClient, req)
}

func doWith(t testing.TB, client *http.Client, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("reading the body: %v", err)
	}
	return resp, string(body)
}

func get(t testing.TB, url string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, req)
}
