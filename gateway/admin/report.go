package admin

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Report says how the admin pages show the rows of a protocol or an extension: as JSON, in a table, as metrics, and
// in sentences about trouble.
type Report[T any] struct {
	// Key is the key of the rows in /api/v1/status, which shows T as encoding/json encodes it. It must be unique: see
	// Distinct.
	Key   string
	Title string // of the table
	// Columns are the columns of the table, on the dashboard and in `headpond ctl status`; the first one names a row.
	// Details are more columns on the dashboard.
	Columns, Details []Column[T]
	// Labels are the labels of the metrics, and Values their values for a row. No two rows may have the same values.
	Labels  []string
	Values  func(row T) []string
	Metrics []RowMetric[T]
	// Trouble returns a sentence about a row that does not work now, empty if it does. May be nil.
	Trouble func(row T, now time.Time) string
}

// Column reads one column of a table from a row.
type Column[T any] struct {
	title, format string
	read          func(row T) Cell
}

// Formats of a column.
const (
	formatText  = "text"
	formatTime  = "seconds" // 0: there is none
	formatState = "state"   // a word and how good it is
	formatError = "error"   // empty: there is none
	formatCount = "count"
	formatBytes = "bytes"
)

// Text is a column of names and the like.
func Text[T any](title string, read func(row T) string) Column[T] {
	return Column[T]{title, formatText, func(row T) Cell { return Cell{Text: read(row)} }}
}

// Error is a column with the error of a row, empty if there is none.
func Error[T any](title string, read func(row T) string) Column[T] {
	return Column[T]{title, formatError, func(row T) Cell { return Cell{Text: read(row)} }}
}

// State is a column of states in a word or two.
func State[T any](title string, read func(row T) (Level, string)) Column[T] {
	return Column[T]{title, formatState, func(row T) Cell { level, text := read(row); return Cell{Text: text, Level: level} }}
}

// Count is a column of whole numbers.
func Count[T any](title string, read func(row T) float64) Column[T] {
	return Column[T]{title, formatCount, func(row T) Cell { return Cell{Number: read(row)} }}
}

// Seconds is a column of times such as latencies, in seconds; 0 stands for none.
func Seconds[T any](title string, read func(row T) float64) Column[T] {
	return Column[T]{title, formatTime, func(row T) Cell { return Cell{Number: read(row)} }}
}

// Bytes is a column of sizes.
func Bytes[T any](title string, read func(row T) float64) Column[T] {
	return Column[T]{title, formatBytes, func(row T) Cell { return Cell{Number: read(row)} }}
}

// Level is how good a state is.
type Level string

// Levels of a state.
const (
	Neutral Level = ""
	Good    Level = "good"
	Warn    Level = "warn"
	Bad     Level = "bad"
)

// RowMetric reads one metric from a row.
type RowMetric[T any] struct {
	name, help string
	kind       prometheus.ValueType
	read       func(row T) float64
}

// Gauge is a metric that goes up and down. Its name is without the prefix "headpond_".
func Gauge[T any](name, help string, read func(row T) float64) RowMetric[T] {
	return RowMetric[T]{name, help, prometheus.GaugeValue, read}
}

// Counter is a metric that counts since the start. Its name is without the prefix "headpond_", and ends in "_total".
func Counter[T any](name, help string, read func(row T) float64) RowMetric[T] {
	return RowMetric[T]{name, help, prometheus.CounterValue, read}
}

// Addition is the rows of a Report at one moment.
type Addition struct {
	Key  string
	Rows any // a []T, not nil

	table   Table
	names   []string // of its metrics
	trouble func(now time.Time) []string
	metrics func(ch chan<- prometheus.Metric)
}

