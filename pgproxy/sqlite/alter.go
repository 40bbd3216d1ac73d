package sqlite

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// ALTER TABLE and other changes of a schema that SQLite lacks. A unique constraint becomes a unique index with a
// comment that marks it. A change that leaves the file's pages alone (a constraint, the definition of a column) edits
// the text of CREATE TABLE that SQLite stores (https://www.sqlite.org/lang_altertable.html, section 7).

// constraintMark is the comment in an index's SQL that marks it as a constraint.
const constraintMark = "/* constraint */"

// change is one statement of a client that runs as several statements of SQLite on the writer.
type change struct {
	s       *session
	cs      *connState
	conn    *sqlite.Conn
	touched []string // tables to check at the end
}

// schemaCommand makes a command that changes the schema by fn. Triggers do not fire for the rows that fn changes. As
// with any statement, an error fails the transaction, including an error of the check at the end.
func schemaCommand(tag string, fn func(c *change) error) *command {
	return &command{run: func(ctx context.Context, s *session) (string, [][]string, error) {
		h, _, err := s.connFor(ctx, true)
		if err != nil {
			return "", nil, err
		}
		for _, p := range s.portals {
			if p.run != nil && p.run.h == h {
				return "", nil, sqlError(pgwire.StateObjectInUse, "cannot %s because of active queries in this session", tag)
			}
		}
		if err := s.guard.use(h.conn); err != nil {
			return "", nil, err
		}
		defer s.guard.drop(h.conn)
		if err := setTriggers(h.conn, false); err != nil {
			return "", nil, err
		}
		defer func() { _ = setTriggers(h.conn, true) }() // fails only for an unknown option
		c := &change{s: s, cs: h.cs, conn: h.conn}
		if err := fn(c); err != nil {
			return "", nil, err
		}
		if err := c.verify(); err != nil {
			return "", nil, err
		}
		s.schemaChanged = true
		s.b.generation.Add(1)
		return tag, nil, nil
	}}
}

// parseSchemaCommand recognises statements for schemaCommand. It returns nil for statements that
// SQLite itself runs.
func parseSchemaCommand(src string, tokens []token) (*command, error) {
	switch thing := createdThing(tokens); {
	case tokens[0].is("TRUNCATE"):
		return parseTruncate(src, tokens)
	case thing == "DROP TABLE", strings.HasPrefix(thing, "DROP ") && slices.ContainsFunc(tokens, func(t token) bool { return t.is(",") }):
		return parseDrop(src, tokens)
	case thing == "ALTER TABLE":
		return parseAlterTable(src, tokens)
	}
	return nil, nil
}

// run runs a statement in PostgreSQL's dialect.
func (c *change) run(sql string) error {
	rw, err := rewrite(sql)
	if err == nil {
		_, err = c.query(rw.sql)
	}
	return err
}

// query runs a statement in SQLite's dialect and returns its first column.
func (c *change) query(sql string, args ...string) (rows []string, err error) {
	stmt, _, err := c.conn.PrepareTransient(sql)
	if err != nil {
		return nil, err
	}
	defer stmt.Finalize()
	for i, arg := range args {
		stmt.BindText(i+1, arg)
	}
	for {
		c.cs.callError = nil
		row, err := stmt.Step()
		switch {
		case c.cs.callError != nil: // the driver loses a function's error, see connState.step
			return nil, c.cs.callError
		case err != nil && isConstraint(err):
			return nil, c.cs.constraintError(err, nil)
		case err != nil || !row:
			return rows, err
		}
		if stmt.ColumnCount() > 0 {
			rows = append(rows, stmt.ColumnText(0))
		}
	}
}

// do runs a statement in SQLite's dialect.
func (c *change) do(format string, args ...any) error {
	_, err := c.query(fmt.Sprintf(format, args...))
	return err
}

// qualifiedAt reads a table name from token i on. It returns the name as the file has it, and the name's last token.
func qualifiedAt(tokens []token, i int) (name string, last int) {
	if i >= len(tokens) {
		return "", i
	}
	name = tokens[i].name()
	if i+2 < len(tokens) && tokens[i+1].is(".") {
		if schema := strings.ToLower(name); schema == "public" || schema == "main" {
			return tokens[i+2].name(), i + 2
		}
		return name + "." + tokens[i+2].name(), i + 2
	}
	return name, i
}

