package pool

import (
	"sync/atomic"
	"time"
)

// core is the pool's bookkeeping: resources, waiters, opens under way and
// back-off. It is deterministic: it starts nothing, waits for nothing and reads
// no clock (times are nanoseconds since the pool was made). Its owner holds the
// pool's lock around every call, and then performs the returned effects
// without it. Two invariants hold when the lock is free: while a caller waits, no
// resource is idle; and idle+inUse+opening+closing+checking = total ≤ MaxSize,
// unless MaxSize was made smaller. Lingering resources are in use.
type core[T any] struct {
	// What each Acquire and Release writes comes first, next to the pool's lock: processors that
	// take turns exchange one cache line for it.
	idle               []*slot[T] // in the order of their last use, newest last
	acquired, released uint64
	// clock is the coarse clock: the time when the real one was last read. While
	// ticking, the timer updates it every tick, and the fast paths of Acquire and
	// Release (allowed by hot) use it.
	clock   int64
	hot     bool
	ticking bool
	closed  bool
	paused  bool
	calm    bool // hot may be set: no hook and no leak report observes each lease
	spared  int  // idle resources that acquires use last; see Lease.Linger

	lingering []*slot[T] // neither leased nor idle

	waiters   waiterList[T]
	pace      pace
	total     int
	opening   int
	closing   int
	checking  int
	peak      int           // most leases out, without overflow resources
	direct    int           // overflow resources out, not in total
	affinity  func(T) int   // Config.Affinity; nil = no affinity
	share     *share        // of Config.Budget; nil = no Budget
	elsewhere *atomic.Int64 // Config.Ahead; nil = nobody
	short     int           // the Budget's limit while that keeps a waiter's resource from being opened; 0 = it does not
	denied    bool          // the Budget has denied an open that startable asked for, for a waiter or to keep one warm
	limits    Limits        // defaults filled in

	name   string
	jitter func() float64
	all    *slot[T] // every slot with a resource, doubly linked
	seen   uint64   // acquired + released at the last tick
	// pausedAt is when the present pause began, and pausedFor how long all pauses before it took together.
	pausedAt, pausedFor int64
	pauseRound          uint64 // opens of an earlier round began before the last pause or GiveUp
	renewed             int64  // resources whose open began earlier are closed when they are not leased

	backoff backoff
	lastErr error

	opened, openFailed, fresh, waited       uint64
	timed                                   uint64 // acquires counted in Pool.waits: not served at once
	timedOut, rejected, canceled, discarded uint64
	gaveUp                                  uint64
	overflowed, replacements                uint64
	closedFor                               [reasons]uint64
	lastRefused                             int64 // by clock; 0: never
	openTime                                int64 // moving average of successful opens, nanoseconds; 0: none yet
	leakAfter                               int64
	wantSite                                bool // the last leaks had no call stack: take it for every acquire
	warm                                    warmth
}

// slot holds one resource. A new one is made for every open.
type slot[T any] struct {
	pool  *Pool[T]
	value T // written once, before the slot is shared
	// gen is odd while leased and grows by one at each lease and each return,
	// so that a stale Lease is recognised. Kept under the pool's lock.
	gen       uint64
	idleSince int64
	affinity  int // its affinity, while it is idle
	expires   int64
	openedAt  int64
	checkedAt int64
	early     float64 // the fraction of MaxLifetime by which this one expires earlier, 0 to 0.1
	lingersTo int64   // while it lingers
	spared    bool    // while it is idle: acquires prefer others
	direct    bool
	claimed   bool     // it is closed for the Budget
	outdated  bool     // Expire has ended its life
	why       Reason   // set when it is to be closed
	chain     *slot[T] // next in effects.close
	prev, nxt *slot[T] // in core.all
	hold      hold

	openingSince int64 // when its open began
}

// effects are the caller's actions after unlocking.
type effects[T any] struct {
	wake  *waiter[T] // linked by wakeNext
	last  *waiter[T]
	close *slot[T] // linked by chain
	opens int
	serve bool // Budget.serve must be called
}

func (e *effects[T]) addWake(w *waiter[T]) {
	if e.last == nil {
		e.wake = w
	} else {
		e.last.wakeNext = w
	}
	e.last = w
}

// inUse is the number of leases out and lingering resources, without overflow resources.
func (c *core[T]) inUse() int { return c.total - len(c.idle) - c.opening - c.closing - c.checking }

// live is the number of open resources that may be released.
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

