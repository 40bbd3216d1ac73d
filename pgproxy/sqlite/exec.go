package sqlite

import (
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// maxKeptRow bounds the row buffer that a session keeps between rows, in bytes.
const maxKeptRow = 256 << 10

// portal is a bound statement.
type portal struct {
	prep    *prepared
	params  [][]byte
	formats []int16 // of the parameters
	columns []column
	run     *running
	begun   running // run points here, except in the portal of a FETCH
	done    bool
	rows    [][]string // rows of a command that are not sent yet
	tag     string
	last    bool // last of a simple query: its end ends the implicit transaction
	among   bool // one of several statements of a simple query
	left    int  // rows that a suspended FETCH has still to take
	cursor  bool // made by DECLARE
	hold    bool // WITH HOLD: survives the transaction
	lasting bool // may stay open while other statements of its transaction run
}

// running is a statement that has begun.
type running struct {
	h       *handle
	own     bool // close releases h
	c       *compiled
	pending bool // the current row has not been sent
}

// close ends the statement. It calls guard.drop first: a later interrupt would hit another
// statement of the connection, and an interrupted connection would not clear its parameters.
func (r *running) close() {
	r.h.cs.session.guard.drop(r.h.conn)
	r.c.done()
	if r.own {
		r.h.release()
	}
}

func (s *session) closePortal(name string) {
	if p := s.portals[name]; p != nil {
		p.close()
		delete(s.portals, name)
	}
}

// cost is the approximate memory of the parameters, in bytes.
func (p *portal) cost() int {
	n := 0
	for _, v := range p.params {
		n += len(v)
	}
	if p.cursor { // the query of a cursor is stored here only
		n += p.prep.cost()
	}
	return n
}

func (p *portal) close() {
	if p.run != nil {
		p.run.close()
		p.run = nil
	}
}

// closePortals closes all portals, or without held those that end with the transaction.
func (s *session) closePortals(held bool) {
	for name, p := range s.portals {
		if held || !p.hold {
			s.closePortal(name)
		}
	}
}

// checkFailed refuses a statement in a failed transaction.
func (s *session) checkFailed(p *prepared) error {
	if s.failed && (p.command == nil || !p.command.endsFailed) {
		return sqlError(pgwire.StateFailedTransaction, "current transaction is aborted, commands ignored until end of transaction block")
	}
	return nil
}

// runSimple runs one statement of a simple query. alone means that it is the only one, last that none follows.
func (s *session) runSimple(ctx context.Context, prep *prepared, alone, last bool) error {
	if err := s.checkFailed(prep); err != nil {
		return err
	}
	if prep.verb == "VACUUM" && prep.command == nil {
		return s.vacuum(ctx, prep, alone)
	}
	p := &portal{prep: prep, last: last, among: !alone}
	defer p.close()
	fetch := prep.command != nil && prep.command.fetch != nil
	if prep.command == nil {
		if prep.rw.params > 0 {
			return sqlError(pgwire.StateUndefinedParameter, "there is no parameter $1: a simple query has none")
		}
		if err := s.openSimple(ctx, p); err != nil {
			return err
		}
	} else if fetch {
		if err := s.bindFetch(p, nil, false); err != nil {
			return err
		}
	} else if err := s.runCommand(ctx, p); err != nil {
		return err
	}
	if fields := p.fields(); len(fields) > 0 {
		s.c.Writer.Send(&pgwire.RowDescription{Fields: fields})
	}
	var err error
	if fetch {
		_, err = s.runFetch(ctx, p, 0)
	} else {
		_, err = s.stream(p, 0)
	}
	return err
}

// openSimple is open for a statement whose columns the client does not know yet. If the schema has
// changed, a read can begin again.
func (s *session) openSimple(ctx context.Context, p *portal) error {
	err := s.open(ctx, p)
	if errors.Is(err, errPlanChanged) && !p.prep.write {
		p.close()
		p.columns, p.prep.described = nil, false
		err = s.open(ctx, p)
	}
	return err
}

func (p *portal) fields() []pgwire.Field {
	if p.prep.command != nil && p.prep.command.fetch == nil {
		return p.prep.command.fields
	}
	fields := make([]pgwire.Field, len(p.columns))
	for i := range p.columns {
		fields[i] = p.columns[i].Field
	}
	return fields
}

// vacuum runs VACUUM, which SQLite allows only outside transactions.
func (s *session) vacuum(ctx context.Context, prep *prepared, alone bool) error {
	if s.block || s.pinned != nil || !alone {
		return sqlError(pgwire.StateActiveTransaction, "VACUUM cannot run inside a transaction block")
	}
	h, err := s.acquire(ctx, true)
	if err != nil {
		return err
	}
	defer h.release()
	if err := s.guard.use(h.conn); err != nil {
		return err
	}
	c, err := h.cs.compile(prep.rw, prep.src, s.b.generation.Load())
	if err != nil {
		return err
	}
	_, err = h.cs.step(c)
	c.done()
	if err == nil {
		s.c.Writer.Send(&pgwire.CommandComplete{Tag: "VACUUM"})
	}
	return err
}

func (s *session) runCommand(ctx context.Context, p *portal) error {
	if p.prep.command.declare != nil {
		p.tag, p.done = "DECLARE CURSOR", false
		return s.declare(ctx, p)
	}
	tag, rows, err := p.prep.command.run(ctx, s)
	p.tag, p.rows, p.done = tag, rows, false
	return err
}

// connForPortal is connFor for a portal's statement.
func (s *session) connForPortal(ctx context.Context, p *portal) (h *handle, own bool, err error) {
	write := p.prep.write || p.prep.rw.locking && s.block && s.mode != txReadOnly && !s.b.db.ReadOnly()
	if !write {
		if h := s.sharedReader(p); h != nil {
			return h, true, nil
		}
	}
	if h, own, err = s.connFor(ctx, write); err == nil && own && p.lasting {
		s.shared, s.sharedGen = h, s.b.generation.Load()
	}
	return h, own, err
}

// open begins a statement: it leases the connection, compiles, binds, and steps to the first row.
func (s *session) open(ctx context.Context, p *portal) error {
	h, own, err := s.connForPortal(ctx, p)
	if err != nil {
		return err
	}
	gen := s.b.generation.Load()
	var c *compiled
	if err = s.guard.use(h.conn); err == nil {
		c, err = h.cs.compile(p.prep.rw, p.prep.src, gen)
	}
	if err != nil {
		if own {
			h.release()
		}
		return err
	}
	p.begun = running{h: h, own: own, c: c}
	p.run = &p.begun
	if err := s.describeAgain(h.cs, c, p, gen); err != nil {
		return err
	}
	for i := range p.params {
		if err := bindParam(c.stmt, i+1, paramType(p.prep.params, i), formatOf(p.formats, i), p.params[i]); err != nil {
			return err
		}
	}
	if p.run.pending, err = h.cs.step(c); err != nil {
		return err
	}
	if c.stmt.ColumnCount() != len(p.columns) { // another process changed the schema
		s.b.generation.Add(1)
		return planChanged()
	}
	return nil
}

var errPlanChanged = errors.New("sqlite: the schema changed")

func planChanged() error {
	return sqlError(pgwire.StateFeatureNotSupported, "cached plan must not change result type").because(errPlanChanged).
		hint("The schema changed: prepare the statement again.")
}

// describeAgain describes the statement if it has not been described in this generation of the
// schema. It returns an error if the client knows other columns.
func (s *session) describeAgain(cs *connState, c *compiled, p *portal, gen uint64) error {
	if p.prep.described && p.prep.generation == gen {
		if p.columns == nil {
			p.columns = append([]column{}, p.prep.columns...)
		}
		return nil
	}
	first := !p.prep.described
	old := p.prep.fields()
	if err := cs.describe(c, p.prep, gen); err != nil {
		return err
	}
	p.prep.described, p.prep.generation = true, gen
	now := p.prep.fields()
	if !first && len(old) != len(now) {
		return planChanged()
	}
	for i := range now {
		if !first && old[i].TypeOID != now[i].TypeOID {
			return planChanged()
		}
	}
	if p.columns == nil {
		p.columns = append([]column{}, p.prep.columns...)
	}
	return nil
}

func paramType(types []uint32, i int) uint32 {
	if i < len(types) {
		return types[i]
	}
	return oidUnspecified
}

// formatOf applies the protocol's rule: no format means text, one is for all columns, otherwise
// each column has its own.
func formatOf(formats []int16, i int) int16 {
	switch {
	case len(formats) == 1:
		return formats[0]
	case i < len(formats):
		return formats[i]
	}
	return pgwire.FormatText
}

// stream sends up to limit rows (0 = all), and the tag after the last one. suspended means that the
// limit was reached.
func (s *session) stream(p *portal, limit int) (suspended bool, err error) {
	if p.prep.command != nil {
		return s.streamCommand(p, limit)
	}
	n := 0
	if p.run != nil {
		if n, err = s.sendRows(p, limit); err != nil || p.run.pending {
			return err == nil, err
		}
	}
	return false, s.complete(p, n)
}

// sendRows sends up to limit rows (0 = all) and returns their number.
func (s *session) sendRows(p *portal, limit int) (n int, err error) {
	written := s.c.Writer.Written()
	for ; p.run.pending && (limit == 0 || n < limit); n++ {
		if err := s.sendRow(p, n); err != nil {
			return n, err
		}
		if err := s.nextRow(p, &written); err != nil {
			return n, err
		}
	}
	return n, nil
}

// nextRow goes to the next row, after one was sent. written is what the client had got before that.
func (s *session) nextRow(p *portal, written *uint64) (err error) {
	if w := s.c.Writer.Written(); w != *written {
		*written = w
		if err := s.renewLimit(); err != nil {
			return err
		}
	}
	p.run.pending, err = p.run.h.cs.step(p.run.c)
	return err
}

// renewLimit renews the client's time limit after it has taken some rows. It returns errClientGone if
// the client has disconnected.
func (s *session) renewLimit() error {
	s.shortened.Store(false)
	err := s.c.Conn.SetWriteDeadline(time.Now().Add(s.b.cfg.StallTimeout))
	if err != nil || s.c.Writer.Flush() != nil {
		return errClientGone
	}
	return nil
}

// complete ends the statement and sends its tag.
func (s *session) complete(p *portal, n int) error {
	if p.run != nil && p.prep.changesRows() {
		n = p.run.h.conn.Changes()
	}
	if p.prep.changesSchema() {
		s.schemaChanged = true
		s.b.generation.Add(1)
	}
	p.close()
	p.done = true
	return s.confirm(p, p.prep.tag(n))
}

// confirm sends a statement's tag. The last statement of a simple query commits first, because a COMMIT can fail (full
// disk, deferred constraint).
func (s *session) confirm(p *portal, tag string) error {
	if p.last {
		if err := s.endImplicit(true); err != nil {
			return err
		}
	}
	s.completeMessage.Tag = tag
	s.c.Writer.Send(&s.completeMessage)
	return nil
}

func (s *session) streamCommand(p *portal, limit int) (suspended bool, err error) {
	for i, row := range p.rows {
		if limit > 0 && i == limit {
			p.rows = p.rows[i:]
			return true, nil
		}
		values := make([][]byte, len(row))
		for k, v := range row {
			values[k] = []byte(v)
		}
		s.c.Writer.Send(&pgwire.DataRow{Values: values})
	}
	p.rows, p.done = nil, true
	return false, s.confirm(p, p.tag)
}

// sendRow encodes the current row as a DataRow.
func (s *session) sendRow(p *portal, n int) error {
	stmt := p.run.c.stmt
	row := binary.BigEndian.AppendUint16(s.row[:0], uint16(len(p.columns)))
	s.large = s.large[:0]
	for i := range p.columns {
		c := &p.columns[i]
		l, ok := c.isLarge(stmt, i)
		if ok {
			row = binary.BigEndian.AppendUint32(row, uint32(l.size))
			l.at = len(row)
			s.large = append(s.large, l)
			continue
		}
		var v value
		v, s.cell = readValue(stmt, i, s.cell)
		at := len(row)
		row = append(row, 0xff, 0xff, 0xff, 0xff) // NULL
		if v.typ == sqlite.TypeNull {
			continue
		}
		if row, ok = c.encode(row, v); !ok {
			return s.b.noteWide(c, misfit(c, v, n))
		}
		binary.BigEndian.PutUint32(row[at:], uint32(len(row)-at-4))
	}
	err := s.writeRow(stmt, row)
	s.row = row
	if cap(s.row) > maxKeptRow {
		s.row = nil
	}
	if cap(s.cell) > maxKeptRow {
		s.cell = nil
	}
	return err
}

// shiftPosition moves an error's position from one statement to the whole query.
func shiftPosition(err error, sql, src string) error {
	resp := toResponse(err)
	at, convErr := strconv.Atoi(resp.Position)
	if convErr != nil {
		return err
	}
	if offset := strings.Index(sql, src); offset > 0 {
		moved := *resp
		moved.Position = strconv.Itoa(at + len([]rune(sql[:offset])))
		return &moved
	}
	return err
}