// parseNames reads a list of table names from token i on, and the options that follow it.
func parseNames(src string, tokens []token, i int, options ...string) (names []string, found map[string]bool, err error) {
	found = map[string]bool{}
	wantName := true
	for ; i < len(tokens) && !tokens[i].is(";"); i++ {
		t := tokens[i]
		switch {
		case wantName && (t.kind == kindIdent || t.kind == kindQuoted):
			var name string
			name, i = qualifiedAt(tokens, i)
			names, wantName = append(names, name), false
		case !wantName && t.is(",") && len(found) == 0:
			wantName = true
		case !wantName && t.isAny(options...):
			found[strings.ToUpper(t.text)] = true
		default:
			return nil, nil, syntaxError(src, t)
		}
	}
	if wantName {
		return nil, nil, sqlError(pgwire.StateSyntaxError, "syntax error at end of input")
	}
	return names, found, nil
}

func syntaxError(src string, t token) error {
	return sqlError(pgwire.StateSyntaxError, "syntax error at or near %q", t.text).at(src, t.start)
}

// parseTruncate reads TRUNCATE [TABLE] a, b [RESTART IDENTITY] [CASCADE].
func parseTruncate(src string, tokens []token) (*command, error) {
	i := 1
	for i < len(tokens) && tokens[i].isAny("TABLE", "ONLY") {
		i++
	}
	tables, options, err := parseNames(src, tokens, i, "RESTART", "CONTINUE", "IDENTITY", "CASCADE", "RESTRICT")
	if err != nil {
		return nil, err
	}
	return schemaCommand("TRUNCATE TABLE", func(c *change) error {
		list := slices.Clone(tables)
		for i := 0; i < len(list); i++ { // CASCADE appends to list
			children, err := c.referencing(list[i])
			if err != nil {
				return err
			}
			for _, child := range children {
				switch {
				case contains(list, child):
				case options["CASCADE"]:
					list = append(list, child)
				default:
					return unsupported("TRUNCATE of %q, which a foreign key of %q refers to,", list[i], child).hint("Use TRUNCATE ... CASCADE.")
				}
			}
		}
		return c.deferring(func() error {
			for _, name := range list {
				if err := c.do("DELETE FROM main.%s", quoteIdent(name)); err != nil {
					return err
				}
			}
			return nil
		})
	}), nil
}

// deferring runs fn with foreign keys unchecked until fn returns. Every table that refers to a table of fn is itself
// part of fn, or has lost its foreign keys before.
func (c *change) deferring(fn func() error) error {
	if err := c.do("PRAGMA defer_foreign_keys = ON"); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err // the end of the transaction resets the pragma
	}
	return c.do("PRAGMA defer_foreign_keys = OFF")
}

// parseDrop reads DROP TABLE a, b [CASCADE], and the same for views and indexes.
func parseDrop(src string, tokens []token) (*command, error) {
	i, exists := 2, ""
	if i+1 < len(tokens) && tokens[i].is("IF") && tokens[i+1].is("EXISTS") {
		i, exists = i+2, "IF EXISTS "
	}
	what := "DROP " + strings.ToUpper(tokens[1].text)
	names, options, err := parseNames(src, tokens, i, "CASCADE", "RESTRICT")
	if err != nil {
		return nil, err
	}
	return schemaCommand(what, func(c *change) error {
		if what == "DROP TABLE" {
			if err := c.dropParents(names, options["CASCADE"]); err != nil {
				return err
			}
		}
		return c.deferring(func() error {
			for _, name := range names {
				if err := c.do("%s %smain.%s", what, exists, quoteIdent(name)); err != nil {
					return err
				}
			}
			return nil
		})
	}), nil
}

// dropParents removes the foreign keys of other tables that refer to tables to be dropped. SQLite would run ON DELETE
// actions and keep the foreign keys.
func (c *change) dropParents(tables []string, cascade bool) error {
	for _, table := range tables {
		children, err := c.referencing(table)
		if err != nil {
			return err
		}
		for _, child := range children {
			if contains(tables, child) {
				continue
			}
			if !cascade {
				return sqlError("2BP01", "cannot drop table %s because a foreign key of table %s depends on it", table, child).
					hint("Use DROP ... CASCADE to drop the dependent objects too.")
			}
			err := c.edit(child, allowed{foreign: true}, func(t *tableText) error {
				t.dropParents(tables)
				return nil
			})
			if err != nil {
				return err
			}
		}
		left, err := c.referencing(table)
		if err != nil {
			return err
		}
		for _, child := range left {
			if !contains(tables, child) {
				return unsupported("dropping the foreign key of %q", child)
			}
		}
	}
	return nil
}