// lease turns a free slot into a lease. The caller calls notePeak when it hands the lease out.
func (c *core[T]) lease(s *slot[T]) Lease[T] {
	s.gen++
	c.acquired++
	if s.gen == 1 {
		c.fresh++
	}
	if c.leakAfter > 0 {
		s.hold = hold{since: c.clock}
	}
	return Lease[T]{s, s.gen}
}

// notePeak is called when a lease has been handed out.
func (c *core[T]) notePeak() {
	if n := c.inUse(); n > c.peak {
		c.peak = n
	}
}

// A search for a matching affinity looks at affinitySearch idle resources or waiters. A matching
// waiter overtakes those that have waited up to overtaking longer.
const (
	affinitySearch = 32
	overtaking     = int64(time.Millisecond)
)

// AffinityPlace is the number of bits, the lowest ones, of an affinity that are its place. The bits
// above are its kind. See Config.Affinity.
const AffinityPlace = 16

// closeness returns how well two affinities match, from 0 to matches.
func closeness(a, b int) (n int) {
	if a>>AffinityPlace == b>>AffinityPlace {
		n = 2
	}
	if (a^b)&(1<<AffinityPlace-1) == 0 {
		n++
	}
	return n
}

// matches is the closeness of equal affinities.
const matches = 3

// nearest returns the index of the idle resource to lease to a caller: the most recently used one of
// those whose affinity matches best; -1 = none is idle.
func (c *core[T]) nearest(affinity int) int {
	n := len(c.idle) - 1
	if c.spared > 0 {
		return c.nearestUnspared(affinity)
	}
	if affinity == 0 {
		return n
	}
	near, best := n, -1
	for i := n; i > n-affinitySearch && i >= 0 && best < matches; i-- {
		if is := closeness(c.idle[i].affinity, affinity); is > best {
			near, best = i, is
		}
	}
	return near
}

// takeIdle removes and returns the idle resource with index i.
func (c *core[T]) takeIdle(i int) *slot[T] {
	n, s := len(c.idle)-1, c.idle[i]
	if i < n {
		copy(c.idle[i:], c.idle[i+1:])
	}
	c.idle[n] = nil
	c.idle = c.idle[:n]
	c.unspare(s)
	return s
}

// popIdle removes and returns the most recently used resource.
func (c *core[T]) popIdle() *slot[T] { return c.takeIdle(len(c.idle) - 1) }

// pushIdle makes s the most recently used idle resource.
func (c *core[T]) pushIdle(s *slot[T]) {
	if c.affinity != nil {
		s.affinity = c.affinity(s.value)
	}
	s.idleSince = c.clock
	c.idle = append(c.idle, s)
}

// insertIdle puts s back among the idle resources, by the time of its last use.
func (c *core[T]) insertIdle(s *slot[T]) {
	c.idle = append(c.idle, s)
	for i := len(c.idle) - 1; i > 0 && c.idle[i-1].idleSince > s.idleSince; i-- {
		c.idle[i], c.idle[i-1] = c.idle[i-1], s
	}
}

// retire begins to close the resource of a slot that is neither leased nor idle.
func (c *core[T]) retire(s *slot[T], why Reason, e *effects[T]) {
	c.unspare(s)
	s.why = why
	if !s.direct {
		c.closing++
	}
	s.chain = e.close
	e.close = s
}

// closeDone is called when the resource of s has been closed.
func (c *core[T]) closeDone(s *slot[T], e *effects[T]) {
	c.unlink(s)
	c.closedFor[s.why]++
	if s.direct {
		c.direct--
	} else {
		c.closing--
		c.total--
		c.freed(s.claimed, e)
	}
	c.dispatch(e)
}

// give hands a usable resource that was released or just opened to a waiter, makes it idle, or
// retires it.
func (c *core[T]) give(s *slot[T], e *effects[T]) {
	switch why, unwanted := c.unwanted(s); {
	case unwanted:
		c.retire(s, why, e)
	case c.claimed(s):
		c.retire(s, ReasonSurplus, e)
	default:
		c.keep(s, e)
	}
}

// keep is give for a resource that need not be closed.
func (c *core[T]) keep(s *slot[T], e *effects[T]) {
	if c.waiters.head != nil {
		c.hand(s, e)
	} else {
		c.pushIdle(s)
	}
}

// unwanted reports whether the pool must close a resource that is given back, and why.
func (c *core[T]) unwanted(s *slot[T]) (why Reason, unwanted bool) {
	switch {
	case c.closed:
		return ReasonShutdown, true
	case s.direct:
		return ReasonDirect, true
	case c.total > c.limits.MaxSize || c.paused:
		return ReasonSurplus, true
	case c.clock >= s.expires:
		return ReasonLifetime, true
	}
	return ReasonSurplus, c.waiters.head == nil && len(c.idle) >= c.limits.MaxIdle
}

