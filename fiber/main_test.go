package fiber_test

import (
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// engines are those this system has; each test runs on all of them. On Linux epoll must be
// there, and io_uring unless the kernel says why not.
func engines(t *testing.T, run func(t *testing.T, e *fiber.Engine)) {
	t.Helper()
	for _, kind := range kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			run(t, newEngine(t, fiber.Config{Engine: kind, Loops: 1}))
		})
	}
}

func newEngine(t testing.TB, cfg fiber.Config) *fiber.Engine {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler) // a busy machine wakes the watchdog
	}
	e, err := fiber.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// pair returns two ends of a connection of the engine.
func pair(t testing.TB, e *fiber.Engine, network string) (client, server net.Conn) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	l, err := e.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = e.DialContext(t.Context(), network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}
