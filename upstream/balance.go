package upstream

import (
	"fmt"
	"slices"
	"strings"
)

// Balance says how an Upstream chooses an endpoint.
type Balance int

const (
	// P2C chooses two endpoints at random and takes the one with fewer leases, including callers that wait for one. The
	// default.
	P2C Balance = iota
	// RoundRobin takes the endpoints in turn.
	RoundRobin
	// RingHash takes the endpoint to which a consistent hash ring maps the key: keys keep their endpoint when others
	// are added, are removed, or fail. Without a key it is P2C.
	RingHash
	// First takes the first endpoint that is in; the others are spares.
	First
	// Nearest is P2C among the endpoints whose health checks take about as little time as the quickest; the others are
	// spares. Without Health it is P2C.
	Nearest
	// PeakEWMA is P2C by the time that an endpoint takes to answer (see Lease.Answered), multiplied by its leases. It
	// follows each slower answer at once, and forgets it within about ten seconds. Bad answers, and missing ones, make
	// an endpoint seem slower.
	PeakEWMA
)

var balanceNames = [...]string{P2C: "p2c", RoundRobin: "round_robin", RingHash: "ring_hash", First: "first", Nearest: "nearest", PeakEWMA: "peak_ewma"}

// Balances returns the names of all values of Balance, the default first.
func Balances() []string { return slices.Clone(balanceNames[:]) }

func (b Balance) valid() bool { return b >= 0 && int(b) < len(balanceNames) }

// String returns the name that ParseBalance parses.
func (b Balance) String() string {
	if !b.valid() {
		return fmt.Sprintf("balance(%d)", int(b))
	}
	return balanceNames[b]
}

// ParseBalance parses one of the names of Balances; the empty string is P2C. The error wraps ErrConfig.
func ParseBalance(s string) (Balance, error) {
	if s == "" {
		return P2C, nil
	}
	if b := slices.Index(balanceNames[:], s); b >= 0 {
		return Balance(b), nil
	}
	return P2C, fmt.Errorf("%w: balance %q is not one of %s", ErrConfig, s, strings.Join(balanceNames[:], ", "))
}

// p2c draws two of n candidates and returns the less loaded one; random returns a number below its argument. n is at
// least 1.
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
