//go:build !(linux && (amd64 || arm64))

package fiber_test

import (
	"testing"

	"github.com/headpond/headpond/fiber"
)

func kinds(testing.TB) []fiber.Kind { return []fiber.Kind{fiber.Goroutine} }
