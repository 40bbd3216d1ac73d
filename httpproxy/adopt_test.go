package httpproxy_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// TestConnectionsComeToTheirUsersLoop: every operation from another loop costs a way there and back. The connection of each
// upstream, of which there is one, is on the loop of the client that used it last, also that of the authentication server.
func TestConnectionsComeToTheirUsersLoop(t *testing.T) {
	if enginetest.Kind() == fiber.Goroutine {
		t.Skip("there are no loops")
	}
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	to := func(at *fiber.Stream) *httpproxy.Upstream {
		return newUpstreamWith(t, httpproxy.UpstreamOptions{
			Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1}},
			Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
				c, err := enginetest.Dial(ctx, endpoint)
				*at, _ = c.(fiber.Stream)
				return c, err
			},
		}, backend)
	}
	var server, auth fiber.Stream
	cfg := routeTo(to(&server))
	cfg.Routes[0].ForwardAuth = &httpproxy.ForwardAuth{Upstream: to(&auth)}
	p := startProxy(t, cfg)
	loops := map[int]bool{}
	for range 100 {
		if got := sendWhole(t, p.addr, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); got == "" {
			t.Fatal("no answer")
		}
		if loops[server.Loop()] = true; server.Loop() != auth.Loop() {
			t.Fatalf("the server's connection is on loop %d, the authentication server's on %d", server.Loop(), auth.Loop())
		}
		if len(loops) == 2 {
			return
		}
	}
	t.Skip("all clients were on one loop")
}
