package pool

import "time"

// core is the pool's bookkeeping: resources, waiters, opens under way and
// back-off. It is deterministic: it starts nothing, waits for nothing and reads
// no clock (times are nanoseconds since the pool was made). Its owner holds the
// pool's lock around every call, and then performs the returned effects
// without it. Two things always hold when the lock is free: whoever waits, no
// resource is idle; and idle+inUse+opening+closing+checking = total ≤ MaxSize,
// unless MaxSize was made smaller.
type core[T any] struct {
	name   string
	limits Limits // defaults filled in
	jitter func() float64
	place  func(T) int // nil = all are in one

	idle     []*slot[T] // in the order of their last use, newest last
	waiters  waiterList[T]
	all      *slot[T] // every slot with a resource, doubly linked
	total    int
	opening  int
	closing  int
	checking int
	direct   int // overflow resources out, not in total
	closed   bool

	// clock is the time of the newest look at the real one. While ticking, the
	// timer renews it every tick, and the fast paths of Acquire and Release
	// (allowed by hot) make do with it.
	clock   int64
	ticking bool
	hot     bool
	calm    bool   // hot may be set: nothing observes each lease
	seen    uint64 // acquired + released at the last tick

	backoff backoff
	lastErr error

	opened, openFailed, acquired, fresh, waited       uint64
	timed                                             uint64 // of acquired, those that took their time: Pool.waits has them
	timedOut, rejected, canceled, released, discarded uint64
	overflowed                                        uint64
	closedFor                                         [reasons]uint64
	lastRefused                                       int64 // by clock; 0: never
	peak                                              int   // most leases out, without overflow resources
	leakAfter                                         int64
}

// slot is a place for one resource. A new one is made for every open.
type slot[T any] struct {
	pool  *Pool[T]
	value T // written once, before the slot is shared
	// gen is odd while leased and grows by one at each lease and each return,
	// so that a stale Lease is recognised. Kept under the pool's lock.
	gen       uint64
	idleSince int64
	place     int // while it is idle
	expires   int64
	openedAt  int64
	checkedAt int64
	early     float64 // the part of MaxLifetime this one lives less, 0 to 0.1
	direct    bool
	why       Reason   // set when it is to be closed
	chain     *slot[T] // next in effects.close
	prev, nxt *slot[T] // in core.all
	hold      hold
}

// effects is what has to happen once the lock is free.
type effects[T any] struct {
	wake  *waiter[T] // linked by next
	last  *waiter[T]
	close *slot[T] // linked by chain
	opens int
}

func (e *effects[T]) addWake(w *waiter[T]) {
	w.next = nil
	if e.last == nil {
		e.wake = w
	} else {
		e.last.next = w
	}
	e.last = w
}

// inUse is the number of leases out, without overflow resources.
func (c *core[T]) inUse() int { return c.total - len(c.idle) - c.opening - c.closing - c.checking }

// live is the number of resources that are open and may come back.
func (c *core[T]) live() int { return c.total - c.opening - c.closing }

// link and unlink keep the list of all resources.
func (c *core[T]) link(s *slot[T]) {
	s.nxt = c.all
	if c.all != nil {
		c.all.prev = s
	}
	c.all = s
}

func (c *core[T]) unlink(s *slot[T]) {
	if s.prev == nil {
		c.all = s.nxt
	} else {
		s.prev.nxt = s.nxt
	}
	if s.nxt != nil {
		s.nxt.prev = s.prev
	}
	s.prev, s.nxt = nil, nil
}

// lease turns a free slot into a lease.
func (c *core[T]) lease(s *slot[T]) Lease[T] {
	s.gen++
	c.acquired++
	if !s.direct {
		c.peak = max(c.peak, c.inUse())
	}
	if s.gen == 1 {
		c.fresh++
	}
	if c.leakAfter > 0 {
		s.hold = hold{since: c.clock}
	}
	return Lease[T]{s, s.gen}
}

// Who prefers a place looks at this many idle resources or waiters, and overtakes those that have waited for so much longer.
const (
	placeSearch = 32
	overtaking  = int64(time.Millisecond)
)

// nearest returns the index of the idle resource to lease to a caller: of those used last one in its place, or else the
// very last; -1 = none is idle.
func (c *core[T]) nearest(place int) int {
	n := len(c.idle) - 1
	if place != 0 {
		for i := n; i > n-placeSearch && i >= 0; i-- {
			if c.idle[i].place == place {
				return i
			}
		}
	}
	return n
}

// takeIdle takes the resource of this index.
func (c *core[T]) takeIdle(i int) *slot[T] {
	n, s := len(c.idle)-1, c.idle[i]
	if i < n {
		copy(c.idle[i:], c.idle[i+1:])
	}
	c.idle[n] = nil
	c.idle = c.idle[:n]
	return s
}

