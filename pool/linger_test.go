package pool_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// lingerFor is the time for which the resources of these tests linger.
const lingerFor = 20 * time.Millisecond

// lingers releases a lease whose resource is to linger.
func lingers(t *testing.T, l pool.Lease[*res], d time.Duration) pool.Lingering[*res] {
	t.Helper()
	l.Value().leased.Store(false)
	w, ok := l.Linger(d)
	if !ok {
		t.Fatal("it does not linger")
	}
	return w
}

// TestLinger has a waiter come while a resource lingers: it gets the resource when the time is over, or earlier if the holder yields,
// ends the lingering or acquires the resource again and releases it.
func TestLinger(t *testing.T) {
	for _, end := range []struct {
		name  string
		do    func(w pool.Lingering[*res]) (again bool)
		after time.Duration
	}{
		{"the time is over", func(pool.Lingering[*res]) bool { return false }, lingerFor},
		{"ended", func(w pool.Lingering[*res]) bool { w.End(); return false }, 0},
		{"yielded", func(w pool.Lingering[*res]) bool { _, ok := w.Acquire(true); return ok }, 0},
		{"used again", func(w pool.Lingering[*res]) bool {
			l, ok := w.Acquire(false)
			if ok {
				time.Sleep(time.Second)
				l.Release()
			}
			return ok
		}, time.Second},
	} {
		t.Run(end.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &backend{t: t}
				p := b.start(pool.Limits{MaxSize: 1})
				defer b.end(p)
				l, _ := p.Acquire(t.Context())
				r, w := l.Value(), lingers(t, l, lingerFor)
				if s := p.Stats(); s.InUse != 1 || s.Idle != 0 || !p.AllInUse() {
					t.Errorf("lingering: %+v", s)
				}
				start, got := time.Now(), make(chan pool.Lease[*res])
				go func() {
					l, err := p.Acquire(t.Context())
					if err != nil || l.Value() != r || time.Since(start) != end.after {
						t.Errorf("after %v the waiter has %v, %v", time.Since(start), l, err)
					}
					got <- l
				}()
				synctest.Wait()
				want(t, "acquired again", end.do(w), end.name == "used again")
				l = <-got
				if _, ok := w.Acquire(false); ok {
					t.Error("what another caller has leased was acquired again")
				}
				w.End()
				l.Release()
				if _, ok := w.Acquire(false); ok {
					t.Error("what another caller has had was acquired again")
				}
			})
		})
	}
}

// TestLingerSpared has others acquire after the time is over: they get other idle resources first, and that of the one who comes back last.
func TestLingerSpared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 3})
		defer b.end(p)
		var held []pool.Lease[*res]
		for range 3 {
			l, _ := p.Acquire(t.Context())
			held = append(held, l)
		}
		held[0].Release()
		first := lingers(t, held[1], lingerFor)
		second := lingers(t, held[2], 0) // nobody waits
		time.Sleep(2 * lingerFor)
		others := func() (list []*res) {
			var leases []pool.Lease[*res]
			for range 3 {
				l, _ := p.Acquire(t.Context())
				list, leases = append(list, l.Value()), append(leases, l)
			}
			for _, l := range slices.Backward(leases) {
				l.Release()
			}
			return list
		}
		l, ok := first.Acquire(false)
		if !ok || l.Value() != held[1].Value() {
			t.Fatal("its holder did not get it")
		}
		first = lingers(t, l, 0)
		if got := others(); got[0] != held[0].Value() || got[1] != held[2].Value() || got[2] != held[1].Value() {
			t.Error("others did not get those first for which nobody comes back, and then the one that was spared first")
		}
		for _, w := range []pool.Lingering[*res]{first, second} {
			if _, ok := w.Acquire(false); ok {
				t.Error("another caller has had it")
			}
		}
		l, _ = p.Acquire(t.Context())
		third := lingers(t, l, 0)
		time.Sleep(time.Minute)
		if l, _ := p.Acquire(t.Context()); l.Value() != held[0].Value() {
			t.Error("it is spared for ever")
		} else {
			l.Release()
		}
		third.End()
	})
}

// TestLingerEnds pauses, resizes and closes a pool in which a resource lingers.
func TestLingerEnds(t *testing.T) {
	for name, end := range map[string]func(p *pool.Pool[*res]){
		"pause":  func(p *pool.Pool[*res]) { _ = p.Pause(); synctest.Wait(); p.Resume() },
		"close":  func(p *pool.Pool[*res]) { p.Close() },
		"resize": func(p *pool.Pool[*res]) { _ = p.Resize(1); time.Sleep(lingerFor); synctest.Wait() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &backend{t: t}
				p := b.start(pool.Limits{MaxSize: 2})
				defer b.end(p)
				other, _ := p.Acquire(t.Context())
				l, _ := p.Acquire(t.Context())
				w := lingers(t, l, lingerFor)
				end(p)
				if _, ok := w.Acquire(false); ok || !l.Value().closed.Load() {
					t.Error("it is still there")
				}
				other.Release()
				if l, err := p.Acquire(t.Context()); err == nil {
					l.Discard()
				}
			})
		})
	}
}

