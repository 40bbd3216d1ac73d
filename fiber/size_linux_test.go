//go:build amd64 || arm64

package fiber_test

import (
	"testing"

	"github.com/headpond/headpond/fiber"
)

// Ten thousand idle clients cost ten thousand times this size; the allocator's next sizes are 176 and 192.
func TestConnSize(t *testing.T) {
	if fiber.ConnSize > 176 {
		t.Errorf("a Conn takes %d bytes, want no more than 176", fiber.ConnSize)
	}
}
