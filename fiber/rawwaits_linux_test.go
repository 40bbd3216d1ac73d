//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"runtime"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// TestRawWaitsLeaveAProcessor: loops may keep their processors while they wait as long as all engines of the process together leave one for
// the rest of the program.
func TestRawWaitsLeaveAProcessor(t *testing.T) {
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue
		}
		t.Run(string(kind), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(fiber.Loops() + 2))
			start := func() *fiber.Engine { return newEngine(t, fiber.Config{Engine: kind, Loops: 1}) }
			first := start()
			if !first.RawWaits() {
				t.Error("the only engine may not, although a processor is left")
			}
			second := start()
			if first.RawWaits() || second.RawWaits() {
				t.Error("two engines may, and leave no processor")
			}
			if err := second.Close(); err != nil {
				t.Fatal(err)
			}
			if !first.RawWaits() {
				t.Error("it may not after the other engine has ended")
			}
		})
	}
}