// TestLingerRefused has pools in which nothing lingers.
func TestLingerRefused(t *testing.T) {
	for name, change := range map[string]func(c *pool.Config[*res]){
		"reset": func(c *pool.Config[*res]) { c.Reset = func(context.Context, *res) error { return nil } },
		"leaks": func(c *pool.Config[*res]) { c.LeakAfter, c.OnLeak = time.Hour, func(pool.Leak) {} },
	} {
		t.Run(name, func(t *testing.T) {
			b := &backend{t: t}
			p := b.start(pool.Limits{}, change)
			defer b.end(p)
			l, _ := p.Acquire(t.Context())
			if w, ok := l.Linger(lingerFor); ok || !w.None() {
				t.Error("it lingers")
			}
			l.Release()
		})
	}
}

// TestLingerModel has clients acquire, linger, come back and leave in random order. No resource is leased twice; a client that comes back
// gets the resource exactly if nobody has had it since; and no waiter waits for longer than the others hold and linger.
func TestLingerModel(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			b := &backend{t: t}
			size := 1 + int(seed%4)
			p := b.start(pool.Limits{MaxSize: size, IdleTimeout: time.Second, MaxLifetime: 5 * time.Second})
			defer b.end(p)
			uses := &leases{of: map[*res]int{}}
			var clients sync.WaitGroup
			for n := range lingerers {
				c := &lingerer{T: t, rnd: rand.New(rand.NewPCG(seed, uint64(n))), p: p, uses: uses}
				clients.Go(func() {
					for range lingererRounds {
						c.round()
					}
				})
			}
			clients.Wait()
			if s := p.Stats(); s.Acquired != s.Released+s.Discarded || s.Acquired != lingerers*lingererRounds || s.PeakInUse > size {
				t.Errorf("seed %d: %+v", seed, s)
			}
		})
	}
}

// The clients of TestLingerModel, and for how long each holds a lease at most.
const (
	lingerers      = 12
	lingererRounds = 40
	lingererHolds  = 5 * time.Millisecond
)

// leases counts the leases of each resource.
type leases struct {
	mu sync.Mutex
	of map[*res]int
}

func (l *leases) add(r *res) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of[r]++
	return l.of[r]
}

// lingerer is a client of TestLingerModel.
type lingerer struct {
	*testing.T
	rnd  *rand.Rand
	p    *pool.Pool[*res]
	uses *leases
	w    pool.Lingering[*res]
	of   *res // of w
	was  int  // its leases
}

// upTo returns a random duration below d.
func (c *lingerer) upTo(d time.Duration) time.Duration { return time.Duration(c.rnd.Int64N(int64(d))) }

// round is one lease, and a time without one.
func (c *lingerer) round() {
	start := time.Now()
	l, again := pool.Lease[*res]{}, false
	if !c.w.None() {
		l, again = c.w.Acquire(c.rnd.IntN(3) == 0)
	}
	if !again {
		l = acquire(c, c.p)
	}
	if took := time.Since(start); took > lingerers*(lingererHolds+lingerFor) {
		c.Errorf("an acquire took %v", took)
	}
	r := l.Value()
	if r.leased.Swap(true) {
		c.Error("leased twice")
	}
	if n := c.uses.add(r); again && (r != c.of || n != c.was+1) {
		c.Error("it came back to another resource, or one that another client has had")
	} else {
		c.was = n
	}
	time.Sleep(c.upTo(lingererHolds))
	r.leased.Store(false)
	c.w, c.of = pool.Lingering[*res]{}, r
	switch k := c.rnd.IntN(10); {
	case k < 6:
		if c.w, _ = l.Linger(c.upTo(lingerFor)); c.w.None() { // past its lifetime
			l.Release()
		}
	case k < 9:
		l.Release()
	default:
		l.Discard()
	}
	time.Sleep(c.upTo(2 * lingerFor))
	if c.rnd.IntN(8) == 0 && !c.w.None() {
		c.w.End()
		c.w = pool.Lingering[*res]{}
	}
}

// TestLingerCheckDue has a resource be idle for so long that it has to be checked.
func TestLingerCheckDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 2, CheckAfter: time.Second}, func(c *pool.Config[*res]) {
			c.Check = func(context.Context, *res) error { return nil }
		})
		w := lingers(t, acquire(t, p), 10*time.Second)
		time.Sleep(9 * time.Second)
		want(t, "due while it lingers", w.CheckDue(), false)
		time.Sleep(2 * time.Second)
		want(t, "due after a second", w.CheckDue(), false)
		time.Sleep(time.Second)
		want(t, "due", w.CheckDue(), true)
		l, ok := w.Acquire(false)
		want(t, "leased", ok, true)
		want(t, "due while it is leased", w.CheckDue(), false)
		l.Release()
		b.end(p)
	})
}
