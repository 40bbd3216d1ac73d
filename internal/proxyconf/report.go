package proxyconf

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Position is a place in a configuration file.
type Position struct {
	File string
	Line int
}

// String returns file:line.
func (p Position) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// short is String without the folder, for comments.
func (p Position) short() string {
	if p.File == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d", filepath.Base(p.File), p.Line)
}

// Fate says what becomes of a directive that the configuration does not simply carry.
type Fate int

// The fates of directives.
const (
	Itself  Fate = iota // nothing is lost: the gateway does by itself what it asks for, or does not need it
	Differs             // the configuration has something similar
	Missing             // the configuration has no equal, and something is lost
)

// String returns the word for reports.
func (f Fate) String() string { return [...]string{"not needed", "differs", "NOT SUPPORTED"}[f] }

// Report is about a directive that is not simply carried.
type Report struct {
	Position
	Name string // the directive
	Fate Fate
	Text string // what it did, and what to do
}

// String returns the line that `headpond import` prints.
func (r Report) String() string {
	return fmt.Sprintf("%s: %s: %s: %s", r.Position, r.Name, r.Fate, r.Text)
}

// Reports collects reports, each once.
type Reports struct {
	list []Report
	seen map[Report]bool
}

// Add adds a report, unless it is there.
func (r *Reports) Add(at Position, name string, fate Fate, format string, args ...any) {
	report := Report{at, clean(name), fate, clean(fmt.Sprintf(format, args...))}
	if r.seen == nil {
		r.seen = map[Report]bool{}
	}
	if !r.seen[report] {
		r.seen[report] = true
		r.list = append(r.list, report)
	}
}

// Lost returns the text of an error, and below it the first directives without an equal: a misspelt one may be its cause.
func (r *Reports) Lost(text string) string {
	lost := r.Sorted(Missing)
	for _, report := range lost[:min(len(lost), 10)] {
		text += "\n" + report.String()
	}
	return text
}

// clean makes a text of the file one short line.
func clean(text string) string {
	text = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == 0xfffd || c >= 0x80 && c < 0xa0 || c == 0x2028 || c == 0x2029 || c == 0xfeff {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, " "))
	if r := []rune(text); len(r) > maxText {
		text = string(r[:maxText]) + "…"
	}
	return text
}

// maxText bounds a line about a directive: longer ones are hard to read.
const maxText = 600

// Sorted returns the reports by file and line, those of one fate or, without any, all.
func (r *Reports) Sorted(fates ...Fate) []Report {
	sorted := slices.DeleteFunc(slices.Clone(r.list), func(r Report) bool { return len(fates) > 0 && !slices.Contains(fates, r.Fate) })
	slices.SortStableFunc(sorted, func(a, b Report) int { return cmp.Or(strings.Compare(a.File, b.File), a.Line-b.Line) })
	return sorted
}
