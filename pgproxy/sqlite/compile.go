package sqlite

import (
	"cmp"
	"container/list"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// maxCachedSQL bounds the text of a statement kept compiled, in bytes: long ones
// carry their values with them, and are seldom seen again.
const maxCachedSQL = 16 << 10

// maxCompiled bounds the compiled statements kept per connection: enough for
// the statements of an application, small beside SQLite's page cache.
const maxCompiled = 128

// connState is the backend's state of each connection of the pools. Only the holder of the
// connection uses it.
type connState struct {
	conn      *sqlite.Conn
	wide      *sync.Map // columns of the file, see widen
	session   *session  // its present holder; nil when idle
	cache     map[string]*list.Element
	order     *list.List // of *compiled, most recently used first
	compiling bool
	tables    map[string]bool          // read or written by the statement being compiled
	schemas   map[string][]schemaField // by lower-case table name
	schemaGen uint64                   // of schemas
	seen      uint64                   // generation the connection itself has noticed
	callError error                    // of a function called by the step under way
}

// schemaField is one column of a table.
type schemaField struct {
	name string
	oid  uint32
}

// compiled is a statement of SQLite. It belongs to its connection.
type compiled struct {
	sql    string
	stmt   *sqlite.Stmt
	tables map[string]bool
	gen    uint64 // of the schema it was compiled with
	busy   bool   // under way in a portal
	cached bool
}

func newConnState(conn *sqlite.Conn, wide *sync.Map) *connState {
	return &connState{conn: conn, wide: wide, cache: map[string]*list.Element{}, order: list.New(), schemas: map[string][]schemaField{}}
}

// compile prepares sql, from the cache if it is there, not under way and of
// this generation of the schema: SQLite compiles an older one again only when
// it is stepped, and until then describes what there was.
func (cs *connState) compile(rw *rewritten, src string, generation uint64) (*compiled, error) {
	trimLater()
	if e, ok := cs.cache[rw.sql]; ok && !e.Value.(*compiled).busy {
		c := e.Value.(*compiled)
		if c.gen == generation {
			cs.order.MoveToFront(e)
			c.busy = true
			return c, nil
		}
		cs.remove(e)
	}
	if err := cs.refresh(generation); err != nil {
		return nil, err
	}
	cs.compiling, cs.tables = true, map[string]bool{}
	sql := rw.sql
	if rw.plain != "" {
		sql = rw.plain
	}
	stmt, trailing, err := cs.conn.PrepareTransient(sql)
	cs.compiling = false
	if err != nil {
		return nil, compileError(err, rw, src)
	}
	if rest := tokenize(sql[len(sql)-trailing:]); len(rest) > 0 {
		return nil, errors.Join(sqlError(pgwire.StateSyntaxError, "cannot insert multiple commands into a prepared statement"), stmt.Finalize())
	}
	c := &compiled{sql: rw.sql, stmt: stmt, tables: cs.tables, gen: generation, busy: true}
	if _, taken := cs.cache[rw.sql]; !taken && len(rw.sql) <= maxCachedSQL {
		c.cached = true
		cs.cache[rw.sql] = cs.order.PushFront(c)
		cs.evict(maxCompiled)
	}
	return c, nil
}

// refresh makes the connection notice that the schema was changed by another:
// SQLite looks when it steps a statement, not when it compiles one.
func (cs *connState) refresh(generation uint64) error {
	if cs.seen == generation {
		return nil
	}
	if err := execute(cs.conn, "SELECT 1 FROM main.sqlite_schema LIMIT 1"); err != nil {
		return err
	}
	cs.seen = generation
	return nil
}

// evict finalizes the least recently used statements beyond keep.
func (cs *connState) evict(keep int) {
	for e := cs.order.Back(); e != nil && cs.order.Len() > keep; {
		prev := e.Prev()
		if !e.Value.(*compiled).busy {
			cs.remove(e)
		}
		e = prev
	}
}

// remove finalizes a statement of the cache.
func (cs *connState) remove(e *list.Element) {
	c := e.Value.(*compiled)
	cs.order.Remove(e)
	delete(cs.cache, c.sql)
	c.stmt.Finalize()
}

// step steps a statement. A function's error comes out here, because the driver (1.4.2) loses it:
// the statement continues with NULL, and its transaction is rolled back for the error.
func (cs *connState) step(c *compiled) (row bool, err error) {
	cs.callError = nil
	if row, err = c.stmt.Step(); cs.callError != nil {
		return false, cs.callError
	}
	if err != nil && isConstraint(err) {
		return false, cs.constraintError(err, c.tables)
	}
	return row, err
}

// done gives a compiled statement back.
func (c *compiled) done() {
	if !c.cached {
		c.stmt.Finalize()
		return
	}
	_ = c.stmt.Reset() // repeats the error of the last step, which was reported
	_ = c.stmt.ClearBindings()
	c.busy = false
}

// compileError adds the position in the client's text.
func compileError(err error, rw *rewritten, src string) error {
	resp := toResponse(err)
	if offset, ok := sqlite.ErrorOffset(err); ok && rw.plain == "" {
		resp = resp.at(src, rw.position(offset))
	}
	return resp
}

// Authorize collects the tables of a statement while it is compiled and refuses access beyond the
// database file, and changes of the connection, which others use next. A PRAGMA may take effect
// while it is compiled, behind EXPLAIN too, so that the words of the statement are not enough to
// judge by.
func (cs *connState) Authorize(a sqlite.Action) sqlite.AuthResult {
	if !cs.compiling {
		return sqlite.AuthResultOK
	}
	switch a.Type() {
	case sqlite.OpAttach, sqlite.OpDetach:
		return sqlite.AuthResultDeny
	case sqlite.OpPragma:
		if args, ok := readPragmas[strings.ToLower(a.Pragma())]; !ok || !args && a.PragmaArg() != "" {
			return sqlite.AuthResultDeny
		}
	case sqlite.OpRead, sqlite.OpUpdate, sqlite.OpInsert, sqlite.OpDelete:
		if a.Database() == "temp" && (a.Type() == sqlite.OpInsert || a.Type() == sqlite.OpDelete) { // all that creates or drops there
			return sqlite.AuthResultDeny
		}
		if a.Accessor() == "" && len(cs.tables) < maxCompiled {
			cs.tables[strings.ToLower(a.Table())] = true
		}
	}
	return sqlite.AuthResultOK
}

// schemaQuery reports of each column whether it is a view's: SQLite gives those of expressions an
// affinity for a type. The catalogs are temporary views.
var schemaQuery = `SELECT x.name, ` + keyDecl("?1") + `, ?1 COLLATE NOCASE IN (SELECT name FROM sqlite_schema WHERE type = 'view'),
	?1 COLLATE NOCASE IN (SELECT name FROM sqlite_temp_schema) FROM pragma_table_xinfo(?1) x WHERE x.hidden <> 1`

// schema returns the columns of a table or view, kept until the schema changes.
func (cs *connState) schema(table string, generation uint64) []schemaField {
	if cs.schemaGen != generation {
		cs.schemaGen, cs.schemas = generation, map[string][]schemaField{}
	}
	table = strings.ToLower(table)
	if fields, ok := cs.schemas[table]; ok {
		return fields
	}
	fields, view, catalog := cs.declaredFields(table)
	switch {
	case catalog:
		for i := range fields {
			fields[i].oid = cmp.Or(catalogColumnTypes[fields[i].name], fields[i].oid)
		}
	case view:
		cs.viewTypes(table, fields, generation)
	default:
		cs.widen(table, fields)
	}
	if len(cs.schemas) < maxCompiled {
		cs.schemas[table] = fields
	}
	return fields
}

// declaredFields returns the columns of a table as SQLite has them.
func (cs *connState) declaredFields(table string) (fields []schemaField, view, catalog bool) {
	stmt, _, err := cs.conn.PrepareTransient(schemaQuery)
	if err != nil {
		return nil, false, false
	}
	defer stmt.Finalize()
	stmt.BindText(1, table)
	for {
		row, err := stmt.Step()
		if err != nil || !row {
			return fields, view, catalog
		}
		decl := stmt.ColumnText(1)
		view, catalog = stmt.ColumnBool(2), stmt.ColumnBool(3)
		f := schemaField{strings.ToLower(stmt.ColumnText(0)), declaredOID(decl)}
		if view || catalog {
			f.oid = viewOID(decl)
		}
		fields = append(fields, f)
	}
}

// viewTypes gives the columns of a view the types from its query.
func (cs *connState) viewTypes(view string, fields []schemaField, generation uint64) {
	sql, err := lookup("SELECT sql FROM main.sqlite_schema WHERE type = 'view' AND name = ?1 COLLATE NOCASE")(cs, []sqlite.Value{text(view)})
	if err != nil {
		return
	}
	ty := &typer{tokens: viewQuery(tokenize(stripComments(sql.Text()))), table: func(name string) []schemaField { return cs.schema(name, generation) }}
	if told, known := ty.frameFields(0); known && len(told) == len(fields) {
		for i := range fields {
			fields[i].oid = cmp.Or(told[i].oid, fields[i].oid)
		}
	}
}

// viewQuery returns the query of a CREATE VIEW.
func viewQuery(tokens []token) []token {
	return tokens[slices.IndexFunc(tokens, func(t token) bool { return t.is("AS") })+1:]
}

// columnType returns the type of the column of that name in the tables of c,
// unspecified if there is none or they differ.
func (cs *connState) columnType(c *compiled, name string, generation uint64) uint32 {
	var found uint32
	name = strings.ToLower(name)
	for table := range c.tables {
		for _, f := range cs.schema(table, generation) {
			if f.name != name {
				continue
			}
			if found != oidUnspecified && found != f.oid {
				return oidUnspecified
			}
			found = f.oid
		}
	}
	return found
}

// describe settles the types of a statement's parameters and columns. Columns without a known type
// are text, as which every value can be sent.
func (cs *connState) describe(c *compiled, p *prepared, generation uint64) error {
	ty := &typer{tokens: p.tokens, params: p.params, table: func(name string) []schemaField {
		return cs.schema(name, generation)
	}, anyTable: func(name string) uint32 {
		return cs.columnType(c, name, generation)
	}}
	if p.rw.params > 0 {
		for n, oid := range p.rw.casts {
			if n <= len(p.params) && p.params[n-1] == oidUnspecified {
				p.params[n-1] = oid
			}
		}
		ty.inferParams(cs.insertTypes(p.tokens, generation))
	}
	p.columns = make([]column, c.stmt.ColumnCount())
	items, compound := selectItems(p.tokens), isCompound(p.tokens)
	for i := range p.columns {
		it, name := (*item)(nil), c.stmt.ColumnName(i)
		if k := itemOf(items, i, len(p.columns)); k >= 0 {
			it = &items[k]
			if len(p.names) == len(items) { // else the rewriter has taken a star apart
				name = cmp.Or(p.names[k], name)
			}
		} else {
			name = repeatedName(name, columnOrigin(c.stmt, i), p.columns[:i])
		}
		oid := uint32(oidUnspecified)
		if c.stmt.ColumnTableName(i) == "" || p.rw.catalog || compound {
			oid = ty.result(p.verb, i, len(p.columns), it)
		}
		if oid == oidUnspecified {
			oid = cs.resultDecl(c, i, generation)
		}
		p.columns[i].table, p.columns[i].origin = c.stmt.ColumnTableName(i), columnOrigin(c.stmt, i)
		p.columns[i].Field = field(name, wireType(oid))
		if sent := p.columns[i].TypeOID; sent == oidNumeric || !compound && (sent == oidVarchar || sent == oidBpchar) {
			p.columns[i].TypeModifier = modifierOf(columnDecl(c.stmt, i))
		}
	}
	if at := ty.dateArithmetic(); at >= 0 && !p.rw.catalog && p.verb != "CREATE" {
		return unsupported("%s of dates and times", ty.tokens[at].text).at(p.src, p.rw.position(ty.tokens[at].start)).
			hint("SQLite would compute with the years. Write julianday(a) - julianday(b), or date(a, '+1 day').")
	}
	return nil
}

// resultDecl returns the declared type of a result column.
func (cs *connState) resultDecl(c *compiled, i int, generation uint64) uint32 {
	decl := columnDecl(c.stmt, i)
	if table := c.stmt.ColumnTableName(i); table != "" && decl != "" {
		oid := uint32(oidInt8) // of a rowid without a name
		for _, f := range cs.schema(table, generation) {
			if strings.EqualFold(f.name, columnOrigin(c.stmt, i)) {
				oid = f.oid
			}
		}
		return oid
	}
	return viewOID(decl)
}

// isCompound reports whether UNION or a relative of it may join the rows of a statement.
func isCompound(tokens []token) bool {
	return slices.ContainsFunc(tokens, func(t token) bool { return t.isAny("UNION", "EXCEPT", "INTERSECT") })
}

// viewOID is declaredOID for a column of a view or subquery.
func viewOID(decl string) uint32 {
	oid := declaredOID(decl)
	switch {
	case decl == "BLOB", decl == "NUM":
		return oidUnspecified
	case isInt(oid) && oid != oidBool:
		return oidInt8
	}
	return oid
}

// wireType maps the types expressions have to those results are sent as.
func wireType(oid uint32) uint32 {
	switch {
	case oid == oidFloat4:
		return oidFloat8
	case elementTypes[oid] != 0, oid == oidInt2Vector:
		return oid
	case castFunction(oid) == "", oid == oidUnknown:
		return oidText
	}
	return oid
}

// itemOf finds the expression of result column i of n: counted from the left
// before the first star and from the right after the last; -1 if it is of a star.
func itemOf(items []item, i, n int) int {
	star := func(it item) bool { return it.star }
	if i < len(items) && !slices.ContainsFunc(items[:i+1], star) {
		return i
	}
	if k := len(items) - n + i; k >= 0 && k < len(items) && !slices.ContainsFunc(items[k:], star) {
		return k
	}
	return -1
}

// insertTypes returns the types of the columns an INSERT fills, in order.
func (cs *connState) insertTypes(tokens []token, generation uint64) []uint32 {
	table, names := insertTarget(tokens)
	if table == "" {
		return nil
	}
	fields := cs.schema(table, generation)
	var types []uint32
	if names == nil {
		for _, f := range fields {
			types = append(types, f.oid)
		}
		return types
	}
	for _, name := range names {
		oid := uint32(oidUnspecified)
		for _, f := range fields {
			if strings.EqualFold(f.name, name) {
				oid = f.oid
			}
		}
		types = append(types, oid)
	}
	return types
}
