package fiber

import (
	"sync"
	"sync/atomic"
)

// Mutex is a lock that may be held across I/O: waiting for it does not hold a loop. Goroutines may use it, too. Its
// zero value is unlocked; it must not be copied.
type Mutex struct {
	state   atomic.Int32 // mutexFree, mutexHeld, mutexWanted
	mu      sync.Mutex   // guards waiters; held for a few instructions
	waiters []waiter     // first come, first served
}

// States of a Mutex.
const (
	mutexFree   int32 = iota
	mutexHeld         // nothing waits
	mutexWanted       // there are waiters, or there were
)

var _ sync.Locker = (*Mutex)(nil)

// Lock waits for the lock and takes it.
func (m *Mutex) Lock() {
	if m.state.CompareAndSwap(mutexFree, mutexHeld) {
		return
	}
	m.mu.Lock()
	if m.state.Swap(mutexWanted) == mutexFree {
		m.mu.Unlock() // the lock has been released meanwhile
		return
	}
	w := newWaiter()
	m.waiters = append(m.waiters, w)
	m.mu.Unlock()
	w.wait() // Unlock hands the lock over
}

// tryLock takes the lock if it is free.
func (m *Mutex) tryLock() bool { return m.state.CompareAndSwap(mutexFree, mutexHeld) }

// Unlock hands the lock to the waiter that has waited longest. It panics when the lock is not held.
func (m *Mutex) Unlock() {
	if m.state.CompareAndSwap(mutexHeld, mutexFree) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state.Load() == mutexFree {
		panic("fiber: Unlock of an unlocked Mutex")
	}
	if len(m.waiters) == 0 {
		m.waiters = nil
		m.state.Store(mutexFree)
		return
	}
	w := m.waiters[0]
	m.waiters[0] = waiter{}
	m.waiters = m.waiters[1:]
	w.wake()
}

// Group waits for a number of fibers or goroutines to end, as sync.WaitGroup does, without
// holding a loop. Its zero value is empty; it must not be copied.
type Group struct {
	mu      sync.Mutex // held for a few instructions
	n       int
	waiters []waiter
}

// Add adds n, which may be negative. It panics when the sum becomes negative.
func (g *Group) Add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n += n; g.n < 0 {
		panic("fiber: negative Group")
	}
	if g.n == 0 {
		for _, w := range g.waiters {
			w.wake()
		}
		clear(g.waiters)
		g.waiters = g.waiters[:0]
	}
}

// Done is Add(-1).
func (g *Group) Done() { g.Add(-1) }

// Go runs fn with [Go] and counts it until it ends.
func (g *Group) Go(fn func()) {
	g.Add(1)
	Go(func() {
		defer g.Done()
		fn()
	})
}

// Wait returns when the sum is 0.
func (g *Group) Wait() {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return
	}
	w := newWaiter()
	g.waiters = append(g.waiters, w)
	g.mu.Unlock()
	w.wait()
}
