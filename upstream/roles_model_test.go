package upstream_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/upstream"
)

// TestRolesAtRandom has servers change their roles, die and fall silent while endpoints, the Target and pauses change, and
// callers of an Upstream and of a tenant come, wait and give up. Afterwards all of them have an answer, the primary serves,
// and nothing is left open.
func TestRolesAtRandom(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			servers := []string{"a:1", "b:1", "c:1"}
			b := newReplicas(map[string]upstream.Role{"a:1": upstream.Primary, "b:1": upstream.Standby, "c:1": upstream.Standby})
			cfg := b.config(upstream.TargetPrimary, servers...)
			cfg.Limits.MinIdle = int(seed % 2)
			cfg.MaxConnections = int(seed % 4)
			u := start(t, cfg)
			tc := b.tenantConfig("alice")
			tc.Open = func(ctx context.Context, addr string) (*conn, error) {
				c, err := cfg.Open(ctx, addr)
				if err == nil {
					c.tenant = "alice"
				}
				return c, err
			}
			alice, err := u.NewTenant(tc)
			if err != nil {
				t.Fatal(err)
			}
			var callers atomic.Int64
			call := func(acquire func(context.Context) (upstream.Lease[*conn], error)) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rnd.IntN(20000))*time.Millisecond)
				hold := time.Duration(rnd.IntN(3000)) * time.Millisecond
				callers.Add(1)
				go func() {
					defer callers.Add(-1)
					defer cancel()
					if l, err := acquire(ctx); err == nil {
						time.Sleep(hold)
						l.Release()
					}
				}()
			}
			target := upstream.TargetPrimary
			for range 150 {
				addr := servers[rnd.IntN(3)]
				switch rnd.IntN(10) {
				case 0, 1, 2:
					call(u.Acquire)
				case 3, 4:
					call(alice.Acquire)
				case 5:
					b.become(addr, upstream.Role(rnd.IntN(5)-1))
				case 6:
					b.set(b.down, addr, rnd.IntN(2) == 0)
				case 7:
					if u.Resume(); rnd.IntN(3) == 0 {
						_ = u.Pause(time.Duration(1+rnd.IntN(10)) * time.Second)
					}
				case 8:
					s := cfg.Settings
					if rnd.IntN(3) == 0 {
						target = upstream.Target(rnd.IntN(6))
					}
					s.Target, s.Endpoints = target, upstream.Endpoints(servers[rnd.IntN(2):1+rnd.IntN(2)+1]...)
					if err := u.Update(s); err != nil {
						t.Error(err)
					}
				default:
					u.Doubt(addr)
				}
				time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
			}
			b.endModel(t, u, alice, cfg.Settings, &callers)
		})
	}
}

// endModel ends TestRolesAtRandom: all servers work, and a is the primary.
func (b *replicas) endModel(t *testing.T, u *upstream.Upstream[*conn], alice *upstream.Tenant[*conn], s upstream.Settings, callers *atomic.Int64) {
	servers := []string{"a:1", "b:1", "c:1"}
	u.Resume()
	for i, addr := range servers {
		b.set(b.down, addr, false)
		b.become(addr, []upstream.Role{upstream.Primary, upstream.Standby, upstream.Standby}[i])
	}
	if err := u.Update(s); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	if n := callers.Load(); n != 0 {
		t.Errorf("%d callers wait for ever", n)
	}
	if got := usedBy(u); got != "a" {
		t.Errorf("leases at %q", got)
	}
	acquireOf(t, alice).Release()
	u.Close()
	synctest.Wait()
	b.allClosed(t)
	if b.open != 0 {
		t.Errorf("%d connections that ask are open", b.open)
	}
}
