package fiber_test

import (
	"io"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// BenchmarkStopTheWorld stops the world while a loop waits, now busy (it waits without telling the
// scheduler, and has to be interrupted), now idle. What matters is the longest stop, not the mean.
func BenchmarkStopTheWorld(b *testing.B) {
	for _, kind := range kinds(b) {
		for _, busy := range []bool{true, false} {
			name := string(kind) + "/idle"
			if busy {
				name = string(kind) + "/busy"
			}
			b.Run(name, func(b *testing.B) {
				e := newEngine(b, fiber.Config{Engine: kind, Loops: 1})
				c, s := pair(b, e, "tcp")
				defer c.Close()
				defer s.Close()
				fiber.Spawn(s, func() { _, _ = io.Copy(s, s) })
				buf := make([]byte, 64)
				var took []time.Duration
				for b.Loop() {
					if busy {
						on(c, func() {
							_, _ = c.Write(buf)
							_, _ = io.ReadFull(c, buf)
						})
					}
					var m runtime.MemStats
					start := time.Now()
					runtime.ReadMemStats(&m)
					took = append(took, time.Since(start))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
				b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
			})
		}
	}
}
