package pool_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// crowd is clients that act in the same instant, in an unknown order, which TestModel, a sequence,
// cannot show. So it does not predict which client is served, but checks invariants.
type crowd struct {
	*testing.T
	rnd    *rand.Rand
	b      *backend
	p      *pool.Pool[*res]
	limits pool.Limits
	now    int // the round
	inside []*visitor
}

// visitor is one acquire, until it has failed or its lease is given back.
type visitor struct {
	done   atomic.Bool // the result is known
	lease  pool.Lease[*res]
	err    error
	round  int
	ctx    context.Context
	cancel context.CancelFunc
}

func (v *visitor) release() {
	v.lease.Value().leased.Store(false)
	v.lease.Release()
}

func (v *visitor) discard() {
	v.lease.Value().leased.Store(false)
	v.lease.Discard()
}

func TestInTheSameInstant(t *testing.T) {
	first, n := uint64(1), *modelSeeds
	if *modelSeed != 0 {
		first, n = *modelSeed, 1
	}
	for seed := first; seed < first+n && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			w := &crowd{T: t, rnd: rand.New(rand.NewPCG(seed, 1)), b: &backend{t: t}}
			w.open()
			defer w.p.Close() // a failure must not leave clients waiting
			for w.now = range 60 {
				w.round()
				w.compare()
				if t.Failed() {
					t.Fatalf("seed %d, round %d, %+v (run with -model.seed=%d)", seed, w.now, w.limits, seed)
				}
			}
			w.finish()
		})
	}
}

// ms is up to n milliseconds: so few that much happens at the same.
func ms(n int) time.Duration { return time.Duration(rand.IntN(n+1)) * time.Millisecond }

func oneIn(n int) error {
	if rand.IntN(n) == 0 {
		return errDown
	}
	return nil
}

func (w *crowd) open() {
	size := 1 + w.rnd.IntN(6)
	w.limits = pool.Limits{
		MaxSize: size, MinIdle: min(w.rnd.IntN(3), size),
		AcquireTimeout: []time.Duration{0, 3 * time.Millisecond, 40 * time.Millisecond, time.Hour}[w.rnd.IntN(4)],
	}
	if w.rnd.IntN(2) == 0 { // else the pool's timer does not help forgotten waiters
		w.limits.IdleTimeout, w.limits.CheckAfter = 50*time.Millisecond, 10*time.Millisecond
		w.limits.MaxLifetime = []time.Duration{0, 100 * time.Millisecond}[w.rnd.IntN(2)]
		w.limits.CheckInterval = []time.Duration{0, 20 * time.Millisecond}[w.rnd.IntN(2)]
	}
	if w.rnd.IntN(2) == 0 {
		w.limits.MaxWarm = w.limits.MinIdle + w.rnd.IntN(size-w.limits.MinIdle+1)
	}
	w.b.limit = 6
	if w.rnd.IntN(4) == 0 {
		w.limits.Overflow, w.b.limit = pool.OverflowDirect, 0
	}
	w.p = w.b.start(w.limits, func(c *pool.Config[*res]) {
		c.Open = func(ctx context.Context) (*res, error) { time.Sleep(ms(2)); return w.b.Open(ctx) }
		c.Close = func(r *res) { time.Sleep(ms(1)); w.b.Close(r) }
		c.Check = func(context.Context, *res) error { time.Sleep(ms(2)); return oneIn(8) }
		c.Reset = func(context.Context, *res) error { time.Sleep(ms(1)); return oneIn(16) }
	})
}

// round does several things, each at one of a few instants, and waits until the pool is idle.
func (w *crowd) round() {
	at := func(fs ...func()) {
		go func() {
			time.Sleep(time.Millisecond + ms(2)) // not before the round has been made up
			for _, f := range fs {
				f()
			}
		}()
	}
	var stay, waiting []*visitor
	for _, v := range w.inside {
		if !v.done.Load() {
			waiting = append(waiting, v)
			stay = append(stay, v)
		}
	}
	for _, v := range w.inside {
		switch k := w.rnd.IntN(8); {
		case !v.done.Load() && k == 0:
			at(v.cancel)
		case !v.done.Load() || v.err != nil:
		case k < 2 && len(waiting) > 0: // a client that is being served gives up
			at(waiting[w.rnd.IntN(min(2, len(waiting)))].cancel, v.release)
		case k < 4:
			at(v.release)
		case k == 4:
			at(v.discard)
		default:
			stay = append(stay, v)
		}
	}
	w.inside = stay
	for range w.rnd.IntN(6) {
		w.arrive(at)
	}
	if w.rnd.IntN(8) == 0 {
		n := 1 + w.rnd.IntN(6)
		w.limits.MaxSize = n
		at(func() {
			if err := w.p.Resize(n); err != nil {
				w.Error(err)
			}
		})
	}
	time.Sleep(15 * time.Millisecond) // all sleepers have woken
	synctest.Wait()
}

