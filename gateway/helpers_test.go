package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	dial     = conntest.Dial
	echo     = conntest.Exchange
	exchange = conntest.RoundTrip
)

func echoServer(t *testing.T) string { return conntest.Serve(t, conntest.Echo) }

var (
	parse = gatewaytest.Parse
	run   = gatewaytest.Run
)

// webServer answers with its name.
func webServer(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, name) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// client has its own connections, closed at the end of the test.
func client(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// get returns status and body.
func get(c *http.Client, url string) (int, string, error) {
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	return do(c, r)
}

// do returns status and body.
func do(c *http.Client, r *http.Request) (int, string, error) {
	resp, err := c.Do(r)
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
