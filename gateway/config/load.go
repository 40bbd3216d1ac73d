package config

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	yaml "go.yaml.in/yaml/v4"
)

// maxFileBytes bounds a configuration file: room for ten thousand endpoints, and far below a size that takes long to
// parse.
const maxFileBytes = 1 << 20

// Load reads and checks the file at path. The Config is nil when Problems holds anything but warnings.
func Load(path string) (*Config, Problems) {
	data, err := readFile(path, maxFileBytes)
	if err != nil {
		return nil, Problems{{Position: Position{File: path}, Message: err.Error()}}
	}
	return Parse(path, data)
}

// Parse checks data, the content of a file called name. The name is for messages, and relative paths
// start at its folder. The Config is nil if Problems has more than warnings. Besides data, Parse reads
// the environment and the files that data names.
func Parse(name string, data []byte) (*Config, Problems) {
	cfg, problems := parse(name, data)
	if problems.Err() != nil {
		return nil, problems
	}
	return cfg, problems
}

// LogOf returns the log settings of a file, as far as it can be read, so that its problems can be logged.
func LogOf(path string) Log {
	data, err := readFile(path, maxFileBytes)
	if err != nil {
		return Log{}
	}
	cfg, _ := parse(path, data)
	return cfg.Log
}

// parse is Parse, but also returns the configuration if there are problems.
func parse(name string, data []byte) (*Config, Problems) {
	d := newDecoder(name)
	cfg := &Config{File: name, marks: d.marks}
	if root := d.parse(data); root != nil {
		if root.Kind == yaml.MappingNode {
			d.root = at(root)
		}
		d.decode(root, cfg)
		if d.visited > maxValues {
			return cfg, Problems{{Position: Position{File: name}, Message: fmt.Sprintf("more than %d values, counting each use of an alias", maxValues)}}
		}
		d.fillDefaults(cfg)
		d.validate(cfg)
	}
	return cfg, d.problems.bounded()
}

// parse turns data into the root node of its only document, or reports why that is impossible and returns nil.
func (d *decoder) parse(data []byte) *yaml.Node {
	if len(data) > maxFileBytes {
		d.report(Position{}, "the file is larger than %d KiB", maxFileBytes>>10)
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if pos, what := unreadable(data); what != "" {
		d.report(pos, "%s; the file must be plain UTF-8 text", what)
		return nil
	}
	var docs []yaml.Node
	if err := yaml.Load(data, &docs, yaml.WithAllDocuments()); err != nil {
		d.syntaxError(data, err)
		return nil
	}
	if len(docs) == 0 || len(docs[0].Content) == 0 || isNull(docs[0].Content[0]) {
		d.report(Position{}, "the file is empty; it needs at least \"listeners\" and \"upstreams\"")
		return nil
	}
	if len(docs) > 1 {
		d.report(Position{Line: docs[1].Line, Column: docs[1].Column}, "a second YAML document starts here; write one document per file")
	}
	return docs[0].Content[0]
}

// unreadable finds the first byte that cannot be in a YAML file.
func unreadable(data []byte) (pos Position, what string) {
	line, column := 1, 1
	for i := 0; i < len(data); column++ {
		r, n := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			return Position{Line: line, Column: column}, fmt.Sprintf("the byte %#02x is not UTF-8", data[i])
		case r == '\n':
			line, column = line+1, 0
		case r < ' ' && r != '\t' && r != '\r', r == 0x7f:
			return Position{Line: line, Column: column}, fmt.Sprintf("the control character %#02x is not allowed", data[i])
		}
		i += n
	}
	return Position{}, ""
}

// syntaxError reports the YAML parser's error in our form. It leaves anchor names out: an unquoted password may look
// like one.
func (d *decoder) syntaxError(data []byte, err error) {
	var load *yaml.LoadError
	if !errors.As(err, &load) {
		d.report(Position{}, "not valid YAML: the file cannot be read")
		return
	}
	pos := Position{Line: load.Mark.Line, Column: load.Mark.Column}
	message := load.Message
	switch found := byteAt(data, pos); {
	case strings.HasPrefix(message, "unknown anchor"):
		message = "an alias (*name) whose anchor (&name) does not come before it; put quotes around a value that starts with *"
	case strings.Contains(message, "cannot start any token") && found == '\t', strings.Contains(message, "found a tab character"):
		message = "a tab in the indentation; use spaces"
	case strings.Contains(message, "cannot start any token") && strings.IndexByte("%@`", found) >= 0:
		message = fmt.Sprintf("a value cannot start with %q; put quotes around it", found)
	case strings.Contains(message, "mapping values are not allowed"):
		message += "; a \":\" before it, or the space behind one, is missing, or a value with \": \" in it needs quotes"
	case strings.Contains(message, "did not find expected") && bracketed.Match(lineAt(data, pos)):
		message = "put quotes around an address in brackets, as in " + quotedAddress
	case load.ContextMsg != "":
		message = fmt.Sprintf("%s (%s that starts at line %d)%s", message, load.ContextMsg, load.ContextMark.Line, adviceOnSyntax(message))
	}
	d.report(pos, "not valid YAML: %s", message)
}

// bracketed finds an IPv6 address with its port, which YAML takes for a list.
var bracketed = regexp.MustCompile(`\[[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%\w+)?\]:[0-9]`)

const quotedAddress = `"[::1]:8080"`

// adviceOnSyntax names the usual cause of an error of the YAML parser.
func adviceOnSyntax(message string) string {
	switch {
	case strings.Contains(message, "expected '-' indicator"), strings.Contains(message, "expected key"):
		return "; is it indented like the rest of its list or mapping?"
	case strings.Contains(message, "expected ',' or '}'"), strings.Contains(message, "expected ',' or ']'"):
		return "; is a bracket not closed, or a value with one of , [ ] { } in it without quotes?"
	}
	return ""
}

// byteAt returns the byte at a position, 0 if there is none. Lines before the character are ASCII, or
// their columns do not matter.
func byteAt(data []byte, pos Position) byte {
	line := lineAt(data, pos)
	if pos.Column < 1 || pos.Column > len(line) {
		return 0
	}
	return line[pos.Column-1]
}

// lineAt returns the line of a position, nil when there is none.
func lineAt(data []byte, pos Position) []byte {
	for range pos.Line - 1 {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	return line
}
