// Package gatewaytest runs gateways in tests.
package gatewaytest

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/watchtest"
)

// Parse parses a configuration in which the first string of each pair is replaced by the second.
func Parse(t testing.TB, text string, pairs ...string) *config.Config {
	t.Helper()
	cfg, problems := config.Parse("test.yaml", []byte(strings.NewReplacer(pairs...).Replace(text)))
	if problems.Err() != nil {
		t.Fatal(problems)
	}
	return cfg
}

// Gateway is a gateway under test.
type Gateway struct {
	*gateway.Gateway
	Config *config.Config     // with which it was started
	Stop   context.CancelFunc // like the first signal
	Result chan error         // the result of Run
}

// Run starts a gateway and closes it at the end of the test.
func Run(t testing.TB, cfg *config.Config) *Gateway {
	t.Helper()
	return After(t, nil, cfg)
}

// Upgrade starts a gateway that takes over from old, as another process would. Both serve until old.Leave.
func Upgrade(t testing.TB, old *Gateway, cfg *config.Config) *Gateway {
	t.Helper()
	sockets, err := old.Sockets()
	if err != nil {
		t.Fatal(err)
	}
	return After(t, sockets, cfg)
}

// After starts a gateway that takes over the sockets of another one.
func After(t testing.TB, sockets []gateway.Socket, cfg *config.Config) *Gateway {
	t.Helper()
	ready := make(chan struct{})
	gw, err := gateway.New(cfg, gateway.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Version: "test", Sockets: sockets, Started: func() { close(ready) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Gateway{gw, cfg, stop, make(chan error, 1)}
	go func() { r.Result <- gw.Run(ctx) }()
	watch(t, gw)
	t.Cleanup(func() { gw.Close(); stop() })
	<-ready
	return r
}

// watch reads all pages of the gateway, again and again, until the end of the test.
func watch(t testing.TB, gw *gateway.Gateway) {
	t.Helper()
	pages, err := admin.New(admin.Config{Snapshot: gw.Snapshot, Sessions: gw.Sessions, Alive: gw.Alive, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	watchtest.Repeat(t, func() {
		for _, page := range []string{"/", "/metrics", "/api/v1/status", "/api/v1/sessions"} {
			got := httptest.NewRecorder()
			if pages.ServeHTTP(got, httptest.NewRequest(http.MethodGet, page, nil)); got.Code != http.StatusOK {
				t.Errorf("%s: %d %s", page, got.Code, got.Body)
			}
		}
		gw.Kill("1")
	})
}
