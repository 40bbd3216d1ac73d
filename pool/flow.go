package pool

import "time"

// FlowParker is a Parker that says for which flow it waits, such as one client of a proxy. While
// waiters of several flows wait, the flows take turns, so that a flow with many waiters does not delay
// others. Within a flow, waiters are served first come first served. All waiters with other Parkers
// are one flow. Acquire calls Flow once for each acquire that may have to wait; Begin does not.
type FlowParker interface {
	Parker
	// Flow returns the flow, such as a hash of the client's address, and the time after which the caller
	// has no use for a lease; zero = unknown. Acquire fails with ErrNoTime at once if, by the pace of the
	// last hand-overs, the lease would come after that time.
	Flow() (flow uint64, until time.Time)
}

// flow has the waiters of one flow, in the order of their acquires. It exists while it has any.
type flow[T any] struct {
	queue[T]
	key        uint64
	passed     int      // consecutive turns that went to flows with a better affinity
	prev, next *flow[T] // in a ring, in the order of their turns
}

// Limits of flows. A flow whose turn it is lets a flow with a better affinity pass if the first
// waiters of both came at about the same time (see overtaking), but at most maxPassed times in a row.
// The search for the flow with the most waiters looks at maxSearched flows: that holds the lock for a
// few microseconds.
const (
	maxPassed   = 8
	maxSearched = 256
	spareFlows  = 64
)

// flows has all waiters by flow.
type flows[T any] struct {
	turn   *flow[T] // the flow that is served next; nil = nobody waits
	n      int
	byKey  map[uint64]*flow[T]
	spare  *flow[T] // linked by next
	spares int
}

// of returns the flow with a key; nil = it has no waiters.
func (f *flows[T]) of(key uint64) *flow[T] {
	if t := f.turn; t != nil && t.key == key { // the usual case with one flow
		return t
	}
	return f.byKey[key]
}

// push adds w to its flow. A new flow is the last in turn.
func (f *flows[T]) push(w *waiter[T]) {
	l := f.of(w.key)
	if l == nil {
		l = f.begin(w.key)
	}
	w.flow = l
	l.queue.push(w, inFlow)
}

// begin makes a flow, which is the last in turn.
func (f *flows[T]) begin(key uint64) *flow[T] {
	l := f.spare
	if l == nil {
		l = new(flow[T])
	} else {
		f.spare = l.next
		f.spares--
	}
	*l = flow[T]{key: key, prev: l, next: l}
	if f.byKey == nil {
		f.byKey = map[uint64]*flow[T]{}
	}
	f.byKey[key] = l
	f.n++
	if t := f.turn; t == nil {
		f.turn = l
	} else {
		l.prev, l.next = t.prev, t
		l.prev.next, t.prev = l, l
	}
	return l
}

// remove takes w out of its flow, and removes the flow with its last waiter.
func (f *flows[T]) remove(w *waiter[T]) {
	l := w.flow
	w.flow = nil
	if l.queue.remove(w, inFlow); l.n > 0 {
		return
	}
	delete(f.byKey, l.key)
	if f.turn == l {
		f.turn = l.next
	}
	if f.n--; f.n == 0 {
		f.turn = nil
	}
	l.prev.next, l.next.prev = l.next, l.prev
	if f.spares < spareFlows {
		l.prev, l.next, f.spare = nil, f.spare, l
		f.spares++
	}
}

// served makes l the last in turn. One of its waiters is about to get a resource.
func (f *flows[T]) served(l *flow[T]) {
	if f.n == 1 {
		return
	}
	l.passed = 0
	if f.turn == l {
		f.turn = l.next
		return
	}
	f.turn.passed++
	l.prev.next, l.next.prev = l.next, l.prev
	l.prev, l.next = f.turn.prev, f.turn
	l.prev.next, f.turn.prev = l, l
}

// ahead estimates how many waiters are served before the next one of a flow, less the number of free
// slots. Each other flow counts with at most one waiter more than the flow has. With more than
// maxSearched flows, each of them counts as that many.
func (c *core[T]) ahead(key uint64) int {
	f, room := &c.waiters.flows, c.room()
	own := f.of(key)
	if own == nil {
		return max(f.n-room, 0) // one waiter of each flow
	}
	first := own.n
	if f.n <= maxSearched {
		for l := own.next; l != own; l = l.next {
			first += min(l.n, own.n+1)
		}
	} else {
		first = min(c.waiters.n, own.n+(f.n-1)*(own.n+1))
	}
	return max(first-room, 0)
}

