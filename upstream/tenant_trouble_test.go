package upstream_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/upstream"
)

// TestTenantAfterRefusals corrects a tenant's password after many refusals, and then takes the only endpoint down: the
// tenant is served within the longest back-off, and an outage still ejects the endpoint.
func TestTenantAfterRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.tenantsOnly("a:1")
		cfg.MaxConnections, cfg.Ejection = 1, upstream.Ejection{Failures: 2}
		u, err := upstream.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		var answer atomic.Pointer[error]
		answer.Store(&errLogin)
		tenant := b.tenantConfig("alice")
		open := tenant.Open
		tenant.Open = func(ctx context.Context, addr string) (*conn, error) {
			if p := answer.Load(); p != nil {
				return nil, *p
			}
			return open(ctx, addr)
		}
		alice, err := u.NewTenant(tenant)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if _, err := alice.Acquire(t.Context()); !errors.Is(err, upstream.ErrTenant) {
				t.Fatalf("got %v, want the refusal", err)
			}
			time.Sleep(time.Second)
		}
		if e := u.Status().Endpoints[0]; e.Ejected || e.Failures != 0 {
			t.Fatalf("the endpoint is blamed: %+v", e)
		}
		answer.Store(nil)
		time.Sleep(time.Second)
		acquireOf(t, alice).Discard()
		down := errors.New("connection refused")
		answer.Store(&down)
		for range 3 {
			if _, err := alice.Acquire(t.Context()); !errors.Is(err, down) || errors.Is(err, upstream.ErrTenant) {
				t.Fatalf("got %v, want the outage", err)
			}
			time.Sleep(time.Second)
		}
		if e := u.Status().Endpoints[0]; e.Failures == 0 && !e.Ejected {
			t.Errorf("the outage is not counted: %+v", e)
		}
	})
}
