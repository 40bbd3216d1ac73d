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

// BenchmarkTryAcquireKey measures the quickest acquire, of the Upstream's own connections and of a tenant's.
func BenchmarkTryAcquireKey(b *testing.B) {
	back := newBackends()
	u, err := upstream.New(back.config("a:1", "b:1", "c:1"))
	if err != nil {
		b.Fatal(err)
	}
	defer u.Close()
	alice, err := u.NewTenant(back.tenantConfig("alice"))
	if err != nil {
		b.Fatal(err)
	}
	for name, t := range map[string]*upstream.Tenant[*conn]{"own": u.Own(), "tenant": alice} {
		b.Run(name, func(b *testing.B) {
			for _, e := range []string{"a:1", "b:1", "c:1"} { // open one at each endpoint
				l, err := t.AcquireNarrow(context.Background(), "", upstream.Narrow{Avoid: others(e)})
				if err != nil {
					b.Fatal(err)
				}
				l.Release()
			}
			b.ReportAllocs()
			for b.Loop() {
				l, ok := t.TryAcquireKey("", 0)
				if !ok {
					b.Fatal("an idle connection is not leased")
				}
				l.TryRelease()
			}
		})
	}
}

// others returns the endpoints but for one.
func others(e string) (list []string) {
	for _, other := range []string{"a:1", "b:1", "c:1"} {
		if other != e {
			list = append(list, other)
		}
	}
	return list
}
