package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// replicas are simulated servers with roles. A role of -1 is a server that is silent; down of backends refuses.
type replicas struct {
	*backends
	mu    sync.Mutex
	roles map[string]upstream.Role
	after map[string]time.Duration // how long the first answer takes
	full  map[string]bool          // it answers without saying its role
	open  int                      // connections that askers keep
}

const silent = upstream.Role(-1)

func newReplicas(roles map[string]upstream.Role) *replicas {
	return &replicas{backends: newBackends(), roles: roles, after: map[string]time.Duration{}, full: map[string]bool{}}
}

func (r *replicas) become(addr string, role upstream.Role) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.roles[addr] = role
}

func (r *replicas) is(addr string) upstream.Role {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.roles[addr]
}

// config is that of a and b, c and so on, with a Target.
func (r *replicas) config(t upstream.Target, addrs ...string) upstream.Config[*conn] {
	cfg := r.backends.config(addrs...)
	cfg.Target = t
	cfg.Limits = pool.Limits{MaxSize: 2, AcquireTimeout: 10 * time.Second}
	cfg.AskRole = func(addr string) upstream.RoleAsker { return &asker{r: r, addr: addr} }
	cfg.RoleOf = func(_ context.Context, c *conn) (upstream.Role, error) { return c.role, nil }
	cfg.Open = func(ctx context.Context, addr string) (*conn, error) {
		role := r.is(addr)
		if role == silent {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		c, err := r.backends.open(ctx, addr)
		if err == nil {
			c.role = role
		}
		return c, err
	}
	return cfg
}

type asker struct {
	r    *replicas
	addr string
	open bool
}

func (a *asker) Ask(ctx context.Context, anew bool) (upstream.Role, error) {
	a.r.mu.Lock()
	wait, full := a.r.after[a.addr], a.r.full[a.addr]
	delete(a.r.after, a.addr)
	a.r.mu.Unlock()
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	role := a.r.is(a.addr)
	a.r.backends.mu.Lock()
	down := a.r.backends.down[a.addr]
	a.r.backends.mu.Unlock()
	switch {
	case down:
		return 0, errRefused
	case full:
		return 0, fmt.Errorf("too many connections: %w", upstream.ErrTenant)
	case role == silent:
		<-ctx.Done()
		return 0, ctx.Err()
	}
	a.keep(true)
	return role, nil
}

func (a *asker) Close() { a.keep(false) }

func (a *asker) keep(open bool) {
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	if open != a.open {
		a.open = open
		if a.r.open--; open {
			a.r.open += 2
		}
	}
}

// usedBy returns where an acquire finds a connection, and "-" if none is to be had.
func usedBy(u *upstream.Upstream[*conn]) string {
	seen := map[string]bool{}
	for range 20 {
		l, err := u.Acquire(context.Background())
		if err != nil {
			return "-"
		}
		seen[l.Endpoint()] = true
		l.Release()
	}
	var list []string
	for _, addr := range []string{"a:1", "b:1", "c:1"} {
		if seen[addr] {
			list = append(list, addr[:1])
		}
	}
	return strings.Join(list, " ")
}

func TestTargets(t *testing.T) {
	const (
		p = upstream.Primary
		r = upstream.ReadOnlyPrimary
		s = upstream.Standby
		u = upstream.UnknownRole
	)
	for _, test := range []struct {
		target  string
		a, b, c upstream.Role
		want    string
	}{
		{"any", p, s, u, "a b c"},
		{"primary", s, p, s, "b"},
		{"primary", p, r, s, "a b"}, // nobody can say which of two is meant
		{"primary", s, s, u, "-"},
		{"standby", p, s, s, "b c"},
		{"standby", p, p, u, "-"},
		{"prefer-standby", p, s, u, "b"},
		{"prefer-standby", p, u, u, "a"},
		{"prefer-standby", u, u, u, "-"},
		{"read-write", r, p, s, "b"},
		{"read-write", r, r, s, "-"},
		{"read-only", p, r, s, "b c"},
	} {
		t.Run(fmt.Sprintf("%s/%s-%s-%s", test.target, test.a, test.b, test.c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				target, err := upstream.ParseTarget(test.target)
				if err != nil || target.String() != test.target {
					t.Fatal(target, err)
				}
				b := newReplicas(map[string]upstream.Role{"a:1": test.a, "b:1": test.b, "c:1": test.c})
				for addr, role := range b.roles {
					b.down[addr] = role == u && target != upstream.TargetAny
				}
				up := start(t, b.config(target, "a:1", "b:1", "c:1"))
				synctest.Wait() // all have been asked
				if got := usedBy(up); got != test.want {
					t.Errorf("leases at %s, want %s", got, test.want)
				}
				for _, e := range up.Status().Endpoints {
					if want := b.is(e.Address); e.Role != want && target != upstream.TargetAny || e.Failures != 0 || e.Ejected {
						t.Errorf("%s is %s, %d failures, ejected %v; it is %s", e.Address, e.Role, e.Failures, e.Ejected, want)
					}
				}
				up.Close()
				b.allClosed(t)
				if b.open != 0 {
					t.Errorf("%d connections of askers are left", b.open)
				}
			})
		})
	}
}

