package sqlite

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// stateBadCopy is bad_copy_file_format, which package pgwire does not define.
const stateBadCopy = "22P04"

// copyStatement is a COPY statement.
type copyStatement struct {
	table   string   // name in the file; "" for COPY (query)
	columns []string // nil = all
	query   string
	from    bool // FROM STDIN, not TO STDOUT
	copyOptions
	scratch []byte // reused to encode values
}

// copyOptions are the options of a COPY.
type copyOptions struct {
	format        string // text, csv or binary
	delimiter     byte
	quote, escape byte // of csv
	null          string
	header, match bool // match: the header must name the columns
}

// parseCopy reads a COPY statement. It returns nil for other statements.
func parseCopy(src string, tokens []token) (*command, error) {
	if !tokens[0].is("COPY") {
		return nil, nil
	}
	p := &copyParser{src: src, tokens: tokens, i: 1, given: map[string]string{}}
	c, err := p.statement()
	if err != nil {
		return nil, err
	}
	run := func(ctx context.Context, s *session) (string, [][]string, error) {
		transfer := (*session).copyTo
		if c.from {
			transfer = (*session).copyFrom
		}
		n, err := transfer(s, ctx, c)
		return "COPY " + strconv.Itoa(n), nil, err
	}
	return &command{run: run}, nil
}

// copyParser reads the tokens of a COPY.
type copyParser struct {
	src    string
	tokens []token
	i      int
	given  map[string]string // option to value
}

func (p *copyParser) peek() token {
	if p.i < len(p.tokens) {
		return p.tokens[p.i]
	}
	return token{kind: kindOp, start: len(p.src)}
}

// accept consumes the next token if it is one of the words.
func (p *copyParser) accept(words ...string) bool {
	if p.peek().isAny(words...) {
		p.i++
		return true
	}
	return false
}

func (p *copyParser) syntaxError() error {
	t := p.peek()
	if t.text == "" {
		return sqlError(pgwire.StateSyntaxError, "syntax error at end of input").at(p.src, t.start)
	}
	return sqlError(pgwire.StateSyntaxError, "syntax error at or near %q", clip(t.text)).at(p.src, t.start)
}

func (p *copyParser) statement() (*copyStatement, error) {
	c := &copyStatement{}
	if p.peek().is("BINARY") && p.i+1 < len(p.tokens) && !p.tokens[p.i+1].isAny("FROM", "TO", "(") { // the syntax of PostgreSQL 7.2
		p.given["format"] = "binary"
		p.i++
	}
	if err := p.source(c); err != nil {
		return nil, err
	}
	switch {
	case p.accept("FROM"):
		c.from = true
	case !p.accept("TO"):
		return nil, p.syntaxError()
	}
	if c.from && c.table == "" {
		return nil, sqlError(pgwire.StateSyntaxError, "COPY query FROM is not possible").at(p.src, p.tokens[p.i-1].start)
	}
	switch t := p.peek(); {
	case t.is("PROGRAM"):
		return nil, unsupported("COPY with a program").hint("psql's \\copy runs programs on the client.")
	case t.kind == kindString:
		return nil, unsupported("COPY with a file").hint("Use STDIN or STDOUT, as psql's \\copy does.")
	case !p.accept("STDIN", "STDOUT"):
		return nil, p.syntaxError()
	}
	if err := p.options(); err != nil {
		return nil, err
	}
	if p.peek().is("WHERE") {
		return nil, unsupported("COPY with WHERE").at(p.src, p.peek().start)
	}
	if p.accept(";"); p.i < len(p.tokens) {
		return nil, p.syntaxError()
	}
	return c, c.resolve(p.given)
}