// parseAlterTable reads ALTER TABLE [IF EXISTS] [ONLY] name action, …; nil if SQLite itself can do it.
func parseAlterTable(src string, tokens []token) (*command, error) {
	src, tokens = withoutComments(src, tokens)
	i := 2
	ifExists := false
	for i < len(tokens) && tokens[i].isAny("IF", "EXISTS", "ONLY") {
		ifExists = ifExists || tokens[i].is("EXISTS")
		i++
	}
	table, last := qualifiedAt(tokens, i)
	if last+1 >= len(tokens) {
		return nil, sqlError(pgwire.StateSyntaxError, "syntax error at end of input")
	}
	end := len(tokens)
	if tokens[end-1].is(";") {
		end--
	}
	var actions []action
	for _, it := range splitItemsPlain(tokens, last+1, end) {
		if tokens[it.lo].is("RENAME") && (it.lo != last+1 || it.hi != end) {
			return nil, syntaxError(src, tokens[it.lo])
		}
		a, err := parseAction(src, tokens, it.lo, it.hi)
		if err != nil {
			return nil, err
		}
		actions = append(actions, a)
	}
	return schemaCommand("ALTER TABLE", func(c *change) error {
		names, err := c.query("SELECT name FROM main.sqlite_schema WHERE type IN ('table', 'view') AND name = ?1 COLLATE NOCASE", table)
		switch {
		case err != nil:
			return err
		case len(names) == 0 && ifExists:
			return nil
		case len(names) == 0:
			return sqlError(pgwire.StateUndefinedTable, "relation %q does not exist", table)
		case strings.HasPrefix(strings.ToLower(names[0]), "sqlite_"):
			return sqlError(pgwire.StateInsufficientPrivilege, "permission denied: %q is a system table", names[0])
		}
		shadow, err := c.query("SELECT type FROM pragma_table_list(?1) WHERE schema = 'main' AND type IN ('shadow', 'virtual')", names[0])
		if err == nil && len(shadow) > 0 {
			return unsupported("ALTER TABLE of a virtual table, and of one that belongs to such a table,")
		}
		if err != nil {
			return err
		}
		for _, act := range actions {
			if err := act(c, names[0]); err != nil {
				return err
			}
		}
		return nil
	}), nil
}

// splitItemsPlain cuts tokens[lo:hi] at the commas outside parentheses.
func splitItemsPlain(tokens []token, lo, hi int) (items []item) {
	from := lo
	for i := lo; i <= hi; i++ {
		switch {
		case i == hi || tokens[i].is(","):
			if i > from {
				items = append(items, item{lo: from, hi: i})
			}
			from = i + 1
		case tokens[i].is("("):
			i = min(closing(tokens, i), hi-1)
		}
	}
	return items
}

// action is one change of a table.
type action func(c *change, table string) error

// parseAction reads an action of ALTER TABLE in tokens[lo:hi].
func parseAction(src string, tokens []token, lo, hi int) (action, error) {
	at := func(i int) token {
		if lo+i < hi {
			return tokens[lo+i]
		}
		return token{kind: kindOp}
	}
	text := func(from int) string {
		if from >= hi {
			return ""
		}
		return src[tokens[from].start:tokens[hi-1].end]
	}
	k := 1
	exists := false
	skip := func(words ...string) {
		for at(k).isAny(words...) {
			exists = exists || at(k).is("EXISTS")
			k++
		}
	}
	nameOnly := func() bool { // only words without effect follow the name
		named := at(k).kind == kindIdent || at(k).kind == kindQuoted
		return named && (lo+k+1 == hi || at(k+1).isAny("CASCADE", "RESTRICT") && lo+k+2 == hi)
	}
	switch {
	case at(0).is("ADD") && at(1).isAny("CONSTRAINT", "UNIQUE", "PRIMARY", "FOREIGN", "CHECK", "EXCLUDE"):
		return addConstraint(parseDefinition(src[tokens[lo+1].start:tokens[hi-1].end]))
	case at(0).is("ADD"):
		skip("COLUMN", "IF", "NOT", "EXISTS")
		if at(k).kind != kindIdent && at(k).kind != kindQuoted {
			break
		}
		return addColumn(at(k).name(), text(lo+k), exists), nil
	case at(0).is("DROP") && at(1).is("CONSTRAINT"):
		k = 2
		if skip("IF", "EXISTS"); nameOnly() {
			return dropConstraint(at(k).name(), exists), nil
		}
	case at(0).is("DROP"):
		if skip("COLUMN", "IF", "EXISTS"); nameOnly() {
			return dropColumn(at(k).name(), exists), nil
		}
	case at(0).is("RENAME") && at(1).is("TO"):
		if k = 2; nameOnly() {
			return sqliteAction("RENAME TO " + quoteIdent(at(2).name())), nil
		}
	case at(0).is("RENAME") && !at(1).is("CONSTRAINT"):
		skip("COLUMN")
		from := at(k)
		if k += 2; at(k-1).is("TO") && nameOnly() {
			return sqliteAction("RENAME COLUMN " + quoteIdent(from.name()) + " TO " + quoteIdent(at(k).name())), nil
		}
	case at(0).is("ALTER"):
		skip("COLUMN")
		return alterColumn(src, tokens, lo+k, hi)
	default:
		return nil, unsupported("ALTER TABLE %s %s", strings.ToUpper(at(0).text), strings.ToUpper(at(1).text)).at(src, tokens[lo].start)
	}
	return nil, syntaxError(src, tokens[hi-1])
}

