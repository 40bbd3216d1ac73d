package upstream

import "fmt"

// Balance says how an Upstream chooses an endpoint.
type Balance int

const (
	// P2C takes the one with fewer leases (callers that wait for one
	// included) of two endpoints chosen at random. The default.
	P2C Balance = iota
	// RoundRobin takes one after the other.
	RoundRobin
	// RingHash takes the endpoint a key maps to on a consistent hash ring:
	// keys stay where they are when other endpoints come, go or fail. Without
	// a key it is P2C.
	RingHash
	// First takes the first endpoint that is in; the others are spares.
	First
	// Nearest is P2C among the endpoints whose health checks take about as short as
	// the shortest; the others are spares. Without Health it is P2C.
	Nearest
	// PeakEWMA is P2C by how long the endpoints take to answer (see Lease.Answered), times their
	// leases. It follows each slower answer at once, and forgets it within some ten seconds. Bad answers make an endpoint seem slower, and none too.
	PeakEWMA
)

var balanceNames = [...]string{P2C: "p2c", RoundRobin: "round_robin", RingHash: "ring_hash", First: "first", Nearest: "nearest", PeakEWMA: "peak_ewma"}

func (b Balance) valid() bool { return b >= 0 && int(b) < len(balanceNames) }

// String returns the name ParseBalance reads.
func (b Balance) String() string {
	if !b.valid() {
		return fmt.Sprintf("balance(%d)", int(b))
	}
	return balanceNames[b]
}

// ParseBalance reads "p2c" (or the empty string), "round_robin", "ring_hash",
// "first", "nearest" and "peak_ewma". The error wraps ErrConfig.
func ParseBalance(s string) (Balance, error) {
	if s == "" {
		return P2C, nil
	}
	for b, name := range balanceNames {
		if s == name {
			return Balance(b), nil
		}
	}
	return P2C, fmt.Errorf("%w: balance %q is not one of p2c, round_robin, ring_hash, first, nearest, peak_ewma", ErrConfig, s)
}

// p2c returns the less loaded of two of n candidates; random returns a number
// below its argument. n is at least 1.
func p2c(n int, random func(int) int, load func(int) int64) int {
	if n == 1 {
		return 0
	}
	a := random(n)
	b := random(n - 1)
	if b >= a {
		b++
	}
	if load(b) < load(a) {
		return b
	}
	return a
}
