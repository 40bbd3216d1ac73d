package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/headpond/headpond/gateway/admin"
)

// printStatus prints a gateway's status: the counts, and below them every problem.
func printStatus(w io.Writer, s admin.Status) {
	state := "ready"
	if s.Draining {
		state = "draining"
	} else if !s.Ready {
		state = "not ready: " + strings.Join(s.NotReady, "; ")
	}
	up := time.Duration(s.UptimeSeconds) * time.Second
	_, _ = fmt.Fprintf(w, "headpond %s, %s, up %v, engine %s\n\n", s.Version, state, up, s.Engine)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "LISTENER\tPROTOCOL\tADDRESS\tSESSIONS\tMAX\tQUEUED\tACCEPTED\tREJECTED\tGONE\tERRORS")
	for _, l := range s.Listeners {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", l.Name, l.Protocol, l.Address, l.Active, l.MaxConns, l.Queued, l.Accepted, l.Rejected, l.Gone, reasons(l.Errors))
	}
	_ = t.Flush()
	printLastMinute(w, s.Listeners)
	printMoved(w, s.Listeners)
	if len(s.Upstreams) > 0 {
		t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(t, "\nUPSTREAM\tENDPOINT\tHEALTH\tIN USE\tMAX\tIDLE\tWARM\tWAITING\tREUSE")
		for _, u := range s.Upstreams {
			if u.Waiting > 0 {
				_, _ = fmt.Fprintf(t, "%s\tnone yet\t\t\t\t\t\t%d\t\n", u.Name, u.Waiting)
			}
			for _, ep := range u.Endpoints {
				_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n",
					u.Name, ep.Address, health(ep), ep.Pool.InUse, ep.Pool.MaxSize, ep.Pool.Idle, ep.Pool.WarmTarget, ep.Pool.Waiting, reuse(ep.Pool))
			}
		}
		_ = t.Flush()
		printPairs(w, s.Upstreams)
	}
	for _, table := range s.Tables {
		printTable(w, table)
	}
	printLines(w, "CHANGED BY OPERATORS", overrides(s.Upstreams))
	if len(s.Retiring) > 0 {
		t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(t, "\nREMOVED BY A RELOAD\tNAME\tSTILL ACTIVE\tFOR")
		for _, r := range s.Retiring {
			_, _ = fmt.Fprintf(t, "%s\t%s\t%d\t%v\n", r.Kind, r.Name, r.Active, s.Started.Add(up).Sub(r.Since).Truncate(time.Second))
		}
		_ = t.Flush()
	}
	printLines(w, "TROUBLE", s.Trouble)
	printLines(w, "SIZING", s.Sizing)
}

// health returns an endpoint's state, and its role if that is asked for.
func health(e admin.Endpoint) string {
	switch e.Role {
	case "":
		return e.State
	case "unknown":
		return e.State + ", role unknown"
	}
	return e.State + ", " + e.Role
}

// maxPairsPrinted is how many pairs of an upstream are printed. The API lists more.
const maxPairsPrinted = 20

// printPairs prints the pairs of user and database of upstreams that have any, those that wait and the busiest first.
func printPairs(w io.Writer, upstreams []admin.UpstreamStatus) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer func() { _ = t.Flush() }()
	heading := "\nUPSTREAM\tPAIR\tIN USE\tMAX\tIDLE\tWAITING\n"
	for _, u := range upstreams {
		slices.SortStableFunc(u.Pairs, func(a, b admin.Pair) int {
			return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.InUse, a.InUse), cmp.Compare(b.Idle, a.Idle))
		})
		for _, p := range u.Pairs[:min(len(u.Pairs), maxPairsPrinted)] {
			_, _ = fmt.Fprintf(t, "%s%s\t%s\t%d\t%d\t%d\t%d\n", heading, u.Name, printable(p.Name), p.InUse, p.MaxSize, p.Idle, p.Waiting)
			heading = ""
		}
		if more := len(u.Pairs) - maxPairsPrinted + u.MorePairs; more > 0 {
			_, _ = fmt.Fprintf(t, "%s\tand %d more\t\t\t\t\n", u.Name, more)
		}
	}
}