func TestParseTarget(t *testing.T) {
	if got, err := upstream.ParseTarget(""); got != upstream.TargetAny || err != nil {
		t.Error(got, err)
	}
	if _, err := upstream.ParseTarget("master"); !errors.Is(err, upstream.ErrConfig) || !strings.Contains(err.Error(), "prefer-standby") {
		t.Error(err)
	}
	cfg := newReplicas(nil).config(upstream.TargetPrimary, "a:1")
	cfg.AskRole = nil
	if _, err := upstream.New(cfg); !errors.Is(err, upstream.ErrConfig) {
		t.Error(err)
	}
}

// TestFirstLeaseWaitsForStandby has the primary answer before the standby does, and then the standby not at all.
func TestFirstLeaseWaitsForStandby(t *testing.T) {
	for _, late := range []time.Duration{3 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			b := newReplicas(map[string]upstream.Role{"a:1": upstream.Primary, "b:1": upstream.Standby})
			b.after["b:1"] = late
			cfg := b.config(upstream.TargetPreferStandby, "a:1", "b:1")
			cfg.Limits.OpenTimeout = 5 * time.Second
			u := start(t, cfg)
			began, want := time.Now(), "b:1"
			l := acquire(t, u)
			if late > cfg.Limits.OpenTimeout {
				late, want = cfg.Limits.OpenTimeout, "a:1"
			}
			if took := time.Since(began); l.Endpoint() != want || took != late {
				t.Errorf("leased at %s after %v, want %s after %v", l.Endpoint(), took, want, late)
			}
			l.Release()
			time.Sleep(2 * time.Second)
			if got := usedBy(u); got != "b" {
				t.Errorf("leases at %s once the standby answers", got)
			}
			b.set(b.down, "b:1", true)
			time.Sleep(2 * time.Second)
			if got := usedBy(u); got != "a" {
				t.Errorf("leases at %s while the standby is down", got)
			}
			b.set(b.down, "b:1", false)
			time.Sleep(2 * time.Second)
			if got := usedBy(u); got != "b" {
				t.Errorf("leases at %s when the standby is back", got)
			}
			u.Close()
		})
	}
}

