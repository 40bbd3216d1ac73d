package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// errLogin is a refusal that is the tenant's own.
var errLogin = fmt.Errorf("wrong password: %w", upstream.ErrTenant)

// tenant makes a tenant whose connections say whose they are. Of a name that begins with "bad" every login is refused.
func (b *backends) tenant(t *testing.T, u *upstream.Upstream[*conn], name string) *upstream.Tenant[*conn] {
	t.Helper()
	tenant, err := u.NewTenant(b.tenantConfig(name))
	if err != nil {
		t.Fatal(err)
	}
	return tenant
}

func (b *backends) tenantConfig(name string) upstream.TenantConfig[*conn] {
	return upstream.TenantConfig[*conn]{
		Name: name, Close: func(*conn) { b.closed.Add(1) },
		Open: func(ctx context.Context, addr string) (*conn, error) {
			if strings.HasPrefix(name, "bad") {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.refused = append(b.refused, addr)
				return nil, errLogin
			}
			c, err := b.open(ctx, addr)
			if err == nil {
				c.tenant = name
			}
			return c, err
		},
	}
}

// tenantsOnly is a configuration without connections of its own.
func (b *backends) tenantsOnly(addrs ...string) upstream.Config[*conn] {
	cfg := b.config(addrs...)
	cfg.Open, cfg.Close = nil, nil
	cfg.Try = func(ctx context.Context, addr string) error { _, err := b.open(ctx, addr); b.closed.Add(1); return err }
	return cfg
}

func acquireOf(t *testing.T, tenant *upstream.Tenant[*conn]) upstream.Lease[*conn] {
	t.Helper()
	l, err := tenant.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if who := l.Value().tenant; who != tenant.Name() {
		t.Fatalf("tenant %q got a connection of %q", tenant.Name(), who)
	}
	return l
}

// TestTenantsShareEndpoints has each tenant use its own pool of one connection, while the balance counts all leases of
// an endpoint.
func TestTenantsShareEndpoints(t *testing.T) {
	b := newBackends()
	cfg := b.config("a:1", "b:1")
	cfg.Limits = pool.Limits{MaxSize: 1}
	u := start(t, cfg)
	alice, bob, carol := b.tenant(t, u, "alice"), b.tenant(t, u, "bob"), b.tenant(t, u, "carol")
	own := acquire(t, u)
	l1, l2, l3 := acquireOf(t, alice), acquireOf(t, bob), acquireOf(t, carol)
	if own.Value().tenant != "" {
		t.Error("the Upstream's own connection is a tenant's")
	}
	if own.Endpoint() == l1.Endpoint() || l2.Endpoint() == l3.Endpoint() {
		t.Errorf("leases at %s, %s, %s, %s: of two endpoints the emptier is taken", own.Endpoint(), l1.Endpoint(), l2.Endpoint(), l3.Endpoint())
	}
	if alice.AllInUse() || bob.AllInUse() || u.AllInUse() {
		t.Error("all in use, although each may have another connection at the other endpoint")
	}
	for _, e := range u.Status().Endpoints {
		if e.Leases != 2 || e.Pool.InUse != 2 {
			t.Errorf("%s: %d leases, %d in use, want 2", e.Address, e.Leases, e.Pool.InUse)
		}
	}
	l1.Release()
	if _, ok := bob.TryAcquireKey("", 0); ok {
		t.Error("bob leased a connection of alice, or one that is leased")
	}
	l, w, leased := alice.Begin(make(loopParker, 1))
	if !leased || w.Begun() || l.Value().tenant != "alice" {
		t.Error("an idle connection is not leased at once")
	}
	if !l.TryRelease() {
		t.Error("not released at once")
	}
	own.Release()
	l3.Release()
	l2.Release()
	s := u.Status()
	if len(s.Tenants) != 3 || s.Tenants[0].Name != "alice" || s.Tenants[0].Pool.Acquired != 2 || s.Tenants[1].Pool.Acquired != 1 || alice.Stats().Reused != 1 {
		t.Errorf("tenants: %+v", s.Tenants)
	}
	if alice.OnlyEndpoint() != "" || len(alice.EndpointNames()) != 2 {
		t.Error("the endpoints are not those of the Upstream")
	}
	if addr, err := alice.Choose(t.Context(), []string{"a:1"}); addr != "b:1" || err != nil {
		t.Errorf("chose %s, %v", addr, err)
	}
}

