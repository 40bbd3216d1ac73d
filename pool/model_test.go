package pool_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

var (
	modelSeed  = flag.Uint64("model.seed", 0, "run the model test with this seed only")
	modelSeeds = flag.Uint64("model.seeds", 60, "number of seeds of the model test")
)

// client is one acquire: waiting, holding or finished.
type client struct {
	id     int
	cancel context.CancelFunc
	lease  pool.Lease[*res]
	err    error
	done   bool
}

// model is the simplest pool: no time, no concurrency. It knows which client the real one must
// serve, and with which resource.
type model struct {
	max, maxIdle int
	paused       bool
	idle         []*res
	holders      []*client
	queue        []*client
	peak         int // most holders, as far as compare has seen
	maxPeak      int // the largest max
}

func (m *model) size() int { return len(m.idle) + len(m.holders) }

// serve moves waiters to the holders while there is something to give.
func (m *model) serve() {
	for len(m.queue) > 0 && !m.paused && (len(m.idle) > 0 || m.size() < m.max) {
		if n := len(m.idle); n > 0 {
			m.idle = m.idle[:n-1]
		}
		m.holders = append(m.holders, m.queue[0])
		m.queue = m.queue[1:]
	}
}

func (m *model) drop(c *client) {
	is := func(o *client) bool { return o == c }
	m.queue = slices.DeleteFunc(m.queue, is)
	m.holders = slices.DeleteFunc(m.holders, is)
}

// world runs a model and a real pool side by side.
type world struct {
	*testing.T
	rnd  *rand.Rand
	b    *backend
	p    *pool.Pool[*res]
	m    model
	next int
	log  []string
}

const modelTimeout = time.Hour

func TestModel(t *testing.T) {
	first, n := uint64(1), *modelSeeds
	if *modelSeed != 0 {
		first, n = *modelSeed, 1
	}
	for seed := first; seed < first+n; seed++ {
		synctest.Test(t, func(t *testing.T) {
			w := &world{T: t, rnd: rand.New(rand.NewPCG(seed, 0)), b: &backend{t: t}}
			w.m.max = 1 + w.rnd.IntN(6)
			w.p = w.b.start(pool.Limits{MaxSize: w.m.max, IdleTimeout: -1, AcquireTimeout: modelTimeout})
			defer w.p.Close() // a failure must not leave clients waiting
			w.m.maxIdle, w.b.limit = w.m.max, w.m.max
			for range 150 {
				w.step()
				w.compare()
				if t.Failed() {
					t.Fatalf("seed %d (run with -model.seed=%d): %v", seed, seed, w.log)
				}
			}
			w.finish()
			if t.Failed() {
				t.Fatalf("seed %d at the end: %v", seed, w.log)
			}
		})
		if t.Failed() {
			return
		}
	}
}

func (w *world) step() {
	switch k := w.rnd.IntN(100); {
	case k < 45:
		w.acquire()
	case k < 75 && len(w.m.holders) > 0:
		w.giveBack(false)
	case k < 83 && len(w.m.holders) > 0:
		w.giveBack(true)
	case k < 90 && len(w.m.queue) > 0:
		c := w.m.queue[w.rnd.IntN(len(w.m.queue))]
		w.note("cancel %d", c.id)
		w.m.drop(c)
		c.cancel()
		synctest.Wait()
		w.ended(c, context.Canceled)
	case k < 94:
		w.resize()
	case k < 95:
		w.giveUp()
	case k < 97:
		w.expire()
	case k < 98:
		w.outage()
	case w.m.paused:
		w.resume()
	default:
		w.pause()
	}
	synctest.Wait()
}

func (w *world) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) acquire() *client {
	ctx, cancel := context.WithCancel(context.Background())
	c := &client{id: w.next, cancel: cancel}
	w.next++
	w.note("acquire %d", c.id)
	var top *res
	if n := len(w.m.idle); n > 0 {
		top = w.m.idle[n-1]
	}
	w.m.queue = append(w.m.queue, c)
	w.m.serve()
	acquire := []func(context.Context, *pool.Pool[*res]) (pool.Lease[*res], error){
		func(ctx context.Context, p *pool.Pool[*res]) (pool.Lease[*res], error) { return p.Acquire(ctx) },
		beginAndWait, beginAndBeNotified,
	}[w.rnd.IntN(3)]
	go func() {
		defer cancel()
		c.lease, c.err = acquire(ctx, w.p)
		if c.err == nil && c.lease.Value().leased.Swap(true) {
			w.Errorf("resource %d is leased twice", c.lease.Value().id)
		}
		c.done = true
	}()
	synctest.Wait()
	if top != nil && c.lease.Value() != top {
		w.Errorf("client %d did not get resource %d, used last", c.id, top.id)
	}
	return c
}

// giveBack has a random holder release or discard.
func (w *world) giveBack(discard bool) {
	c := w.m.holders[w.rnd.IntN(len(w.m.holders))]
	r := c.lease.Value()
	w.note("return %d, discard %v", c.id, discard)
	w.m.drop(c)
	fits := !w.m.paused && w.m.size() < w.m.max && len(w.m.idle) < w.m.maxIdle
	if !discard && fits {
		w.m.idle = append(w.m.idle, r)
	}
	var head *client
	if len(w.m.queue) > 0 && len(w.m.idle) > 0 {
		head = w.m.queue[0]
	}
	w.m.serve()
	r.leased.Store(false)
	switch {
	case discard:
		c.lease.Discard()
	case w.rnd.IntN(2) == 0:
		c.lease.Release()
	default:
		released := c.lease.TryRelease()
		want(w, "released at once", released, fits)
		if !released {
			c.lease.Release()
		}
	}
	synctest.Wait()
	want(w, "closed", r.closed.Load(), discard || !fits)
	if head != nil && head.done && head.err == nil && head.lease.Value() != r {
		w.Errorf("client %d was not handed resource %d", head.id, r.id)
	}
}

