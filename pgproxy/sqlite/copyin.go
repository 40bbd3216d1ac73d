package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/headpond/headpond/pgwire"
)

// copyIn is the state of a COPY FROM STDIN. It runs in the context of a statement and reads the session's Reader
// itself.
type copyIn struct {
	*copyStatement
	s       *session
	columns []string
	types   []uint32
	c       *compiled
	h       *handle

	buf    []byte // buf[at:] is received and not parsed
	at     int
	ended  bool // the client has sent CopyDone
	crlf   bool // the first line ended with CR LF, so all must
	line   int  // current line, from 1; in a csv record, its last line
	record []byte
	values [][]byte // of the current record; nil = NULL
	cell   []byte   // decoded values that differ from the bytes in record
}

// copyFrom inserts the client's data into a table and returns the number of rows.
func (s *session) copyFrom(ctx context.Context, c *copyStatement) (int, error) {
	in := &copyIn{copyStatement: c, s: s, columns: c.columns}
	h, _, err := s.connFor(ctx, true)
	if err != nil {
		return 0, err
	}
	if in.h = h; in.columns == nil {
		if err = s.guard.use(h.conn); err == nil {
			in.columns, err = tableColumns(h.conn, c.table)
		}
		if err != nil {
			return 0, err
		}
	}
	if len(in.columns) == 0 {
		return 0, sqlError(pgwire.StateUndefinedTable, "relation %q does not exist", c.table)
	}
	if err := in.compile(); err != nil {
		return 0, err
	}
	defer func() {
		s.guard.drop(h.conn)
		in.c.done()
	}()
	s.guard.takeReader()
	defer s.guard.giveReader()
	s.c.Writer.Send(&pgwire.CopyInResponse{Format: int8(c.wireFormat()), Columns: c.wireFormats(len(in.columns))})
	if err := s.c.Writer.Flush(); err != nil {
		return 0, errClientGone
	}
	var n int
	if c.format == "binary" {
		n, err = in.binaryRows()
	} else {
		n, err = in.textRows()
	}
	if err == nil {
		err = in.drain()
	}
	return n, err
}

// compile compiles the INSERT statement for one row.
func (in *copyIn) compile() error {
	query := []byte("INSERT INTO " + quoteIdent(in.table) + " (" + quoteNames(in.columns) + ") VALUES (")
	for i := range in.columns {
		if i > 0 {
			query = append(query, ", "...)
		}
		query = fmt.Appendf(query, "$%d", i+1)
	}
	prep, err := prepare(string(append(query, ')')), nil)
	if err != nil {
		return err
	}
	if err := in.s.guard.use(in.h.conn); err != nil {
		return err
	}
	gen := in.s.b.generation.Load()
	if in.c, err = in.h.cs.compile(prep.rw, prep.src, gen); err != nil {
		resp := *toResponse(err)
		resp.Position = "" // the client does not know the statement
		return &resp
	}
	err = in.h.cs.describe(in.c, prep, gen)
	in.types = prep.params
	return err
}

// more waits for data and appends it to buf. It returns io.EOF at the end of the COPY.
func (in *copyIn) more() error {
	r := in.s.c.Reader
	for r.Left() == 0 {
		if in.ended {
			return io.EOF
		}
		if err := in.wait(); err != nil {
			return err
		}
		h, err := r.Next()
		if err == nil {
			err = in.message(h)
		}
		if err != nil {
			return in.readError(err)
		}
	}
	if err := in.wait(); err != nil {
		return err
	}
	chunk, err := r.Chunk()
	if err != nil {
		return in.readError(err)
	}
	if in.at > 0 {
		in.buf = append(in.buf[:0], in.buf[in.at:]...)
		in.at = 0
	}
	if limit := in.s.b.cfg.MaxMessage; len(in.buf)+len(chunk) > limit {
		return in.located(sqlError(pgwire.StateProgramLimitExceeded, "a row of COPY data is over the limit of %d bytes", limit), "")
	}
	in.buf = append(in.buf, chunk...)
	return nil
}

// message handles the header of a message. Those other than CopyData are read here.
func (in *copyIn) message(h pgwire.Header) error {
	if h.Type == pgwire.TypeCopyData {
		return nil
	}
	r := in.s.c.Reader
	if err := in.s.guard.readWithin(in.s.b.cfg.StallTimeout); err != nil {
		return err
	}
	switch h.Type {
	case pgwire.TypeCopyDone:
		in.ended = true
		return r.Skip()
	case pgwire.TypeSync, pgwire.TypeFlush: // ignored, as the protocol says
		return r.Skip()
	case pgwire.TypeTerminate:
		return errClientGone
	case pgwire.TypeCopyFail:
		body, err := r.Body()
		if err != nil {
			return err
		}
		var m pgwire.CopyFail
		if err := m.Decode(body); err != nil {
			return err
		}
		return sqlError(pgwire.StateQueryCanceled, "COPY from stdin failed: %s", clip(m.Message))
	}
	return errors.Join(r.Skip(), protocolError("unexpected message type 0x%02X during COPY from stdin", h.Type))
}

// enoughBuffered is the number of buffered bytes from which a Reader returns a header or a chunk without waiting.
const enoughBuffered = 1 << 10

// wait limits how long the client may send nothing.
func (in *copyIn) wait() error {
	if in.s.c.Reader.Buffered() >= enoughBuffered {
		return nil
	}
	in.s.shortened.Store(false)
	return in.s.guard.readWithin(in.s.b.cfg.StallTimeout)
}

// readError distinguishes a stalled or disconnected client from a protocol violation.
func (in *copyIn) readError(err error) error {
	var resp *responseError
	switch {
	case errors.As(err, &resp), errors.Is(err, pgwire.ErrLength), errors.Is(err, pgwire.ErrMalformed):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errIdleTooLong // unless the statement was interrupted, see guarded
	}
	return errClientGone
}

// drain skips messages after the end of the data until the COPY ends.
func (in *copyIn) drain() error {
	for {
		in.at = len(in.buf)
		if err := in.more(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// located adds the line to an error, and the column or the line's text.
func (in *copyIn) located(err error, column string) error {
	resp := *toResponse(err)
	resp.Where = fmt.Sprintf("COPY %s, line %d", in.table, in.line)
	switch {
	case column != "":
		resp.Where += ", column " + column
	case in.format != "binary" && in.record != nil:
		resp.Where += `: "` + clip(string(bytes.ToValidUTF8(in.record, nil))) + `"`
	}
	return &resp
}

// bad returns an error in the data's format.
func (in *copyIn) bad(format string, args ...any) error {
	return in.located(sqlError(stateBadCopy, format, args...), "")
}

// bind binds the value of column i.
func (in *copyIn) bind(i int, raw []byte) error {
	err := bindParam(in.c.stmt, i+1, paramType(in.types, i), in.wireFormat(), raw)
	if err == nil {
		return nil
	}
	where := in.columns[i]
	if in.format != "binary" {
		where += `: "` + clip(string(bytes.ToValidUTF8(raw, nil))) + `"`
	}
	return in.located(err, where)
}

// insert inserts the bound row.
func (in *copyIn) insert() error {
	_, err := in.h.cs.step(in.c)
	if err != nil {
		err = in.located(err, "")
	}
	_ = in.c.stmt.Reset() // returns the error of the step again
	return err
}
