package result

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The metrics.
const (
	CPU        = "cpu_us"
	Throughput = "ops"
	P50        = "p50_us"
	P99        = "p99_us"
	P999       = "p999_us"
	Mean       = "mean_us"
	RSS        = "rss_mib"
	Peak       = "peak_mib"
	Reuse      = "reuse"
	GBs        = "gb_s"
	CPUPerGiB  = "cpu_gib_ms"
	PerClient  = "client_kib"
	IdleCPU    = "idle_ms_s"
	NsOp       = "ns_op"
	AllocsOp   = "allocs_op"
	BytesOp    = "b_op"
	CPUNs      = "cpu_ns_op"
	Syscalls   = "syscalls_op"
	Switches   = "switches_op"
	Closed     = "closed_percent"
	Worst      = "worst_ms"
	Failed     = "failed_percent"
	Reached    = "reached_percent"
)

// Metric describes one kind of figure.
type Metric struct {
	ID     string
	Label  string // with its unit
	Better string // "lower", "higher", or "" for a figure without a better direction
}

var metrics = map[string]Metric{
	CPU:        {Label: "CPU µs/op", Better: "lower"},
	Throughput: {Label: "op/s", Better: "higher"},
	P50:        {Label: "p50 µs", Better: "lower"},
	P99:        {Label: "p99 µs", Better: "lower"},
	P999:       {Label: "p99.9 µs", Better: "lower"},
	Mean:       {Label: "mean µs", Better: "lower"},
	RSS:        {Label: "resident MiB", Better: "lower"},
	Peak:       {Label: "peak MiB", Better: "lower"},
	Reuse:      {Label: "op/opened connection"},
	GBs:        {Label: "GB/s", Better: "higher"},
	CPUPerGiB:  {Label: "CPU ms/GiB", Better: "lower"},
	PerClient:  {Label: "KiB/client", Better: "lower"},
	IdleCPU:    {Label: "idle CPU ms/s", Better: "lower"},
	NsOp:       {Label: "ns/op", Better: "lower"},
	AllocsOp:   {Label: "allocs/op", Better: "lower"},
	BytesOp:    {Label: "B/op", Better: "lower"},
	CPUNs:      {Label: "CPU ns/op", Better: "lower"},
	"MB/s":     {Label: "MB/s", Better: "higher"},
	Syscalls:   {Label: "syscalls/op", Better: "lower"},
	Switches:   {Label: "switches/op", Better: "lower"},
	Worst:      {Label: "worst ms", Better: "lower"},
	Failed:     {Label: "failed %", Better: "lower"},
	Reached:    {Label: "reached %", Better: "lower"},
	Closed:     {Label: "closed %", Better: "lower"}, // fraction of kept connections that the server closed after an answer
}

// MetricOf returns the description of a metric. An unknown metric has its id as its label.
func MetricOf(id string) Metric {
	m, ok := metrics[id]
	if !ok {
		m = Metric{Label: strings.ReplaceAll(id, "_", " "), Better: "lower"}
	}
	m.ID = id
	return m
}

// Format formats a value with three significant digits and separated thousands.
func Format(v float64) string {
	a := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case a == 0:
		return "0"
	case a >= 99.95:
		return thousands(int64(math.Round(v)))
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.0005:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return fmt.Sprintf("%.1g", v)
	}
}

func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