// hand gives s to a waiter.
func (c *core[T]) hand(s *slot[T], e *effects[T]) {
	w := c.nextFor(s)
	c.waiters.flows.served(w.flow)
	c.waiters.remove(w)
	c.pace.handed(c.clock, c.total >= c.limits.MaxSize && c.opening == 0, c.limits.MaxSize)
	w.lease = c.lease(s)
	c.notePeak()
	c.timed++
	c.backoff.stalled = 0
	e.addWake(w)
}

// fail ends the wait of w with an error.
func (c *core[T]) fail(w *waiter[T], kind, cause error, e *effects[T]) {
	c.waiters.remove(w)
	w.err = c.newError(kind, cause, c.clock-w.since, w.key)
	e.addWake(w)
}

// newError describes the pool as it is, to an acquire of a flow, and notes the time of a refusal.
func (c *core[T]) newError(kind, cause error, waited int64, key uint64) *Error {
	expected := time.Duration(0)
	if kind == ErrTimeout || kind == ErrTooManyWaiters || kind == ErrNoTime { //nolint:errorlint // these very values
		c.lastRefused, expected = max(c.clock, 1), c.expected(key)
	}
	return &Error{
		Pool: c.name, Kind: kind, Cause: cause, Waited: time.Duration(max(waited, 0)),
		InUse: c.inUse(), Idle: len(c.idle), Opening: c.opening, Waiting: c.waiters.n,
		MaxSize: c.limits.MaxSize, LastOpenError: c.lastErr, Expected: expected, Budget: c.short,
	}
}

// dispatch restores the core's invariants after any change: waiters get idle
// resources, and opens are started for the remaining waiters and for resources kept warm.
func (c *core[T]) dispatch(e *effects[T]) {
	if c.closed || c.paused {
		c.withdraw(e)
		return
	}
	for c.waiters.head != nil && len(c.idle) > 0 {
		c.hand(c.popIdle(), e)
	}
	n := c.startable(e)
	if c.share != nil {
		n = c.permitted(n, e)
	}
	if n > 0 {
		c.opening += n
		c.total += n
		e.opens += n
	}
}

// startable is the number of opens to start now, as far as the Budget permits; 0 or less = none. In the back-off it
// fails waiters for whom no resource can become available.
func (c *core[T]) startable(e *effects[T]) int {
	n := min(c.wanted(), c.limits.MaxSize-c.total, c.limits.OpenConcurrency-c.opening)
	if n <= 0 || c.backoff.failures == 0 {
		return n
	}
	if c.clock >= c.backoff.retryAt {
		return min(n, 1-c.opening)
	}
	if c.backoff.failures > 1 && c.opening == 0 && c.live() == 0 {
		c.failAll(ErrOpen, c.lastErr, e)
	}
	return 0
}

