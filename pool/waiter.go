package pool

import "context"

// Parker lets something other than a goroutine wait in Acquire. A caller puts
// its own in the context with WithParker; it is looked up only when the caller
// may have to wait.
//
// For every Acquire that waits, the pool calls Park once or twice and Unpark
// at most once, from another goroutine, without holding its lock, and never
// after that Acquire has returned. Unpark must not block.
type Parker interface {
	// Park blocks until Unpark has been called (also before Park) and returns
	// nil, or until ctx ends and returns its error. It returns nil once per
	// Unpark and never without one. If ctx can end, Park may also give up for
	// other reasons with another error: the Acquire is then canceled.
	Park(ctx context.Context) error
	// Unpark ends the current or the next Park.
	Unpark()
}

// AffinityParker is a Parker whose caller has an affinity; see Config.Affinity. The affinity may be another one for each acquire.
type AffinityParker interface {
	Parker
	// Affinity returns the caller's affinity, 0 for none.
	Affinity() int
}

type parkerKey struct{}

// flowOf returns the flow of ctx's Parker, and the time on the pool's clock after which the caller has
// no use for a lease.
func (p *Pool[T]) flowOf(ctx context.Context) (key uint64, until int64) {
	f, ok := ctx.Value(parkerKey{}).(FlowParker)
	if !ok {
		return 0, never
	}
	key, at := f.Flow()
	if at.IsZero() {
		return key, never
	}
	return key, int64(at.Sub(p.start))
}

// parkerOf returns the Parker in ctx, if there is one, and its affinity.
func parkerOf(ctx context.Context) (p Parker, affinity int) {
	p, _ = ctx.Value(parkerKey{}).(Parker)
	if at, ok := p.(AffinityParker); ok {
		affinity = at.Affinity()
	}
	return p, affinity
}

// ParkerOf returns the Parker in ctx, nil if there is none.
func ParkerOf(ctx context.Context) Parker {
	p, _ := parkerOf(ctx)
	return p
}

// WithParker returns a context whose acquires wait with p. A Parker serves one
// waiting Acquire at a time.
func WithParker(ctx context.Context, p Parker) context.Context {
	return context.WithValue(ctx, parkerKey{}, p)
}

// waiter is one caller waiting for a lease. Its links and result are guarded by
// the pool's lock until it is woken, and belong to the caller from then on.
// Waiters are reused: ready is empty again once the woken caller has parked.
type waiter[T any] struct {
	links    [queues]neighbours[T]
	wakeNext *waiter[T]    // next in effects.wake
	key      uint64        // of its flow
	flow     *flow[T]      // not nil while it is queued
	ready    chan struct{} // capacity 1: a wake-up never blocks
	parker   Parker        // nil: ready is used
	affinity int           // the caller's affinity
	since    int64         // when the acquire began
	pauses   int64         // core.pauses when it was queued
	lease    Lease[T]      // the result, or
	err      error
}

// neighbours are the waiters before and behind one in a queue.
type neighbours[T any] struct{ prev, next *waiter[T] }

// park waits for wake, or for ctx to end.
func (w *waiter[T]) park(ctx context.Context) error {
	if w.parker != nil {
		return w.parker.Park(ctx)
	}
	done := ctx.Done()
	if done == nil {
		<-w.ready
		return nil
	}
	select {
	case <-w.ready:
		return nil
	case <-done:
		return ctx.Err()
	}
}

// wake ends w's park. The caller must not touch w afterwards.
func (w *waiter[T]) wake() {
	if w.parker != nil {
		w.parker.Unpark()
		return
	}
	w.ready <- struct{}{}
}

// queue is a list of waiters, ordered by the beginning of their acquires, which is nearly always the order of the pushes.
// Removal takes constant time. Each waiter is in two queues at once, and links says which of its links a queue uses.
type queue[T any] struct {
	head, tail *waiter[T]
	n          int
}

// The links of a waiter, by queue.
const (
	inAll = iota // waiterList.queue
	inFlow
	queues
)

func (q *queue[T]) push(w *waiter[T], links int) {
	after := q.tail
	for after != nil && after.since > w.since { // w has spent time on a check
		after = after.links[links].prev
	}
	next := &q.head
	if after != nil {
		next = &after.links[links].next
	}
	behind := *next
	w.links[links] = neighbours[T]{after, behind}
	*next = w
	if behind == nil {
		q.tail = w
	} else {
		behind.links[links].prev = w
	}
	q.n++
}

func (q *queue[T]) remove(w *waiter[T], links int) {
	at := w.links[links]
	if at.prev == nil {
		q.head = at.next
	} else {
		at.prev.links[links].next = at.next
	}
	if at.next == nil {
		q.tail = at.prev
	} else {
		at.next.links[links].prev = at.prev
	}
	w.links[links] = neighbours[T]{}
	q.n--
}

// waiterList has all waiters. flows has the order in which they are served.
type waiterList[T any] struct {
	queue[T]
	flows flows[T]
}

func (l *waiterList[T]) push(w *waiter[T]) {
	l.queue.push(w, inAll)
	l.flows.push(w)
}

func (l *waiterList[T]) remove(w *waiter[T]) {
	l.queue.remove(w, inAll)
	l.flows.remove(w)
}
