//go:build !linux

package fiber_test

import (
	"testing"

	"github.com/headpond/headpond/fiber"
)

func kinds(testing.TB) []fiber.Kind { return []fiber.Kind{fiber.Goroutine} }
