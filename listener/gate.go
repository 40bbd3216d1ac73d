package listener

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
)

// Why a connection was not served. All wrap ErrRejected.
var (
	ErrRejected     = errors.New("listener: connection rejected")
	ErrQueueFull    = fmt.Errorf("%w: no place and the queue is full", ErrRejected)
	ErrQueueTimeout = fmt.Errorf("%w: no place within the queue time-out", ErrRejected)
	ErrDraining     = fmt.Errorf("%w: the listener is draining", ErrRejected)
)

// gate admits up to limit holders at once and queues up to maxQueue more,
// first come first served. All methods may be called from any goroutine.
type gate struct {
	mu       sync.Mutex // held for a few instructions, never across I/O
	limit    int
	maxQueue int
	active   int
	queue    list.List // of chan error, each buffered by one
	closed   bool
}

// enter takes a place, waiting up to timeout for one; the caller calls leave
// when the error is nil.
func (g *gate) enter(timeout time.Duration) error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return ErrDraining
	}
	if g.active < g.limit && g.queue.Len() == 0 {
		g.active++
		g.mu.Unlock()
		return nil
	}
	if g.queue.Len() >= g.maxQueue {
		g.mu.Unlock()
		return ErrQueueFull
	}
	ready := make(chan error, 1)
	place := g.queue.PushBack(ready)
	g.mu.Unlock()

	var err error
	fiber.Block(func() { err = g.await(place, ready, timeout) })
	return err
}

// await waits in the queue.
func (g *gate) await(place *list.Element, ready <-chan error, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err := <-ready:
		return err
	case <-timer.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case err := <-ready: // decided while the timer fired
		return err
	default:
		g.queue.Remove(place)
		return ErrQueueTimeout
	}
}

// leave gives a place back; the first in the queue gets it.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.active--
	g.admit()
}

// resize changes the limits; a lower limit throws nobody out.
func (g *gate) resize(limit, maxQueue int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limit, g.maxQueue = limit, maxQueue
	g.admit()
}

// close rejects everybody waiting and everybody who comes later.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for e := g.queue.Front(); e != nil; e = g.queue.Front() {
		g.queue.Remove(e).(chan error) <- ErrDraining
	}
}

func (g *gate) counts() (active, queued int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.active, g.queue.Len()
}

// admit hands free places to the queue. mu is held.
func (g *gate) admit() {
	for g.active < g.limit && g.queue.Len() > 0 {
		g.active++
		g.queue.Remove(g.queue.Front()).(chan error) <- nil
	}
}