// arrive has one more client acquire, some with little time.
func (w *crowd) arrive(at func(...func())) {
	v := &visitor{round: w.now}
	if w.rnd.IntN(3) == 0 {
		v.ctx, v.cancel = context.WithTimeout(ctx, time.Duration(1+w.rnd.IntN(40))*time.Millisecond)
	} else {
		v.ctx, v.cancel = context.WithCancel(ctx)
	}
	w.inside = append(w.inside, v)
	at(func() {
		v.lease, v.err = w.p.Acquire(v.ctx)
		if v.err == nil && v.lease.Value().leased.Swap(true) {
			w.Errorf("resource %d is leased twice", v.lease.Value().id)
		}
		v.done.Store(true)
	})
}

// compare reports errors in the state of the idle pool.
func (w *crowd) compare() {
	waiting, holding, oldest, newest := 0, 0, w.now+1, -1
	for _, v := range w.inside {
		switch {
		case !v.done.Load():
			waiting++
			oldest = min(oldest, v.round)
		case v.err == nil:
			holding++
			newest = max(newest, v.round)
		case v.ctx.Err() != nil:
			// It may have been too late for AcquireTimeout as well.
		case w.limits.AcquireTimeout == 0 || !errors.Is(v.err, pool.ErrTimeout):
			w.Errorf("a client whose context lasts failed: %v", v.err)
		}
	}
	s := w.p.Stats()
	want(w, "waiting", s.Waiting, waiting)
	want(w, "in use and direct", s.InUse+s.Direct, holding)
	size := s.Idle + s.InUse + s.Opening + s.Busy
	if waiting > 0 && (s.Idle > 0 || size < s.MaxSize) {
		w.Errorf("%d clients wait for nothing: %+v", waiting, s)
	}
	if size > s.MaxSize && s.Idle+s.Opening > 0 {
		w.Errorf("too large: %+v", s)
	}
	if oldest < newest && w.limits.Overflow == pool.OverflowWait {
		w.Errorf("a client of round %d holds a resource, one of round %d waits", newest, oldest)
	}
}

func (w *crowd) finish() {
	for _, v := range w.inside {
		v.cancel()
	}
	synctest.Wait()
	for _, v := range w.inside {
		if !v.done.Load() {
			w.Error("a client waits although its context has ended")
		} else if v.err == nil {
			v.release()
		}
	}
	w.b.end(w.p)
	s := w.p.Stats()
	want(w, "leases returned", s.Released+s.Discarded, s.Acquired)
}

// The peak counts leases that take no more than the idle stack.
func TestPeakOfInstantLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MinIdle: 3, MaxSize: 3})
		synctest.Wait()
		var leases []pool.Lease[*res]
		for n := range 3 {
			leases = append(leases, acquire(t, p))
			want(t, "most in use", p.Stats().PeakInUse, n+1)
		}
		for _, l := range leases {
			l.Release()
		}
		b.end(p)
	})
}

// The peak does not count an acquire that found only resources which fail their check.
func TestPeakWithoutFailedChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		var broken atomic.Bool
		p := b.start(pool.Limits{MinIdle: 2, MaxSize: 3, MaxWaiters: -1}, func(c *pool.Config[*res]) {
			c.Check = func(context.Context, *res) error {
				if broken.Load() {
					return errDown
				}
				return nil
			}
		})
		synctest.Wait()
		held := acquire(t, p)
		time.Sleep(2 * pool.DefaultCheckAfter)
		broken.Store(true)
		b.set(func() { b.down = true })
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = acquireErrCtx(short, p)
		s := p.Stats()
		want(t, "closed by checks", s.ClosedCheck, 2)
		want(t, "most in use", s.PeakInUse, 1)
		held.Release()
		b.end(p)
	})
}
