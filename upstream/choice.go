package upstream

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// choice is a list of candidates with their present weights. It is immutable.
type choice[T any] struct {
	list []*endpoint[T]
	// ends holds the running sums of the weights, so that each number below the last sum stands for a candidate; nil =
	// equal weights.
	ends   []int
	stride int // step of RoundRobin through these numbers
}

// newChoice weighs candidates as of now. starting reports whether one of them starts slowly, so that its weight will
// change.
func newChoice[T any](list []*endpoint[T], slowStart time.Duration, now time.Time) (c choice[T], starting bool) {
	c.list = list
	weights := make([]int, len(list))
	for i, e := range list {
		percent := e.started(slowStart, now)
		starting = starting || percent < 100
		weights[i] = e.weight() * percent
	}
	if len(list) < 2 || !slices.ContainsFunc(weights, func(w int) bool { return w != weights[0] }) {
		return c, starting
	}
	divisor := commonDivisor(weights)
	total := 0
	c.ends = make([]int, len(weights))
	for i, w := range weights {
		total += w / divisor
		c.ends[i] = total
	}
	c.stride = strideOf(total)
	return c, starting
}

func commonDivisor(weights []int) int {
	d := 0
	for _, w := range weights {
		d = divisor(d, w)
	}
	return max(d, 1)
}

func divisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// strideOf returns a step that visits every number below total once in total steps, with successive numbers far apart
// (near the golden ratio).
func strideOf(total int) int {
	s := max(1, int(float64(total)*0.6180339887))
	for divisor(s, total) != 1 {
		s++
	}
	return s
}

// at returns the candidate that n, a number below the sum of the weights, stands for.
func (c choice[T]) at(n int) int {
	i, exact := slices.BinarySearch(c.ends, n)
	if exact {
		i++
	}
	return i
}

// weight returns the weight of the i-th candidate; 1 if all weights are equal.
func (c choice[T]) weight(i int) int {
	switch {
	case c.ends == nil:
		return 1
	case i == 0:
		return c.ends[0]
	}
	return c.ends[i] - c.ends[i-1]
}

// inTurn implements RoundRobin: in as many choices as the sum of the weights, each candidate is chosen as often as its
// weight, evenly spread.
func (c choice[T]) inTurn(turn *atomic.Uint64) *endpoint[T] {
	n := turn.Add(1) - 1
	if c.ends == nil {
		return c.list[n%uint64(len(c.list))]
	}
	total := uint64(c.ends[len(c.ends)-1])
	return c.list[c.at(int(n%total*uint64(c.stride)%total))]
}

// lessBusy implements P2C.
func (c choice[T]) lessBusy() *endpoint[T] {
	return c.least(func(i int) int64 { return c.list[i].load.Load() })
}

// quicker implements PeakEWMA.
func (c choice[T]) quicker() *endpoint[T] {
	now := sinceEpoch(time.Now())
	return c.least(func(i int) int64 { return c.list[i].latency.cost(c.list[i].load.Load(), now) })
}

// least draws two candidates and returns the one with less load.
func (c choice[T]) least(load func(int) int64) *endpoint[T] {
	if c.ends == nil {
		return c.list[p2c(len(c.list), rand.IntN, load)]
	}
	return c.list[c.weightedP2C(rand.IntN, load)]
}

// weightedP2C draws two different candidates, each with a probability in proportion to its weight, and returns the one
// with less load relative to its weight. Of equals it returns the first, so that idle endpoints get their shares.
func (c choice[T]) weightedP2C(random func(int) int, load func(int) int64) int {
	total := c.ends[len(c.ends)-1]
	a := c.at(random(total))
	n := random(total - c.weight(a))
	if n >= c.ends[a]-c.weight(a) {
		n += c.weight(a)
	}
	b := c.at(n)
	if load(b)*int64(c.weight(a)) < load(a)*int64(c.weight(b)) {
		return b
	}
	return a
}