// Of returns the report of rows.
func (r *Report[T]) Of(rows []T) Addition {
	if rows == nil {
		rows = []T{}
	}
	var names []string
	for _, m := range r.Metrics {
		names = append(names, m.name)
	}
	return Addition{
		Key: r.Key, Rows: rows, table: r.tableOf(rows), names: names,
		trouble: func(now time.Time) (lines []string) {
			for _, row := range rows {
				if r.Trouble == nil {
					break
				}
				if line := r.Trouble(row, now); line != "" {
					lines = append(lines, line)
				}
			}
			return lines
		},
		metrics: func(ch chan<- prometheus.Metric) {
			for _, m := range r.Metrics {
				d := desc(m.name, m.help, r.Labels...)
				for _, row := range rows {
					send(ch, d, m.kind, m.read(row), r.Values(row)...)
				}
			}
		},
	}
}

// ownPaths are the paths below /api/v1/ that are neither rows nor members of Status.
var ownPaths = []string{"status", "pools", "sessions", "endpoints", "pause", "resume", "reload", "profile"}

// Distinct returns an error if the admin pages cannot show all of these rows: a Key is empty or used twice, or two
// reports have a metric of the same name.
func Distinct(all []Addition) error {
	keys, metrics := map[string]string{}, map[string]string{}
	for _, path := range ownPaths {
		keys[path] = "the gateway"
	}
	for f := range reflect.TypeFor[Status]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			keys[name] = "the gateway"
		}
	}
	for _, a := range all {
		by := fmt.Sprintf("report %q", a.table.Title)
		if a.Key == "" {
			return fmt.Errorf("%w: %s has no key", ErrConfig, by)
		}
		if other, taken := keys[a.Key]; taken {
			return fmt.Errorf("%w: key %q of %s is already the key of %s", ErrConfig, a.Key, by, other)
		}
		keys[a.Key] = by
		for _, name := range a.names {
			if other, taken := metrics[name]; taken {
				return fmt.Errorf("%w: metric %q of %s is already a metric of %s", ErrConfig, name, by, other)
			}
			metrics[name] = by
		}
	}
	return nil
}

func (r *Report[T]) tableOf(rows []T) Table {
	out := Table{Key: r.Key, Title: r.Title, Columns: []Heading{}, Rows: make([][]Cell, len(rows))}
	for i, columns := range [][]Column[T]{r.Columns, r.Details} {
		for _, c := range columns {
			out.Columns = append(out.Columns, Heading{Title: c.title, Format: c.format, Detail: i == 1})
			for j, row := range rows {
				out.Rows[j] = append(out.Rows[j], c.read(row))
			}
		}
	}
	return out
}

// Table is the table of an Addition in /api/v1/status. The rows are those under Key, in the same order.
type Table struct {
	Key     string    `json:"key"`
	Title   string    `json:"title"`
	Columns []Heading `json:"columns"`
	Rows    [][]Cell  `json:"rows"`
}

// Heading describes a column.
type Heading struct {
	Title  string `json:"title"`
	Format string `json:"format"` // "text", "state", "error", "count", "seconds" or "bytes"
	Detail bool   `json:"detail"` // left out where there is little room
}

// Cell is one value of a table: a number in columns of format "count", "seconds" and "bytes", else a text.
type Cell struct {
	Text   string  `json:"text,omitempty"`
	Number float64 `json:"number,omitempty"`
	Level  Level   `json:"level,omitempty"` // of a state; none: neither good nor bad
}

// String returns a cell as text that needs no explanation.
func (h Heading) String(c Cell) string {
	switch h.Format {
	case formatCount:
		return strconv.FormatFloat(c.Number, 'f', -1, 64)
	case formatBytes:
		return size(c.Number)
	case formatTime:
		if c.Number == 0 {
			return ""
		}
		return time.Duration(c.Number * float64(time.Second)).Round(100 * time.Microsecond).String()
	}
	return c.Text
}

// size writes a number of bytes in the unit that fits.
func size(n float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for ; n >= 1024 && i < len(units)-1; i++ {
		n /= 1024
	}
	return fmt.Sprintf("%.*f %s", min(i, 1), n, units[i])
}
