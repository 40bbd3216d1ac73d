package upstream

import (
	"slices"
	"sync/atomic"
	"time"
)

// set is the state of all endpoints at one moment. It is immutable.
type set[T any] struct {
	plan
	all      []*endpoint[T] // by priority
	fit      []*endpoint[T] // those whose roles the Target accepts, by tier
	in       choice[T]      // endpoints that get leases: the usable ones of the first tier with any; with Nearest only the near ones
	others   []*endpoint[T] // other usable endpoints: far ones, then those of later tiers
	failOpen bool           // no endpoint is usable, so in has the first tier of fit
	starting bool           // an endpoint in in starts slowly
	ring     ring           // over all; only with RingHash
	chosen   []bool         // marks those of all that are in in; only with RingHash
	turns    *turns         // of RoundRobin, shared by successive sets
	replaced chan struct{}  // closed when the next set has been published
}

// plan holds the Settings that decide how endpoints are picked.
type plan struct {
	balance        Balance
	target         Target
	slowStart      time.Duration
	maxWaiters     int           // as in pool.Limits
	acquireTimeout time.Duration // limit of waits for the first report of a Source, and for a role; 0 = none
	decided        bool          // with TargetPreferStandby: an earlier set had endpoints for leases
}

// planOf returns the plan of new Settings; before is the plan that they replace.
func planOf(s Settings, before plan) plan {
	return plan{
		balance: s.Balance, target: s.Target, slowStart: s.SlowStart, acquireTimeout: s.Limits.AcquireTimeout, maxWaiters: s.Limits.MaxWaiters,
		decided: before.decided && before.target == s.Target,
	}
}

// turns are the counters of RoundRobin: of first choices, and of choices after a failure, which must not shift the
// first ones.
type turns struct{ first, other atomic.Uint64 }

// newSet makes the set as of now. all is in order of priority.
func newSet[T any](p plan, all []*endpoint[T], r ring, t *turns) *set[T] {
	s := &set[T]{plan: p, all: all, fit: fitting(p.target, all), ring: r, turns: t, replaced: make(chan struct{})}
	var in []*endpoint[T]
	for _, e := range s.fit {
		switch {
		case !e.usable.Load():
		case len(in) == 0 || s.tier(e) == s.tier(in[0]):
			in = append(in, e)
		default:
			s.others = append(s.others, e)
		}
	}
	if p.balance == Nearest {
		var far []*endpoint[T]
		in, far = near(in)
		s.others = append(far, s.others...)
	}
	if s.undecided(in) {
		in, s.others = nil, nil
	} else if len(in) == 0 && len(s.fit) > 0 {
		s.failOpen = true
		in = slices.Clone(s.firstTier(s.fit))
	}
	s.decided = s.decided || len(in) > 0
	s.in, s.starting = newChoice(in, p.slowStart, time.Now())
	if r != nil {
		s.chosen = chosenOf(all, in)
	}
	return s
}

// fitting returns the endpoints whose roles a Target accepts, by tier. all is in order of priority.
func fitting[T any](t Target, all []*endpoint[T]) []*endpoint[T] {
	if t == TargetAny {
		return all
	}
	var by [2][]*endpoint[T] // rank
	for _, e := range all {
		if rank := t.rank(e.role()); rank != refused {
			by[rank] = append(by[rank], e)
		}
	}
	return slices.Concat(by[0], by[1])
}

// tier numbers the endpoints that get leases together: those of the same priority whose roles have the same rank.
func (s *set[T]) tier(e *endpoint[T]) [2]int {
	return [2]int{s.target.rank(e.role()), e.priority()}
}

// undecided reports whether the first leases have to wait, because an endpoint whose role is not known yet may be a
// standby, which TargetPreferStandby prefers to the usable endpoints.
func (s *set[T]) undecided(usable []*endpoint[T]) bool {
	if s.target != TargetPreferStandby || s.decided || len(usable) > 0 && s.target.rank(usable[0].role()) == 0 {
		return false
	}
	return s.anyFresh()
}

// anyFresh reports whether there is an endpoint whose role has never been asked for, or not since a pause.
func (s *set[T]) anyFresh() bool {
	return slices.ContainsFunc(s.all, func(e *endpoint[T]) bool { return e.roles.fresh.Load() })
}

// specs returns the endpoints as last reported. The caller holds Upstream.updating.
func (s *set[T]) specs() []Endpoint {
	list := make([]Endpoint, len(s.all))
	for i, e := range s.all {
		list[i] = *e.spec.Load()
	}
	return list
}

// pick chooses an endpoint; nil = the set is empty.
func (s *set[T]) pick(key string) *endpoint[T] {
	if len(s.in.list) == 0 {
		return nil
	}
	if s.hashes(key) {
		return s.onRing(key, s.chosen)
	}
	return s.among(s.in, &s.turns.first)
}

// hashes reports whether the ring chooses the endpoint.
func (s *set[T]) hashes(key string) bool { return s.balance == RingHash && key != "" }

// onRing returns the key's endpoint among those marked in chosen, of which there is at least one.
func (s *set[T]) onRing(key string, chosen []bool) *endpoint[T] {
	return s.all[s.ring.lookup(key, func(i int) bool { return !chosen[i] })]
}

// chosenOf marks those of all that are in list.
func chosenOf[T any](all, list []*endpoint[T]) []bool {
	chosen := make([]bool, len(all))
	for i, e := range all {
		chosen[i] = slices.Contains(list, e)
	}
	return chosen
}

// pickOther chooses an endpoint that was not tried: one that is in, else one of a later tier, else one that is out. nil =
// all were tried.
func (s *set[T]) pickOther(key string, tried []*endpoint[T]) *endpoint[T] {
	rest := without(s.in.list, tried)
	if len(rest) == 0 {
		rest = s.firstTier(without(s.others, tried))
	}
	if len(rest) == 0 {
		rest = s.firstTier(without(s.fit, tried))
	}
	if len(rest) == 0 {
		return nil
	}
	if s.hashes(key) {
		return s.onRing(key, chosenOf(s.all, rest))
	}
	c, _ := newChoice(rest, s.slowStart, time.Now())
	return s.among(c, &s.turns.other)
}

func (s *set[T]) among(c choice[T], turn *atomic.Uint64) *endpoint[T] {
	switch s.balance {
	case First:
		return c.list[0]
	case RoundRobin:
		return c.inTurn(turn)
	case PeakEWMA:
		return c.quicker()
	}
	return c.lessBusy()
}

// firstTier returns the endpoints with the tier of the first one in list, which is in order.
func (s *set[T]) firstTier(list []*endpoint[T]) []*endpoint[T] {
	for i, e := range list {
		if s.tier(e) != s.tier(list[0]) {
			return list[:i]
		}
	}
	return list
}

func without[T any](from, tried []*endpoint[T]) []*endpoint[T] {
	var rest []*endpoint[T]
	for _, e := range from {
		if !slices.Contains(tried, e) {
			rest = append(rest, e)
		}
	}
	return rest
}