// TestPromotionIsFollowed has the primary die with callers in every place, and the standby become the primary.
func TestPromotionIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReplicas(map[string]upstream.Role{"a:1": upstream.Primary, "b:1": upstream.Standby})
		u := start(t, b.config(upstream.TargetPrimary, "a:1", "b:1"))
		alice := b.tenant(t, u, "alice")
		l1, l2 := acquire(t, u), acquire(t, u)
		leased := make(chan string, 10)
		wait := func(tenant *upstream.Tenant[*conn]) {
			l, err := tenant.Acquire(t.Context())
			if err != nil {
				leased <- err.Error()
				return
			}
			leased <- l.Endpoint()
			l.Release()
		}
		go wait(u.Own()) // in the queue of the full pool
		synctest.Wait()
		b.set(b.down, "a:1", true)
		go wait(alice) // whose pool cannot open anything
		synctest.Wait()
		time.Sleep(2 * time.Second)
		go wait(u.Own()) // without an endpoint
		synctest.Wait()
		if len(leased) > 0 {
			t.Fatalf("%s, before anything was promoted", <-leased)
		}
		if s := u.Status(); s.Endpoints[0].Role != upstream.UnknownRole || s.Endpoints[1].Role != upstream.Standby || s.FailOpen {
			t.Errorf("%+v", s)
		}
		b.become("b:1", upstream.Primary)
		for range 3 {
			if got := <-leased; got != "b:1" {
				t.Errorf("leased at %s", got)
			}
		}
		b.become("a:1", upstream.Standby)
		b.set(b.down, "a:1", false)
		time.Sleep(2 * time.Second)
		if got := usedBy(u); got != "b" {
			t.Errorf("leases at %s", got)
		}
		opened := b.opened["a:1"]
		l1.Release()
		l2.Release()
		synctest.Wait()
		if e := u.Status().Endpoints[0]; e.Role != upstream.Standby || e.Pool.InUse != 0 || e.Pool.Idle != 0 || b.opened["a:1"] != opened || e.Leases != 0 {
			t.Errorf("the old primary: %+v", e)
		}
		if b.logged(`"endpoint's role" upstream=api endpoint=b:1 role=primary was=standby`) != 1 || b.logged("clients wait for one") != 1 {
			t.Error(b.log.String())
		}
		u.Close()
		b.allClosed(t)
	})
}

// TestNoEndpointHasTheRole looks at the error of callers that have waited in vain.
func TestNoEndpointHasTheRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReplicas(map[string]upstream.Role{"a:1": upstream.Standby, "b:1": upstream.Standby, "c:1": upstream.Primary})
		b.down["b:1"] = true
		u := start(t, b.config(upstream.TargetPrimary, "a:1", "b:1", "c:1"))
		acquire(t, u).Release()
		b.become("c:1", upstream.ReadOnlyPrimary)
		if got := usedBy(u); got != "c" {
			t.Error(got)
		}
		b.become("c:1", silent)
		time.Sleep(10 * time.Second)
		began := time.Now()
		_, err := u.Acquire(t.Context())
		if took := time.Since(began); took != 10*time.Second || !errors.Is(err, upstream.ErrUnavailable) || !errors.Is(err, pool.ErrTimeout) || upstream.Exhausted(err) {
			t.Errorf("%v after %v", err, took)
		}
		if b.logged(`"endpoint's role is unknown" upstream=api endpoint=b:1 was=unknown error=refused`) != 1 {
			t.Error(b.log.String())
		}
		want := `upstream "api": no connection: no endpoint is a primary: a:1 is a standby; b:1 does not report its role: refused; c:1 does not report its role: context deadline exceeded; `
		if !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := u.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if addr, err := u.Choose(ctx, nil); addr != "" || !errors.Is(err, upstream.ErrUnavailable) {
			t.Errorf("chose %q, %v", addr, err)
		}
		go func() { time.Sleep(time.Second); u.Close() }()
		if _, err := u.Acquire(t.Context()); !errors.Is(err, pool.ErrClosed) {
			t.Error(err)
		}
	})
}

// TestRoleWaitsAreBounded has clients wait for a role, and for something else. MaxWaiters bounds them together with those that
// wait at pools, and Status shows them. New limits reach them.
func TestRoleWaitsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReplicas(map[string]upstream.Role{"a:1": upstream.Standby})
		cfg := b.config(upstream.TargetPrimary, "a:1")
		cfg.Limits = pool.Limits{MaxSize: 1, MaxWaiters: 2, AcquireTimeout: time.Minute}
		u := start(t, cfg)
		leased := make(chan upstream.Lease[*conn])
		wait := func() {
			go func() {
				l, err := u.Acquire(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				leased <- l
			}()
		}
		refused := func(when string) {
			t.Helper()
			began := time.Now()
			if _, err := u.Acquire(t.Context()); !errors.Is(err, pool.ErrTooManyWaiters) || !upstream.Exhausted(err) || time.Since(began) > 0 {
				t.Errorf("%s: %v after %v", when, err, time.Since(began))
			}
		}
		shows := func(when string, ahead, waiting int) {
			t.Helper()
			synctest.Wait()
			s := u.Status()
			if s.Waiting != ahead || s.Endpoints[0].Pool.Waiting != waiting || u.Own().Stats().Waiting != ahead+waiting {
				t.Errorf("%s: %d wait, and %d at the pool; want %d and %d", when, s.Waiting, s.Endpoints[0].Pool.Waiting, ahead, waiting)
			}
		}
		wait()
		wait()
		shows("for a role", 2, 0)
		refused("for a role")
		time.Sleep(50 * time.Second)
		cfg.Limits.AcquireTimeout = time.Hour
		if err := u.Update(cfg.Settings); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		shows("longer than the old limit", 2, 0)
		b.become("a:1", upstream.Primary)
		l := <-leased
		shows("with the role", 0, 1)
		if !u.Own().BeginWait() {
			t.Error("BeginWait was refused")
		}
		shows("for something else", 1, 1)
		refused("at the pool")
		if u.Own().BeginWait() {
			t.Error("BeginWait was not refused")
		}
		u.Own().EndWait()
		wait()
		shows("at the pool", 0, 2)
		if u.Own().BeginWait() {
			t.Error("BeginWait was not refused beside those at the pool")
		}
		for range 2 {
			l.Release()
			l = <-leased
		}
		l.Release()
		u.Close()
	})
}