// sqliteAction passes an action on to SQLite.
func sqliteAction(what string) action {
	return func(c *change, table string) error { return c.do("ALTER TABLE main.%s %s", quoteIdent(table), what) }
}

// addConstraint adds a table constraint.
func addConstraint(d tableConstraint) (action, error) {
	switch d.kind {
	case "UNIQUE":
		if len(d.columns) == 0 {
			break
		}
		return func(c *change, table string) error { return c.addUnique(table, d.named(table), d.columns) }, nil
	case "FOREIGN", "CHECK":
		return func(c *change, table string) error {
			err := c.edit(table, allowed{foreign: d.kind == "FOREIGN"}, func(t *tableText) error {
				name, err := t.freeName(table, d)
				if err != nil {
					return err
				}
				rw, err := rewrite("ALTER TABLE t ADD " + d.withName(name))
				if err == nil {
					t.items = append(t.items, strings.TrimSpace(strings.TrimPrefix(rw.sql, "ALTER TABLE t ADD ")))
				}
				return err
			})
			if err != nil {
				return err
			}
			return c.parentsExist(table)
		}, nil
	}
	return nil, unsupported("ALTER TABLE ADD %s", d.kind).hint("SQLite makes a table's primary key when it makes the table.")
}

// freeName returns the name for a new constraint, or an error if it is taken.
func (t *tableText) freeName(table string, d tableConstraint) (string, error) {
	if d.name != "" {
		if t.constraint(table, d.name) != nil {
			return "", sqlError("42710", "constraint %q for relation %q already exists", d.name, table)
		}
		return d.name, nil
	}
	if d.kind == "CHECK" {
		with := tableText{items: append(slices.Clone(t.items), d.text)}
		list := with.definitions()
		d.columns = list[len(list)-1].columns
	}
	name := d.defaultName(table)
	for n := 1; t.constraint(table, name) != nil; n++ {
		name = d.defaultName(table) + strconv.Itoa(n)
	}
	return name, nil
}

// addUnique adds a unique constraint.
func (c *change) addUnique(table, name string, columns []string) error {
	list := make([]string, len(columns))
	for i, column := range columns {
		if err := c.hasColumn(table, column); err != nil { // SQLite reads an unknown quoted name as a string
			return err
		}
		list[i] = quoteIdent(column)
	}
	return c.do("CREATE UNIQUE INDEX main.%s %s ON %s (%s)", quoteIdent(name), constraintMark, quoteIdent(table), strings.Join(list, ", "))
}

// hasColumn reports an error if a table has no such column.
func (c *change) hasColumn(table, column string) error {
	there, err := c.query("SELECT name FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE", table, column)
	if err == nil && len(there) == 0 {
		return sqlError(pgwire.StateUndefinedColumn, "column %q of relation %q does not exist", column, table)
	}
	return err
}