// TestBeginOfNewTenant begins where there is no pool yet.
func TestBeginOfNewTenant(t *testing.T) {
	b := newBackends()
	u := start(t, b.config("a:1"))
	alice := b.tenant(t, u, "alice")
	if _, ok := alice.TryAcquireKey("", 0); ok || alice.AllInUse() {
		t.Error("leased, or all in use, before anything is open")
	}
	_, w, leased := alice.Begin(make(loopParker, 1))
	if leased || !w.Begun() || w.Queued() {
		t.Fatal("there is something to lease, or to wait for")
	}
	l, err := w.Wait(t.Context())
	if err != nil || l.Value().tenant != "alice" {
		t.Fatal(err)
	}
	l.Release()
}

// TestRefusedTenant has endpoints refuse a tenant's login: two are tried, and no endpoint is blamed.
func TestRefusedTenant(t *testing.T) {
	b := newBackends()
	cfg := b.config("a:1", "b:1", "c:1")
	cfg.Balance, cfg.Ejection = upstream.First, upstream.Ejection{Failures: 1}
	u := start(t, cfg)
	bad, alice := b.tenant(t, u, "bad"), b.tenant(t, u, "alice")
	l := acquireOf(t, alice)
	_, err := bad.Acquire(t.Context())
	if !errors.Is(err, upstream.ErrTenant) || !errors.Is(err, upstream.ErrUnavailable) || !strings.Contains(err.Error(), `pool "api/a:1/bad": open failed`) {
		t.Errorf("got %v, want an error that names the tenant and wraps ErrTenant", err)
	}
	if !slices.Equal(b.refused, []string{"a:1", "b:1"}) {
		t.Errorf("logins at %v, want two", b.refused)
	}
	l.Fail(errLogin)
	for _, e := range u.Status().Endpoints {
		if e.Ejected || e.Failures != 0 || e.LastError != "" {
			t.Errorf("endpoint %s is blamed: %+v", e.Address, e)
		}
	}
}

// TestTenantsOnly has an Upstream without connections of its own: nothing is opened before a tenant needs it, and Try
// decides when an endpoint is in again.
func TestTenantsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.tenantsOnly("a:1", "b:1")
		cfg.Balance, cfg.Limits = upstream.First, pool.Limits{MinIdle: 2}
		cfg.Ejection = upstream.Ejection{Failures: 1, Base: time.Second, Max: time.Second}
		u := start(t, cfg)
		synctest.Wait()
		if len(b.opened) != 0 {
			t.Errorf("opened %v for nobody", b.opened)
		}
		if _, err := u.Acquire(t.Context()); !errors.Is(err, upstream.ErrUnavailable) || !strings.Contains(err.Error(), "tenants only") {
			t.Errorf("got %v", err)
		}
		alice := b.tenant(t, u, "alice")
		acquireOf(t, alice).Release()
		synctest.Wait()
		if b.opened["a:1"] < 2 || b.opened["b:1"] != 0 {
			t.Errorf("opened %v, want two at a:1", b.opened)
		}
		b.set(b.down, "a:1", true)
		bob := b.tenant(t, u, "bob")
		if l := acquireOf(t, bob); l.Endpoint() != "b:1" {
			t.Errorf("leased at %s, which is down", l.Endpoint())
		} else {
			l.Release()
		}
		synctest.Wait() // several opens have failed
		if l := acquireOf(t, alice); l.Endpoint() != "b:1" {
			t.Error("an endpoint that is down for bob is in for alice")
		} else {
			l.Release()
		}
		b.set(b.down, "a:1", false)
		time.Sleep(2 * time.Second)
		if e := u.Status().Endpoints[0]; e.Ejected {
			t.Error("not in again after Try has passed")
		}
		if err := u.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		b.allClosed(t)
	})
}

