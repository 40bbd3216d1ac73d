package upstream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var errRefused = errors.New("refused")

// backends are simulated endpoints: a connection is a *conn.
type backends struct {
	mu      sync.Mutex
	down    map[string]bool // refuses connections
	hanging map[string]bool // does not answer when a connection is opened
	sick    map[string]bool // fails probes
	opened  map[string]int
	closed  atomic.Int64
	refused []string     // endpoints that refused a tenant
	log     bytes.Buffer // written under mu
}

type conn struct {
	endpoint, tenant string
	role             upstream.Role // at its opening
}

func newBackends() *backends {
	return &backends{down: map[string]bool{}, hanging: map[string]bool{}, sick: map[string]bool{}, opened: map[string]int{}}
}

// allClosed checks that every connection that was opened has been closed.
func (b *backends) allClosed(t *testing.T) {
	t.Helper()
	opened := 0
	for _, n := range b.opened {
		opened += n
	}
	if int(b.closed.Load()) != opened {
		t.Errorf("%d opened, %d closed", opened, b.closed.Load())
	}
}

func (b *backends) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(p)
}

func (b *backends) logged(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.log.String(), text)
}

func (b *backends) set(which map[string]bool, addr string, value bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	which[addr] = value
}

func (b *backends) open(ctx context.Context, addr string) (*conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hanging[addr] {
		b.mu.Unlock()
		<-ctx.Done()
		b.mu.Lock()
		return nil, ctx.Err()
	}
	if b.down[addr] {
		return nil, errRefused
	}
	b.opened[addr]++
	return &conn{endpoint: addr}, nil
}

func (b *backends) probe(_ context.Context, addr string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sick[addr] {
		return errors.New("sick")
	}
	return nil
}

func (b *backends) config(addrs ...string) upstream.Config[*conn] {
	return upstream.Config[*conn]{
		Name: "api", Settings: upstream.Settings{Endpoints: upstream.Endpoints(addrs...)}, Open: b.open, Close: func(*conn) { b.closed.Add(1) },
		Logger: slog.New(slog.NewTextHandler(b, nil)),
	}
}

func start(t *testing.T, cfg upstream.Config[*conn]) *upstream.Upstream[*conn] {
	t.Helper()
	u, err := upstream.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u
}

