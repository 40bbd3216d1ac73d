package report

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/headpond/headpond/bench/internal/result"
)

// MarkdownPivot returns a table with a line for each case that pattern matches, named by the pattern's group. It has a
// column for each arm, with the median of a metric, and one for each ratio "arm/arm". A case's floor is subtracted.
func MarkdownPivot(r *result.Results, metric, pattern string, ratios []string) (string, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return "", err
	}
	if re.NumSubexp() != 1 {
		return "", fmt.Errorf("%q has no group that names a line, or several", pattern)
	}
	var cases []*result.Case
	var names, arms []string
	most := 0.0 // largest fraction of the processors used by others
	for _, c := range r.Cases {
		m := re.FindStringSubmatch(c.ID)
		if m == nil {
			continue
		}
		if c.DisturbedIn(metric) {
			most = max(most, c.Others)
		}
		if net := c.Net(); net != nil {
			c = net
		}
		cases, names = append(cases, c), append(names, m[1])
		for _, a := range c.Arms {
			if a.Stat(metric).N > 0 && !slices.Contains(arms, a.Name) {
				arms = append(arms, a.Name)
			}
		}
	}
	if len(arms) == 0 {
		return "", fmt.Errorf("no case matches %q and has %s", pattern, metric)
	}
	head := append([]string{result.MetricOf(metric).Label}, arms...)
	for _, pair := range ratios {
		head = append(head, strings.Replace(pair, "/", " / ", 1))
	}
	rows := [][]string{head}
	for i, c := range cases {
		row, err := pivotRow(c, names[i], metric, arms, ratios)
		if err != nil {
			return "", err
		}
		rows = append(rows, row)
	}
	var b strings.Builder
	markdownTable(&b, rows, 1)
	if most > 0 {
		fmt.Fprintf(&b, "\nOther programs used up to %.0f %% of the processors meanwhile.\n", 100*most)
	}
	return b.String(), nil
}

func pivotRow(c *result.Case, name, metric string, arms, ratios []string) ([]string, error) {
	row := []string{name}
	for _, arm := range arms {
		text := "–"
		if s := c.Arm(arm).Stat(metric); s.N > 0 {
			text = result.Format(s.Median)
		}
		row = append(row, text)
	}
	for _, pair := range ratios {
		a, b, ok := strings.Cut(pair, "/")
		if !ok {
			return nil, fmt.Errorf("%q is no ratio of two arms", pair)
		}
		row = append(row, c.Ratio(c.Arm(a), c.Arm(b), metric).String())
	}
	return row, nil
}
