package traffic

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// shards is the number of shards of a Cell, a power of two. With more loops than that some share one.
const shards = 32

// Cell has the counters of one set of labels. All methods may be called from any goroutine.
type Cell struct {
	labels          []string
	counts, timings int
	shards          [shards]atomic.Pointer[Shard]
}

// NewCell returns a cell that belongs to no Set, for an owner that knows the labels itself.
func NewCell(s *Schema) *Cell { return &Cell{counts: s.Counts, timings: s.Timings} }

// Shard is a part of a Cell, for one loop to write. Calls from elsewhere are safe, and slower.
type Shard struct {
	counts  []atomic.Uint64
	timings []atomic.Pointer[histogram] // nil until something is observed
}

// line is the size of a cache line in words: a shard's memory is a multiple of it, so that it shares none with another's.
const line = 8

// ShardOf returns the number of the shard for a session on a loop, as fiber.LoopOf numbers it. Without a loop (0) sessions are
// spread.
func ShardOf(loop int) int {
	if loop == 0 {
		loop = int(rand.Uint32() % shards)
	}
	return loop % shards
}

// Shard returns the shard with the number that ShardOf returned. The first call for a number allocates.
func (c *Cell) Shard(shard int) *Shard {
	if s := c.shards[shard].Load(); s != nil {
		return s
	}
	s := &Shard{
		counts:  make([]atomic.Uint64, c.counts, (c.counts+line-1)/line*line),
		timings: make([]atomic.Pointer[histogram], c.timings, (c.timings+line-1)/line*line),
	}
	if !c.shards[shard].CompareAndSwap(nil, s) {
		s = c.shards[shard].Load()
	}
	return s
}

// Add adds n to a count of the Schema.
func (s *Shard) Add(count int, n uint64) { s.counts[count].Add(n) }

// Observe adds a duration to a timing of the Schema.
func (s *Shard) Observe(timing int, d time.Duration) {
	h := s.timings[timing].Load()
	if h == nil {
		s.timings[timing].CompareAndSwap(nil, new(histogram))
		h = s.timings[timing].Load()
	}
	h.counts[bucketOf(d)].Add(1)
	h.sum.Add(int64(d))
}

// Total returns one count of the Schema, without the work of a Row.
func (c *Cell) Total(count int) (n uint64) {
	for i := range c.shards {
		if s := c.shards[i].Load(); s != nil {
			n += s.counts[count].Load()
		}
	}
	return n
}

// Row is the snapshot of one or several cells.
type Row struct {
	Labels  []string // as the Schema, or the View, has them
	Counts  []uint64
	Timings []Histogram
}

// Row returns the cell's counts.
func (c *Cell) Row() Row {
	r := Row{Labels: c.labels, Counts: make([]uint64, c.counts), Timings: make([]Histogram, c.timings)}
	for i := range c.shards {
		s := c.shards[i].Load()
		if s == nil {
			continue
		}
		for k := range s.counts {
			r.Counts[k] += s.counts[k].Load()
		}
		for k := range s.timings {
			if h := s.timings[k].Load(); h != nil {
				h.addTo(&r.Timings[k])
			}
		}
	}
	return r
}

// add adds other's counts, which is of the same Schema.
func (r *Row) add(other *Row) {
	for i, n := range other.Counts {
		r.Counts[i] += n
	}
	for i := range other.Timings {
		r.Timings[i].Add(&other.Timings[i])
	}
}
