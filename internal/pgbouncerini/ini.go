// Package pgbouncerini reads the configuration of a PgBouncer, and writes one of the gateway that does the same. What
// the gateway has no equal of is reported.
//
// [Read] parses the file and those that it includes, [Convert] checks the settings and maps them. The table of all
// settings, [Table], is also in docs/moving.md.
package pgbouncerini

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Bounds of what is read. A large configuration of PgBouncer has some thousand lines.
const (
	MaxFileBytes = 4 << 20 // of one file
	maxFiles     = 200     // files that are read, each use of %include counted
	maxDepth     = 10      // %include in an included file, PgBouncer's own limit
	maxEntries   = 20_000  // settings in all files together
	maxProblems  = 100     // that an error lists
)

// Position is a line of a file.
type Position struct {
	File string
	Line int // from 1; 0: the file as a whole
}

// String returns "file:line", or "file" if there is no line.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Entry is a line "key = value" of a section.
type Entry struct {
	Position
	Section, Key, Value string
}

// File is a configuration with all files that it includes.
type File struct {
	Path    string
	Entries []Entry // in the order in which PgBouncer reads them
	// Lost are settings without an effect: PgBouncer returns to its defaults where a second section [pgbouncer] begins.
	Lost []Entry
}

// Problem is something because of which PgBouncer would not start with a file.
type Problem struct {
	Position
	Message string
}

// Problems is the error for a file that cannot be used. It has a problem at least.
type Problems []Problem

