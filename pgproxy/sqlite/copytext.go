package sqlite

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
)

// textRows inserts the rows of the text and csv formats.
func (in *copyIn) textRows() (n int, err error) {
	for first := true; ; first = false {
		if err := in.next(first); err != nil {
			if errors.Is(err, io.EOF) {
				return n, nil
			}
			return n, err
		}
		in.split()
		if first && in.header {
			if err := in.checkHeader(); err != nil {
				return n, err
			}
			continue
		}
		if err := in.row(); err != nil {
			return n, err
		}
		n++
	}
}

// row inserts the values of the current record.
func (in *copyIn) row() error {
	if n := len(in.values); n < len(in.columns) {
		return in.bad("missing data for column %q", in.columns[n])
	} else if n > len(in.columns) {
		return in.bad("extra data after last expected column")
	}
	for i, raw := range in.values {
		if err := in.bind(i, raw); err != nil {
			return err
		}
	}
	return in.insert()
}

// checkHeader compares the header with the column names if HEADER MATCH asks for it.
func (in *copyIn) checkHeader() error {
	if !in.match {
		return nil
	}
	if len(in.values) != len(in.columns) {
		return in.bad("wrong number of fields in header line: got %d, expected %d", len(in.values), len(in.columns))
	}
	for i, name := range in.values {
		if string(name) != in.columns[i] {
			return in.bad("column name mismatch in header line field %d: got %q, expected %q", i+1, clip(string(name)), in.columns[i])
		}
	}
	return nil
}

// scanner finds the end of a record. It keeps its state between chunks of data.
type scanner struct {
	escaped bool // the byte before was an escape
	quoted  bool // within quotes
	cr      bool // the byte before was a CR
	crs     bool // a CR was not followed by a LF
}

// end returns the index of the LF that ends the record in b, -1 if it has not been received. It counts the lines of a
// csv record.
func (in *copyIn) end(sc *scanner, b []byte) int {
	csv := in.format == "csv"
	for i, c := range b {
		if c == '\n' && !sc.quoted && (csv || !sc.escaped) {
			return i
		}
		if sc.cr {
			sc.crs = true
		}
		sc.cr = c == '\r' && !sc.quoted && (csv || !sc.escaped)
		if c == '\n' && csv {
			in.line++
		}
		switch {
		case !csv:
			sc.escaped = c == '\\' && !sc.escaped
		case sc.quoted && c == in.escape && in.escape != in.quote:
			sc.escaped = !sc.escaped
		default:
			if c == in.quote && !sc.escaped {
				sc.quoted = !sc.quoted
			}
			sc.escaped = false
		}
	}
	return -1
}

// next reads the next record; io.EOF is the end of the data. The record is valid until the next call.
func (in *copyIn) next(first bool) error {
	in.line++
	in.record = nil
	var sc scanner
	for seen := 0; ; {
		if i := in.end(&sc, in.buf[in.at+seen:]); i >= 0 {
			in.record = in.buf[in.at : in.at+seen+i]
			in.at += seen + i + 1
			break
		}
		seen = len(in.buf) - in.at
		err := in.more()
		if errors.Is(err, io.EOF) && seen > 0 { // the last line has no line end
			in.record = in.buf[in.at:]
			in.at = len(in.buf)
			sc.cr = false
			if sc.quoted {
				return in.bad("unterminated CSV quoted field")
			}
			break
		}
		if err != nil {
			return err
		}
	}
	if first {
		in.crlf = sc.cr
	}
	if sc.cr && in.crlf {
		in.record, sc.cr = in.record[:len(in.record)-1], false
	}
	if string(in.record) == `\.` {
		return io.EOF
	}
	if sc.cr || sc.crs {
		if in.format == "csv" {
			return in.bad("unquoted carriage return found in data")
		}
		return in.bad("literal carriage return found in data")
	}
	return nil
}

// split splits the current record into values. Values that differ from the bytes of the record are stored in cell.
func (in *copyIn) split() {
	in.values, in.cell = in.values[:0], in.cell[:0]
	if cap(in.cell) < len(in.record) { // so that appending never moves values
		in.cell = make([]byte, 0, len(in.record))
	}
	rest, more := in.record, true
	for more && len(in.values) <= len(in.columns) {
		if in.format == "csv" {
			rest, more = in.csvField(rest)
		} else {
			rest, more = in.textField(rest)
		}
	}
}

// textField reads a value of the text format. more reports whether another one follows in rest.
func (in *copyIn) textField(b []byte) (rest []byte, more bool) {
	end, escapes := 0, false
	for end < len(b) && b[end] != in.delimiter {
		if b[end] == '\\' {
			escapes = true
			end++
		}
		end++
	}
	end = min(end, len(b))
	raw := b[:end]
	if rest, more = b[end:], end < len(b); more {
		rest = rest[1:]
	}
	switch {
	case string(raw) == in.null:
		in.values = append(in.values, nil)
	case !escapes:
		in.values = append(in.values, raw)
	default:
		from := len(in.cell)
		in.cell = appendUnescaped(in.cell, raw)
		in.values = append(in.values, in.cell[from:len(in.cell):len(in.cell)])
	}
	return rest, more
}

// appendUnescaped appends a value with its backslashes decoded.
func appendUnescaped(dst, b []byte) []byte {
	for i := 0; i < len(b); {
		if b[i] != '\\' || i+1 == len(b) {
			dst = append(dst, b[i])
			i++
			continue
		}
		i++
		if k := strings.IndexByte(copyEscapes, b[i]); k >= 0 {
			dst = append(dst, copyEscaped[k])
			i++
			continue
		}
		from, end, base := i, i, 8
		if b[i] == 'x' {
			from, end, base = i+1, i+1, 16
		}
		for limit := from + 3 - base/16; end < len(b) && end < limit && isDigit(b[end], base); end++ {
			continue
		}
		if end == from {
			dst = append(dst, b[i])
			i++
			continue
		}
		n, _ := strconv.ParseUint(string(b[from:end]), base, 16)
		dst = append(dst, byte(n))
		i = end
	}
	return dst
}

func isDigit(b byte, base int) bool {
	if base == 8 {
		return b >= '0' && b <= '7'
	}
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'f' || b >= 'A' && b <= 'F'
}

// csvField reads a value of the csv format. more reports whether another one follows in rest.
func (in *copyIn) csvField(b []byte) (rest []byte, more bool) {
	if end := bytes.IndexByte(b, in.delimiter); bytes.IndexByte(b[:max(end, 0)], in.quote) < 0 && (end >= 0 || bytes.IndexByte(b, in.quote) < 0) {
		raw := b
		if more = end >= 0; more {
			raw, rest = b[:end], b[end+1:]
		}
		if string(raw) == in.null {
			raw = nil
		}
		in.values = append(in.values, raw)
		return rest, more
	}
	from, quoted, i := len(in.cell), false, 0
	for ; i < len(b) && (quoted || b[i] != in.delimiter); i++ {
		switch c := b[i]; {
		case quoted && c == in.escape && i+1 < len(b) && (b[i+1] == in.escape || b[i+1] == in.quote):
			i++
			in.cell = append(in.cell, b[i])
		case c == in.quote:
			quoted = !quoted
		default:
			in.cell = append(in.cell, c)
		}
	}
	in.values = append(in.values, in.cell[from:len(in.cell):len(in.cell)])
	if i < len(b) {
		return b[i+1:], true
	}
	return nil, false
}
