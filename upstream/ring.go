package upstream

import (
	"cmp"
	"slices"
	"strconv"
)

// ringPoints is the number of points each endpoint has on the ring: with 160
// the shares of keys are within about ±20 % of each other, at 2.5 KiB each.
const ringPoints = 160

// ring is a consistent hash ring over endpoints numbered from 0. It depends on
// the addresses alone, not on their order, the process or the machine: several
// gateways agree.
type ring []ringPoint

type ringPoint struct {
	hash  uint64
	index int
}

func newRing(addrs []string) ring {
	r := make(ring, 0, len(addrs)*ringPoints)
	for i, addr := range addrs {
		for p := range ringPoints {
			r = append(r, ringPoint{ringHash(addr + "#" + strconv.Itoa(p)), i})
		}
	}
	slices.SortFunc(r, func(a, b ringPoint) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(addrs[a.index], addrs[b.index]))
	})
	return r
}

// lookup returns the first endpoint clockwise from key that skip does not
// refuse, or -1.
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
