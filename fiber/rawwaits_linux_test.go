//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

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

// TestRawWaitsGiveWay: a loop that has had an event keeps its processor for 50 ms, but not while goroutines that compute wait for one.
func TestRawWaitsGiveWay(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		processors := fiber.Loops() + 1
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
		var over atomic.Bool
		defer over.Store(true)
		for range processors {
			go func() {
				for !over.Load() {
				}
			}()
		}
		peer, c := pairOf(t, e, false)
		measured, gaveWay := 0, 0
		for tries := 0; tries < 400 && gaveWay < 3; tries++ { // on a busy machine it is one time of twenty
			if _, err := peer.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			on(c, func() {
				_, _ = c.Read(make([]byte, 1))
				begin := fiber.Now()
				fiber.Sleep(30 * time.Millisecond)
				if fiber.Now().Sub(begin) < 50*time.Millisecond { // afterwards it would not keep it anyway
					if measured++; !fiber.KeepsProcessor() {
						gaveWay++
					}
				}
			})
		}
		if t.Logf("it gave way %d times of %d", gaveWay, measured); gaveWay < 3 && measured >= 100 { // fewer: a machine too slow to tell
			t.Error("the loop has kept its processor")
		}
	})
}
