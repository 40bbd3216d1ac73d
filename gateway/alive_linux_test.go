package gateway_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway"
)

// TestAliveAsksEveryLoop: also one that accepts nothing, as here, where the only listener has goroutines.
func TestAliveAsksEveryLoop(t *testing.T) {
	g := run(t, parse(t, `
engine: epoll
loops: 2
admin: 127.0.0.1:0
listeners:
  - {name: lite, protocol: postgres, listen: "127.0.0.1:0", upstream: lite}
upstreams:
  lite: {endpoints: ["sqlite:{dir}/lite.db"]}
`, "{dir}", t.TempDir()))
	held, release := make(chan struct{}), make(chan struct{})
	gateway.OnLoop(g.Gateway, func() {
		close(held)
		<-release
	})
	<-held
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := g.Alive(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a loop is held, and the gateway says %v", err)
	}
	close(release)
	if err := g.Alive(t.Context()); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/livez", "/healthz"} {
		if code, body, err := get(client(t), "http://"+g.Addr("admin")+path); err != nil || code != 200 || body != "ok\n" {
			t.Errorf("%s: %d %q %v", path, code, body, err)
		}
	}
}
