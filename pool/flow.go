package pool

import "time"

// FlowParker is a Parker that says for whom it waits, so that a flow with many waiters does not delay others: while waiters of several
// flows wait, these take turns. Within a flow the first that came is the first served. All other waiters are one flow. Acquire asks
// for it, once for each acquire that may have to wait; Begin does not.
type FlowParker interface {
	Parker
	// Flow returns the flow, such as a hash of the client's address, and when the lease is of no use any more; zero = at no known time.
	// The acquire fails with ErrNoTime at once if its turn, by the pace of the last ones, would come after that.
	Flow() (flow uint64, until time.Time)
}

// flow is the waiters of one flow, in the order of their acquires. It exists while there are some.
type flow[T any] struct {
	key        uint64
	head, tail *waiter[T]
	n          int
	passed     int      // how often others with a better affinity have had its turn
	prev, next *flow[T] // in a ring, in the order of their turns
}

// Bounds of flows. A flow whose turn it is lets flows of a better affinity pass whose first waiters have come at about the same time (see
// overtaking), but not more often than mostPassed in a row. To find the flow with the most waiters, so many are looked at as take the lock for
// a few microseconds.
const (
	mostPassed   = 8
	mostSearched = 256
	spareFlows   = 64
)

// flows are the waiters by flow.
type flows[T any] struct {
	turn   *flow[T] // which is served next; nil = nobody waits
	n      int
	byKey  map[uint64]*flow[T]
	spare  *flow[T] // linked by next
	spares int
}

// of returns the flow with a key; nil = nobody in it waits.
func (f *flows[T]) of(key uint64) *flow[T] {
	if t := f.turn; t != nil && t.key == key { // nearly always, where there is one
		return t
	}
	return f.byKey[key]
}

// push adds w to its flow, which is served last if it is new.
func (f *flows[T]) push(w *waiter[T]) {
	l := f.of(w.key)
	if l == nil {
		l = f.begin(w.key)
	}
	after := l.tail
	for after != nil && after.since > w.since { // w has spent time on a check
		after = after.before
	}
	next := &l.head
	if after != nil {
		next = &after.after
	}
	w.flow, w.before, w.after = l, after, *next
	*next = w
	if w.after == nil {
		l.tail = w
	} else {
		w.after.before = w
	}
	l.n++
}

// begin makes a flow, the last in turn.
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

// remove takes w out of its flow, which ends with its last waiter.
func (f *flows[T]) remove(w *waiter[T]) {
	l := w.flow
	if w.before == nil {
		l.head = w.after
	} else {
		w.before.after = w.after
	}
	if w.after == nil {
		l.tail = w.before
	} else {
		w.after.before = w.before
	}
	w.flow, w.before, w.after = nil, nil, nil
	if l.n--; l.n > 0 {
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

// served makes l, one of whose waiters is about to get a resource, the last in turn.
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

// ahead is about how many waiters are served before the next one of a flow, without those for whom there is room for a resource: of each
// flow no more than of its own. With more than mostSearched flows all count as if they had as many as its own.
func (c *core[T]) ahead(key uint64) int {
	f, room := &c.waiters.flows, max(c.limits.MaxSize-c.inUse(), 0)
	own := f.of(key)
	if own == nil {
		return max(f.n-room, 0) // one of each
	}
	first := own.n
	if f.n <= mostSearched {
		for l := own.next; l != own; l = l.next {
			first += min(l.n, own.n+1)
		}
	} else {
		first = min(c.waiters.n, own.n+(f.n-1)*(own.n+1))
	}
	return max(first-room, 0)
}

// nextFor returns the waiter that gets s: of those that match its affinity best the first.
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
	for w, n := first, 0; w != nil && n < affinitySearch && w.since-first.since <= overtaking && best < matches; w, n = w.after, n+1 {
		if is := closeness(w.affinity, affinity); is > best {
			next, best = w, is
		}
	}
	return next
}

// nextOf is nextFor where several flows wait.
func (f *flows[T]) nextOf(affinity int) *waiter[T] {
	next, best := f.turn.head, -1
	if f.turn.passed >= mostPassed {
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

// longest returns the flow with the most waiters of the next mostSearched ones. There is one at least.
func (f *flows[T]) longest() *flow[T] {
	longest := f.turn
	for l, n := f.turn, 0; n < min(mostSearched, f.n); l, n = l.next, n+1 {
		if l.n > longest.n {
			longest = l
		}
	}
	return longest
}

// makeRoom ends the wait of the last of a flow that has more waiters than the one with this key, where there may be no more waiters; false =
// there is no such flow.
func (c *core[T]) makeRoom(key uint64, e *effects[T]) bool {
	f := &c.waiters.flows
	if f.n == 0 { // none may wait at all
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

// pace is how fast waiters are served: by the last hand-overs while somebody waited.
type pace struct {
	from  int64 // the last one, or the beginning of the queue
	taken int64 // by those that are counted, in nanoseconds
	n     int64
}

// Bounds of a pace. It is known from leastPace hand-overs on, and taken of about the last mostPace, or of fewer where these took longer than
// paceLasts. One that lasted slowPace times as long as all resources take together counts for no more: the resources may just have hung for
// a while. After paceLasts without a hand-over the pace is forgotten.
const (
	leastPace = 8
	mostPace  = 256
	slowPace  = 8
	paceLasts = int64(10 * time.Second)
)

// begin is called when somebody begins to wait, and nobody else does.
func (p *pace) begin(now int64) {
	if now-p.from > paceLasts {
		*p = pace{}
	}
	p.from = now
}

// handed notes a hand-over in a pool of a size. Only those of released resources tell the pace: an open takes its own time. Resources may
// come back together, and the clock may lag behind by tickMost, so that one hand-over takes the time of many.
func (p *pace) handed(now int64, released bool, size int) {
	took := max(now-p.from, 0)
	p.from = now
	if !released {
		return
	}
	if p.n >= leastPace {
		took = min(took, max(slowPace*max(p.taken/p.n, int64(time.Millisecond))*int64(min(size, 1<<14)), tickMost))
	}
	p.taken += took
	if p.n++; p.n >= mostPace || p.taken > paceLasts && p.n >= int64(2*leastPace*size) {
		p.n, p.taken = p.n/2, p.taken/2
	}
}

// expected is about how long the next waiter of a flow would wait; 0 = that is not known.
func (c *core[T]) expected(key uint64) time.Duration {
	if c.pace.n < leastPace {
		return 0
	}
	return time.Duration(float64(c.pace.taken) / float64(c.pace.n) * float64(c.ahead(key)+1))
}

// hopeless reports whether a waiter's turn would come too late. One that would be the first of the queue is never refused: the pace would not be
// noticed to be better again. Nor is one that waits for an open only.
func (c *core[T]) hopeless(key uint64, until int64) bool {
	return until != never && c.ahead(key) > 0 && c.clock+int64(c.expected(key)) > until
}
