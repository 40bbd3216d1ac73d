package pool

import (
	"container/heap"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Budget bounds the resources of several pools together, besides the MaxSize of each: those that are open, being opened
// and being closed, without overflow resources. Make one with NewBudget: New refuses the zero Budget. All methods are
// safe for concurrent use.
//
// When a pool needs a resource for a waiting caller and the budget is used up, the resource that has been idle longest
// in any of the pools is closed for it. If none is idle, the next one that is released in any of the pools is closed,
// unless a caller that has waited longer waits for that resource. So callers are served in the order of their acquires,
// whichever pool they use. Resources are opened ahead of demand (MinIdle, MaxWarm) only if the budget has room.
//
// A pool that had no resource when its callers came, or whose last open has failed, may be unable to open any, for
// instance because of a wrong password. No resource of another pool is closed for it in vain: when the budget is used
// up, the pool first opens a resource beside the limit, on trial, and an idle one is closed only once that is open. If
// none is idle, the resource on trial is closed, and the pool's callers wait for their turn. Trials wait for one
// another, and for callers of other pools who have waited longer. A trial that takes a second makes room for others: an
// idle resource, or the next one that is released, is closed for it.
type Budget struct {
	// pressed says that a pool needs a resource, or that the limit is exceeded: a resource that is given back may have to
	// be closed.
	pressed atomic.Bool
	start   time.Time // origin of the times below; immutable

	mu      sync.Mutex // taken after a pool's; no pool's is taken under it
	limit   int
	beside  int      // how many resources may be open or on trial beside the limit
	used    int      // number of resources that pools have, or are granted
	coming  int      // of them, those that are being closed for the budget
	trials  int      // of them, those on trial for less than trialTime
	holders []*share // pools that have, or are granted, at least one
	needs   needs    // pools that need one more
	doubts  needs    // pools that need one more, on trial if there is no room
	woken   []*share // pools that were granted one, to be poked
}

// NewBudget returns a Budget for Config.Budget; limit 0 means unlimited. trials is how many resources may be opened on
// trial beside the limit; with 0 there are no trials.
func NewBudget(limit, trials int) *Budget {
	b := &Budget{start: time.Now()}
	b.limit, b.beside = effective(limit), trials
	return b
}

func effective(limit int) int {
	if limit <= 0 {
		return math.MaxInt
	}
	return limit
}

// SetLimit changes the arguments of NewBudget. Resources beyond a lower limit are closed when they are idle.
func (b *Budget) SetLimit(limit, trials int) {
	b.mu.Lock()
	b.limit, b.beside = effective(limit), trials
	for trials == 0 && len(b.doubts) > 0 {
		heap.Pop(&b.doubts).(*share).wait()
	}
	b.assign()
	b.note()
	b.mu.Unlock()
	b.serve()
}

// Used returns the number of resources that count towards the limit.
func (b *Budget) Used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// share is a pool's part of a Budget.
type share struct {
	budget *Budget
	pool   sharer
	began  int64 // when the pool was made; times of the pool plus began are those of the Budget

	// Guarded by Budget.mu.
	held    int         // its part of Budget.used
	index   int         // in Budget.holders
	queue   *needs      // Budget.needs or doubts, if it is there
	place   int         // in queue; -1 = in none
	since   int64       // when the caller that needs the resource began to wait
	granted int         // resources that the pool may open: none or one
	opens   bool        // the last open has succeeded, and the pool has been in use since
	trial   bool        // one that is granted or being opened is on trial
	overdue *time.Timer // ends its time beside the limit; nil = it is over, or there is no trial
}

// trialTime is how long a resource on trial may be beside the limit. A backend that refuses mostly answers within it.
// One that hangs must not block all other pools that need a trial.
const trialTime = time.Second

// sharer is what a Budget needs of a pool. The methods take the pool's lock.
type sharer interface {
	poke()              // opens the resources that were granted
	idleLongest() int64 // the time of the last use of an idle resource; never if none is idle
	evict()             // closes that resource if the Budget still claims it
}

// join adds a pool, which was made at a time.
func (b *Budget) join(p sharer, made time.Time) *share {
	return &share{budget: b, pool: p, began: int64(made.Sub(b.start)), place: -1}
}

// count adds n to the resources that the pool has, or is granted. Under Budget.mu.
func (s *share) count(n int) {
	b := s.budget
	had := s.held > 0
	b.used, s.held = b.used+n, s.held+n
	switch has := s.held > 0; {
	case has && !had:
		s.index = len(b.holders)
		b.holders = append(b.holders, s)
	case had && !has:
		last := len(b.holders) - 1
		b.holders[s.index], b.holders[last].index = b.holders[last], s.index
		b.holders[last] = nil
		b.holders = b.holders[:last]
	}
}

// take replaces what the pool needs: it would like to open n resources, of which needed are for waiting callers.
// since(k) returns when the first caller that k opens do not cover began to wait. got is how many the pool may open.
// limit is the budget's limit if that keeps the pool from opening all that are needed, and else 0. work says that serve
// must be called.
func (s *share) take(n, needed int, since func(int) int64) (got, limit int, work bool) {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.place >= 0 {
		heap.Remove(s.queue, s.place)
	}
	if got = min(n, s.granted); got < s.granted {
		s.count(-1)
		s.endTrial()
	}
	s.granted = 0
	b.assign()
	more := min(n-got, max(b.limit-b.used, 0))
	got += more
	s.count(more)
	if got < needed {
		s.since, limit = s.began+since(got), b.limit
		s.wait()
		b.assign()
	}
	return got, limit, b.note()
}

// wait puts the pool into a queue, unless its trial is still under way. Under Budget.mu.
func (s *share) wait() {
	b := s.budget
	switch {
	case s.opens || b.beside == 0:
		s.queue = &b.needs
	case s.trial:
		return
	default:
		s.queue = &b.doubts
	}
	heap.Push(s.queue, s)
}

// endTrial ends the trial if there is one. Under Budget.mu.
func (s *share) endTrial() {
	s.trial = false
	if s.overdue != nil {
		s.overdue.Stop()
		s.overdue = nil
		s.budget.trials--
	}
}

// try begins a trial of the pool that was granted a resource. Under mu.
func (b *Budget) try(s *share) {
	s.trial = true
	b.trials++
	var timer *time.Timer
	timer = time.AfterFunc(trialTime, func() {
		b.mu.Lock()
		if s.overdue == timer { // the trial is still under way
			s.overdue = nil
			b.trials--
			b.assign()
			b.note()
		}
		b.mu.Unlock()
		b.serve()
	})
	s.overdue = timer
}

// release returns a resource that is closed. claimed is the result of claims for it, and waits says that callers wait. work
// says that serve must be called.
func (s *share) release(claimed, waits bool) (work bool) {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	s.count(-1)
	if claimed {
		b.coming--
	}
	if s.held == 0 && !waits { // when it opens again, the result of its last open is old
		s.opens = false
	}
	b.assign()
	return b.note()
}

// failed returns a resource that could not be opened. work says that serve must be called.
func (s *share) failed() (work bool) {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	s.opens = false
	s.endTrial()
	s.count(-1)
	b.assign()
	return b.note()
}

// opened tells the Budget that a resource has been opened. work says that serve must be called.
func (s *share) opened() (work bool) {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	s.opens = true
	s.endTrial()
	b.assign()
	return b.note()
}

// claims reports whether the Budget needs the resource that the pool would otherwise keep idle or hand to its first
// waiting caller. since is when that caller began to wait; never = no caller waits. If so, the pool must close the
// resource.
func (s *share) claims(since int64) bool {
	if !s.isPressed() {
		return false
	}
	if since != never {
		since += s.began
	}
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	older := 0
	for _, other := range b.needs { // at most one of each pool
		if other != s && other.since < since {
			older++
		}
	}
	if older+b.excess() <= b.coming {
		return false
	}
	b.coming++
	return true
}

// isPressed reports whether claims may be true. A nil share has no Budget.
func (s *share) isPressed() bool { return s != nil && s.budget.pressed.Load() }

// assign grants resources to the pools whose callers have waited longest. Pools in needs come first, because resources
// were closed for them. Under mu.
func (b *Budget) assign() {
	for {
		switch room := b.used < b.limit; {
		case room && len(b.needs) > 0:
			b.grant(&b.needs)
		case room && len(b.doubts) > 0:
			b.grant(&b.doubts)
		case !room && b.tries():
			b.try(b.grant(&b.doubts))
		default:
			return
		}
	}
}

// tries reports whether a trial may begin. Under mu.
func (b *Budget) tries() bool {
	return len(b.doubts) > 0 && b.used-b.limit < b.beside && (len(b.needs) == 0 || b.doubts[0].since <= b.needs[0].since)
}

// grant grants a resource to the first pool of a queue. Under mu.
func (b *Budget) grant(queue *needs) *share {
	s := heap.Pop(queue).(*share)
	s.granted++
	s.count(1)
	b.woken = append(b.woken, s)
	return s
}

// excess is the number of resources above the limit, without those on trial. Under mu.
func (b *Budget) excess() int { return max(b.used-b.trials-b.limit, 0) }

// due is the number of further resources to close. Under mu.
func (b *Budget) due() int { return len(b.needs) + b.excess() - b.coming }

// note sets pressed after a change, and reports whether serve must be called. Under mu.
func (b *Budget) note() (work bool) {
	b.pressed.Store(len(b.needs)+b.excess() > 0)
	return len(b.woken) > 0 || b.due() > 0
}

// serve wakes the pools that were granted resources, and closes idle resources as long as some are due. No lock is
// held.
func (b *Budget) serve() {
	for {
		b.mu.Lock()
		if last := len(b.woken) - 1; last >= 0 {
			s := b.woken[last]
			b.woken[last] = nil
			b.woken = b.woken[:last]
			b.mu.Unlock()
			s.pool.poke()
			continue
		}
		if b.due() <= 0 {
			b.mu.Unlock()
			return
		}
		holders := slices.Clone(b.holders)
		b.mu.Unlock()
		victim, oldest := (*share)(nil), int64(never)
		for _, s := range holders {
			if at := s.pool.idleLongest(); at != never && s.began+at < oldest {
				victim, oldest = s, s.began+at
			}
		}
		if victim == nil {
			return // pressed is set, so that releases close resources
		}
		victim.pool.evict()
	}
}

// needs is a heap of pools that need a resource; the first one's caller has waited longest.
type needs []*share

func (n needs) Len() int           { return len(n) }
func (n needs) Less(i, j int) bool { return n[i].since < n[j].since }
func (n needs) Swap(i, j int)      { n[i], n[j] = n[j], n[i]; n[i].place, n[j].place = i, j }

// Push implements heap.Interface.
func (n *needs) Push(x any) {
	s := x.(*share)
	s.place = len(*n)
	*n = append(*n, s)
}

// Pop implements heap.Interface.
func (n *needs) Pop() any {
	last := len(*n) - 1
	s := (*n)[last]
	(*n)[last] = nil
	*n, s.place = (*n)[:last], -1
	return s
}

// permitted returns how many of n opens the Budget permits.
func (c *core[T]) permitted(n int, e *effects[T]) int {
	if n <= 0 && c.short == 0 {
		c.denied = false
		return 0
	}
	got, limit, work := c.share.take(max(n, 0), min(n, c.waiters.n-c.opening), func(covered int) int64 {
		w := c.waiters.head
		for range c.opening + covered { // at most OpenConcurrency
			w = w.links[inAll].next
		}
		return w.since
	})
	c.short, c.denied, e.serve = limit, got < n, e.serve || work
	return got
}

// withdraw tells the Budget that the pool opens nothing.
func (c *core[T]) withdraw(e *effects[T]) {
	if c.short > 0 {
		_, _, work := c.share.take(0, 0, nil)
		c.short, e.serve = 0, e.serve || work
	}
}

// freed returns a closed resource to the Budget.
func (c *core[T]) freed(claimed bool, e *effects[T]) {
	if c.share != nil {
		e.serve = c.share.release(claimed, c.waiters.head != nil) || e.serve
	}
}

// unopened returns a resource to the Budget that could not be opened.
func (c *core[T]) unopened(e *effects[T]) {
	if c.share != nil {
		e.serve = c.share.failed() || e.serve
	}
}

// opened tells the Budget of the end of an open, before the pool gets the resource: it makes room for one that was on trial.
// No lock is held.
func (p *Pool[T]) opened(err error) {
	if s := p.core.share; s != nil && err == nil && s.opened() {
		s.budget.serve()
	}
}

// claimed reports whether the Budget needs a resource more than the pool's callers do, and claims it then.
func (c *core[T]) claimed(s *slot[T]) bool {
	since := int64(never)
	if w := c.waiters.head; w != nil {
		since = w.since
	}
	s.claimed = c.share.claims(since)
	return s.claimed
}

// poke implements sharer.
func (p *Pool[T]) poke() {
	var e effects[T]
	p.mu.Lock()
	p.touch(p.now())
	p.core.dispatch(&e)
	e.serve = false // the caller is serve, which continues
	p.unlock(&e)
}

// idleLongest implements sharer.
func (p *Pool[T]) idleLongest() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.core.idle) == 0 {
		return never
	}
	return p.core.idle[0].idleSince
}

// evict implements sharer.
func (p *Pool[T]) evict() {
	var e effects[T]
	c := &p.core
	p.mu.Lock()
	if len(c.idle) > 0 && c.share.claims(never) {
		s := c.takeIdle(0)
		s.claimed = true
		c.retire(s, ReasonSurplus, &e)
	}
	p.unlockAsync(&e)
}
