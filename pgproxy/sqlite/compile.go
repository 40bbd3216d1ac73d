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

// maxCachedSQL bounds the text of a cached compiled statement, in bytes. Longer ones contain their
// values and are seldom repeated.
const maxCachedSQL = 16 << 10

// maxCompiled bounds the cached statements per connection: enough for the statements of an
// application, little memory beside SQLite's page cache.
const maxCompiled = 128

// connState is the backend's state for a pooled connection. Only the holder of the connection uses
// it.
type connState struct {
	conn      *sqlite.Conn
	wide      *sync.Map // Backend.wide
	session   *session  // the session that holds the connection; nil when idle
	cache     map[string]*list.Element
	order     *list.List // of *compiled, most recently used first
	compiling bool
	tables    map[string]bool          // tables of the statement being compiled
	schemas   map[string][]schemaField // by lower-case table name
	schemaGen uint64                   // generation of schemas
	seen      uint64                   // generation that the connection was refreshed to
	callError error                    // of a function called by the current step
}

// schemaField is one column of a table.
type schemaField struct {
	name string
	oid  uint32
}

// compiled is a statement that SQLite has compiled. It belongs to its connection.
type compiled struct {
	sql    string
	stmt   *sqlite.Stmt
	tables map[string]bool
	gen    uint64 // generation of the schema it was compiled with
	busy   bool   // in use by a portal
	cached bool
}

func newConnState(conn *sqlite.Conn, wide *sync.Map) *connState {
	return &connState{conn: conn, wide: wide, cache: map[string]*list.Element{}, order: list.New(), schemas: map[string][]schemaField{}}
}

// compile prepares sql. It takes the statement from the cache if it is there, not busy, and
// compiled in this generation of the schema. SQLite compiles an outdated statement again only when
// it is stepped, and describes the old columns until then.
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

// refresh makes the connection notice schema changes of other connections. SQLite checks for them
// when it steps a statement, not when it compiles one.
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

// evict finalizes the least recently used statements until keep are left.
func (cs *connState) evict(keep int) {
	for e := cs.order.Back(); e != nil && cs.order.Len() > keep; {
		prev := e.Prev()
		if !e.Value.(*compiled).busy {
			cs.remove(e)
		}
		e = prev
	}
}

// remove finalizes a cached statement.
func (cs *connState) remove(e *list.Element) {
	c := e.Value.(*compiled)
	cs.order.Remove(e)
	delete(cs.cache, c.sql)
	c.stmt.Finalize()
}

// step steps a statement. It returns the error of a function from callError, because the driver
// (1.4.2) loses it: the statement would continue with NULL. The caller rolls the transaction back.
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

// done returns a compiled statement to the cache, or finalizes it.
func (c *compiled) done() {
	if !c.cached {
		c.stmt.Finalize()
		return
	}
	_ = c.stmt.Reset() // returns the last step's error, which was reported
	_ = c.stmt.ClearBindings()
	c.busy = false
}

// compileError adds the position in the client's text to an error.
func compileError(err error, rw *rewritten, src string) error {
	resp := toResponse(err)
	if offset, ok := sqlite.ErrorOffset(err); ok && rw.plain == "" {
		resp = resp.at(src, rw.position(offset))
	}
	return resp
}

// Authorize collects the tables of a statement while it is compiled. It refuses access to anything
// but the database file, and changes of the connection, which other sessions use later. It must
// decide at compile time: some PRAGMAs take effect while they are compiled, even after EXPLAIN, so
// the statement's words do not tell.
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
		if a.Database() == "temp" && (a.Type() == sqlite.OpInsert || a.Type() == sqlite.OpDelete) { // every CREATE or DROP in temp does one of these
			return sqlite.AuthResultDeny
		}
		if a.Accessor() == "" && len(cs.tables) < maxCompiled {
			cs.tables[strings.ToLower(a.Table())] = true
		}
	}
	return sqlite.AuthResultOK
}

// schemaQuery returns a table's columns and whether they belong to a view. SQLite gives a view's
// expressions an affinity instead of a type. The catalogs are temporary views.
var schemaQuery = `SELECT x.name, ` + keyDecl("?1") + `, ?1 COLLATE NOCASE IN (SELECT name FROM sqlite_schema WHERE type = 'view'),
	?1 COLLATE NOCASE IN (SELECT name FROM sqlite_temp_schema) FROM pragma_table_xinfo(?1) x WHERE x.hidden <> 1`

// schema returns the columns of a table or view. They are cached until the schema changes.
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

// declaredFields returns the columns of a table as declared in SQLite.
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

// viewTypes sets the types of a view's columns from its query.
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

// viewQuery returns the query in a CREATE VIEW.
func viewQuery(tokens []token) []token {
	return tokens[slices.IndexFunc(tokens, func(t token) bool { return t.is("AS") })+1:]
}

// columnType returns the type of the named column in the tables of c. It is unspecified if no table
// has it or their types differ.
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

// describe determines the types of a statement's parameters and columns. Columns of unknown type
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
			if len(p.names) == len(items) { // otherwise the rewriter has expanded a star
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
		oid := uint32(oidInt8) // a rowid without a column
		for _, f := range cs.schema(table, generation) {
			if strings.EqualFold(f.name, columnOrigin(c.stmt, i)) {
				oid = f.oid
			}
		}
		return oid
	}
	return viewOID(decl)
}

// isCompound reports whether a statement contains UNION, EXCEPT or INTERSECT.
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

// wireType maps the type of an expression to the type in which its results are sent.
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

// itemOf returns the index of the expression that makes result column i of n. It counts from the
// left before the first star, from the right after the last, and returns -1 for a column of a star.
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

// insertTypes returns the types of the columns that an INSERT fills, in order.
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