// addColumn adds a column in steps: its name and type, its default, the rest of its definition. SQLite's ADD COLUMN
// does not accept all of it at once.
func addColumn(name, text string, ifNotExists bool) action {
	return func(c *change, table string) error {
		there, err := c.query("SELECT name FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE", table, name)
		if err != nil || len(there) > 0 && ifNotExists {
			return err
		}
		rw, err := rewrite("ALTER TABLE " + quoteIdent(table) + " ADD COLUMN " + text)
		if err != nil {
			return err
		}
		def := parseColumn(strings.SplitN(rw.sql, "ADD COLUMN ", 2)[1])
		switch {
		case def.clause("PRIMARY") >= 0:
			return unsupported("ALTER TABLE ADD COLUMN … PRIMARY KEY")
		case def.clause("GENERATED") >= 0 || def.clause("AS") >= 0:
			return c.do("ALTER TABLE main.%s ADD COLUMN %s", quoteIdent(table), def)
		}
		unique := def.remove("UNIQUE")
		if err := c.do("ALTER TABLE main.%s ADD COLUMN %s %s", quoteIdent(table), quoteIdent(name), def.typ); err != nil {
			return err
		}
		if k := def.clause("DEFAULT"); k >= 0 {
			value := strings.TrimSpace(def.clauses[k])[len("DEFAULT"):]
			if err := c.do("UPDATE main.%s SET %s = %s", quoteIdent(table), quoteIdent(name), value); err != nil {
				return err
			}
		}
		err = c.edit(table, allowed{column: name, foreign: def.clause("REFERENCES") >= 0}, func(t *tableText) error {
			return t.editColumn(name, func(d *columnDefinition) { d.clauses = def.clauses })
		})
		if err == nil && def.clause("REFERENCES") >= 0 {
			err = c.parentsExist(table)
		}
		if err == nil && unique {
			err = c.addUnique(table, table+"_"+name+"_key", []string{name})
		}
		return err
	}
}

// dropConstraint removes a constraint by its name.
func dropConstraint(name string, ifExists bool) action {
	return func(c *change, table string) error {
		index, err := c.query("SELECT name FROM main.sqlite_schema WHERE type = 'index' AND tbl_name = ?1 AND name = ?2 COLLATE NOCASE AND sql LIKE 'CREATE UNIQUE INDEX % /* constraint */ %'", table, name)
		if err != nil {
			return err
		}
		if len(index) > 0 {
			c.touch(table)
			return c.do("DROP INDEX main.%s", quoteIdent(index[0]))
		}
		return c.edit(table, allowed{foreign: true}, func(t *tableText) error {
			d := t.constraint(table, name)
			switch {
			case d == nil && ifExists:
				return nil
			case d == nil:
				return sqlError(pgwire.StateUndefinedObject, "constraint %q of relation %q does not exist", name, table)
			case d.kind != "FOREIGN" && d.kind != "REFERENCES" && d.kind != "CHECK":
				return unsupported("dropping a %s constraint that was made with its table", d.kind).
					hint("Make another table and copy the rows.")
			}
			t.remove(d)
			return nil
		})
	}
}

// dropColumn removes a column and, like PostgreSQL, the indexes and foreign keys that use it.
func dropColumn(name string, ifExists bool) action {
	return func(c *change, table string) error {
		there, err := c.query("SELECT name FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE", table, name)
		if err != nil || len(there) == 0 && ifExists {
			return err
		}
		indexes, err := c.query("SELECT l.name FROM pragma_index_list(?1) l WHERE l.origin = 'c' AND EXISTS (SELECT 1 FROM pragma_index_info(l.name) i WHERE i.name = ?2 COLLATE NOCASE)", table, name)
		if err != nil {
			return err
		}
		for _, index := range indexes {
			if err := c.do("DROP INDEX main.%s", quoteIdent(index)); err != nil {
				return err
			}
		}
		c.touch(table)
		err = c.edit(table, allowed{foreign: true}, func(t *tableText) error {
			t.dropReferences(name)
			return nil
		})
		if err != nil {
			return err
		}
		return c.do("ALTER TABLE main.%s DROP COLUMN %s", quoteIdent(table), quoteIdent(name))
	}
}

