package gateway_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	dial     = conntest.Dial
	echo     = conntest.Exchange
	exchange = conntest.RoundTrip
)

func echoServer(t *testing.T) string { return conntest.Serve(t, conntest.Echo) }

// parse reads a configuration; "{dir}" and the other pairs are replaced first.
func parse(t *testing.T, text string, pairs ...string) *config.Config {
	t.Helper()
	cfg, problems := config.Parse("test.yaml", []byte(strings.NewReplacer(pairs...).Replace(text)))
	if problems.Err() != nil {
		t.Fatal(problems)
	}
	return cfg
}

// running is a gateway under test.
type running struct {
	*gateway.Gateway
	stop   context.CancelFunc // as the first signal does
	result chan error         // Run's
}

// run starts a gateway and closes it at the end of the test.
func run(t *testing.T, cfg *config.Config) *running {
	t.Helper()
	ready := make(chan struct{})
	gw, err := gateway.New(cfg, gateway.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Version: "test", Started: func() { close(ready) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{gw, stop, make(chan error, 1)}
	go func() { r.result <- gw.Run(ctx) }()
	t.Cleanup(func() { gw.Close(); stop() })
	<-ready
	return r
}

// webServer answers with its name.
func webServer(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, name) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// client has connections of its own, gone at the end of the test.
func client(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// get returns status and body.
func get(c *http.Client, url string) (int, string, error) {
	resp, err := c.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

const tcpText = `
admin: 127.0.0.1:0
drain_timeout: 10s
listeners:
  - {name: raw, protocol: tcp, listen: "{listen}", upstream: echo}
upstreams:
  echo: {endpoints: ["{echo}"]}
`

const webText = `
drain_timeout: 10s
listeners:
  - {name: web, protocol: http, listen: "{listen}", upstream: web}
upstreams:
  web: {endpoints: ["{web}"]{more}}
`