func (w *world) resize() {
	w.m.max = 1 + w.rnd.IntN(6)
	w.m.maxIdle = w.m.max
	w.note("resize %d", w.m.max)
	w.b.set(func() { w.b.limit = w.m.max })
	for len(w.m.idle) > 0 && w.m.size() > w.m.max {
		w.m.idle = w.m.idle[1:]
	}
	w.m.serve()
	if err := w.p.Resize(w.m.max); err != nil {
		w.Error(err)
	}
}

// pause pauses the pool, mostly with leases out.
func (w *world) pause() {
	w.note("pause")
	w.m.paused, w.m.idle = true, nil
	if err := w.p.Pause(); err != nil {
		w.Error(err)
	}
}

func (w *world) resume() {
	w.note("resume")
	w.m.paused = false
	w.m.serve()
	want(w, "resumed", w.p.Resume(), true)
}

// expire lets every waiter's time run out, unless the pool is paused.
func (w *world) expire() {
	w.note("expire")
	time.Sleep(modelTimeout)
	synctest.Wait()
	if w.m.paused {
		return
	}
	for _, c := range w.m.queue {
		w.ended(c, pool.ErrTimeout)
	}
	w.m.queue = nil
}

// giveUp fails every waiter, unless the pool is paused.
func (w *world) giveUp() {
	w.note("give up")
	w.p.GiveUp(errDown)
	synctest.Wait()
	if w.m.paused {
		return
	}
	for _, c := range w.m.queue {
		w.ended(c, errDown)
	}
	w.m.queue = nil
}

// outage breaks the backend, makes some clients acquire and some resources break, and repairs it.
// Not the failing clients are predicted, but their errors.
func (w *world) outage() {
	w.note("outage")
	w.b.set(func() { w.b.down = true })
	waiting := slices.Clone(w.m.queue)
	for range w.rnd.IntN(4) {
		if len(w.m.holders) > 0 && w.rnd.IntN(2) == 0 {
			c := w.m.holders[w.rnd.IntN(len(w.m.holders))]
			w.m.drop(c)
			c.lease.Value().leased.Store(false)
			c.lease.Discard()
		} else if len(w.m.idle) == 0 {
			c := &client{id: w.next}
			w.next++
			waiting = append(waiting, c)
			cctx, cancel := context.WithCancel(context.Background())
			c.cancel = cancel
			go func() {
				defer cancel()
				c.lease, c.err = w.p.Acquire(cctx)
				if c.err == nil && c.lease.Value().leased.Swap(true) {
					w.Errorf("resource %d is leased twice", c.lease.Value().id)
				}
				c.done = true
			}()
		}
		synctest.Wait()
		time.Sleep(time.Duration(w.rnd.IntN(100)) * time.Millisecond)
	}
	w.b.set(func() { w.b.down = false })
	time.Sleep(2 * time.Second) // longer than any back-off
	synctest.Wait()
	w.m.queue = w.m.queue[:0:0]
	for _, c := range waiting {
		if c.done && c.err != nil {
			w.ended(c, pool.ErrOpen)
		} else {
			w.m.queue = append(w.m.queue, c)
		}
	}
	w.m.serve()
}

// ended checks that c failed with target.
func (w *world) ended(c *client, target error) {
	if !c.done || !errors.Is(c.err, target) {
		w.Errorf("client %d: done %v, error %v, want %v", c.id, c.done, c.err, target)
	}
}

// compare checks the real pool against the model, while nothing is under way.
func (w *world) compare() {
	for _, c := range w.m.queue {
		if c.done {
			w.Errorf("client %d was served or failed before its turn: %v", c.id, c.err)
		}
	}
	for _, c := range w.m.holders {
		if !c.done || c.err != nil {
			w.Errorf("client %d was forgotten or failed: done %v, %v", c.id, c.done, c.err)
		}
	}
	s := w.p.Stats()
	want(w, "idle", s.Idle, len(w.m.idle))
	want(w, "in use", s.InUse, len(w.m.holders))
	want(w, "waiting", s.Waiting, len(w.m.queue))
	want(w, "paused", s.Paused, w.m.paused)
	want(w, "opening and busy", s.Opening+s.Busy, 0)
	w.m.peak, w.m.maxPeak = max(w.m.peak, s.InUse), max(w.m.maxPeak, w.m.max)
	if s.PeakInUse < w.m.peak || s.PeakInUse > w.m.maxPeak {
		w.Errorf("most in use: %d, not from %d to %d", s.PeakInUse, w.m.peak, w.m.maxPeak)
	}
	_, open := w.b.count()
	want(w, "open", open, w.m.size())
}

// finish closes the pool with leases out and callers waiting.
func (w *world) finish() {
	w.p.Close()
	synctest.Wait()
	for _, c := range w.m.queue {
		w.ended(c, pool.ErrClosed)
	}
	_, open := w.b.count()
	want(w, "open after Close", open, len(w.m.holders))
	for _, c := range w.m.holders {
		c.lease.Value().leased.Store(false)
		c.lease.Release()
	}
	w.b.end(w.p)
}
