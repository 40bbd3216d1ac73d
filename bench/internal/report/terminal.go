package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/headpond/headpond/bench/internal/result"
)

// howTo explains the tables.
var howTo = []string{
	"Figures are medians of the rounds, which the arms take in turn. The first column is the one that counts.",
	"× X is an arm's figure divided by X's in the same round, the median of these; ± is its 95 % interval. It says noise where that is wider than 7 %, or where other programs used more than 10 % of the processors: such a figure proves nothing.",
	"CPU µs/op is the processor time of the process under test, all threads and children, for each operation. Throughput is shared with the generator and the backend, which run on the same machine.",
	"direct is the generator before the backend with nothing between: the most that can be measured here.",
	"@70 asks every arm for the same rate, 70 % of what the slowest can; @20 and @5 ask for 20 % and 5 %. An operation's time begins when it was due, so that a stall counts for all that it has delayed.",
	"op/opened connection is how many operations a round had for each connection to the backend that was opened in it; all of them where none was. That of a library is since its pool was made.",
}

// Terminal prints a table for each case.
func Terminal(w io.Writer, r *result.Results) error {
	var b strings.Builder
	head(&b, r)
	for _, c := range r.Cases {
		table(&b, c)
	}
	b.WriteString("\nHow to read it\n")
	for _, line := range howTo {
		fmt.Fprintf(&b, "  - %s\n", line)
	}
	if rows := Summary(r); rows != nil {
		b.WriteString("\nEngines beside the peers: CPU as a ratio to the peer's, p99 at the same rate (70 % of the slowest)\n")
		align(&b, rows)
	}
	problems(&b, r)
	_, err := io.WriteString(w, b.String())
	return err
}

// problems repeats at the end what could be overlooked among the tables.
func problems(b *strings.Builder, r *result.Results) {
	for _, c := range r.Cases {
		for _, a := range c.Arms {
			if a.Error != "" {
				line, _, _ := strings.Cut(a.Error, "\n")
				fmt.Fprintf(b, "\nNo figure, or not of every round: %s %s: %s", c.ID, a.Name, line)
			}
		}
	}
	if !strings.HasSuffix(b.String(), "\n") {
		b.WriteString("\n")
	}
}

// head prints where, when and with what it was measured.
func head(b *strings.Builder, r *result.Results) {
	for _, line := range Facts(r) {
		fmt.Fprintln(b, line)
	}
	for _, line := range r.Missing {
		fmt.Fprintln(b, "Not measured:", line)
	}
}

// Facts are the lines that belong to every table.
func Facts(r *result.Results) []string {
	var versions []string
	for name, v := range r.Versions {
		versions = append(versions, name+" "+v)
	}
	slices.Sort(versions)
	g := r.Generator
	lines := []string{
		fmt.Sprintf("Machine: %d × %s, %s GiB, Linux %s%s, %s; load %.1f when it began", r.Machine.Cores, r.Machine.CPU,
			result.Format(float64(r.Machine.Memory)/(1<<30)), r.Machine.Kernel, kernel(r.Machine), r.Machine.OS, r.Machine.Load),
		fmt.Sprintf("Measured %s: %s of %g s of each arm in turn; %s each", r.Started.Format("2006-01-02 15:04 MST"), plural(r.Settings.Rounds, "round", "rounds"), r.Settings.Seconds,
			plural(r.Settings.Loops, "loop, thread or worker", "loops, threads or workers")),
		"Versions: " + strings.Join(versions, ", "),
		"Command: " + r.Command,
		fmt.Sprintf("Generator: %s of epoll; a known delay of %s µs measured as %s µs (%+.1f %%)", plural(g.Threads, "thread", "threads"), result.Format(g.KnownMicros), result.Format(g.MeasuredMicros), 100*(g.MeasuredMicros-g.KnownMicros)/max(g.KnownMicros, 1)),
	}
	if g.Problem != "" {
		lines = append(lines, "Warning: "+g.Problem)
	}
	return lines
}

