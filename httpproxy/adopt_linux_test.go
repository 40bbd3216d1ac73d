package httpproxy_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// TestConnectionsComeToTheirUsersLoop: every operation from another loop costs a way there and back. The connection of each
// upstream, of which there is one, follows the clients from loop to loop, also that of the authentication server.
func TestConnectionsComeToTheirUsersLoop(t *testing.T) {
	if enginetest.Kind() == fiber.Goroutine {
		return // there are no loops
	}
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	to := func(at *atomic.Value) *httpproxy.Upstream {
		return newUpstreamWith(t, httpproxy.UpstreamOptions{
			Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1}},
			Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
				c, err := enginetest.Dial(ctx, endpoint)
				if err == nil {
					at.Store(c)
				}
				return c, err
			},
		}, backend)
	}
	var server, auth atomic.Value // of type fiber.Stream
	cfg := routeTo(to(&server))
	cfg.Routes[0].ForwardAuth = &httpproxy.ForwardAuth{Upstream: to(&auth), Timeout: patience}
	p := startProxy(t, cfg)
	servers, auths := map[int]bool{}, map[int]bool{}
	for range 100 {
		if got := sendWhole(t, p.addr, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); got == "" {
			t.Fatal("no answer")
		}
		servers[server.Load().(fiber.Stream).Loop()], auths[auth.Load().(fiber.Stream).Loop()] = true, true
		if len(auths) == 2 {
			return
		}
	}
	if len(servers) == 1 {
		return // all clients were on one loop
	}
	t.Errorf("the server's connection has been on loops %v, the authentication server's on %v", servers, auths)
}
