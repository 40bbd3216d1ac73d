package upstream_test

import (
	"context"
	"testing"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// BenchmarkAcquireRelease measures the cost of choosing among endpoints.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, balance := range []upstream.Balance{upstream.P2C, upstream.RoundRobin, upstream.RingHash, upstream.First} {
		b.Run(balance.String(), func(b *testing.B) {
			back := newBackends()
			cfg := back.config("a:1", "b:1", "c:1")
			cfg.Balance, cfg.Limits = balance, pool.Limits{MaxSize: 100}
			u, err := upstream.New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			defer u.Close()
			b.ReportAllocs()
			for b.Loop() {
				l, err := u.AcquireKey(context.Background(), "192.0.2.1")
				if err != nil {
					b.Fatal(err)
				}
				l.Release()
			}
		})
	}
}