// popIdle takes the resource used last.
func (c *core[T]) popIdle() *slot[T] { return c.takeIdle(len(c.idle) - 1) }

// pushIdle puts s behind all that are idle.
func (c *core[T]) pushIdle(s *slot[T]) {
	if c.place != nil {
		s.place = c.place(s.value)
	}
	s.idleSince = c.clock
	c.idle = append(c.idle, s)
}

// insertIdle puts s back among the idle where its last use belongs.
func (c *core[T]) insertIdle(s *slot[T]) {
	c.idle = append(c.idle, s)
	for i := len(c.idle) - 1; i > 0 && c.idle[i-1].idleSince > s.idleSince; i-- {
		c.idle[i], c.idle[i-1] = c.idle[i-1], s
	}
}

// retire begins the closing of a slot that is in nobody's hands.
func (c *core[T]) retire(s *slot[T], why Reason, e *effects[T]) {
	s.why = why
	if !s.direct {
		c.closing++
	}
	s.chain = e.close
	e.close = s
}

// gone ends the closing of s.
func (c *core[T]) gone(s *slot[T], e *effects[T]) {
	c.unlink(s)
	c.closedFor[s.why]++
	if s.direct {
		c.direct--
	} else {
		c.closing--
		c.total--
	}
	c.settle(e)
}

// give places a resource that is in nobody's hands and fit for use: in the
// hands of the first waiter, among the idle, or out of the pool.
func (c *core[T]) give(s *slot[T], e *effects[T]) {
	switch why, leaves := c.leaves(s); {
	case leaves:
		c.retire(s, why, e)
	case c.waiters.head != nil:
		c.hand(s, e)
	default:
		c.pushIdle(s)
	}
}

// leaves reports whether the pool has no place for a resource that is given back, and why.
func (c *core[T]) leaves(s *slot[T]) (why Reason, leaves bool) {
	switch {
	case c.closed:
		return ReasonShutdown, true
	case s.direct:
		return ReasonDirect, true
	case c.total > c.limits.MaxSize:
		return ReasonSurplus, true
	case c.clock >= s.expires:
		return ReasonLifetime, true
	}
	return ReasonSurplus, c.waiters.head == nil && len(c.idle) >= c.limits.MaxIdle
}

// nextFor returns the waiter that gets s: the first, or the first in its place.
func (c *core[T]) nextFor(s *slot[T]) *waiter[T] {
	first := c.waiters.head
	if c.place == nil {
		return first
	}
	place := c.place(s.value)
	if place == 0 {
		return first
	}
	w := first
	for n := 0; w != nil && n < placeSearch && w.since-first.since <= overtaking; n++ {
		if w.place == place {
			return w
		}
		w = w.next
	}
	return first
}

// hand gives s to a waiter.
func (c *core[T]) hand(s *slot[T], e *effects[T]) {
	w := c.nextFor(s)
	c.waiters.remove(w)
	w.lease = c.lease(s)
	c.timed++
	c.backoff.stalled = 0
	e.addWake(w)
}

// fail ends the wait of w with an error.
func (c *core[T]) fail(w *waiter[T], kind, cause error, e *effects[T]) {
	c.waiters.remove(w)
	w.err = c.newError(kind, cause, c.clock-w.since)
	e.addWake(w)
}

// newError describes the pool as it is, and notes when it refused somebody last.
func (c *core[T]) newError(kind, cause error, waited int64) *Error {
	if kind == ErrTimeout || kind == ErrTooManyWaiters { //nolint:errorlint // these very values
		c.lastRefused = max(c.clock, 1)
	}
	return &Error{
		Pool: c.name, Kind: kind, Cause: cause, Waited: time.Duration(max(waited, 0)),
		InUse: c.inUse(), Idle: len(c.idle), Opening: c.opening, Waiting: c.waiters.n,
		MaxSize: c.limits.MaxSize, LastOpenError: c.lastErr,
	}
}

// settle restores the core's promises after any change: waiters get what is
// idle, and opens are started for the rest and for MinIdle.
func (c *core[T]) settle(e *effects[T]) {
	if c.closed {
		return
	}
	for c.waiters.head != nil && len(c.idle) > 0 {
		c.hand(c.popIdle(), e)
	}
	n := min(c.wanted(), c.limits.MaxSize-c.total, c.limits.OpenConcurrency-c.opening)
	if n <= 0 {
		return
	}
	if c.backoff.failures > 0 {
		if c.clock < c.backoff.retryAt {
			if c.backoff.failures > 1 && c.opening == 0 && c.live() == 0 {
				c.failAll(ErrOpen, c.lastErr, e)
			}
			return
		}
		n = min(n, 1-c.opening)
	}
	if n > 0 {
		c.opening += n
		c.total += n
		e.opens += n
	}
}

