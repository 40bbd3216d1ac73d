package report

import (
	"fmt"
	"strings"

	"github.com/headpond/headpond/bench/internal/result"
)

// summaryRow is a line of the README's table: a case, and the peer that it is compared with.
type summaryRow struct {
	id, label, peer string
}

var summaryRows = []summaryRow{
	{"W1c/64", "TCP, 64 clients", "haproxy"},
	{"W1c/64", "TCP, 64 clients", "nginx"},
	{"W2b/64", "HTTP GET, 64 connections", "haproxy"},
	{"W2b/64", "HTTP GET, 64 connections", "nginx"},
	{"W2b/64", "HTTP GET, 64 connections", "reverseproxy"},
	{"W3c/simple/32", "PostgreSQL look-up, 32 clients", "pgbouncer"},
	{"W3c/simple/200", "PostgreSQL look-up, 200 clients", "pgbouncer"},
	{"W1d/1", "TCP, bulk on one connection", "haproxy"},
	{"W1d/64", "TCP, bulk on 64 connections", "haproxy"},
	{"W3d", "PostgreSQL, memory of idle clients", "pgbouncer"},
}

// summaryArms are the table's columns.
var summaryArms = []string{"gateway-uring", "gateway-epoll", "gateway-goroutine"}

// Summary returns the engine table with its header: cost as a ratio to the peer's, and p99 at the same fixed rate. It
// is empty if none of its cases was measured.
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
			if ratio := c.Ratio(c.Arm(name), peer, metric); ratio.Valid() {
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

// paced returns the p99 of the peer and of the arms at a fixed rate.
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

// unit shortens a metric's label to what the table does not say already.
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
	"Each has as many threads (loops, workers) as the other, but for the engine goroutine, which takes all processors. Medians of rounds taken in turn."

// Markdown returns the summary as a table, and where it was measured. It is empty if none of its cases was measured.
func Markdown(r *result.Results) string {
	rows := Summary(r)
	if rows == nil {
		return ""
	}
	var b strings.Builder
	markdownTable(&b, rows, 2)
	fmt.Fprintf(&b, "\n%s\n\n%s", summaryNote, MarkdownFacts(r))
	return b.String()
}

// MarkdownFacts returns a list of where and with what it was measured.
func MarkdownFacts(r *result.Results) string {
	var b strings.Builder
	for _, line := range Facts(r) {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	return b.String()
}

// MarkdownCases returns every case as a section with a table.
func MarkdownCases(r *result.Results) string {
	var b strings.Builder
	for i, c := range r.Cases {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "## %s: %s\n\n", c.ID, c.Title)
		markdownCase(&b, c)
	}
	return b.String()
}

// MarkdownCase returns one case as a table.
func MarkdownCase(r *result.Results, id string) (string, error) {
	c := r.Case(id)
	if c == nil {
		return "", fmt.Errorf("there is no case %q", id)
	}
	var b strings.Builder
	markdownCase(&b, c)
	return b.String(), nil
}

func markdownCase(b *strings.Builder, c *result.Case) {
	v := caseOf(c)
	if v.Rate != "" {
		fmt.Fprintf(b, "%s op/s asked of each arm.\n\n", v.Rate)
	}
	if c.Claim != "" {
		fmt.Fprintf(b, "The study measured: %s. We measure something else because %s.\n\n", c.Claim, c.Because)
	}
	if c.Note != "" {
		fmt.Fprintf(b, "%s.\n\n", c.Note)
	}
	if c.Disturbed() {
		fmt.Fprintf(b, "%s.\n\n", disturbed(c))
	}
	markdownTable(b, v.Rows, 1)
	if v.Net != nil {
		fmt.Fprintf(b, "\n%s\n\n", v.Less)
		markdownTable(b, v.Net, 1)
	}
	for _, e := range v.Errors {
		line, _, _ := strings.Cut(e, "\n")
		fmt.Fprintf(b, "\n%s\n", markdownText(line))
	}
}

// markdownTable writes rows. The first is the header; the columns after the first left ones are figures.
func markdownTable(b *strings.Builder, rows [][]string, left int) {
	for i, row := range rows {
		cells := make([]string, len(row))
		for j, cell := range row {
			cells[j] = markdownText(cell)
		}
		fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("|---", left) + strings.Repeat("|--:", len(row)-left) + "|\n")
		}
	}
}

// markdownText escapes the text of a table's cell.
func markdownText(s string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;", "*", "\\*", "`", "\\`").Replace(s)
}
