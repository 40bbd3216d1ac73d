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
	ErrQueueFull    = fmt.Errorf("%w: the connection limit is reached and the queue is full", ErrRejected)
	ErrQueueTimeout = fmt.Errorf("%w: the connection limit was reached for the whole queue time-out", ErrRejected)
	ErrDraining     = fmt.Errorf("%w: the listener is draining", ErrRejected)
)

// connLimit admits up to limit connections at once and queues up to maxQueue
// more, first come first served. All methods may be called from any goroutine.
type connLimit struct {
	mu       sync.Mutex // held for a few instructions, never across I/O
	limit    int
	maxQueue int
	active   int
	queue    list.List // of chan error, each buffered by one
	closed   bool
}

// acquire admits a connection. While the limit is reached it waits, up to timeout; waited reports
// whether it did. If the error is nil, the caller must call release.
func (l *connLimit) acquire(timeout time.Duration) (waited bool, err error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return false, ErrDraining
	}
	if l.active < l.limit && l.queue.Len() == 0 {
		l.active++
		l.mu.Unlock()
		return false, nil
	}
	if l.queue.Len() >= l.maxQueue {
		l.mu.Unlock()
		return false, ErrQueueFull
	}
	ready := make(chan error, 1)
	entry := l.queue.PushBack(ready)
	l.mu.Unlock()
	return true, l.awaitBlocked(entry, ready, timeout)
}

// awaitBlocked calls await so that a fiber may call it. It is a separate function because the
// variables that its closure captures are allocated.
func (l *connLimit) awaitBlocked(entry *list.Element, ready <-chan error, timeout time.Duration) (err error) {
	fiber.Block(func() { err = l.await(entry, ready, timeout) })
	return err
}

// await waits until a queued connection is admitted or rejected. After timeout it removes the
// connection from the queue, unless that was decided meanwhile.
func (l *connLimit) await(entry *list.Element, ready <-chan error, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err := <-ready:
		return err
	case <-timer.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case err := <-ready: // decided while the timer fired
		return err
	default:
		l.queue.Remove(entry)
		return ErrQueueTimeout
	}
}

// release uncounts an admitted connection, and admits the first one in the queue.
func (l *connLimit) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	l.admitQueued()
}

// resize changes the limits; connections beyond a lower limit stay.
func (l *connLimit) resize(limit, maxQueue int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit, l.maxQueue = limit, maxQueue
	l.admitQueued()
}

// close rejects all queued and all later connections.
func (l *connLimit) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for e := l.queue.Front(); e != nil; e = l.queue.Front() {
		l.queue.Remove(e).(chan error) <- ErrDraining
	}
}

func (l *connLimit) counts() (active, queued int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active, l.queue.Len()
}

// admitQueued admits queued connections while the limit allows. mu must be held.
func (l *connLimit) admitQueued() {
	for l.active < l.limit && l.queue.Len() > 0 {
		l.active++
		l.queue.Remove(l.queue.Front()).(chan error) <- nil
	}
}