// printLastMinute prints the activity of the last minute for listeners that count it.
func printLastMinute(w io.Writer, listeners []admin.Listener) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer func() { _ = t.Flush() }()
	heading := "\nLAST MINUTE\tPER SECOND\tFAILED\tP50\tP90\tP99\n"
	for _, l := range listeners {
		m := l.LastMinute
		if m == nil {
			continue
		}
		failed := "-"
		if all := max(m.Done, m.Failed); all > 0 { // a failure need not be a transaction: without a server there is none
			failed = percent(100 * m.Failed / all)
		}
		_, _ = fmt.Fprintf(t, "%s%s\t%.1f %s\t%s\t%s\t%s\t%s\n", heading, l.Name, m.PerSecond, m.Unit, failed,
			quantile(m.Seconds.P50), quantile(m.Seconds.P90), quantile(m.Seconds.P99))
		heading = ""
	}
}

// percent formats a percentage with two digits, or all of those before the point if it has more.
func percent(p float64) string {
	if p >= 10 {
		return fmt.Sprintf("%.0f %%", p)
	}
	return fmt.Sprintf("%.2g %%", p)
}

// printMoved prints how many sessions have moved to another endpoint, for listeners that have any.
func printMoved(w io.Writer, listeners []admin.Listener) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer func() { _ = t.Flush() }()
	heading := "\nSESSIONS MOVED\tAFTER A FAILURE\tREFUSED\tREBALANCED\n"
	for _, l := range listeners {
		if rebalanced := l.Errors["rebalanced"]; l.Moved+l.MovesRefused+rebalanced > 0 {
			_, _ = fmt.Fprintf(t, "%s%s\t%d\t%d\t%d\n", heading, l.Name, l.Moved, l.MovesRefused, rebalanced)
			heading = ""
		}
	}
}

// quantile formats an upper bound in seconds; "-" if nothing was measured.
func quantile(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	d := time.Duration(seconds * float64(time.Second))
	unit := time.Microsecond
	for d >= 100*unit { // two digits are the precision of the histogram
		unit *= 10
	}
	return "≤ " + d.Round(unit).String()
}

// printTable prints the table of an extension without its details, nothing if it has no rows.
func printTable(w io.Writer, t admin.Table) {
	if len(t.Rows) == 0 {
		return
	}
	rows := make([][]string, 1+len(t.Rows))
	for i, c := range t.Columns {
		if c.Detail {
			continue
		}
		rows[0] = append(rows[0], strings.ToUpper(c.Title))
		for j, row := range t.Rows {
			rows[1+j] = append(rows[1+j], c.String(row[i]))
		}
	}
	const nameColumn = 0
	_, _ = fmt.Fprintln(w)
	printRows(w, rows, math.MaxInt, nameColumn, func(int) string { return "" })
}

// printLines prints sentences under a heading, nothing if there are none.
func printLines(w io.Writer, heading string, lines []string) {
	if len(lines) > 0 {
		_, _ = fmt.Fprintf(w, "\n%s\n%s\n", heading, printable(strings.Join(lines, "\n")))
	}
}

// overrides returns the operators' changes, one sentence per endpoint.
func overrides(upstreams []admin.UpstreamStatus) (lines []string) {
	for _, u := range upstreams {
		for _, e := range u.Endpoints {
			if e.Override == "" {
				continue
			}
			what, until := e.Override, "until the next reload"
			if what == "weight" || what == "added" && e.Weight > 1 {
				what += fmt.Sprintf(" %d", e.Weight)
			}
			if e.Kept {
				until = "kept over reloads"
			}
			line := fmt.Sprintf("upstream %s, endpoint %s: %s, %s", u.Name, e.Address, what, until)
			if !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// reasons formats errors as reason=count, sorted by name.
func reasons(errors map[string]uint64) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(errors)) {
		if n := errors[reason]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", reason, n))
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ",")
}

// reuse is the fraction of leases that got a used connection. It is empty for pools that do not reuse connections.
func reuse(p admin.Pool) string {
	if p.Acquired == 0 || !p.Reuses {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*p.ReuseRatio)
}

// printable removes control characters, which a server's message could contain.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' {
			return r
		}
		return ' '
	}, s)
}