// source reads a query in parentheses, or a table with its columns.
func (p *copyParser) source(c *copyStatement) error {
	isName := func(t token) bool { return t.kind == kindIdent || t.kind == kindQuoted }
	if p.peek().is("(") {
		end := closing(p.tokens, p.i)
		if end == len(p.tokens) || end == p.i+1 {
			return p.syntaxError()
		}
		c.query = p.src[p.tokens[p.i].end:p.tokens[end].start]
		p.i = end + 1
		return nil
	}
	if !isName(p.peek()) {
		return p.syntaxError()
	}
	c.table = p.peek().name()
	p.i++
	if p.accept(".") {
		if !isName(p.peek()) {
			return p.syntaxError()
		}
		if schema := c.table; schemas[strings.ToLower(schema)] || strings.EqualFold(schema, "main") {
			c.table = p.peek().name()
		} else {
			c.table = schema + "." + p.peek().name() // see ownSchema
		}
		p.i++
	}
	if !p.accept("(") {
		return nil
	}
	for {
		name := p.peek().name()
		if !isName(p.peek()) {
			return p.syntaxError()
		}
		if slices.ContainsFunc(c.columns, func(have string) bool { return strings.EqualFold(have, name) }) {
			return sqlError(pgwire.StateDuplicateColumn, "column %q specified more than once", name)
		}
		c.columns = append(c.columns, name)
		p.i++
		if p.accept(")") {
			return nil
		}
		if !p.accept(",") {
			return p.syntaxError()
		}
	}
}