// TestTenantsFollowUpdateAndPause changes limits, endpoints and pauses while tenants have pools, and while they get some.
func TestTenantsFollowUpdateAndPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.tenantsOnly("a:1")
		cfg.Limits = pool.Limits{MaxSize: 3, MinIdle: 1}
		u := start(t, cfg)
		alice, bob := b.tenant(t, u, "alice"), b.tenant(t, u, "bob")
		held := acquireOf(t, alice)
		if err := u.Pause(time.Hour); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before := b.opened["a:1"]
		if !bob.AllInUse() {
			t.Error("bob need not wait in a pause")
		}
		late := make(chan string)
		go func() {
			l := acquireOf(t, bob)
			l.Release()
			late <- l.Endpoint()
		}()
		synctest.Wait()
		cfg.Limits = pool.Limits{MaxSize: 1}
		cfg.Endpoints = upstream.Endpoints("a:1", "b:1")
		if err := u.Update(cfg.Settings); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if now := b.opened["a:1"] + b.opened["b:1"]; now != before {
			t.Errorf("%d connections were opened in a pause", now-before)
		}
		u.Resume()
		if at := <-late; at != "a:1" {
			t.Errorf("bob waited at %s", at)
		}
		held.Release()
		for range 2 {
			defer acquireOf(t, alice).Release() // one at each endpoint, by the number of leases
		}
		for _, e := range u.Status().Endpoints {
			if e.Leases != 1 {
				t.Errorf("%s has %d leases", e.Address, e.Leases)
			}
		}
		if !alice.AllInUse() || alice.Stats().MaxSize != 2 {
			t.Error("the new limit does not apply to each of the tenant's pools")
		}
	})
}

// TestTenantEnds closes a tenant with a lease out: it leaves nothing but its counters at the endpoints.
func TestTenantEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		u := start(t, b.tenantsOnly("a:1"))
		alice, bob := b.tenant(t, u, "alice"), b.tenant(t, u, "bob")
		for range 3 {
			acquireOf(t, alice).Release()
		}
		acquireOf(t, bob).Release()
		l := acquireOf(t, alice)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := alice.Drain(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("drained with a lease out: %v", err)
		}
		alice.Close()
		if _, err := alice.Acquire(t.Context()); !errors.Is(err, pool.ErrClosed) {
			t.Errorf("leased after Close: %v", err)
		}
		if s := u.Status(); len(s.Tenants) != 2 || !s.Tenants[0].Closed || s.Tenants[0].Pool.InUse != 1 || s.Endpoints[0].Pool.InUse != 1 {
			t.Errorf("while a lease is out: %+v", s)
		}
		l.Release()
		if err := alice.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		s := u.Status()
		if len(s.Tenants) != 1 || s.Tenants[0].Name != "bob" {
			t.Errorf("tenants at the end: %+v", s.Tenants)
		}
		p, own := s.Endpoints[0].Pool, bob.Stats()
		if p.Acquired != 5 || p.Released != 5 || p.Opened != 2 || p.Reused != 3 || p.AcquireSeconds.Count() != 5 || p.InUse != 0 || p.MaxSize != own.MaxSize || p.PeakInUse != 1 {
			t.Errorf("the endpoint's sums: %+v", p)
		}
		if p := alice.Stats(); p.Acquired != 4 || p.MaxSize != 0 {
			t.Errorf("the tenant's: %+v", p)
		}
		u.Close()
		if _, err := u.NewTenant(b.tenantConfig("late")); !errors.Is(err, pool.ErrClosed) {
			t.Errorf("a tenant after Close: %v", err)
		}
		bob.Close()
		b.allClosed(t)
	})
}

