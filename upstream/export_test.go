package upstream

import (
	"slices"
	"sync/atomic"
	"time"
)

// PickP2C is the choice of two.
func PickP2C(n int, random func(int) int, load func(int) int64) int { return p2c(n, random, load) }

// Ring is the hash ring alone.
type Ring = ring

// NewRing returns a ring over addrs, which weigh 1 each unless there are weights.
func NewRing(addrs []string, weights ...int) Ring {
	for len(weights) < len(addrs) {
		weights = append(weights, 1)
	}
	return newRing(addrs, weights)
}

// Weighted is the choice among candidates by weight alone.
type Weighted struct{ c choice[int] }

// NewWeighted returns the choice among candidates of these weights.
func NewWeighted(weights ...int) *Weighted {
	var list []*endpoint[int]
	for _, w := range weights {
		e := &endpoint[int]{}
		e.spec.Store(&Endpoint{Weight: w})
		list = append(list, e)
	}
	c, _ := newChoice(list, 0, time.Time{})
	return &Weighted{c}
}

// P2C draws two and takes one; the weights differ.
func (w *Weighted) P2C(random func(int) int, load func(int) int64) int {
	return w.c.weightedP2C(random, load)
}

// InTurn is RoundRobin's choice.
func (w *Weighted) InTurn(turn *atomic.Uint64) int {
	return slices.Index(w.c.list, w.c.inTurn(turn))
}

// Lookup finds the endpoint of a key.
func (r ring) Lookup(key string, skip func(int) bool) int { return r.lookup(key, skip) }

// HealthState is the active check alone.
type HealthState struct{ h health }

// NewHealthState returns the state before the first probe.
func NewHealthState(rise, fall int) *HealthState {
	return &HealthState{health{rise: rise, fall: fall}}
}

// Observe takes a probe's result; the answer is whether the endpoint is up.
func (s *HealthState) Observe(ok bool) (up, changed bool) {
	changed = s.h.observe(ok, false)
	return !s.h.down, changed
}

// EjectState is the passive check alone.
type EjectState struct{ e ejector }

// NewEjectState returns an endpoint without failures.
func NewEjectState(cfg Ejection) *EjectState { return &EjectState{ejector{cfg: cfg.withDefaults()}} }

// Failure, Success, Readmit, Out and Until are the state machine's.
func (s *EjectState) Failure(now time.Time, random float64) bool {
	return s.e.failure(now, random, true)
}
func (s *EjectState) Success()                   { s.e.success() }
func (s *EjectState) Readmit(now time.Time) bool { return s.e.readmit(now) }
func (s *EjectState) Out() bool                  { return s.e.out }
func (s *EjectState) Until() time.Time           { return s.e.until }

// MostCrowded is the choice of the lease to move.
func MostCrowded(loads []int64, weights []int, excess int) int {
	return mostCrowded(loads, weights, excess)
}

// Latency is the average of answers alone; times are since any moment.
type Latency struct{ l latency }

// NewLatency returns one without an answer.
func NewLatency() *Latency { return &Latency{} }

// Observe takes the time of an answer.
func (l *Latency) Observe(took, now time.Duration) { l.l.observe(took, int64(now)) }

// Failed takes the time of a bad answer, and AtLeast that of a wait in vain.
func (l *Latency) Failed(took, now time.Duration)  { l.l.failed(took, int64(now)) }
func (l *Latency) AtLeast(took, now time.Duration) { l.l.atLeast(took, int64(now)) }

// Hold says that n more leases have been answered and go on.
func (l *Latency) Hold(n int64) { l.l.held.Add(n) }

// Cost is what P2C compares.
func (l *Latency) Cost(load int64, now time.Duration) int64 { return l.l.cost(load, int64(now)) }
