//go:build amd64 || arm64

package fiber_test

import (
	"math"
	"testing"
	"time"

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

// A sleep for longer than there is time does not end at once.
func TestSleepForAges(t *testing.T) {
	hour, ages := fiber.SleepEnd(time.Hour), fiber.SleepEnd(math.MaxInt64)
	if hour <= 0 || ages <= hour {
		t.Errorf("an hour ends at %d, the longest sleep at %d", hour, ages)
	}
}