// TestRoleIsKept has a server be slow, and full, for a time.
func TestRoleIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReplicas(map[string]upstream.Role{"a:1": upstream.Primary})
		u := start(t, b.config(upstream.TargetPrimary, "a:1"))
		l := acquire(t, u)
		b.mu.Lock()
		b.full["a:1"] = true
		b.mu.Unlock()
		time.Sleep(time.Minute)
		if e := u.Status().Endpoints[0]; e.Role != upstream.Primary || !strings.Contains(e.LastError, "too many") {
			t.Errorf("%+v", e)
		}
		b.mu.Lock()
		delete(b.full, "a:1")
		b.mu.Unlock()
		time.Sleep(time.Second)
		b.become("a:1", silent)
		time.Sleep(2 * time.Second)
		b.become("a:1", upstream.Primary)
		time.Sleep(time.Minute)
		l.Release()
		acquire(t, u).Release()
		if s := u.Status().Endpoints[0]; b.opened["a:1"] != 1 || s.Role != upstream.Primary {
			t.Errorf("opened %d: %+v", b.opened["a:1"], s)
		}
		u.Close()
	})
}

// TestLoginShowsRole has a server become a standby between two questions: no caller gets a connection to it.
func TestLoginShowsRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReplicas(map[string]upstream.Role{"a:1": upstream.Primary, "b:1": upstream.Standby})
		u := start(t, b.config(upstream.TargetPrimary, "a:1", "b:1"))
		synctest.Wait()
		b.become("a:1", upstream.Standby)
		b.become("b:1", upstream.Primary)
		l := acquire(t, u)
		if l.Endpoint() != "b:1" || b.opened["a:1"] != 1 || b.closed.Load() != 1 {
			t.Errorf("leased at %s, opened %v", l.Endpoint(), b.opened)
		}
		if e := u.Status().Endpoints[0]; e.Failures != 0 {
			t.Errorf("%+v", e)
		}
		b.become("a:1", upstream.Primary)
		b.become("b:1", upstream.Standby)
		time.Sleep(roleGap)
		u.Doubt("a:1")
		u.Doubt("b:1")
		synctest.Wait()
		if a, b := u.Status().Endpoints[0].Role, u.Status().Endpoints[1].Role; a != upstream.Primary || b != upstream.Standby {
			t.Errorf("in doubt a is %s and b is %s", a, b)
		}
		l.Release()
		if b.closed.Load() != 2 {
			t.Error("a connection to the former primary is kept")
		}
		u.Close()
	})
}

// roleGap is longer than the least time between two questions.
const roleGap = 200 * time.Millisecond