// alterColumn reads ALTER COLUMN name … in tokens[i:hi].
func alterColumn(src string, tokens []token, i, hi int) (action, error) {
	at := func(k int) token {
		if i+k < hi {
			return tokens[i+k]
		}
		return token{kind: kindOp}
	}
	name := at(0).name()
	edit := func(fn func(d *columnDefinition)) action {
		return func(c *change, table string) error {
			return c.edit(table, allowed{column: name}, func(t *tableText) error { return t.editColumn(name, fn) })
		}
	}
	// Rows older than the column do not store its value: SQLite reads the default instead. Store the old default in
	// them before it changes.
	editDefault := func(fn func(d *columnDefinition)) action {
		act := edit(fn)
		return func(c *change, table string) error {
			if err := c.hasColumn(table, name); err != nil {
				return err
			}
			if err := c.do("UPDATE main.%s SET %s = %s", quoteIdent(table), quoteIdent(name), quoteIdent(name)); err != nil {
				return err
			}
			return act(c, table)
		}
	}
	switch k := 1; {
	case at(1).is("DROP") && at(2).is("NOT") && at(3).is("NULL") && i+4 == hi:
		return edit(func(d *columnDefinition) { d.remove("NOT") }), nil
	case at(1).is("SET") && at(2).is("NOT") && at(3).is("NULL") && i+4 == hi:
		return edit(func(d *columnDefinition) {
			d.remove("NOT")
			d.clauses = append(d.clauses, "NOT NULL")
		}), nil
	case at(1).is("DROP") && at(2).is("DEFAULT") && i+3 == hi:
		return editDefault(func(d *columnDefinition) { d.remove("DEFAULT") }), nil
	case at(1).is("SET") && at(2).is("DEFAULT") && i+3 < hi:
		rw, err := rewrite("ALTER TABLE t ADD COLUMN c " + src[tokens[i+2].start:tokens[hi-1].end])
		if err != nil {
			return nil, err
		}
		value := strings.TrimPrefix(rw.sql, "ALTER TABLE t ADD COLUMN c ")
		return editDefault(func(d *columnDefinition) {
			d.remove("DEFAULT")
			d.clauses = append(d.clauses, value)
		}), nil
	case at(1).is("SET") && at(2).is("DATA"):
		k = 3
		fallthrough
	case at(1).is("TYPE"):
		typ, last := typeAt(tokens, i+k+1)
		if typ == "" || last >= hi {
			break
		}
		written := src[tokens[i+k+1].start:tokens[last].end]
		using := ""
		switch {
		case last+2 < hi && tokens[last+1].is("USING"):
			using = src[tokens[last+2].start:tokens[hi-1].end]
		case last+1 < hi:
			return nil, syntaxError(src, tokens[last+1])
		}
		return alterType(name, written, typ, using), nil
	}
	return nil, unsupported("ALTER COLUMN %s", strings.ToUpper(at(1).text)).at(src, tokens[i].start)
}

// alterType changes the type of a column and converts its values.
func alterType(name, written, typ, using string) action {
	return func(c *change, table string) error {
		rowid, err := c.query("SELECT 1 FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE AND pk = 1 AND upper(type) = 'INTEGER'", table, name)
		if err != nil {
			return err
		}
		if len(rowid) > 0 { // the rowid must stay INTEGER, which holds all integers
			if castAffinity(typ) == "INTEGER" {
				return c.edit(table, allowed{column: name}, func(t *tableText) error {
					return t.editColumn(name, func(d *columnDefinition) { d.typ = keyType(typ) })
				})
			}
			return unsupported("another type for a primary key")
		}
		generated, err := c.query("SELECT name FROM pragma_table_xinfo(?1) WHERE hidden IN (2, 3)", table)
		if err != nil {
			return err
		}
		if len(generated) > 0 {
			return unsupported("altering the type of a column of a table with generated columns")
		}
		indexes, err := c.query("SELECT sql FROM main.sqlite_schema WHERE type = 'index' AND tbl_name = ?1 AND sql IS NOT NULL", table)
		if err != nil {
			return err
		}
		names, err := c.query("SELECT name FROM main.sqlite_schema WHERE type = 'index' AND tbl_name = ?1 AND sql IS NOT NULL", table)
		if err != nil {
			return err
		}
		for _, index := range names { // the contents of partial indexes and expression indexes may depend on the type
			if err := c.do("DROP INDEX main.%s", quoteIdent(index)); err != nil {
				return err
			}
		}
		err = c.edit(table, allowed{column: name}, func(t *tableText) error {
			return t.editColumn(name, func(d *columnDefinition) { d.typ = written })
		})
		if err != nil {
			return err
		}
		if using == "" {
			using = "CAST(" + quoteIdent(name) + " AS " + typ + ")"
		}
		if err := c.run(fmt.Sprintf("UPDATE public.%s SET %s = (%s)", quoteIdent(table), quoteIdent(name), using)); err != nil {
			return err
		}
		for _, sql := range indexes {
			if _, err := c.query(sql); err != nil {
				return err
			}
		}
		return nil
	}
}
