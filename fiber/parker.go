package fiber

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/headpond/headpond/internal/goroutine"
)

// Parker lets a fiber wait until another goroutine or fiber calls Unpark, without holding its loop.
// It is a pool.Parker. It belongs to the fiber that made it, and serves one wait at a time. A
// goroutine that runs code for the fiber (see Block) may also use it.
type Parker struct {
	fiber    *coroutine
	affinity int

	mu      sync.Mutex // held for a few instructions
	permit  bool       // Unpark was called, and no Park has returned for it
	waiting bool
	other   *waiter         // a goroutine that waits in place of the fiber
	done    <-chan struct{} // of the watched context
	stop    func() bool
	ended   bool    // the watched context has ended
	kept    bool    // the Parker is in the fiber's list
	next    *Parker // the next one in that list
}

// NewParker returns a Parker for the calling fiber, nil on a goroutine.
func NewParker() *Parker {
	if f := currentFiber(); f != nil {
		return &Parker{fiber: f, affinity: f.loop.id}
	}
	return nil
}

// Affinity returns the number of the fiber's loop; see LoopOf.
func (p *Parker) Affinity() int { return p.affinity }

// isOwnedByCaller reports whether p belongs to the calling fiber. It only reads the state of p's own loop.
func (p *Parker) isOwnedByCaller() bool {
	l := p.fiber.loop
	return l.running.Load() == goroutine.ID() && l.current == p.fiber
}

// Park waits until Unpark is called, or returns at once if it was called before; it returns nil once for each Unpark.
// If ctx ends first, Park returns its error. Watching a context is the expensive part, so when a context is used a
// second time, the watch on it stays until the fiber ends.
func (p *Parker) Park(ctx context.Context) error {
	if p.stop == nil && p.yieldOnce() { // before Done, for which some contexts make a timer
		return nil
	}
	done := ctx.Done() // done is compared below instead of ctx, whose type may not be comparable
	bounded := done != nil
	if bounded && (done != p.done || p.stop == nil) {
		again := done == p.done
		p.unwatch()
		p.mu.Lock()
		p.done, p.ended = done, false
		p.mu.Unlock()
		p.stop = context.AfterFunc(ctx, func() { p.end(done) })
		if !again {
			defer p.unwatch()
		} else if !p.kept { // the watch must end with the fiber, to which it refers: the context may live longer
			p.kept, p.next, p.fiber.kept = true, p.fiber.kept, p
		}
	}
	for {
		p.mu.Lock()
		switch {
		case p.permit:
			p.permit = false
			p.mu.Unlock()
			return nil
		case bounded && p.ended:
			p.mu.Unlock()
			return ctx.Err()
		}
		p.waiting = true
		if p.isOwnedByCaller() {
			p.mu.Unlock()
			p.fiber.park()
			continue
		}
		w := newWaiter()
		p.other = &w
		p.mu.Unlock()
		w.wait()
	}
}

// yieldOnce lets the ready fibers run once, and takes the permit if one of them has called Unpark, such
// as a fiber that connects to a server nearby. Then the context need not be watched.
func (p *Parker) yieldOnce() bool {
	if p.take() {
		return true
	}
	if !p.isOwnedByCaller() {
		return false
	}
	p.fiber.loop.ready(p.fiber)
	p.fiber.park()
	return p.take()
}

// TryPark is for steps of Conn.Attend. It reports whether Unpark has been called, once for each Unpark. If not, the
// step must keep waiting; it is called again after Unpark or Nudge.
func (p *Parker) TryPark() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	had := p.permit
	p.permit, p.waiting = false, !had
	return had
}

// Nudge makes the loop call a step that waits after TryPark, without giving a permit. Any goroutine may call it.
func (p *Parker) Nudge() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.other == nil {
		p.wake()
	}
}

// take takes the permit and reports whether there was one.
func (p *Parker) take() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	had := p.permit
	p.permit = false
	return had
}

func (p *Parker) unwatch() {
	if p.stop != nil {
		p.stop()
		p.stop = nil
	}
}

// forget ends p's watch and removes p from the fiber's list.
func (p *Parker) forget() {
	p.unwatch()
	p.fiber.kept, p.next, p.kept = p.next, nil, false // the coroutine, and with it the Parker, may serve another fiber
}

// Unpark ends the current or the next Park. Any goroutine may call it; it does not wait.
func (p *Parker) Unpark() {
	p.mu.Lock()
	p.permit = true
	p.wake()
	p.mu.Unlock()
}

// end is called when a watched context ends.
func (p *Parker) end(done <-chan struct{}) {
	p.mu.Lock()
	if p.done == done {
		p.ended = true
		p.wake()
	}
	p.mu.Unlock()
}

// wake makes the waiter, if there is one, check the conditions again. The caller holds mu.
func (p *Parker) wake() {
	if !p.waiting {
		return
	}
	p.waiting = false
	if w := p.other; w != nil {
		p.other = nil
		w.wake()
		return
	}
	p.fiber.loop.wake(p.fiber)
}

// ParkerSlot keeps a Parker from one wait to the next, for a Stream whose methods wait for something other than a
// socket. It serves one direction of the connection. The zero value is empty; any goroutine or fiber may use it.
type ParkerSlot struct{ kept atomic.Pointer[Parker] }

// Take returns a Parker of the calling fiber, if possible the kept one; nil on a goroutine. After the wait the caller
// gives it back with Keep.
func (s *ParkerSlot) Take() *Parker {
	if !onFiber() {
		return nil
	}
	if p := s.kept.Swap(nil); p != nil && p.isOwnedByCaller() {
		return p
	}
	return NewParker()
}

// Keep stores a Parker from Take for the next call by the same fiber.
func (s *ParkerSlot) Keep(p *Parker) { s.kept.Store(p) }