func acquire(t *testing.T, u *upstream.Upstream[*conn]) upstream.Lease[*conn] {
	t.Helper()
	l, err := u.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestBalances(t *testing.T) {
	for _, test := range []struct {
		balance upstream.Balance
		want    string
	}{
		{upstream.First, "a:1 a:1 a:1 a:1 a:1 a:1"},
		{upstream.RoundRobin, "a:1 b:1 c:1 a:1 b:1 c:1"},
	} {
		b := newBackends()
		cfg := b.config("a:1", "b:1", "c:1")
		cfg.Balance = test.balance
		u := start(t, cfg)
		var got []string
		for range 6 {
			l := acquire(t, u)
			got = append(got, l.Endpoint())
			if l.Value().endpoint != l.Endpoint() {
				t.Errorf("a connection to %s in a lease of %s", l.Value().endpoint, l.Endpoint())
			}
			l.Release()
		}
		if s := strings.Join(got, " "); s != test.want {
			t.Errorf("%v: %s, want %s", test.balance, s, test.want)
		}
	}
}

func TestP2CCountsLeases(t *testing.T) {
	u := start(t, newBackends().config("a:1", "b:1"))
	for range 10 {
		defer acquire(t, u).Release()
	}
	for _, e := range u.Status().Endpoints {
		if e.Leases != 5 || e.Pool.InUse != 5 {
			t.Errorf("%s has %d leases, %d in use, want 5: of two the emptier is taken", e.Address, e.Leases, e.Pool.InUse)
		}
	}
}

func TestRingHashKeepsKeys(t *testing.T) {
	b := newBackends()
	cfg := b.config("a:1", "b:1", "c:1")
	cfg.Balance = upstream.RingHash
	u := start(t, cfg)
	at := func(key string) string {
		l, err := u.AcquireKey(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		return l.Endpoint()
	}
	first := map[string]string{}
	for k := range 50 {
		first[fmt.Sprint(k)] = at(fmt.Sprint(k))
	}
	if err := u.Update(upstream.Settings{Endpoints: upstream.Endpoints("c:1", "a:1"), Balance: upstream.RingHash}); err != nil {
		t.Fatal(err)
	}
	for key, was := range first {
		if now := at(key); was != "b:1" && now != was {
			t.Errorf("key %s moved from %s to %s when b:1 left", key, was, now)
		}
	}
}

func TestFailover(t *testing.T) {
	b := newBackends()
	b.down["a:1"] = true
	cfg := b.config("a:1", "b:1")
	cfg.Balance = upstream.First
	u := start(t, cfg)
	l := acquire(t, u)
	if l.Endpoint() != "b:1" {
		t.Errorf("leased from %s, want b:1", l.Endpoint())
	}
	l.Release()
	b.set(b.down, "b:1", true)
	l = acquire(t, u) // an idle connection is left
	_, err := u.Acquire(t.Context())
	l.Release()
	var ue *upstream.Error
	if !errors.As(err, &ue) || !errors.Is(err, upstream.ErrUnavailable) || !errors.Is(err, pool.ErrOpen) || !errors.Is(err, errRefused) {
		t.Fatalf("got %v, want *Error, ErrUnavailable, pool.ErrOpen and the cause", err)
	}
	if len(ue.Causes) != 2 || upstream.Exhausted(err) {
		t.Errorf("causes %v, exhausted %v; want both endpoints and false", ue.Causes, upstream.Exhausted(err))
	}
	for _, part := range []string{`upstream "api"`, "a:1", "b:1"} {
		if n := strings.Count(err.Error(), part); n != 1 {
			t.Errorf("the error has %q %d times: %v", part, n, err)
		}
	}
	if !strings.Contains(err.Error(), "refused") {
		t.Errorf("the error lacks the cause: %v", err)
	}
}

func TestExhaustedIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.config("a:1")
		cfg.Limits = pool.Limits{MaxSize: 1, AcquireTimeout: time.Second}
		cfg.Ejection = upstream.Ejection{Failures: 1}
		u := start(t, cfg)
		if u.AllInUse() {
			t.Error("all in use before the first lease")
		}
		l := acquire(t, u)
		if !u.AllInUse() {
			t.Error("not all in use with all leased")
		}
		_, err := u.Acquire(t.Context())
		if !upstream.Exhausted(err) || !errors.Is(err, pool.ErrTimeout) || !errors.Is(err, upstream.ErrUnavailable) {
			t.Errorf("got %v, want an exhausted pool", err)
		}
		if e := u.Status().Endpoints[0]; e.Ejected || e.Failures != 0 || e.Leases != 1 {
			t.Errorf("the endpoint is blamed: %+v", e)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := u.Acquire(ctx); !errors.Is(err, context.Canceled) || upstream.Exhausted(err) {
			t.Errorf("cancelled: %v", err)
		}
		l.Release()
		u.Close()
	})
}

func TestNoEndpoints(t *testing.T) {
	u := start(t, newBackends().config())
	if _, err := u.Acquire(t.Context()); !errors.Is(err, upstream.ErrUnavailable) || !strings.Contains(err.Error(), "no endpoints") {
		t.Errorf("got %v", err)
	}
}

func TestConfigErrors(t *testing.T) {
	b := newBackends()
	for _, change := range []func(*upstream.Config[*conn]){
		func(c *upstream.Config[*conn]) { c.Open = nil },
		func(c *upstream.Config[*conn]) { c.Close = nil },
		func(c *upstream.Config[*conn]) { c.Endpoints = upstream.Endpoints("a") },
		func(c *upstream.Config[*conn]) { c.Endpoints = upstream.Endpoints("a:1", "a:1") },
		func(c *upstream.Config[*conn]) { c.Endpoints[0].Weight = -1 },
		func(c *upstream.Config[*conn]) { c.Endpoints[0].Weight = upstream.MaxWeight + 1 },
		func(c *upstream.Config[*conn]) { c.Endpoints[0].Priority = -1 },
		func(c *upstream.Config[*conn]) { c.Endpoints = make([]upstream.Endpoint, upstream.MaxEndpoints+1) },
		func(c *upstream.Config[*conn]) { c.SlowStart = -1 },
		func(c *upstream.Config[*conn]) { c.OnRemoved = 17 },
		func(c *upstream.Config[*conn]) { c.OnRemoved = upstream.CloseRemoved },
		func(c *upstream.Config[*conn]) { c.RemovedTimeout = time.Second },
		func(c *upstream.Config[*conn]) { c.Balance = 17 },
		func(c *upstream.Config[*conn]) { c.Limits.MinIdle = -1 },
		func(c *upstream.Config[*conn]) { c.Health.Rise = -1 },
		func(c *upstream.Config[*conn]) { c.Ejection.Base = -1 },
	} {
		cfg := b.config("a:1")
		change(&cfg)
		if _, err := upstream.New(cfg); !errors.Is(err, upstream.ErrConfig) {
			t.Errorf("got %v, want ErrConfig", err)
		}
	}
}