// TestFailedOpenOfConfirmedRole has a caller get the error of an endpoint that has the role and cannot be used.
func TestFailedOpenOfConfirmedRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReplicas(map[string]upstream.Role{"a:1": upstream.Primary})
		cfg := b.config(upstream.TargetPrimary, "a:1")
		fails, open := 2, cfg.Open
		cfg.Open = func(ctx context.Context, addr string) (*conn, error) {
			if fails--; fails >= 0 {
				return nil, errRefused
			}
			return open(ctx, addr)
		}
		u := start(t, cfg)
		if l, err := u.Acquire(t.Context()); err != nil {
			t.Errorf("after a failure or two, and an answer: %v", err)
		} else {
			l.Discard()
		}
		fails = 1000
		began := time.Now()
		if _, err := u.Acquire(t.Context()); !errors.Is(err, errRefused) || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		u.Close()
	})
}

// TestPauseStopsQuestions has operators replace the primary in a pause: waits have no limit, and no connection is open.
func TestPauseStopsQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReplicas(map[string]upstream.Role{"a:1": upstream.Primary, "b:1": upstream.Standby})
		u := start(t, b.config(upstream.TargetPrimary, "a:1", "b:1"))
		acquire(t, u).Release()
		if err := u.Pause(time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(roleGap)
		b.mu.Lock()
		if b.open != 0 {
			t.Errorf("%d connections are open in the pause", b.open)
		}
		b.mu.Unlock()
		leased := make(chan upstream.Lease[*conn])
		for range 2 {
			go func() { leased <- acquire(t, u) }()
		}
		time.Sleep(time.Minute)
		b.become("a:1", upstream.Standby)
		b.become("b:1", upstream.Primary)
		u.Resume()
		for range 2 {
			l := <-leased
			if l.Endpoint() != "b:1" {
				t.Errorf("leased at %s", l.Endpoint())
			}
			l.Release()
		}
		u.Close()
	})
}

// TestTargetChanges has an Update add and remove the Target, and endpoints come and go.
func TestTargetChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReplicas(map[string]upstream.Role{"a:1": upstream.Primary, "b:1": upstream.Standby, "c:1": upstream.Standby})
		cfg := b.config(upstream.TargetAny, "a:1", "b:1")
		u := start(t, cfg)
		set := func(target upstream.Target, addrs ...string) {
			t.Helper()
			s := cfg.Settings
			s.Target, s.Endpoints = target, upstream.Endpoints(addrs...)
			if err := u.Update(s); err != nil {
				t.Fatal(err)
			}
		}
		for _, step := range []struct {
			target upstream.Target
			addrs  string
			want   string
		}{
			{upstream.TargetAny, "a:1 b:1", "a b"},
			{upstream.TargetPrimary, "a:1 b:1", "a"},
			{upstream.TargetStandby, "a:1 b:1", "b"},
			{upstream.TargetStandby, "a:1 b:1 c:1", "b c"},
			{upstream.TargetStandby, "a:1 c:1", "c"},
			{upstream.TargetAny, "a:1 c:1", "a c"},
			{upstream.TargetPreferStandby, "a:1", "a"},
		} {
			set(step.target, strings.Fields(step.addrs)...)
			synctest.Wait()
			if got := usedBy(u); got != step.want {
				t.Errorf("target %s of %s: leases at %s, want %s", step.target, step.addrs, got, step.want)
			}
			if s := u.Status(); s.Target != step.target {
				t.Errorf("status: %s", s.Target)
			}
		}
		if u.OnlyEndpoint() != "a:1" {
			t.Error(u.OnlyEndpoint())
		}
		u.Close()
		b.allClosed(t)
	})
}

// TestRoleComesAndGoes has an endpoint lose and get its role repeatedly, while a lease from before the first loss is
// out: the endpoint keeps nothing else from earlier times.
func TestRoleComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReplicas(map[string]upstream.Role{"a:1": upstream.Primary})
		u := start(t, b.config(upstream.TargetPrimary, "a:1"))
		held := acquire(t, u)
		for range 20 {
			for _, role := range []upstream.Role{upstream.Standby, upstream.Primary} {
				b.become("a:1", role)
				u.Doubt("a:1")
				time.Sleep(time.Second)
			}
			acquire(t, u).Release()
		}
		synctest.Wait()
		if s := u.Status().Endpoints[0].Pool; s.MaxSize != 4 || s.InUse != 1 || s.Idle != 1 {
			t.Errorf("the pools of the endpoint: %+v", s)
		}
		held.Release()
		u.Close()
		synctest.Wait()
		b.allClosed(t)
	})
}