// TestRemovedEndpointOfTenants removes an endpoint: the leases of all tenants are interrupted, and the tenants keep
// what they have counted there.
func TestRemovedEndpointOfTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		var interrupted []string
		cfg := b.tenantsOnly("a:1")
		cfg.Interrupt = func(c *conn, err error) {
			if errors.Is(err, upstream.ErrRemoved) {
				interrupted = append(interrupted, c.tenant)
			}
		}
		cfg.OnRemoved = upstream.CloseRemoved
		u := start(t, cfg)
		alice, bob := b.tenant(t, u, "alice"), b.tenant(t, u, "bob")
		l1, l2 := acquireOf(t, alice), acquireOf(t, bob)
		for _, address := range []string{"b:1", "c:1", "a:1"} {
			cfg.Endpoints = upstream.Endpoints(address)
			if err := u.Update(cfg.Settings); err != nil {
				t.Fatal(err)
			}
			l := acquireOf(t, alice)
			if l.Endpoint() != address {
				t.Errorf("leased at %s, want %s", l.Endpoint(), address)
			}
			l.Release()
		}
		synctest.Wait()
		slices.Sort(interrupted)
		if !slices.Equal(interrupted, []string{"alice", "bob"}) {
			t.Errorf("interrupted: %v", interrupted)
		}
		l1.Discard()
		l2.Release()
		synctest.Wait()
		if s := alice.Stats(); s.Acquired != 4 || s.Discarded != 1 || s.InUse != 0 || s.MaxSize != pool.DefaultMaxSize {
			t.Errorf("alice: %+v", s)
		}
		if n := len(u.Status().Endpoints); n != 1 {
			t.Errorf("%d endpoints are left", n)
		}
		u.Close()
		b.allClosed(t)
	})
}

// TestRebalanceOfTenants interrupts a lease of the tenant that has the most at a crowded endpoint.
func TestRebalanceOfTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		moved := make(chan string, 1)
		cfg := b.tenantsOnly("a:1")
		cfg.Interrupt = func(c *conn, err error) {
			if errors.Is(err, upstream.ErrRebalanced) {
				moved <- c.tenant
			}
		}
		u := start(t, cfg)
		alice, bob := b.tenant(t, u, "alice"), b.tenant(t, u, "bob")
		defer acquireOf(t, alice).Release()
		for range 3 {
			defer acquireOf(t, bob).Release()
		}
		cfg.Endpoints = upstream.Endpoints("a:1", "b:1")
		cfg.Rebalance = upstream.Rebalance{PerMinute: 1}
		if err := u.Update(cfg.Settings); err != nil {
			t.Fatal(err)
		}
		if who := <-moved; who != "bob" {
			t.Errorf("a lease of %s is moved", who)
		}
		u.Close()
	})
}

// TestManyTenants has more tenants than a Status lists, and then more than an Upstream accepts.
func TestManyTenants(t *testing.T) {
	b := newBackends()
	u := start(t, b.tenantsOnly("a:1"))
	if _, err := u.NewTenant(upstream.TenantConfig[*conn]{Name: "x"}); !errors.Is(err, upstream.ErrConfig) {
		t.Errorf("a tenant without Open: %v", err)
	}
	var all []*upstream.Tenant[*conn]
	for i := range upstream.MaxTenants {
		all = append(all, b.tenant(t, u, fmt.Sprintf("%05d", upstream.MaxTenants-1-i)))
	}
	if _, err := u.NewTenant(b.tenantConfig("one more")); !errors.Is(err, upstream.ErrTooManyTenants) {
		t.Errorf("one more: %v", err)
	}
	s := u.Status()
	if len(s.Tenants) != upstream.MaxTenantsListed || s.MoreTenants != upstream.MaxTenants-upstream.MaxTenantsListed || s.Tenants[999].Name != "00999" {
		t.Errorf("%d listed, %d more", len(s.Tenants), s.MoreTenants)
	}
	if err := all[0].Drain(t.Context()); err != nil {
		t.Error(err)
	}
	for u.Status().MoreTenants == s.MoreTenants { // it leaves in the background
		runtime.Gosched()
	}
	b.tenant(t, u, "one more")
}

