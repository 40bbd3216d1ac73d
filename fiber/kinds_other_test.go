//go:build !(linux && (amd64 || arm64))

package fiber_test

import (
	"os"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// kinds has an engine that Auto does not choose, kqueue, when it is asked for as the other packages' tests are.
func kinds(testing.TB) []fiber.Kind {
	if asked := fiber.Kind(os.Getenv("HEADPOND_ENGINE")); asked == fiber.Kqueue {
		return []fiber.Kind{asked, fiber.Goroutine}
	}
	return []fiber.Kind{fiber.Goroutine}
}
