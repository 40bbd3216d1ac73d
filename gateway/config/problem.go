package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxProblems bounds the errors, and separately the warnings, that are reported about one file: nobody
// reads a longer list, and a file of garbage must not fill the log.
const maxProblems = 100

// ErrInvalid is wrapped by the error Problems.Err returns.
var ErrInvalid = errors.New("invalid configuration")

// Position is a place in a configuration file. Line and Column count from 1, Column in characters; both are 0 when only the file is known.
type Position struct {
	File         string
	Line, Column int
}

// String returns "file:line:column", or "file" when the line is not known.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Problem is a problem of a configuration file.
type Problem struct {
	Position
	Scope   string // the object with the problem, for instance `upstream "pg"`; empty at the top of the file
	Message string // the problem and what to write instead
	Warning bool   // the configuration can be used nevertheless
}

// String returns the line `headpond check` prints: position, scope and message.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Position.String())
	b.WriteString(": ")
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Scope != "" {
		b.WriteString(p.Scope)
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems are all problems found in one file, in the order of the file.
type Problems []Problem

// Err returns nil when there are only warnings, else one error that wraps ErrInvalid and lists every problem, a line each.
func (ps Problems) Err() error {
	var lines []string
	for _, p := range ps {
		if !p.Warning {
			lines = append(lines, p.String())
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n%s", ErrInvalid, strings.Join(lines, "\n"))
}

// String returns one line per problem, each ending in a newline.
func (ps Problems) String() string {
	var b strings.Builder
	for _, p := range ps {
		b.WriteString(p.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// bounded returns ps in the order of the file: at most maxProblems errors and as many warnings, each followed by a line
// that counts the omitted ones. For warnings that line is a warning, too.
func (ps Problems) bounded() Problems {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	ps = slices.CompactFunc(ps, func(a, b Problem) bool { return a == b })
	kept := ps[:0]
	seen := map[bool]int{} // by Warning
	for _, p := range ps {
		if seen[p.Warning]++; seen[p.Warning] <= maxProblems {
			kept = append(kept, p)
		}
	}
	for _, warning := range []bool{false, true} {
		kind := "errors"
		if warning {
			kind = "warnings"
		}
		if left := seen[warning] - maxProblems; left > 0 {
			kept = append(kept, Problem{Position: Position{File: kept[0].File}, Warning: warning,
				Message: fmt.Sprintf("%s that are not listed: %d more", kind, left)})
		}
	}
	return kept
}
