package pool_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/pool"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	ctx     = context.Background()
	errDown = errors.New("backend is down")
)

// res is a resource that knows whether it is open and leased.
type res struct {
	id     int
	bad    atomic.Bool // fails Check
	closed atomic.Bool
	leased atomic.Bool
}

// backend makes resources, and detects forbidden uses by a pool.
type backend struct {
	t      testing.TB
	mu     sync.Mutex
	opens  int
	open   int
	most   int // open at once
	limit  int // when set, no open may bring open above it
	down   bool
	gate   chan struct{} // when set, Open waits for it
	dialed int           // Opens waiting or working at once, and the most of them
	dials  int
}

func (b *backend) Open(ctx context.Context) (*res, error) {
	b.mu.Lock()
	gate := b.gate
	b.dialed++
	b.dials = max(b.dials, b.dialed)
	b.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dialed--
	b.opens++
	if b.down {
		return nil, errDown
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	b.open++
	b.most = max(b.most, b.open)
	if b.limit > 0 && b.open > b.limit {
		b.t.Errorf("%d resources are open, the limit is %d", b.open, b.limit)
	}
	return &res{id: b.opens}, nil
}

func (b *backend) Close(r *res) {
	if r.closed.Swap(true) {
		b.t.Errorf("resource %d is closed twice", r.id)
	}
	if r.leased.Load() {
		b.t.Errorf("resource %d is closed while leased", r.id)
	}
	b.mu.Lock()
	b.open--
	b.mu.Unlock()
}

func (b *backend) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *backend) count() (opens, open int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opens, b.open
}

// start makes a pool on b that is closed, and must be empty, when t ends.
func (b *backend) start(limits pool.Limits, change ...func(*pool.Config[*res])) *pool.Pool[*res] {
	b.t.Helper()
	cfg := pool.Config[*res]{Name: "test", Open: b.Open, Close: b.Close, Limits: limits}
	for _, c := range change {
		c(&cfg)
	}
	p, err := pool.New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// end closes p and checks that nothing is left of it.
func (b *backend) end(p *pool.Pool[*res]) {
	b.t.Helper()
	p.Close()
	if err := p.Drain(ctx); err != nil {
		b.t.Error(err)
	}
	if _, open := b.count(); open != 0 {
		b.t.Errorf("%d resources are open after Close", open)
	}
	s := p.Stats()
	if s.Idle+s.InUse+s.Opening+s.Busy+s.Waiting+s.Direct != 0 {
		b.t.Errorf("after Close: %+v", s)
	}
}

func acquire(t testing.TB, p *pool.Pool[*res]) pool.Lease[*res] {
	t.Helper()
	l, err := p.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func want[V comparable](t testing.TB, what string, got, want V) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func wantErr(t testing.TB, err error, targets ...error) *pool.Error {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("error %v is not %v", err, target)
		}
	}
	var e *pool.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v is not a *pool.Error", err)
	}
	return e
}

// result is the result of an Acquire in its own goroutine.
type result struct {
	lease pool.Lease[*res]
	err   error
	done  bool
}

// begin acquires in a goroutine; read the result after synctest.Wait.
func begin(ctx context.Context, p *pool.Pool[*res]) *result {
	r := new(result)
	go func() {
		r.lease, r.err = p.Acquire(ctx)
		r.done = true
	}()
	return r
}