// Error returns a line for each problem.
func (ps Problems) Error() string {
	var b strings.Builder
	for i, p := range ps {
		if i == maxProblems {
			fmt.Fprintf(&b, "\nproblems that are not listed: %d more", len(ps)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s: %s", p.Position, p.Message)
	}
	return b.String()
}

// reader reads a File.
type reader struct {
	open     func(path string) ([]byte, error)
	file     *File
	files    int
	section  string // PgBouncer continues the section of an included file behind %include
	problems Problems
}

// Read reads the configuration at path and the files that it includes, by open, which bounds their size. The names of
// included files start at the working directory, as for PgBouncer; files that are not there are looked for beside the
// one that includes them. The error is Problems.
func Read(path string, open func(path string) ([]byte, error)) (*File, error) {
	r := &reader{open: open, file: &File{Path: path}}
	data, err := open(path)
	if err != nil {
		return nil, Problems{{Position{File: path}, err.Error()}}
	}
	r.read(path, data, 0)
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return r.file, nil
}

func (r *reader) fail(at Position, format string, args ...any) {
	r.problems = append(r.problems, Problem{at, fmt.Sprintf(format, args...)})
}

// full reports whether to read on makes no sense.
func (r *reader) full() bool {
	return len(r.problems) > maxProblems || len(r.file.Entries) > maxEntries
}

func (r *reader) read(path string, data []byte, depth int) {
	if r.files++; r.files > maxFiles {
		r.fail(Position{File: path}, "more than %d files are included, each %%include counted; does one include itself?", maxFiles)
		return
	}
	if len(data) > MaxFileBytes {
		r.fail(Position{File: path}, "the file is larger than %d MiB", MaxFileBytes>>20)
		return
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	at := Position{File: path}
	for line := range strings.Lines(string(data)) {
		at.Line++
		if r.full() {
			r.fail(at, "more than %d settings or problems; is this a configuration of PgBouncer?", maxEntries)
			return
		}
		if bad := strings.IndexFunc(line, unprintable); bad >= 0 || !utf8.ValidString(line) {
			r.fail(at, "the line is not plain UTF-8 text")
			continue
		}
		r.line(at, strings.TrimSpace(line), depth)
	}
}

func unprintable(c rune) bool { return c < ' ' && c != '\t' && c != '\n' && c != '\r' || c == 0x7f }

// line reads one line without the space around it.
func (r *reader) line(at Position, text string, depth int) {
	for strings.HasPrefix(text, "[") { // settings may follow in the same line
		name, rest, closed := strings.Cut(text[1:], "]")
		if !closed {
			r.fail(at, "the name of a section has no %q", "]")
			return
		}
		r.begin(at, name)
		text = strings.TrimSpace(rest)
	}
	switch {
	case text == "" || text[0] == ';' || text[0] == '#':
	case strings.HasPrefix(text, "%include ") || strings.HasPrefix(text, "%include\t"):
		r.include(at, strings.TrimSpace(text[len("%include"):]), depth)
	case text[0] == '%':
		r.fail(at, "unknown directive; want %q", "%include FILE")
	default:
		r.setting(at, text)
	}
}

func (r *reader) begin(at Position, section string) {
	r.section = section
	switch section {
	case mainSection:
		kept := r.file.Entries[:0]
		for _, e := range r.file.Entries {
			if e.Section == mainSection {
				r.file.Lost = append(r.file.Lost, e)
			} else {
				kept = append(kept, e)
			}
		}
		r.file.Entries = kept
	case "databases", "users", "peers":
	default:
		r.fail(at, "unknown section [%s]%s", clip(section), didYouMean(section, []string{mainSection, "databases", "users", "peers"}))
	}
}

func (r *reader) include(at Position, name string, depth int) {
	if depth == maxDepth {
		r.fail(at, "%%include is nested more than %d times; does a file include itself?", maxDepth)
		return
	}
	if r.files > maxFiles {
		return // it has been reported
	}
	data, err := r.open(name)
	if beside := filepath.Join(filepath.Dir(at.File), name); errors.Is(err, fs.ErrNotExist) && !filepath.IsAbs(name) && beside != name {
		if data, err = r.open(beside); err == nil {
			name = beside
		}
	}
	if err != nil {
		r.fail(at, "%%include: %v", err)
		return
	}
	r.read(name, data, depth+1)
}

// setting reads "key = value".
func (r *reader) setting(at Position, text string) {
	key, rest, ok := cutKey(text)
	value, found := strings.CutPrefix(strings.TrimLeft(rest, " \t"), "=")
	switch {
	case !ok || !found:
		r.fail(at, "want %q, a section in brackets, or a comment that begins with \";\" or \"#\"", "key = value")
	case r.section == "":
		r.fail(at, "%q comes before the first section; it belongs below [%s]", clip(key), mainSection)
	default:
		r.file.Entries = append(r.file.Entries, Entry{at, r.section, key, strings.TrimSpace(value)})
	}
}

// cutKey takes the key off the front of a line: letters, digits and "_.-*", or a name in quotes.
func cutKey(text string) (key, rest string, ok bool) {
	switch text[0] {
	case '\'':
		key, rest, ok = strings.Cut(text[1:], "'")
		return key, rest, ok && key != ""
	case '"':
		key, rest, ok = cutQuoted(text, '"')
		return key, rest, ok && key != ""
	}
	end := strings.IndexFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_.-*", c)
	})
	if end < 0 {
		end = len(text)
	}
	return text[:end], text[end:], end > 0
}

// cutQuoted takes a quoted text, in which quotes are doubled, off the front of s.
func cutQuoted(s string, quote byte) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		if s[i] == quote {
			if i+1 == len(s) || s[i+1] != quote {
				return b.String(), s[i+1:], true
			}
			i++
		}
		b.WriteByte(s[i])
	}
	return "", s, false
}

// pair is a "key=value" of a connection string.
type pair struct{ key, value string }

// pairs reads the connection string of a database, user or peer: "key=value" with spaces between them, values with
// spaces in single quotes.
func pairs(text string) (list []pair, err error) {
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		key, rest, found := strings.Cut(text, "=")
		key = strings.TrimRight(key, " \t")
		if !found || key == "" || strings.ContainsAny(key, " \t") {
			return nil, errors.New("want key=value, with spaces between them")
		}
		var value string
		if rest = strings.TrimLeft(rest, " \t"); strings.HasPrefix(rest, "'") {
			var closed bool
			if value, rest, closed = cutQuoted(rest, '\''); !closed {
				return nil, fmt.Errorf("the value of %q has no closing quote; write quotes in it twice", clip(key))
			}
			if rest != "" && rest[0] != ' ' && rest[0] != '\t' {
				return nil, fmt.Errorf("no space behind the quoted value of %q; write quotes in it twice", clip(key))
			}
		} else {
			value, rest, _ = strings.Cut(rest, " ")
		}
		if value == "" {
			return nil, fmt.Errorf("%q has no value; leave it out", clip(key))
		}
		list, text = append(list, pair{key, value}), rest
	}
	return list, nil
}