// wanted is the number of further opens that waiters and resources to be kept warm ask for.
func (c *core[T]) wanted() int {
	warm := len(c.idle) + c.checking // most pass their check
	if c.warm.target == 0 {
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
	return c.waiters.n + max(c.warm.target-warm, 0) - c.opening
}

// replaces reports whether idle resources are so few that one about to expire
// needs a replacement opened before it goes.
func (c *core[T]) replaces() bool {
	return c.limits.MaxLifetime > 0 && len(c.idle) <= 2*c.warm.target
}

// room is the number of slots that are not leased, which waiters may get.
func (c *core[T]) room() int {
	size := c.limits.MaxSize
	if c.short > 0 {
		size = c.total
	}
	return max(size-c.inUse(), 0)
}

func (c *core[T]) failAll(kind, cause error, e *effects[T]) {
	for c.waiters.head != nil {
		c.fail(c.waiters.head, kind, cause, e)
	}
}

// full reports whether the pool must reject one more waiter. Waiters with a free slot, whose
// resource is not open yet, being checked or being closed, do not count.
func (c *core[T]) full() bool {
	most := c.limits.MaxWaiters
	if most == 0 {
		return false
	}
	n, free := c.waiters.n, c.room()
	if c.elsewhere != nil {
		n += int(c.elsewhere.Load())
	}
	return n >= free+max(most, 0)
}

// begun returns the back-off round in which an open starts.
func (c *core[T]) begun() uint64 { return c.backoff.round }

// openDone is called with the result of an open.
func (c *core[T]) openDone(s *slot[T], round uint64, err error, e *effects[T]) {
	c.opening--
	if err != nil {
		c.total--
		c.unopened(e)
		c.openFailure(round, err, e)
		c.dispatch(e)
		return
	}
	c.backoff.reset()
	c.lastErr = nil
	c.measure(c.clock - s.openingSince)
	c.born(s)
	if c.waiters.head == nil && !c.closed && !c.paused && c.total <= c.limits.MaxSize && c.clock < s.expires && !c.share.isPressed() {
		// MaxIdle does not apply: it may replace one about to expire.
		c.pushIdle(s)
	} else {
		c.give(s, e)
	}
	c.dispatch(e)
}

// measure takes the time of an open into the average.
func (c *core[T]) measure(took int64) {
	const weight = 8 // of the average against the newest: it follows within some dozens of opens
	if took = max(took, 1); c.openTime == 0 {
		c.openTime = took
	}
	c.openTime += (took - c.openTime) / weight
}

// born adds a resource that was just opened.
func (c *core[T]) born(s *slot[T]) {
	c.opened++
	s.openedAt, s.checkedAt = c.clock, c.clock
	s.early = c.jitter() / 10
	s.expires = c.expiry(s)
	c.link(s)
}

// expiry is when s must be closed under the current limits.
func (c *core[T]) expiry(s *slot[T]) int64 {
	life := int64(c.limits.MaxLifetime)
	switch {
	case s.openingSince < c.renewed && !s.direct:
		return c.renewed
	case s.outdated:
		return s.openedAt
	case life == 0 || s.direct:
		return never
	}
	return s.openedAt + life - int64(float64(life)*s.early)
}

// openFailure decides which waiters fail because of a failed open.
func (c *core[T]) openFailure(round uint64, err error, e *effects[T]) {
	c.openFailed++
	if c.closed || c.paused || round < c.pauseRound { // it says nothing about the backend after the pause
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

// shutdown fails all waiters, refuses later acquires and closes idle resources.
func (c *core[T]) shutdown(e *effects[T]) {
	c.closed, c.paused, c.hot, c.ticking = true, false, false, false
	c.failAll(ErrClosed, nil, e)
	c.withdraw(e)
	c.stopAllLingering(e)
	for len(c.idle) > 0 {
		c.retire(c.popIdle(), ReasonShutdown, e)
	}
}

// empty reports whether every resource of a closed or paused pool is closed.
func (c *core[T]) empty() bool { return (c.closed || c.paused) && c.total == 0 && c.direct == 0 }

// pause stops leases and opens, and closes the idle resources.
func (c *core[T]) pause(e *effects[T]) {
	c.paused, c.pausedAt, c.hot = true, c.clock, false
	c.backoff.reset()
	c.pauseRound = c.backoff.round
	c.withdraw(e)
	c.stopAllLingering(e)
	for len(c.idle) > 0 {
		c.retire(c.popIdle(), ReasonSurplus, e)
	}
}

// resume ends a pause.
func (c *core[T]) resume(e *effects[T]) {
	c.pausedFor += c.clock - c.pausedAt
	c.paused, c.hot = false, c.ticking && c.calm
	c.pace.begin(c.clock)
	for c.limits.Overflow == OverflowDirect && c.waiters.head != nil { // they waited for the pause only; now each opens its own
		c.fail(c.waiters.head, errAgain, nil, e)
	}
	c.dispatch(e)
}

// pauses returns how long all pauses so far took together.
func (c *core[T]) pauses() int64 {
	if c.paused {
		return c.pausedFor + c.clock - c.pausedAt
	}
	return c.pausedFor
}

// deadline is when w has waited for AcquireTimeout, which must be limited; never while the pool is paused.
func (c *core[T]) deadline(w *waiter[T]) int64 {
	if c.paused {
		return never
	}
	return w.since + int64(c.limits.AcquireTimeout) + c.pausedFor - w.pauses
}

// update applies new limits (validated, defaults filled in).
func (c *core[T]) update(l Limits, e *effects[T]) {
	c.limits = l
	c.warm.target = min(max(c.warm.target, l.MinIdle), l.MaxWarm)
	for s := c.all; s != nil; s = s.nxt {
		s.expires = c.expiry(s)
	}
	surplus := max(len(c.idle)-l.MaxIdle, min(c.total-c.closing-l.MaxSize, len(c.idle)), 0)
	for _, s := range c.idle[:surplus] { // the least recently used
		c.retire(s, ReasonSurplus, e)
	}
	kept := copy(c.idle, c.idle[surplus:])
	clear(c.idle[kept:])
	c.idle = c.idle[:kept]
	c.dispatch(e)
}
