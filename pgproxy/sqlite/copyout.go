package sqlite

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// copySignature is the beginning of binary COPY data.
const copySignature = "PGCOPY\n\xff\r\n\x00"

// copyVerbs are the statements allowed in COPY (query).
var copyVerbs = map[string]bool{"SELECT": true, "VALUES": true, "INSERT": true, "UPDATE": true, "DELETE": true}

// copyTo sends the rows of a table or a query and returns their number.
func (s *session) copyTo(ctx context.Context, c *copyStatement) (int, error) {
	prep, err := s.copySource(ctx, c)
	if err != nil {
		return 0, err
	}
	p := &portal{prep: prep}
	defer p.close()
	if err := s.openSimple(ctx, p); err != nil {
		return 0, err
	}
	if len(p.columns) == 0 {
		return 0, sqlError(pgwire.StateFeatureNotSupported, "COPY query must have a RETURNING clause")
	}
	for i := range p.columns {
		p.columns[i].Format = c.wireFormat()
	}
	s.c.Writer.Send(&pgwire.CopyOutResponse{Format: int8(c.wireFormat()), Columns: c.wireFormats(len(p.columns))})
	n, err := s.copyRows(p, c)
	if err == nil {
		s.c.Writer.Send(&pgwire.CopyDone{})
	}
	return n, err
}

// copySource prepares the query whose rows are copied.
func (s *session) copySource(ctx context.Context, c *copyStatement) (*prepared, error) {
	query := c.query
	if c.table != "" {
		columns := c.columns
		if columns == nil {
			var err error
			if columns, err = s.copyColumns(ctx, c.table); err != nil {
				return nil, err
			}
		}
		if len(columns) == 0 {
			return nil, sqlError(pgwire.StateUndefinedTable, "relation %q does not exist", c.table)
		}
		query = "SELECT " + quoteNames(columns) + " FROM " + quoteIdent(c.table)
	}
	prep, err := prepare(query, nil)
	switch {
	case err != nil:
		return nil, err
	case prep.rw == nil || !copyVerbs[prep.verb]:
		return nil, unsupported("COPY of this query").hint("Copy a SELECT, or an INSERT, UPDATE or DELETE with RETURNING.")
	case prep.rw.params > 0:
		return nil, sqlError(pgwire.StateUndefinedParameter, "there is no parameter $1: COPY has none")
	}
	return prep, nil
}

// copyRows sends the data, one message per row.
func (s *session) copyRows(p *portal, c *copyStatement) (n int, err error) {
	if c.format == "binary" {
		s.sendCopyData(append([]byte(copySignature), make([]byte, 8)...)) // no flags, no header extension
	}
	if c.header {
		s.sendCopyData(c.headerLine(p.columns))
	}
	written := s.c.Writer.Written()
	for ; p.run.pending; n++ {
		if err := s.copyRow(p, c, n); err != nil {
			return n, err
		}
		if err := s.nextRow(p, &written); err != nil {
			return n, err
		}
	}
	if c.format == "binary" {
		s.sendCopyData([]byte{0xff, 0xff})
	}
	return n, nil
}

func (s *session) sendCopyData(data []byte) {
	s.c.Writer.Header(pgwire.TypeCopyData, len(data))
	_, _ = s.c.Writer.Write(data) // the Writer keeps the error
}

// headerLine returns the line with the column names.
func (o *copyOptions) headerLine(columns []column) (line []byte) {
	for i := range columns {
		if i > 0 {
			line = append(line, o.delimiter)
		}
		line = o.appendValue(line, []byte(columns[i].Name), len(columns) == 1)
	}
	return append(line, '\n')
}

// copyRow sends row n.
func (s *session) copyRow(p *portal, c *copyStatement, n int) error {
	row := s.row[:0]
	if c.format == "binary" {
		row = binary.BigEndian.AppendUint16(row, uint16(len(p.columns)))
	}
	encoded := c.scratch
	for i := range p.columns {
		var v value
		v, s.cell = readValue(p.run.c.stmt, i, s.cell)
		null := v.typ == sqlite.TypeNull
		if encoded = encoded[:0]; !null {
			var ok bool
			if encoded, ok = p.columns[i].encode(encoded, v); !ok {
				return s.b.noteWide(&p.columns[i], misfit(&p.columns[i], v, n))
			}
		}
		if c.format != "binary" {
			if i > 0 {
				row = append(row, c.delimiter)
			}
			if null {
				row = append(row, c.null...)
			} else {
				row = c.appendValue(row, encoded, len(p.columns) == 1)
			}
			continue
		}
		size := uint32(len(encoded))
		if null {
			size = 0xffffffff
		}
		row = append(binary.BigEndian.AppendUint32(row, size), encoded...)
	}
	if c.format != "binary" {
		row = append(row, '\n')
	}
	if len(row) > maxRow {
		return sqlError(pgwire.StateProgramLimitExceeded, "a row of %d bytes is too long to send, the limit is %d", len(row), maxRow)
	}
	s.sendCopyData(row)
	s.row, c.scratch = row, encoded
	if cap(c.scratch) > maxKeptRow {
		c.scratch = nil
	}
	if cap(s.row) > maxKeptRow {
		s.row = nil
	}
	if cap(s.cell) > maxKeptRow {
		s.cell = nil
	}
	return nil
}

// copyEscapes are the letters that stand for control characters in the text format.
const copyEscapes, copyEscaped = "bfnrtv", "\b\f\n\r\t\v"

// appendValue appends a value in text or csv format. alone means that the row has no other value.
func (o *copyOptions) appendValue(dst, v []byte, alone bool) []byte {
	if o.format == "csv" {
		return o.appendQuoted(dst, v, alone)
	}
	for _, b := range v {
		k := strings.IndexByte(copyEscaped, b)
		switch {
		case k >= 0:
			dst = append(dst, '\\', copyEscapes[k])
		case b == '\\' || b == o.delimiter:
			dst = append(dst, '\\', b)
		default:
			dst = append(dst, b)
		}
	}
	return dst
}

// appendQuoted appends a value in csv format, with quotes where it could be misread.
func (o *copyOptions) appendQuoted(dst, v []byte, alone bool) []byte {
	special := func(b byte) bool { return b == o.delimiter || b == o.quote || b == '\n' || b == '\r' }
	plain := string(v) != o.null && (!alone || string(v) != `\.`)
	for i := 0; i < len(v) && plain; i++ {
		plain = !special(v[i])
	}
	if plain {
		return append(dst, v...)
	}
	dst = append(dst, o.quote)
	if bytes.IndexByte(v, o.quote) < 0 && bytes.IndexByte(v, o.escape) < 0 {
		return append(append(dst, v...), o.quote)
	}
	for _, b := range v {
		if b == o.quote || b == o.escape {
			dst = append(dst, o.escape)
		}
		dst = append(dst, b)
	}
	return append(dst, o.quote)
}
