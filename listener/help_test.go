package listener_test

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/watchtest"
	"github.com/headpond/headpond/listener"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var quiet = slog.New(slog.DiscardHandler)

// start serves h on loopback.
func start(t *testing.T, cfg listener.Config, h listener.Handler) (s *listener.Server, addr string) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	cfg.Name, cfg.Protocol = "test", "tcp"
	s, err := listener.New(cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	watchtest.Watch(t, s)
	return s, conntest.Run(t, conntest.Listen(t), s.Serve, s.Close)
}

var echo = listener.HandlerFunc(func(_ context.Context, c *listener.Conn) {
	defer c.Close()
	io.Copy(c, c)
})

// sayClient sends the client its address, and then echoes.
var sayClient = listener.HandlerFunc(func(_ context.Context, c *listener.Conn) {
	defer c.Close()
	io.WriteString(c, c.RemoteAddr().String()+" "+c.LocalAddr().String()+"\n")
	io.Copy(c, c)
})
