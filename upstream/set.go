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
	in       choice[T]      // endpoints that get leases: the usable ones of the first priority with any; with Nearest only the near ones
	others   []*endpoint[T] // other usable endpoints: far ones, then those of later priorities
	failOpen bool           // no endpoint is usable, so in has the first priority
	starting bool           // an endpoint in in starts slowly
	ring     ring           // over all; only with RingHash
	chosen   []bool         // marks those of all that are in in; only with RingHash
	turns    *turns         // of RoundRobin, shared by successive sets
}

// plan holds the Settings that decide how endpoints are picked.
type plan struct {
	balance     Balance
	slowStart   time.Duration
	firstReport time.Duration // limit of the wait for the first report of a Source; 0 = none
}

// turns are the counters of RoundRobin: of first choices, and of choices after a failure, which must not shift the
// first ones.
type turns struct{ first, other atomic.Uint64 }

// newSet makes the set as of now. all is in order of priority.
func newSet[T any](p plan, all []*endpoint[T], r ring, t *turns) *set[T] {
	s := &set[T]{plan: p, all: all, ring: r, turns: t}
	var in []*endpoint[T]
	for _, e := range all {
		switch {
		case !e.usable.Load():
		case len(in) == 0 || e.priority() == in[0].priority():
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
	if len(in) == 0 && len(all) > 0 {
		s.failOpen = true
		in = slices.Clone(all)
		in = slices.DeleteFunc(in, func(e *endpoint[T]) bool { return e.priority() != all[0].priority() })
	}
	s.in, s.starting = newChoice(in, p.slowStart, time.Now())
	if r != nil {
		s.chosen = chosenOf(all, in)
	}
	return s
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

// pickOther chooses an endpoint that was not tried: one that is in, else one of a later priority, else one that is out.
// nil = all were tried.
func (s *set[T]) pickOther(key string, tried []*endpoint[T]) *endpoint[T] {
	rest := without(s.in.list, tried)
	if len(rest) == 0 {
		rest = firstPriority(without(s.others, tried))
	}
	if len(rest) == 0 {
		rest = firstPriority(without(s.all, tried))
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

// firstPriority returns the endpoints with the priority of the first one in list.
func firstPriority[T any](list []*endpoint[T]) []*endpoint[T] {
	for i, e := range list {
		if e.priority() != list[0].priority() {
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
