package pool_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// TestBudgetAtRandom takes random steps with pools of a Budget. At each moment no more resources are open or being opened
// than the limit and the trials allow, and the Budget counts those that there are. In the end everybody is served.
func TestBudgetAtRandom(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			m := newBudgetModel(t, seed)
			for range 200 {
				m.step()
				synctest.Wait()
				m.check()
			}
			m.end()
		})
	}
}

// budgetModel has the pools of TestBudgetAtRandom, and what was done with them.
type budgetModel struct {
	t        *testing.T
	mu       sync.Mutex // guards rnd, there, leases and the results of acquires
	rnd      *rand.Rand
	shared   *pool.Budget
	most     atomic.Int64 // resources that may be there
	pools    []*pool.Pool[*int]
	down     [5]atomic.Bool // by pool: opens fail
	there    int            // resources that are open, or being opened or closed
	acquires []*modelAcquire
	leases   []pool.Lease[*int]
}

// modelAcquire is a caller of a pool.
type modelAcquire struct {
	cancel context.CancelFunc
	lease  pool.Lease[*int]
	err    error
	done   bool
}

// replacing marks the context of a Replace, which has its place already.
type replacing struct{}

func newBudgetModel(t *testing.T, seed uint64) *budgetModel {
	m := &budgetModel{rnd: rand.New(rand.NewPCG(seed, 1)), t: t}
	limit, trials := 1+int(seed%5), int(seed%3)
	m.shared = pool.NewBudget(limit, trials)
	m.most.Store(int64(limit + trials))
	for i := range 2 + m.n(4) {
		p, err := pool.New(pool.Config[*int]{
			Budget: m.shared, Open: func(ctx context.Context) (*int, error) { return m.open(ctx, i) },
			Close:  func(*int) { m.nap(); m.count(-1) },
			Limits: pool.Limits{MaxSize: 1 + m.n(3), MinIdle: m.n(2), OpenTimeout: time.Hour, IdleTimeout: time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
		m.pools = append(m.pools, p)
	}
	return m
}

func (m *budgetModel) n(below int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rnd.IntN(below)
}

// count adds n to the resources that are there, and returns their number.
func (m *budgetModel) count(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.there += n
	return m.there
}

func (m *budgetModel) nap() { time.Sleep(time.Duration(m.n(20)) * time.Millisecond) }

// open is the Open of a pool.
func (m *budgetModel) open(ctx context.Context, i int) (*int, error) {
	if there, most := m.count(1), m.most.Load(); int64(there) > most && ctx.Value(replacing{}) == nil {
		m.t.Errorf("%d resources are there, the limit and the trials are %d", there, most)
	}
	if m.n(6) == 0 {
		time.Sleep(3 * time.Second) // longer than a trial may be beside the limit
	}
	if m.nap(); m.down[i].Load() || ctx.Err() != nil {
		m.count(-1)
		return nil, errDown
	}
	return new(int), nil
}

// step does one thing.
func (m *budgetModel) step() {
	i := m.n(len(m.pools))
	p := m.pools[i]
	switch m.n(15) {
	case 0, 1, 2, 3:
		m.acquire(p)
	case 4, 5, 6, 7:
		if l, ok := m.takeLease(); ok {
			l.Release()
		}
	case 8:
		if l, ok := m.takeLease(); ok {
			go m.replace(l)
		}
	case 9:
		m.down[i].Store(!m.down[i].Load())
	case 10:
		if len(m.acquires) > 0 {
			m.acquires[m.n(len(m.acquires))].cancel()
		}
	case 11:
		p.Renew()
	case 12:
		p.GiveUp(errDown)
	case 13:
		if m.n(2) == 0 {
			_ = p.Pause()
		} else {
			p.Resume()
		}
	default:
		if m.n(4) == 0 {
			limit, trials := 1+m.n(6), m.n(3)
			m.most.Store(max(m.most.Load(), int64(limit+trials)))
			m.shared.SetLimit(limit, trials)
			synctest.Wait() // for opens that were permitted before
			m.most.Store(int64(limit + trials))
		}
	}
	if m.n(2) == 0 {
		time.Sleep(time.Duration(m.n(100)) * time.Millisecond)
	}
}

func (m *budgetModel) acquire(p *pool.Pool[*int]) {
	within, cancel := context.WithCancel(ctx)
	a := &modelAcquire{cancel: cancel}
	m.acquires = append(m.acquires, a)
	go func() {
		l, err := p.Acquire(within)
		m.mu.Lock()
		defer m.mu.Unlock()
		a.lease, a.err, a.done = l, err, true
	}()
}

func (m *budgetModel) replace(l pool.Lease[*int]) {
	if l, err := l.Replace(context.WithValue(ctx, replacing{}, true)); err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.leases = append(m.leases, l)
	}
}

// takeLease removes a lease from those that callers have, if there is one.
func (m *budgetModel) takeLease() (l pool.Lease[*int], ok bool) {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	waiting := m.acquires[:0]
	for _, a := range m.acquires {
		switch {
		case !a.done:
			waiting = append(waiting, a)
		case a.err == nil:
			m.leases = append(m.leases, a.lease)
		}
	}
	if m.acquires = waiting; len(m.leases) == 0 {
		return l, false
	}
	i, last := m.rnd.IntN(len(m.leases)), len(m.leases)-1
	l, m.leases[i] = m.leases[i], m.leases[last]
	m.leases = m.leases[:last]
	return l, true
}

// check compares what the Budget counts with what is there. All goroutines wait for time to pass, or for others.
func (m *budgetModel) check() {
	if used, there := m.shared.Used(), m.count(0); used != there {
		m.t.Fatalf("the Budget counts %d resources, there are %d", used, there)
	}
}

// end has everything work: all callers are served, and nothing is left.
func (m *budgetModel) end() {
	for i, p := range m.pools {
		m.down[i].Store(false)
		p.Resume()
	}
	for range 300 {
		time.Sleep(time.Second)
		for l, ok := m.takeLease(); ok; l, ok = m.takeLease() {
			l.Release()
		}
	}
	if len(m.acquires) > 0 {
		m.t.Errorf("%d callers wait for ever; %d resources are used of %d", len(m.acquires), m.shared.Used(), m.most.Load())
	}
	for _, a := range m.acquires {
		a.cancel()
	}
	for _, p := range m.pools {
		if err := p.Drain(ctx); err != nil {
			m.t.Error(err)
		}
	}
	m.check()
	want(m.t, "resources at the end", m.count(0), 0)
}