// TestTenantsAtOnce creates, uses and closes tenants while the endpoints, limits and pauses change, and finally while
// the Upstream is closed.
func TestTenantsAtOnce(t *testing.T) {
	for round := range 4 {
		b := newBackends()
		cfg := b.config("a:1", "b:1")
		cfg.Limits = pool.Limits{MaxSize: 2, MinIdle: 1}
		cfg.Interrupt = func(*conn, error) {}
		u := start(t, cfg)
		done := make(chan struct{})
		var changers, users sync.WaitGroup
		change := func(f func(i int)) {
			changers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-done:
						return
					default:
						f(i)
					}
				}
			})
		}
		change(func(i int) {
			s := cfg.Settings
			s.Endpoints = upstream.Endpoints([]string{"a:1", "b:1", "c:1", "d:1"}[i%3 : i%3+2]...)
			s.Limits.MaxSize, s.Limits.MinIdle, s.OnRemoved = 1+i%4, i%2, upstream.Removal(i%2)
			_ = u.Update(s) // an error says that it is closed
		})
		change(func(i int) {
			_ = u.ChangeEndpoint(upstream.Change{Action: []upstream.Action{upstream.AddEndpoint, upstream.RemoveEndpoint}[i%2], Endpoint: upstream.Endpoint{Address: "x:1"}})
		})
		change(func(int) {
			if u.Pause(time.Hour) == nil {
				u.Resume()
			}
		})
		change(func(int) {
			for _, e := range u.Status().Endpoints {
				if e.Pool.InUse < 0 || e.Leases < 0 {
					t.Errorf("endpoint %s: %+v", e.Address, e)
				}
			}
		})
		for n := range 4 {
			users.Go(func() { useTenants(t, b, u, fmt.Sprintf("%d.%d", round, n)) })
		}
		if round%2 == 1 { // close it under the tenants
			for opened := 0; opened < 20; {
				b.mu.Lock()
				opened = b.opened["b:1"]
				b.mu.Unlock()
				runtime.Gosched()
			}
			u.Close()
		}
		users.Wait()
		close(done)
		changers.Wait()
		if err := u.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		for _, e := range u.Status().Endpoints {
			if p := e.Pool; p.InUse != 0 || e.Leases != 0 || p.Acquired != p.Released+p.Discarded {
				t.Errorf("endpoint %s at the end: %d leases, %+v", e.Address, e.Leases, p)
			}
		}
		b.allClosed(t)
	}
}

