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
	// Unpark ends the present or the next Park.
	Unpark()
}

// AffinityParker is a Parker whose caller has an affinity; see Config.Affinity. The affinity may be another one for each acquire.
type AffinityParker interface {
	Parker
	// Affinity returns the caller's affinity, 0 for none.
	Affinity() int
}

type parkerKey struct{}

// flowOf returns the flow of ctx's Parker and until when it has a use for a lease, as time of the pool's clock.
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
	prev, next *waiter[T]
	queued     bool
	key        uint64     // of its flow
	flow       *flow[T]   // while it is queued; guarded likewise
	before     *waiter[T] // in the flow
	after      *waiter[T]
	ready      chan struct{} // capacity 1: a wake-up never blocks
	parker     Parker        // nil: ready is used
	affinity   int           // the caller's affinity
	since      int64         // when the acquire began
	lease      Lease[T]      // the result, or
	err        error
}

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

// waiterList is ordered by the beginning of the acquires, which is nearly always
// the order of the pushes; removal takes constant time. flows has the order in which waiters are served.
type waiterList[T any] struct {
	head, tail *waiter[T]
	n          int
	flows      flows[T]
}

func (l *waiterList[T]) push(w *waiter[T]) {
	after := l.tail
	for after != nil && after.since > w.since { // w has spent time on a check
		after = after.prev
	}
	next := &l.head
	if after != nil {
		next = &after.next
	}
	w.queued, w.prev, w.next = true, after, *next
	*next = w
	if w.next == nil {
		l.tail = w
	} else {
		w.next.prev = w
	}
	l.n++
	l.flows.push(w)
}

func (l *waiterList[T]) remove(w *waiter[T]) {
	if w.prev == nil {
		l.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.queued, w.prev, w.next = false, nil, nil
	l.n--
	l.flows.remove(w)
}
