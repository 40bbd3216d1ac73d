package sqlite

import (
	"context"
	"math"
	"strconv"
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// The SQL statements DECLARE, FETCH, MOVE and CLOSE. A cursor is a named portal, as in PostgreSQL: FETCH also reads
// portals of the extended protocol, and the protocol's Describe, Execute and Close accept cursors.

// declaration is DECLARE name CURSOR FOR query.
type declaration struct {
	name         string
	binary, hold bool
	query        *prepared
}

// fetch is FETCH or MOVE: it skips skip rows and takes count.
type fetch struct {
	name        string
	move        bool
	skip, count int
}

// prepareDeclare reads DECLARE. params are the types that Parse declared for the query.
func prepareDeclare(src string, tokens []token, params []uint32) (*prepared, error) {
	at := func(i int) token { return tokenAt(tokens, i) }
	d := &declaration{name: cursorName(at(1))}
	i := 2
	for ; at(i).isAny("BINARY", "INSENSITIVE", "ASENSITIVE", "NO", "SCROLL"); i++ {
		d.binary = d.binary || at(i).is("BINARY")
	}
	if d.name == "" || !at(i).is("CURSOR") {
		return nil, cursorSyntax(src, at(min(i, len(tokens)-1)), "DECLARE name CURSOR FOR query")
	}
	if i++; at(i).isAny("WITH", "WITHOUT") && at(i+1).is("HOLD") {
		d.hold = at(i).is("WITH")
		i += 2
	}
	if !at(i).is("FOR") || i+1 == len(tokens) {
		return nil, cursorSyntax(src, at(min(i, len(tokens)-1)), "DECLARE name CURSOR FOR query")
	}
	query := src[tokens[i+1].start:]
	if tokens[i+1].is("DECLARE") { // DECLARE … CURSOR FOR DECLARE …
		return nil, cursorSyntax(src, tokens[i+1], "a query behind FOR")
	}
	var err error
	if d.query, err = prepare(query, params); err != nil {
		return nil, shiftPosition(err, src, query)
	}
	switch verb := d.query.verb; {
	case d.query.command != nil && verb == "SELECT":
		return nil, unsupported("a cursor for this view of the catalogs")
	case !tokens[i+1].isAny("SELECT", "VALUES", "WITH", "("):
		return nil, cursorSyntax(src, tokens[i+1], "a query behind FOR")
	case d.query.write:
		return nil, unsupported("a cursor for a statement that writes")
	case d.hold && d.query.rw.locking:
		return nil, unsupported("DECLARE CURSOR WITH HOLD … FOR UPDATE")
	}
	return &prepared{src: src, verb: "DECLARE", command: &command{declare: d}, params: d.query.params, described: true}, nil
}

func tokenAt(tokens []token, i int) token {
	if i < len(tokens) && !tokens[i].is(";") {
		return tokens[i]
	}
	return token{kind: kindOp}
}

func cursorSyntax(src string, near token, want string) error {
	return sqlError(pgwire.StateSyntaxError, "syntax error at or near %q: want %s", clip(near.text), want).at(src, near.start)
}

// cursorName returns the name in t, in lower case unless it is quoted; empty if t is not a name.
func cursorName(t token) string {
	switch t.kind {
	case kindIdent:
		return strings.ToLower(t.text)
	case kindQuoted:
		return t.name()
	}
	return ""
}

// parseFetch reads FETCH and MOVE.
func parseFetch(tokens []token) (*command, error) {
	verb := strings.ToUpper(tokens[0].text)
	at := func(i int) token { return tokenAt(tokens, i) }
	f := &fetch{move: verb == "MOVE", count: 1}
	i, relative, back := 1, false, false
	switch t := at(1); {
	case t.kind == kindIdent && at(2).kind == kindOp && at(2).text == "": // any word may be a cursor's name
	case t.isAny("NEXT", "FORWARD"):
		i = 2
	case t.is("RELATIVE"):
		i, relative = 2, true
	case t.isAny("PRIOR", "FIRST", "LAST", "ABSOLUTE", "BACKWARD"):
		back = true
	}
	switch t := at(i); {
	case back:
	case t.is("ALL") && !relative && (at(i+1).text != "" || i == 2):
		f.count, i = math.MaxInt, i+1
	case t.kind == kindNumber, t.isAny("-", "+") && at(i+1).kind == kindNumber:
		sign := 1
		if t.isAny("-", "+") {
			i++
			if t.is("-") {
				sign = -1
			}
		}
		n, err := strconv.Atoi(at(i).text)
		if err != nil {
			return nil, sqlError(pgwire.StateSyntaxError, "syntax error at or near %q: want a number of rows", clip(at(i).text))
		}
		f.count, back, i = n, n*sign <= 0, i+1
		if relative {
			f.skip, f.count = n-1, 1
		}
	}
	if back {
		return nil, unsupported("%s but forward", verb).hint("Cursors go forward only: FETCH NEXT, FETCH n, FETCH ALL.")
	}
	if at(i).isAny("FROM", "IN") && at(i+1).text != "" {
		i++
	}
	if f.name = cursorName(at(i)); f.name == "" || at(i+1).text != "" {
		return nil, sqlError(pgwire.StateSyntaxError, "syntax error in %s: want %s [count] FROM cursor", verb, verb)
	}
	return &command{fetch: f}, nil
}

// parseClose reads CLOSE.
func parseClose(tokens []token) (*command, error) {
	t := tokenAt(tokens, 1)
	name := cursorName(t)
	if name == "" || tokenAt(tokens, 2).text != "" {
		return nil, sqlError(pgwire.StateSyntaxError, "syntax error in CLOSE: want CLOSE cursor")
	}
	if t.is("ALL") {
		return simple("CLOSE CURSOR ALL", func(s *session) error {
			s.closePortals(true)
			return nil
		}), nil
	}
	return simple("CLOSE CURSOR", func(s *session) error {
		if s.portals[name] == nil {
			return noCursor(name)
		}
		s.closePortal(name)
		return nil
	}), nil
}

func noCursor(name string) error {
	return sqlError(pgwire.StateInvalidCursorName, "cursor %q does not exist", name)
}

// declare opens the cursor of p, a DECLARE.
func (s *session) declare(ctx context.Context, p *portal) error {
	d := p.prep.command.declare
	switch {
	case d.hold && (s.block || s.pinned != nil):
		return unsupported("DECLARE CURSOR WITH HOLD in a transaction block").hint("Declare it outside, or without HOLD.")
	case !d.hold && !s.block && !p.among:
		return sqlError(pgwire.StateNoActiveTransaction, "DECLARE CURSOR can only be used in transaction blocks")
	case s.portals[d.name] != nil:
		return sqlError(pgwire.StateDuplicateCursor, "cursor %q already exists", d.name)
	case len(s.portals) >= maxPortals:
		return sqlError(pgwire.StateConfigLimitExceeded, "too many open portals (limit: %d)", maxPortals)
	case d.query.rw.params > len(p.params):
		return sqlError(pgwire.StateUndefinedParameter, "there is no parameter $1: a simple query has none")
	}
	query := *d.query // a copy: d.query may be described again while this or another cursor reads
	cursor := &portal{prep: &query, params: p.params, formats: p.formats, cursor: true, hold: d.hold, lasting: !d.hold}
	if err := checkMemory(s, "open portals", s.portals, (*portal).cost, cursor); err != nil {
		return err
	}
	if err := s.openSimple(ctx, cursor); err != nil {
		cursor.close()
		return err
	}
	if d.binary {
		for i := range cursor.columns {
			cursor.columns[i].Format = pgwire.FormatBinary
		}
	}
	s.portals[d.name] = cursor
	cursor.pause()
	return nil
}

// pause ends a FETCH. It releases the connection after the last row; before that the portal keeps it.
func (p *portal) pause() {
	switch {
	case p.run == nil:
	case !p.run.pending:
		p.close()
		p.done = true
	default:
		p.run.h.cs.session.guard.drop(p.run.h.conn)
	}
}

// fetchFields describes the rows of a FETCH. There are none if the cursor does not exist, as in
// PostgreSQL.
func (s *session) fetchFields(c *command) []pgwire.Field {
	if cursor := s.portals[c.fetch.name]; cursor != nil && !c.fetch.move {
		return cursor.fields()
	}
	return nil
}

// bindFetch gives p, a FETCH, the columns of its cursor, in the cursor's formats or in those of a Bind.
func (s *session) bindFetch(p *portal, formats []int16, bind bool) error {
	cursor := s.portals[p.prep.command.fetch.name]
	if cursor == nil || p.prep.command.fetch.move {
		return nil
	}
	p.columns = append([]column{}, cursor.columns...)
	if !bind {
		return nil
	}
	return setFormats(p.columns, formats)
}

// setFormats sets the formats requested by a Bind.
func setFormats(columns []column, formats []int16) error {
	for i := range columns {
		f := formatOf(formats, i)
		if f != pgwire.FormatText && f != pgwire.FormatBinary {
			return protocolError("unsupported result format %d", f)
		}
		columns[i].Format = f
	}
	return nil
}

// fetchCursor finds the cursor of p, a FETCH or MOVE, and continues or opens it.
func (s *session) fetchCursor(ctx context.Context, p *portal) (*portal, error) {
	f := p.prep.command.fetch
	cursor := s.portals[f.name]
	switch {
	case cursor == nil:
		return nil, noCursor(f.name)
	case cursor.prep.command != nil || cursor.prep.empty() || cursor.prep.write:
		return nil, unsupported("FETCH from a portal that is no query")
	case !f.move && !sameColumns(p.columns, cursor.columns):
		return nil, planChanged()
	case cursor.run != nil:
		return cursor, s.guard.use(cursor.run.h.conn)
	case !cursor.done: // a portal of the extended protocol, not executed yet
		cursor.lasting = true
		return cursor, s.open(ctx, cursor)
	}
	return cursor, nil
}

func sameColumns(a, b []column) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].TypeOID != b[i].TypeOID {
			return false
		}
	}
	return true
}

