// Package tables draws the benchmark tables of Markdown files from results.json, so that prose and data cannot
// disagree. A file contains lines that name the tables:
//
//	<!-- bench:summary docs/benchmarks/engine.json -->
//	<!-- /bench -->
//
// The text between the two lines is replaced. Paths are relative to the Markdown file. The word after bench: is one of
//
//	summary FILE                          the engines beside the peers, and where that was measured
//	facts FILE                            where, when and with what it was measured
//	cases FILE                            every case
//	case FILE ID                          one
//	pivot FILE METRIC CASES ARM/ARM…      a line for each case that the regular expression CASES matches, a column for each arm, and
//	                                      one for each ratio of two arms. What its group matches is the line's name.
package tables

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/headpond/headpond/bench/internal/report"
	"github.com/headpond/headpond/bench/internal/result"
)

var region = regexp.MustCompile(`(?s)(<!-- bench:(\w+) ([^\n]+) -->\n).*?(<!-- /bench -->)`)

// Update returns the text of a Markdown file with its tables made from the results. If it differs from the file's text,
// a figure was edited by hand or is out of date.
func Update(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	text := string(data)
	if strings.Count(text, "<!-- bench:") != len(region.FindAllString(text, -1)) {
		return "", fmt.Errorf("%s: a line <!-- bench:… --> without its <!-- /bench -->", path)
	}
	var failed error
	updated := region.ReplaceAllStringFunc(text, func(match string) string {
		m := region.FindStringSubmatch(match)
		args := strings.Fields(m[3])
		table, err := draw(m[2], filepath.Join(filepath.Dir(path), args[0]), args[1:])
		if err != nil && failed == nil {
			failed = fmt.Errorf("%s: %w", path, err)
		}
		return m[1] + table + m[4]
	})
	return updated, failed
}

func draw(what, data string, args []string) (string, error) {
	r, err := result.Load(data)
	if err != nil {
		return "", err
	}
	switch {
	case what == "summary" && len(args) == 0:
		return report.Markdown(r), nil
	case what == "facts" && len(args) == 0:
		return report.MarkdownFacts(r), nil
	case what == "cases" && len(args) == 0:
		return report.MarkdownCases(r), nil
	case what == "case" && len(args) == 1:
		return report.MarkdownCase(r, args[0])
	case what == "pivot" && len(args) >= 2:
		return report.MarkdownPivot(r, args[0], args[1], args[2:])
	}
	return "", fmt.Errorf("there is no table %q with %d argument(s); there are summary, facts, cases, case and pivot", what, len(args))
}
