package report

import (
	"fmt"
	"strings"

	"github.com/headpond/headpond/bench/internal/result"
)

// summaryRow is one line of the table that the README shows: a case, and whom it is compared with.
type summaryRow struct {
	id, label, peer string
}

var summaryRows = []summaryRow{
	{"W1c/64", "TCP, 64 clients", "haproxy"},
	{"W1c/64", "TCP, 64 clients", "nginx"},
	{"W2b/64", "HTTP GET, 64 connections", "haproxy"},
	{"W2b/64", "HTTP GET, 64 connections", "nginx"},
	{"W3c/simple/32", "PostgreSQL look-up, 32 clients", "pgbouncer"},
	{"W3c/simple/200", "PostgreSQL look-up, 200 clients", "pgbouncer"},
	{"W1d/1", "TCP, bulk on one connection", "haproxy"},
	{"W1d/64", "TCP, bulk on 64 connections", "haproxy"},
	{"W3d", "PostgreSQL, memory of idle clients", "pgbouncer"},
}

// summaryArms are its columns.
var summaryArms = []string{"gateway-uring", "gateway-epoll", "gateway-goroutine"}

// Summary is the engine table, with its head: cost as a ratio to the peer's, and p99 at the same fixed rate. It is empty when
// nothing of it was measured.
func Summary(r *result.Results) [][]string {
	rows := [][]string{{"", "peer", "uring", "epoll", "goroutine", "p99 peer", "uring", "epoll", "goroutine"}}
	for _, s := range summaryRows {
		c := r.Case(s.id)
		if c == nil {
			continue
		}
		peer := c.Arm(s.peer)
		metric := c.Metrics[0]
		if peer.Stat(metric).N == 0 {
			continue
		}
		row := []string{s.label, fmt.Sprintf("%s %s %s", s.peer, result.Format(peer.Stat(metric).Median), unit(metric))}
		for _, name := range summaryArms {
			text := "–"
			if ratio := result.RatioOf(c.Arm(name), peer, metric); ratio.Valid() {
				text = ratio.Short()
				if ratio.Noise() {
					text += " (noise)"
				}
			}
			row = append(row, text)
		}
		rows = append(rows, append(row, paced(r.Case(s.id+"@70"), s.peer)...))
	}
	if len(rows) == 1 {
		return nil
	}
	return rows
}

// paced are the p99 of the peer and the arms at a fixed rate.
func paced(c *result.Case, peer string) []string {
	var cells []string
	for _, name := range append([]string{peer}, summaryArms...) {
		text := "–"
		if c != nil {
			if s := c.Arm(name).Stat(result.P99); s.N > 0 {
				text = result.Format(s.Median) + " µs"
			}
		}
		cells = append(cells, text)
	}
	return cells
}

// unit is a metric's label without what every reader of the table knows.
func unit(metric string) string {
	switch metric {
	case result.CPU:
		return "µs/op"
	case result.CPUPerGiB:
		return "ms/GiB"
	}
	return result.MetricOf(metric).Label
}

// summaryNote explains the table.
const summaryNote = "Processor time for each operation as a ratio to the peer's (below 1 is better), with as many operations as each can do; " +
	"then the 99th percentile of the latency at one fixed rate for all, 70 % of what the slowest could. " +
	"Each has as many threads (loops, workers) as the other. Medians of rounds taken in turn."

// Markdown is the summary as a table for a README, between which and the file it is from nobody types.
func Markdown(r *result.Results) string {
	rows := Summary(r)
	if rows == nil {
		return ""
	}
	var b strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString("|---|---" + strings.Repeat("|--:", len(row)-2) + "|\n")
		}
	}
	fmt.Fprintf(&b, "\n%s\n\n", summaryNote)
	for _, line := range Facts(r) {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	return b.String()
}