// useTenants makes tenants one after the other, and ends each while it is used. A closed Upstream ends it.
func useTenants(t *testing.T, b *backends, u *upstream.Upstream[*conn], name string) {
	for i := range 10 {
		tenant, err := u.NewTenant(b.tenantConfig(fmt.Sprintf("%s.%d", name, i)))
		if errors.Is(err, pool.ErrClosed) {
			return
		} else if err != nil {
			t.Error(err)
			return
		}
		var wg sync.WaitGroup
		var used atomic.Int64
		var ended atomic.Bool
		for n := range 3 {
			wg.Go(func() {
				for k := 0; ; k++ {
					l, err := oneOf(tenant, n)
					if err != nil {
						if !errors.Is(err, upstream.ErrUnavailable) {
							t.Error(err)
						}
						if ended.Load() {
							return
						}
						continue
					}
					used.Add(1)
					if l.Value().tenant != tenant.Name() {
						t.Errorf("%s got a connection of %s", tenant.Name(), l.Value().tenant)
					}
					if k%3 == 0 {
						l.Discard()
					} else {
						l.Release()
					}
				}
			})
		}
		for used.Load() < int64(i) && !closed(u) {
			runtime.Gosched()
		}
		if i%2 == 0 {
			tenant.Close()
		}
		ended.Store(true)
		if err := tenant.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

// oneOf acquires in one of the ways there are.
func oneOf(tenant *upstream.Tenant[*conn], way int) (upstream.Lease[*conn], error) {
	switch way {
	case 0:
		l, w, leased := tenant.Begin(make(loopParker, 1))
		if leased {
			return l, nil
		}
		return w.Wait(context.Background())
	case 1:
		if l, ok := tenant.TryAcquireKey("", 0); ok {
			return l, nil
		}
		return tenant.AcquireNarrow(context.Background(), "", upstream.Narrow{Avoid: []string{"a:1"}})
	}
	return tenant.Acquire(context.Background())
}

// closed reports whether the Upstream refuses tenants.
func closed(u *upstream.Upstream[*conn]) bool {
	return errors.Is(u.ChangeEndpoint(upstream.Change{}), pool.ErrClosed)
}

// TestTenantRenew lets a tenant in that was refused before.
func TestTenantRenew(t *testing.T) {
	b := newBackends()
	u := start(t, b.tenantsOnly("a:1"))
	var refuses atomic.Bool
	refuses.Store(true)
	cfg := b.tenantConfig("alice")
	open := cfg.Open
	cfg.Open = func(ctx context.Context, addr string) (*conn, error) {
		if refuses.Load() {
			return nil, errLogin
		}
		return open(ctx, addr)
	}
	alice, err := u.NewTenant(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if _, err := alice.Acquire(t.Context()); !errors.Is(err, errLogin) {
			t.Fatal(err)
		}
	}
	refuses.Store(false)
	alice.Renew()
	acquireOf(t, alice).Release()
}

// TestMaxConnections has 50 tenants share five connections to each of two endpoints.
func TestMaxConnections(t *testing.T) {
	b := newBackends()
	cfg := b.tenantsOnly("a:1", "b:1")
	cfg.Limits, cfg.MaxConnections = pool.Limits{MaxSize: 3}, 5
	cfg.Ejection = upstream.Ejection{Failures: 1}
	u := start(t, cfg)
	var mu sync.Mutex
	open, most := map[string]int{}, map[string]int{}
	count := func(c *conn, n int) {
		mu.Lock()
		defer mu.Unlock()
		open[c.endpoint] += n
		most[c.endpoint] = max(most[c.endpoint], open[c.endpoint])
	}
	var wg sync.WaitGroup
	for i := range 50 {
		tc := b.tenantConfig(fmt.Sprint(i))
		opens := tc.Open
		tc.Open = func(ctx context.Context, addr string) (*conn, error) {
			c, err := opens(ctx, addr)
			if err == nil {
				count(c, 1)
			}
			return c, err
		}
		tc.Close = func(c *conn) { count(c, -1); b.closed.Add(1) }
		tenant, err := u.NewTenant(tc)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			wg.Go(func() {
				for range 20 {
					l, err := tenant.Acquire(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					runtime.Gosched()
					if !l.TryRelease() {
						l.Release()
					}
				}
			})
		}
	}
	wg.Wait()
	if most["a:1"] != 5 || most["b:1"] != 5 {
		t.Errorf("most connections: %v, want 5 to each", most)
	}
	if err := u.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	b.allClosed(t)
}

// TestMaxConnectionsChanges lowers the limit of a running Upstream, and lets an endpoint leave and come back with a
// lease of its first life: the error of an acquire says what is full.
func TestMaxConnectionsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.tenantsOnly("a:1")
		cfg.Limits = pool.Limits{AcquireTimeout: time.Second}
		u := start(t, cfg)
		alice, bob := b.tenant(t, u, "alice"), b.tenant(t, u, "bob")
		held := acquireOf(t, alice)
		acquireOf(t, bob).Release()
		cfg.MaxConnections = 1
		if err := u.Update(cfg.Settings); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := bob.Stats(); s.Idle != 0 || s.ClosedSurplus != 1 {
			t.Errorf("bob keeps an idle connection beyond the limit: %+v", s)
		}
		refused := func() {
			t.Helper()
			_, err := bob.Acquire(t.Context())
			if !upstream.Exhausted(err) || !strings.Contains(err.Error(), "at their limit of 1") {
				t.Errorf("got %v", err)
			}
		}
		refused()
		for _, address := range []string{"b:1", "a:1"} {
			cfg.Endpoints = upstream.Endpoints(address)
			if err := u.Update(cfg.Settings); err != nil {
				t.Fatal(err)
			}
		}
		refused()
		held.Release()
		acquireOf(t, bob).Release()
		for _, change := range []func(*upstream.Settings){
			func(s *upstream.Settings) { s.MaxConnections = -1 },
			func(s *upstream.Settings) { s.Limits.Overflow = pool.OverflowDirect },
		} {
			s := cfg.Settings
			if change(&s); !errors.Is(u.Update(s), upstream.ErrConfig) {
				t.Error("accepted")
			}
		}
		u.Close()
		b.allClosed(t)
	})
}
