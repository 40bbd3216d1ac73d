package upstream

import (
	"cmp"
	"slices"
	"strconv"
)

// ringPoints is the number of points of an endpoint on the ring for each unit of weight, after the weights are divided
// by their greatest common divisor. With 160 the shares of keys are within about ±20 % of each other, at 2.5 KiB for
// each endpoint. maxRingPoints bounds the points of all endpoints together, for large weights without a common divisor;
// every endpoint has at least one point.
const (
	ringPoints    = 160
	maxRingPoints = 1 << 19
)

// ring is a consistent hash ring over endpoints numbered from 0. It depends only on addresses and weights, not on their
// order, the process or the machine, so that several gateways agree.
type ring []ringPoint

type ringPoint struct {
	hash  uint64
	index int
}

// ringOf returns the ring of a set.
func ringOf(list []Endpoint) ring {
	addrs, weights := make([]string, len(list)), make([]int, len(list))
	for i, e := range list {
		addrs[i], weights[i] = e.Address, max(e.Weight, 1)
	}
	return newRing(addrs, weights)
}

// newRing returns the ring of endpoints whose weights are at least 1.
func newRing(addrs []string, weights []int) ring {
	common, total := commonDivisor(weights), 0
	for _, w := range weights {
		total += w / common
	}
	each := min(ringPoints, maxRingPoints/float64(max(total, 1)))
	r := make(ring, 0, len(addrs)*ringPoints)
	for i, addr := range addrs {
		for p := range max(1, int(each*float64(weights[i]/common))) {
			r = append(r, ringPoint{ringHash(addr + "#" + strconv.Itoa(p)), i})
		}
	}
	slices.SortFunc(r, func(a, b ringPoint) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(addrs[a.index], addrs[b.index]))
	})
	return r
}

// lookup returns the first endpoint clockwise from key for which skip is false, or -1.
func (r ring) lookup(key string, skip func(int) bool) int {
	h := ringHash(key)
	start, _ := slices.BinarySearchFunc(r, h, func(p ringPoint, h uint64) int { return cmp.Compare(p.hash, h) })
	for i := range r {
		p := r[(start+i)%len(r)]
		if !skip(p.index) {
			return p.index
		}
	}
	return -1
}

// ringHash is FNV-1a with the finalizer of SplitMix64, because FNV alone
// spreads short strings badly over the high bits.
func ringHash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