// plural formats a number with its noun.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// table prints a case: medians, the spread of the first metric, and its ratio to the baseline.
func table(b *strings.Builder, c *result.Case) {
	fmt.Fprintf(b, "\n%s  %s\n", c.ID, c.Title)
	if c.Rate > 0 {
		fmt.Fprintf(b, "    %s op/s asked of each arm\n", result.Format(c.Rate))
	}
	if c.Claim != "" {
		fmt.Fprintf(b, "    The study measured: %s.\n    We measure something else because %s.\n", c.Claim, c.Because)
	}
	if c.Note != "" {
		fmt.Fprintf(b, "    %s.\n", c.Note)
	}
	if c.Disturbed() {
		fmt.Fprintf(b, "    %s.\n", disturbed(c))
	}
	align(b, rows(c))
	for _, a := range c.Arms {
		if a.Error != "" {
			fmt.Fprintf(b, "    %s: %s\n", a.Name, strings.ReplaceAll(strings.TrimSpace(a.Error), "\n", "\n      "))
		}
	}
	if net := c.Net(); net != nil {
		fmt.Fprintf(b, "    %s\n", lessFloor(c))
		align(b, rows(net))
	}
}

// rows returns a case as a table with its header.
func rows(c *result.Case) [][]string {
	table := [][]string{header(c)}
	for _, a := range c.Arms {
		if len(a.Rounds) > 0 {
			table = append(table, row(c, a))
		}
	}
	return table
}

// lessFloor explains the second table.
func lessFloor(c *result.Case) string {
	return "Less " + c.Floor + ", which does nothing and so costs what measuring costs:"
}

// disturbed tells how much of the machine others used.
func disturbed(c *result.Case) string {
	return fmt.Sprintf("Noise: other programs used %.0f %% of the processors meanwhile", 100*c.Others)
}

// shown returns the metrics that have a figure.
func shown(c *result.Case) []string {
	return slices.DeleteFunc(slices.Clone(c.Metrics), func(id string) bool {
		return id != c.Metrics[0] && !slices.ContainsFunc(c.Arms, func(a *result.Arm) bool { return a.Stat(id).N > 0 })
	})
}

func header(c *result.Case) []string {
	h := []string{""}
	for i, id := range shown(c) {
		h = append(h, result.MetricOf(id).Label)
		if i == 0 {
			h = append(h, "min–max", strings.TrimSpace("× "+c.Baseline))
		}
	}
	return h
}

func row(c *result.Case, a *result.Arm) []string {
	cells := []string{a.Name}
	for i, id := range shown(c) {
		s := a.Stat(id)
		text := "–"
		if s.N > 0 {
			text = result.Format(s.Median)
		}
		cells = append(cells, text)
		if i > 0 {
			continue
		}
		spread, ratio := "", ""
		if s.N > 0 {
			spread = result.Format(s.Min) + "–" + result.Format(s.Max)
			if base := c.Arm(c.Baseline); base != nil {
				ratio = c.Ratio(a, base, id).String()
			}
			if a.Name == c.Baseline {
				ratio = "1"
			}
		}
		cells = append(cells, spread, ratio)
	}
	return cells
}

// align writes columns, the first aligned to the left and the others to the right.
func align(b *strings.Builder, rows [][]string) {
	var width []int
	for _, r := range rows {
		for i, cell := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, r := range rows {
		for i, cell := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				b.WriteString("    " + cell + pad)
			} else {
				b.WriteString("  " + pad + cell)
			}
		}
		b.WriteString("\n")
	}
}

// kernel describes the configuration of the kernel. Older results lack parts of it.
func kernel(m result.Machine) (text string) {
	if m.TCP != "" {
		text = ", TCP by " + m.TCP
	}
	if m.Shares != "" {
		text += ", processors shared by " + m.Shares
	}
	return text
}
