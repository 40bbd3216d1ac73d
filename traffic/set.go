package traffic

import (
	"slices"
	"strings"
	"sync"
)

// Set is the cells of one owner, such as a listener, by labels. All methods may be called from any goroutine.
type Set struct {
	schema *Schema

	mu    sync.Mutex // held while labels are looked up or listed, never while something is counted
	cells map[string]*Cell
}

// NewSet returns an empty set.
func NewSet(s *Schema) *Set { return &Set{schema: s, cells: make(map[string]*Cell)} }

// maxLabel bounds a label's value, in bytes: clients choose some of them. Names in PostgreSQL have up to 63.
const maxLabel = 128

// Cell returns the cell with these labels, one for each of Schema.Labels. It lasts as long as the set: counters must
// not decrease.
func (s *Set) Cell(labels ...string) *Cell {
	labels = slices.Clone(labels)
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l[:min(len(l), maxLabel)], "�")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := strings.Join(labels, "\x00")
	c := s.cells[key]
	if limit := s.schema.Limit; c == nil && limit > 0 && len(s.cells) >= limit {
		for i := range labels {
			if i >= s.schema.Kept || len(s.cells) >= 2*limit { // names of a configuration that is changed forever
				labels[i] = Other
			}
		}
		key = strings.Join(labels, "\x00")
		c = s.cells[key]
	}
	if c == nil {
		c = NewCell(s.schema)
		c.labels = labels
		s.cells[key] = c
	}
	return c
}

// Snapshot has the counts of a Set, or of a single cell.
type Snapshot struct {
	*Schema
	Rows []Row
}

// Snapshot returns the current counts.
func (s *Set) Snapshot() Snapshot {
	s.mu.Lock()
	cells := make([]*Cell, 0, len(s.cells))
	for _, c := range s.cells {
		cells = append(cells, c)
	}
	s.mu.Unlock()
	out := Snapshot{Schema: s.schema, Rows: make([]Row, 0, len(cells))}
	for _, c := range cells {
		out.Rows = append(out.Rows, c.Row())
	}
	return out
}

// Of returns the rows with a view's labels; rows that differ in other labels are added up.
func (s Snapshot) Of(v View) []Row {
	if slices.Equal(v.Labels, s.Labels) {
		return s.Rows
	}
	index := make([]int, len(v.Labels))
	for i, name := range v.Labels {
		index[i] = slices.Index(s.Labels, name)
	}
	sums := map[string]*Row{}
	var keys []string
	for i := range s.Rows {
		r := &s.Rows[i]
		labels := make([]string, len(index))
		for k, at := range index {
			labels[k] = r.Labels[at]
		}
		key := strings.Join(labels, "\x00")
		sum := sums[key]
		if sum == nil {
			sum = &Row{Labels: labels, Counts: make([]uint64, len(r.Counts)), Timings: make([]Histogram, len(r.Timings))}
			sums[key] = sum
			keys = append(keys, key)
		}
		sum.add(r)
	}
	rows := make([]Row, len(keys))
	for i, key := range keys {
		rows[i] = *sums[key]
	}
	return rows
}
