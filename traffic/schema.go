package traffic

// Schema defines the counters in the cells of a protocol, and the metrics made of them. It must not change once it is
// used.
type Schema struct {
	// Labels are the names of a cell's labels.
	Labels []string
	// Limit bounds the cells of a Set. Beyond it new label values count as Other, all but the first Kept labels; those are
	// names from the configuration. 0 = no limit, for schemas of single cells.
	Limit, Kept int
	// Counts and Timings are how many counts and histograms a cell stores.
	Counts, Timings int
	Views           []View
	// Summary defines the figures of the last minute; nil: none.
	Summary *Summary
}

// Other stands for label values beyond Schema.Limit.
const Other = "other"

// View is a group of metrics with the same labels. Cells that differ in other labels only are added up.
type View struct {
	Labels     []string // some of the Schema's
	Counters   []Counter
	Histograms []Timer
}

// Counter is a metric that only grows.
type Counter struct {
	Name, Help   string // without the prefix of the program
	Label, Value string // one more label, for counters that are parts of one metric; "" = none
	Sparse       bool   // it is not shown while it is 0
	Read         func(*Row) float64
}

// Timer is a histogram metric, in seconds.
type Timer struct {
	Name, Help string
	Read       func(*Row) Histogram
}

// Count reads the count with an index.
func Count(i int) func(*Row) float64 {
	return func(r *Row) float64 { return float64(r.Counts[i]) }
}

// Counted reads how many durations the timings with these indexes have.
func Counted(timings ...int) func(*Row) float64 {
	return func(r *Row) float64 {
		var n uint64
		for _, i := range timings {
			n += r.Timings[i].Count()
		}
		return float64(n)
	}
}

// Time reads the timings with these indexes, added up.
func Time(timings ...int) func(*Row) Histogram {
	return func(r *Row) (h Histogram) {
		for _, i := range timings {
			h.Add(&r.Timings[i])
		}
		return h
	}
}