// runFetch takes rows of a cursor: the number in p, a FETCH or MOVE, and at most limit if that is not 0.
func (s *session) runFetch(ctx context.Context, p *portal, limit int) (suspended bool, err error) {
	f := p.prep.command.fetch
	cursor, err := s.fetchCursor(ctx, p)
	n := 0
	if err == nil && cursor.run != nil {
		if p.left == 0 { // otherwise it continues after the limit suspended it
			p.left = f.count
			_, err = cursor.skip(f.skip)
		}
		switch take := p.left; {
		case err != nil:
		case f.move:
			n, err = cursor.skip(take)
		default:
			if limit > 0 {
				take = min(take, limit)
			}
			n, err = s.sendRows(&portal{run: cursor.run, columns: p.columns}, take)
		}
	}
	if err != nil {
		if cursor != nil && s.portals[f.name] == cursor {
			s.closePortal(f.name)
		}
		return false, err
	}
	more := cursor.run != nil && cursor.run.pending
	cursor.pause()
	if p.left -= n; !f.move && more && limit > 0 && n == limit && p.left > 0 {
		return true, nil
	}
	p.left = 0
	verb := "FETCH "
	if f.move {
		verb = "MOVE "
	}
	return false, s.confirm(p, verb+itoa(n))
}

// skip skips up to n rows.
func (p *portal) skip(n int) (skipped int, err error) {
	for ; err == nil && p.run.pending && skipped < n; skipped++ {
		p.run.pending, err = p.run.h.cs.step(p.run.c)
	}
	return skipped, err
}