// nextFor returns the waiter that gets s: the first of those whose affinity matches best.
func (c *core[T]) nextFor(s *slot[T]) *waiter[T] {
	f := &c.waiters.flows
	first := f.turn.head
	if c.affinity == nil {
		return first
	}
	affinity := c.affinity(s.value)
	if affinity == 0 {
		return first
	}
	if f.n > 1 {
		return f.nextOf(affinity)
	}
	next, best := first, -1
	for w, n := first, 0; w != nil && n < affinitySearch && w.since-first.since <= overtaking && best < matches; w, n = w.links[inFlow].next, n+1 {
		if is := closeness(w.affinity, affinity); is > best {
			next, best = w, is
		}
	}
	return next
}

// nextOf is nextFor for several flows.
func (f *flows[T]) nextOf(affinity int) *waiter[T] {
	next, best := f.turn.head, -1
	if f.turn.passed >= maxPassed {
		return next
	}
	for l, n := f.turn, 0; n < min(affinitySearch, f.n) && best < matches; l, n = l.next, n+1 {
		apart := l.head.since - f.turn.head.since
		if is := closeness(l.head.affinity, affinity); is > best && max(apart, -apart) <= overtaking {
			next, best = l.head, is
		}
	}
	return next
}

// longest returns the flow with the most waiters among the next maxSearched ones. There must be at
// least one flow.
func (f *flows[T]) longest() *flow[T] {
	longest := f.turn
	for l, n := f.turn, 0; n < min(maxSearched, f.n); l, n = l.next, n+1 {
		if l.n > longest.n {
			longest = l
		}
	}
	return longest
}

// makeRoom fails the last waiter of the longest flow, when MaxWaiters is reached, to make room for a
// waiter of the flow with this key. It reports false if no flow has more waiters than that flow would
// have.
func (c *core[T]) makeRoom(key uint64, e *effects[T]) bool {
	f := &c.waiters.flows
	if f.n == 0 { // MaxWaiters permits none
		return false
	}
	own := 0
	if l := f.of(key); l != nil {
		own = l.n
	}
	longest := f.longest()
	if longest.n <= own+1 {
		return false
	}
	c.rejected++
	c.fail(longest.tail, ErrTooManyWaiters, nil, e)
	return true
}

// pace measures how fast waiters are served, from the last hand-overs while there was a queue.
type pace struct {
	from  int64 // when the last hand-over was, or the queue began
	taken int64 // nanoseconds that the counted hand-overs took
	n     int64
}

// Limits of a pace. It is unknown before minPace hand-overs. It averages over about the last
// maxPace hand-overs, or over fewer if they took longer than paceLasts. A single hand-over counts at
// most slowPace times as long as all resources take together: resources that hang for a moment say
// little about the next hand-overs. After paceLasts without a hand-over the pace is forgotten.
const (
	minPace   = 8
	maxPace   = 256
	slowPace  = 8
	paceLasts = int64(10 * time.Second)
)

// begin is called when a caller begins to wait and the queue was empty.
func (p *pace) begin(now int64) {
	if now-p.from > paceLasts {
		*p = pace{}
	}
	p.from = now
}

// handed records a hand-over; size is MaxSize. Only hand-overs of released resources count, since an
// open takes its own time. Resources may come back together, and the clock may lag behind by maxTick,
// so one hand-over may take the time of many.
func (p *pace) handed(now int64, released bool, size int) {
	took := max(now-p.from, 0)
	p.from = now
	if !released {
		return
	}
	if p.n >= minPace {
		took = min(took, max(slowPace*max(p.taken/p.n, int64(time.Millisecond))*int64(min(size, 1<<14)), maxTick))
	}
	p.taken += took
	if p.n++; p.n >= maxPace || p.taken > paceLasts && p.n >= int64(2*minPace*size) {
		p.n, p.taken = p.n/2, p.taken/2
	}
}

// expected estimates how long the next waiter of a flow would wait; 0 = unknown.
func (c *core[T]) expected(key uint64) time.Duration {
	if c.pace.n < minPace {
		return 0
	}
	return time.Duration(float64(c.pace.taken) / float64(c.pace.n) * float64(c.ahead(key)+1))
}

// hopeless reports whether a waiter would get its lease too late. It never refuses the first waiter of
// the queue, or the pool would not notice that the pace has improved, nor a waiter that only waits for
// an open.
func (c *core[T]) hopeless(key uint64, until int64) bool {
	return until != never && c.ahead(key) > 0 && c.clock+int64(c.expected(key)) > until
}
