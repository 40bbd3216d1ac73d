package fiber_test

import (
	"testing"

	"github.com/headpond/headpond/fiber"
)

func kinds(t testing.TB) []fiber.Kind {
	t.Helper()
	e, err := fiber.New(fiber.Config{Engine: fiber.Uring})
	if err != nil {
		t.Logf("without io_uring: %v", err)
		return []fiber.Kind{fiber.Epoll, fiber.Goroutine}
	}
	_ = e.Close()
	return []fiber.Kind{fiber.Uring, fiber.Epoll, fiber.Goroutine}
}
