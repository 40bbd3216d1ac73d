package upstream

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
)

// set is the endpoints at one moment; immutable.
type set[T any] struct {
	balance  Balance
	all      []*endpoint[T]
	in       []*endpoint[T] // those that are usable; all of them when none is
	failOpen bool           // none is usable
	ring     ring           // over all; only for RingHash
	turns    *turns         // RoundRobin's, shared by successive sets
}

// turns are RoundRobin's: of first choices, and of those after a failure, which
// must not shift the first ones.
type turns struct{ first, other atomic.Uint64 }

// newSet makes the set of endpoints that are usable now.
func newSet[T any](b Balance, all []*endpoint[T], r ring, t *turns) *set[T] {
	s := &set[T]{balance: b, all: all, ring: r, turns: t}
	for _, e := range all {
		if e.usable.Load() {
			s.in = append(s.in, e)
		}
	}
	if len(s.in) == 0 {
		s.in, s.failOpen = all, len(all) > 0
	}
	return s
}

// pick chooses an endpoint; nil when there is none.
func (s *set[T]) pick(key string) *endpoint[T] {
	if len(s.in) == 0 {
		return nil
	}
	if s.balance == RingHash && key != "" {
		return s.onRing(key, func(e *endpoint[T]) bool { return !s.failOpen && !e.usable.Load() }, s.in)
	}
	return s.among(s.in, &s.turns.first)
}

// pickOther chooses an endpoint that was not tried: of those that are in, or
// else of the others. nil means that all were tried.
func (s *set[T]) pickOther(key string, tried []*endpoint[T]) *endpoint[T] {
	rest := without(s.in, tried)
	if len(rest) == 0 {
		rest = without(s.all, tried)
	}
	if len(rest) == 0 {
		return nil
	}
	if s.balance == RingHash && key != "" {
		return s.onRing(key, func(e *endpoint[T]) bool { return !slices.Contains(rest, e) }, rest)
	}
	return s.among(rest, &s.turns.other)
}

// onRing returns the key's endpoint, or any candidate when all are skipped
// because their state changed since the set was made.
func (s *set[T]) onRing(key string, skip func(*endpoint[T]) bool, candidates []*endpoint[T]) *endpoint[T] {
	i := s.ring.lookup(key, func(i int) bool { return skip(s.all[i]) })
	if i < 0 {
		return candidates[0]
	}
	return s.all[i]
}

func (s *set[T]) among(candidates []*endpoint[T], turn *atomic.Uint64) *endpoint[T] {
	switch s.balance {
	case First:
		return candidates[0]
	case RoundRobin:
		return candidates[int((turn.Add(1)-1)%uint64(len(candidates)))]
	}
	return candidates[p2c(len(candidates), rand.IntN, func(i int) int64 { return candidates[i].load.Load() })]
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