// wanted is the number of further opens that waiters and MinIdle ask for.
func (c *core[T]) wanted() int {
	warm := len(c.idle) + c.checking // those come back, as a rule
	if c.limits.MinIdle == 0 {
		return c.waiters.n - c.opening
	}
	if c.replaces() {
		soon := c.clock + c.lead()
		for _, s := range c.idle {
			if s.expires <= soon {
				warm--
			}
		}
	}
	return c.waiters.n + max(c.limits.MinIdle-warm, 0) - c.opening
}

// replaces reports whether idle resources are so few that one about to expire
// needs a replacement opened before it goes.
func (c *core[T]) replaces() bool {
	return c.limits.MaxLifetime > 0 && len(c.idle) <= 2*c.limits.MinIdle
}

func (c *core[T]) failAll(kind, cause error, e *effects[T]) {
	for c.waiters.head != nil {
		c.fail(c.waiters.head, kind, cause, e)
	}
}

// full reports whether one more waiter is one too many: those for whom there is
// a place that nobody uses, be its resource not open yet, being checked or being
// closed, do not count.
func (c *core[T]) full() bool {
	most := c.limits.MaxWaiters
	if most == 0 {
		return false
	}
	places := max(c.limits.MaxSize-c.inUse(), 0)
	return c.waiters.n >= places+max(most, 0)
}

// begun returns the back-off round in which an open starts.
func (c *core[T]) begun() uint64 { return c.backoff.round }

// openDone takes the result of an open under way.
func (c *core[T]) openDone(s *slot[T], round uint64, err error, e *effects[T]) {
	c.opening--
	if err != nil {
		c.total--
		c.openFailure(round, err, e)
		c.settle(e)
		return
	}
	c.backoff.reset()
	c.lastErr = nil
	c.born(s)
	if c.waiters.head == nil && !c.closed && c.total <= c.limits.MaxSize {
		// MaxIdle does not apply: it may replace one about to expire.
		c.pushIdle(s)
	} else {
		c.give(s, e)
	}
	c.settle(e)
}

// born enters a resource that was just opened.
func (c *core[T]) born(s *slot[T]) {
	c.opened++
	s.openedAt, s.checkedAt = c.clock, c.clock
	s.early = c.jitter() / 10
	s.expires = c.expiry(s)
	c.link(s)
}

// expiry is when s has to go under the present limits.
func (c *core[T]) expiry(s *slot[T]) int64 {
	life := int64(c.limits.MaxLifetime)
	if life == 0 || s.direct {
		return never
	}
	return s.openedAt + life - int64(float64(life)*s.early)
}

// openFailure decides who learns of a failed open.
func (c *core[T]) openFailure(round uint64, err error, e *effects[T]) {
	c.openFailed++
	if c.closed {
		return
	}
	c.lastErr = err
	c.backoff.failed(round, c.clock, c.jitter())
	switch {
	case c.live() > 0:
		if c.backoff.stalled >= stalledRounds {
			c.failAll(ErrOpen, err, e)
		}
	case c.backoff.failures > 1 && c.opening == 0:
		c.failAll(ErrOpen, err, e)
	case c.waiters.head != nil:
		c.fail(c.waiters.head, ErrOpen, err, e)
	}
}

// shutdown refuses everybody from now on and closes what is idle.
func (c *core[T]) shutdown(e *effects[T]) {
	c.closed, c.hot, c.ticking = true, false, false
	c.failAll(ErrClosed, nil, e)
	for len(c.idle) > 0 {
		c.retire(c.popIdle(), ReasonShutdown, e)
	}
}

// empty reports whether nothing is left of a closed pool.
func (c *core[T]) empty() bool { return c.closed && c.total == 0 && c.direct == 0 }

// update applies new limits (validated, defaults filled in).
func (c *core[T]) update(l Limits, e *effects[T]) {
	c.limits = l
	for s := c.all; s != nil; s = s.nxt {
		s.expires = c.expiry(s)
	}
	surplus := max(len(c.idle)-l.MaxIdle, min(c.total-c.closing-l.MaxSize, len(c.idle)), 0)
	for _, s := range c.idle[:surplus] { // those unused for longest
		c.retire(s, ReasonSurplus, e)
	}
	kept := copy(c.idle, c.idle[surplus:])
	clear(c.idle[kept:])
	c.idle = c.idle[:kept]
	c.settle(e)
}
