package pool_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// vitessLike is the algorithm of Vitess's smartconnpool as of 2025, written anew for this comparison because the
// module proxy does not serve vitess.io/vitess: a lock-free stack of idle connections, counters that are atomics, the
// clock read at each return and twice for each wait, and a FIFO list of waiters with a channel each; a connection that
// comes back is handed to the first of them, after which the goroutine that returned it yields. What its settings,
// lifetimes and idle limits cost when none is set is included.
func vitessLike(tb testing.TB, size int) func(func()) {
	p := newVitess(size)
	tb.Cleanup(func() { close(p.done) })
	ctx := context.Background()
	use := func(f func()) {
		c, err := p.get(ctx)
		if err != nil {
			tb.Error(err)
			return
		}
		f()
		p.put(c)
	}
	fill(size, use)
	return use
}

type vitessConn struct {
	index  uint32        // in vitessPool.conns
	next   atomic.Uint32 // index below it in its stack
	used   atomic.Int64  // time of the release; vitessBorrowed while it is leased
	opened int64
	value  *resource
}

const vitessBorrowed = -1 << 63

// vitessStack holds the index of the top in the lower half, and the number of pops, which tells apart states with the
// same top, in the upper half. Vitess swaps a pointer and a counter with a 128-bit instruction.
type vitessStack struct{ top atomic.Uint64 }

func (s *vitessStack) push(c *vitessConn) {
	for {
		old := s.top.Load()
		c.next.Store(uint32(old))
		if s.top.CompareAndSwap(old, old&^(1<<32-1)|uint64(c.index)) {
			return
		}
		runtime.Gosched()
	}
}

func (s *vitessStack) pop(conns []vitessConn) *vitessConn {
	for {
		old := s.top.Load()
		if uint32(old) == 0 {
			return nil
		}
		c := &conns[uint32(old)]
		if s.top.CompareAndSwap(old, (old>>32+1)<<32|uint64(c.next.Load())) {
			return c
		}
		runtime.Gosched()
	}
}

type vitessWaiter struct {
	prev, next *vitessWaiter
	conn       chan *vitessConn
}

type vitessPool struct {
	conns                              []vitessConn // conns[0] is not used
	clean                              vitessStack
	settings                           [8]vitessStack
	active, borrowed, capacity, idle   atomic.Int64
	lifetime, gets, waits, nanosWaited atomic.Int64
	start                              time.Time
	done                               chan struct{}

	nodes   sync.Pool
	mu      sync.Mutex // for the list of waiters
	root    vitessWaiter
	waiting atomic.Int64
}

var errVitessClosed = errors.New("closed")

func newVitess(size int) *vitessPool {
	p := &vitessPool{conns: make([]vitessConn, size+1), start: time.Now(), done: make(chan struct{})}
	p.capacity.Store(int64(size))
	p.idle.Store(int64(size))
	p.nodes.New = func() any { return &vitessWaiter{conn: make(chan *vitessConn)} }
	p.root.prev, p.root.next = &p.root, &p.root
	go p.feedStarving()
	return p
}

// feedStarving serves waiters that began to wait just after the last connection had been pushed.
func (p *vitessPool) feedStarving() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.done:
			return
		}
		for p.waiting.Load() > 0 {
			c := p.borrow(&p.clean)
			if c == nil || !p.handOver(c) {
				break
			}
		}
	}
}

func (p *vitessPool) borrow(s *vitessStack) *vitessConn {
	for c := s.pop(p.conns); c != nil; c = s.pop(p.conns) {
		if used := c.used.Load(); used != vitessBorrowed && c.used.CompareAndSwap(used, vitessBorrowed) {
			return c
		}
	}
	return nil
}

func (p *vitessPool) get(ctx context.Context) (*vitessConn, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if p.capacity.Load() == 0 {
		return nil, errVitessClosed
	}
	p.gets.Add(1)
	c := p.borrow(&p.clean)
	if c == nil {
		c = p.open()
	}
	for i := 0; c == nil && i < len(p.settings); i++ {
		c = p.borrow(&p.settings[i])
	}
	if c == nil {
		began := time.Now()
		var err error
		if c, err = p.wait(ctx); err != nil {
			return nil, err
		}
		p.waits.Add(1)
		p.nanosWaited.Add(int64(time.Since(began)))
	}
	p.borrowed.Add(1)
	return c, nil
}

func (p *vitessPool) open() *vitessConn {
	for {
		n := p.active.Load()
		if n >= p.capacity.Load() {
			return nil
		}
		if p.active.CompareAndSwap(n, n+1) {
			c := &p.conns[n+1]
			c.index, c.opened, c.value = uint32(n+1), int64(time.Since(p.start)), new(resource)
			c.used.Store(vitessBorrowed)
			return c
		}
	}
}

func (p *vitessPool) wait(ctx context.Context) (*vitessConn, error) {
	w := p.nodes.Get().(*vitessWaiter)
	defer p.nodes.Put(w)
	p.mu.Lock()
	w.prev, w.next = p.root.prev, &p.root
	w.prev.next, w.next.prev = w, w
	p.waiting.Add(1)
	p.mu.Unlock()
	select {
	case c := <-w.conn:
		return c, nil
	case <-p.done:
		return nil, errVitessClosed
	case <-ctx.Done():
		return nil, ctx.Err() // no benchmark cancels
	}
}

func (p *vitessPool) put(c *vitessConn) {
	p.borrowed.Add(-1)
	c.used.Store(int64(time.Since(p.start)))
	if life := p.lifetime.Load(); life > 0 && c.used.Load()-c.opened > life {
		panic("no benchmark sets a lifetime")
	}
	p.handOver(c)
}

// handOver gives c to the first waiter, or pushes it.
func (p *vitessPool) handOver(c *vitessConn) bool {
	if w := p.first(); w != nil {
		w.conn <- c
		runtime.Gosched()
		return true
	}
	if p.active.Load()-p.borrowed.Load() > p.idle.Load() {
		panic("no benchmark limits what is idle")
	}
	p.clean.push(c)
	return false
}

// first takes the first waiter out of the list.
func (p *vitessPool) first() *vitessWaiter {
	if p.waiting.Load() == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.root.next
	if w == &p.root {
		return nil
	}
	w.prev.next, w.next.prev = w.next, w.prev
	p.waiting.Add(-1)
	return w
}
