// Package tables draws the benchmark tables of Markdown files from results.json, so that prose and data cannot disagree. A file says
// where and what:
//
//	<!-- bench:summary docs/benchmarks/engine.json -->
//	<!-- /bench -->
//
// What is between the two lines is replaced. "summary" is the engines beside the peers, "cases" every case; the path is relative to
// the Markdown file.
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

var region = regexp.MustCompile(`(?s)(<!-- bench:(\w+) (\S+) -->\n).*?(<!-- /bench -->)`)

// Update returns the text of a Markdown file with its tables as the results have them. Comparing it with the file's text tells whether
// somebody has typed a figure.
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
		table, err := draw(m[2], filepath.Join(filepath.Dir(path), m[3]))
		if err != nil && failed == nil {
			failed = fmt.Errorf("%s: %w", path, err)
		}
		return m[1] + table + m[4]
	})
	return updated, failed
}

func draw(what, data string) (string, error) {
	r, err := result.Load(data)
	if err != nil {
		return "", err
	}
	switch what {
	case "summary":
		return report.Markdown(r), nil
	case "cases":
		return report.MarkdownCases(r), nil
	}
	return "", fmt.Errorf("there is no table %q; there are summary and cases", what)
}
