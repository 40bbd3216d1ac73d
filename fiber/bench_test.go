package fiber_test

import (
	"io"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// BenchmarkStopTheWorld stops the world while a loop waits, both busy (it waits unknown to the
// scheduler and has to be interrupted) and idle. What matters is the longest stop, not the mean.
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

// BenchmarkRoundTrip sends a small message to a fiber of the same loop, which sends it back: by Read and Write, and by
// CopyTo, which runs on the loop.
func BenchmarkRoundTrip(b *testing.B) {
	for _, kind := range kinds(b) {
		for name, echo := range map[string]func(fiber.Stream){
			"read": func(s fiber.Stream) {
				buf := make([]byte, 64)
				for {
					n, err := s.Read(buf)
					if err != nil {
						return
					}
					_, _ = s.Write(buf[:n])
				}
			},
			"copy": func(s fiber.Stream) { s.CopyTo(s, func(int) {}, nil) },
		} {
			b.Run(string(kind)+"/"+name, func(b *testing.B) {
				e := newEngine(b, fiber.Config{Engine: kind, Loops: 1})
				client, server := pair(b, e, "tcp")
				defer client.Close()
				defer server.Close()
				fiber.Spawn(server, func() { echo(fiber.StreamOf(server)) })
				b.ReportAllocs()
				on(client, func() {
					buf := make([]byte, 64)
					for b.Loop() {
						_, _ = client.Write(buf)
						if _, err := io.ReadFull(client, buf); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