// options reads the options, in the current syntax or in that of PostgreSQL 8.4.
func (p *copyParser) options() error {
	if p.accept("USING") {
		if !p.accept("DELIMITERS") {
			return p.syntaxError()
		}
		if err := p.option("delimiter"); err != nil {
			return err
		}
	}
	p.accept("WITH")
	if p.accept("(") {
		for {
			name := strings.ToLower(p.peek().name())
			if p.peek().kind == kindOp {
				return p.syntaxError()
			}
			p.i++
			if err := p.option(name); err != nil {
				return err
			}
			if p.accept(")") {
				return nil
			}
			if !p.accept(",") {
				return p.syntaxError()
			}
		}
	}
	for {
		var err error
		switch t := p.peek(); {
		case t.isAny("BINARY", "CSV"):
			err = p.give("format", strings.ToLower(t.text))
			p.i++
		case t.isAny("HEADER", "FREEZE"):
			err = p.give(strings.ToLower(t.text), "true")
			p.i++
		case t.isAny("DELIMITER", "NULL", "QUOTE", "ESCAPE", "ENCODING"):
			p.i++
			p.accept("AS")
			err = p.option(strings.ToLower(t.text))
		case t.is("FORCE"):
			return unsupported("FORCE in COPY").at(p.src, t.start)
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// option reads the value of an option. A flag may have none.
func (p *copyParser) option(name string) error {
	switch t := p.peek(); {
	case strings.HasPrefix(name, "force_"):
		return unsupported("%s in COPY", strings.ToUpper(name))
	case t.kind == kindString:
		p.i++
		return p.give(name, stringValue(t.text))
	case t.kind == kindIdent, t.kind == kindQuoted, t.kind == kindNumber:
		p.i++
		return p.give(name, t.name())
	case name == "header" || name == "freeze":
		return p.give(name, "true")
	}
	return p.syntaxError()
}

func (p *copyParser) give(name, value string) error {
	if _, twice := p.given[name]; twice {
		return sqlError(pgwire.StateSyntaxError, "conflicting or redundant options")
	}
	p.given[name] = value
	return nil
}

// resolve sets the given options, and defaults for the others.
func (o *copyOptions) resolve(given map[string]string) error {
	o.format, o.delimiter, o.null = "text", '\t', `\N`
	if format, ok := given["format"]; ok {
		o.format = strings.ToLower(format)
	}
	switch o.format {
	case "text", "binary":
	case "csv":
		o.delimiter, o.null, o.quote = ',', "", '"'
	default:
		return sqlError(pgwire.StateInvalidParameterValue, "COPY format %q not recognized", clip(o.format))
	}
	for name, value := range given {
		if err := o.set(name, value); err != nil {
			return err
		}
	}
	if o.escape == 0 {
		o.escape = o.quote
	}
	return o.check()
}

func (o *copyOptions) set(name, value string) error {
	char := func(to *byte) error {
		if len(value) != 1 {
			return sqlError(pgwire.StateFeatureNotSupported, "COPY %s must be a single one-byte character", name)
		}
		*to = value[0]
		return nil
	}
	switch name {
	case "format":
		return nil
	case "quote", "escape":
		if o.format != "csv" {
			return sqlError(pgwire.StateFeatureNotSupported, "COPY %s available only in CSV mode", name)
		}
		if name == "quote" {
			return char(&o.quote)
		}
		return char(&o.escape)
	case "delimiter", "null", "header":
		if o.format == "binary" {
			return sqlError(pgwire.StateSyntaxError, "cannot specify %s in BINARY mode", strings.ToUpper(name))
		}
	}
	switch name {
	case "delimiter":
		return char(&o.delimiter)
	case "null":
		o.null = value
	case "header", "freeze":
		on, ok := parseBool(value)
		match := name == "header" && strings.EqualFold(value, "match")
		if !ok && !match {
			return sqlError(pgwire.StateSyntaxError, "%s requires a Boolean value", name)
		}
		if name == "header" {
			o.header, o.match = on || match, match
		}
	case "encoding":
		if e := strings.ToUpper(strings.ReplaceAll(value, "-", "")); e != "UTF8" && e != "UNICODE" {
			return unsupported("the encoding %s", clip(value)).hint("Texts are UTF-8.")
		}
	default:
		return sqlError(pgwire.StateSyntaxError, "option %q not recognized", clip(name))
	}
	return nil
}

// check refuses delimiters, quotes and NULL texts that could not be told from data.
func (o *copyOptions) check() error {
	invalid := func(message string) error { return sqlError(pgwire.StateInvalidParameterValue, "%s", message) }
	switch {
	case o.format == "binary":
	case o.delimiter == '\n' || o.delimiter == '\r':
		return invalid("COPY delimiter cannot be newline or carriage return")
	case strings.ContainsAny(o.null, "\r\n"):
		return invalid("COPY null representation cannot use newline or carriage return")
	case o.format == "text" && strings.IndexByte(`\.abcdefghijklmnopqrstuvwxyz0123456789`, o.delimiter) >= 0:
		return invalid(`COPY delimiter cannot be "` + string(rune(o.delimiter)) + `"`)
	case o.format == "csv" && strings.ContainsAny(string([]byte{o.quote, o.escape}), "\r\n"):
		return invalid("COPY quote and escape cannot be newline or carriage return")
	case o.format == "csv" && o.delimiter == o.quote:
		return invalid("COPY delimiter and quote must be different")
	case strings.IndexByte(o.null, o.delimiter) >= 0:
		return invalid("COPY delimiter must not appear in the NULL specification")
	case o.format == "csv" && strings.IndexByte(o.null, o.quote) >= 0:
		return invalid("CSV quote character must not appear in the NULL specification")
	}
	return nil
}

// wireFormat is the protocol's format code of the values.
func (o *copyOptions) wireFormat() int16 {
	if o.format == "binary" {
		return pgwire.FormatBinary
	}
	return pgwire.FormatText
}

// wireFormats is wireFormat for each of n columns.
func (o *copyOptions) wireFormats(n int) []int16 {
	formats := make([]int16, n)
	for i := range formats {
		formats[i] = o.wireFormat()
	}
	return formats
}

// copyColumns returns the columns that a COPY of a table has by default: all but the generated ones. It returns none if
// the table does not exist.
func (s *session) copyColumns(ctx context.Context, table string) ([]string, error) {
	h, own, err := s.connFor(ctx, false)
	if err != nil {
		return nil, err
	}
	if own {
		defer h.release()
	}
	if err := s.guard.use(h.conn); err != nil {
		return nil, err
	}
	return tableColumns(h.conn, table)
}

func tableColumns(conn *sqlite.Conn, table string) (names []string, err error) {
	stmt, err := conn.Prepare("SELECT name FROM pragma_table_xinfo(?1) WHERE hidden = 0 ORDER BY cid")
	if err != nil {
		return nil, err
	}
	defer func() { _ = stmt.Reset() }() // returns the error of Step again
	stmt.BindText(1, table)
	for {
		row, err := stmt.Step()
		if err != nil || !row {
			return names, err
		}
		names = append(names, stmt.ColumnText(0))
	}
}

// quoteNames returns names as a quoted, comma-separated list.
func quoteNames(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = quoteIdent(name)
	}
	return strings.Join(quoted, ", ")
}
