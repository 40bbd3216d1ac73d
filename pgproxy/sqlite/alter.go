package sqlite

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// ALTER TABLE of PostgreSQL's that SQLite has not. A unique constraint becomes a unique index, marked by a comment. What
// changes the definition of a column or a constraint, and nothing in the file's pages, is an edit of the CREATE TABLE that
// SQLite keeps as a text (https://www.sqlite.org/lang_altertable.html, section 7).

// constraintMark is the comment in the SQL of an index that is a constraint to clients.
const constraintMark = "/* constraint */"

// change is a statement that is carried out by several of SQLite's, on the writer.
type change struct {
	conn *sqlite.Conn
	src  string
}

// changing makes a command that changes the schema by fn.
func schemaCommand(tag, src string, fn func(c *change) error) *command {
	return &command{run: func(ctx context.Context, s *session) (string, [][]string, error) {
		h, _, err := s.connFor(ctx, true)
		if err != nil {
			return "", nil, err
		}
		h.conn.SetInterrupt(ctx.Done())
		defer h.conn.SetInterrupt(nil)
		if err := fn(&change{h.conn, src}); err != nil {
			return "", nil, err
		}
		s.schemaChanged = true
		s.b.generation.Add(1)
		return tag, nil, nil
	}}
}

// parseSchemaCommand recognises what schemaCommand is for; nil if tokens are for SQLite.
func parseSchemaCommand(src string, tokens []token) (*command, error) {
	switch thing := createdThing(tokens); {
	case tokens[0].is("TRUNCATE"):
		return parseTruncate(src, tokens), nil
	case strings.HasPrefix(thing, "DROP ") && slices.ContainsFunc(tokens, func(t token) bool { return t.is(",") }):
		return parseDropMany(src, tokens), nil
	case thing == "ALTER TABLE":
		return parseAlterTable(src, tokens)
	}
	return nil, nil
}

// run runs a statement in PostgreSQL's dialect, and returns its first column.
func (c *change) run(sql string, args ...any) (rows []string, err error) {
	rw, err := rewrite(sql)
	if err != nil {
		return nil, err
	}
	stmt, _, err := c.conn.PrepareTransient(rw.sql)
	if err != nil {
		return nil, err
	}
	defer stmt.Finalize()
	for i, arg := range args {
		stmt.BindText(i+1, fmt.Sprint(arg))
	}
	for {
		row, err := stmt.Step()
		if err != nil || !row {
			return rows, err
		}
		if stmt.ColumnCount() > 0 {
			rows = append(rows, stmt.ColumnText(0))
		}
	}
}

// do runs statements of SQLite's own.
func (c *change) do(format string, args ...any) error {
	stmt, _, err := c.conn.PrepareTransient(fmt.Sprintf(format, args...))
	if err != nil {
		return err
	}
	defer stmt.Finalize()
	for {
		if row, err := stmt.Step(); err != nil || !row {
			return err
		}
	}
}

// qualifiedAt reads the name of a table from token i on, as it is in the file, and returns its last token.
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

// parseTruncate reads TRUNCATE [TABLE] a, b [RESTART IDENTITY] [CASCADE].
func parseTruncate(src string, tokens []token) *command {
	var tables []string
	for i := 1; i < len(tokens); i++ {
		if tokens[i].isAny("TABLE", "ONLY", ",") {
			continue
		}
		if tokens[i].isAny("RESTART", "CONTINUE", "CASCADE", "RESTRICT", ";") {
			break
		}
		var name string
		name, i = qualifiedAt(tokens, i)
		tables = append(tables, name)
	}
	return schemaCommand("TRUNCATE TABLE", src, func(c *change) error {
		if err := c.do("PRAGMA defer_foreign_keys = ON"); err != nil {
			return err
		}
		for _, name := range tables {
			if err := c.do("DELETE FROM main.%s", quoteIdent(name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// parseDropMany reads DROP TABLE a, b.
func parseDropMany(src string, tokens []token) *command {
	i := 2
	exists := ""
	if i+1 < len(tokens) && tokens[i].is("IF") {
		i, exists = i+2, "IF EXISTS "
	}
	what := "DROP " + strings.ToUpper(tokens[1].text)
	var names []string
	for ; i < len(tokens) && !tokens[i].isAny("CASCADE", "RESTRICT", ";"); i++ {
		if tokens[i].is(",") {
			continue
		}
		var name string
		name, i = qualifiedAt(tokens, i)
		names = append(names, name)
	}
	return schemaCommand(what, src, func(c *change) error {
		if err := c.do("PRAGMA defer_foreign_keys = ON"); err != nil {
			return err
		}
		for _, name := range names {
			if err := c.do("%s %smain.%s", what, exists, quoteIdent(name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// parseAlterTable reads ALTER TABLE [IF EXISTS] [ONLY] name action, …; nil if SQLite itself can do it.
func parseAlterTable(src string, tokens []token) (*command, error) {
	i := 2
	ifExists := false
	for i < len(tokens) && tokens[i].isAny("IF", "EXISTS", "ONLY") {
		ifExists = ifExists || tokens[i].is("EXISTS")
		i++
	}
	table, last := qualifiedAt(tokens, i)
	if last+1 >= len(tokens) {
		return nil, nil
	}
	end := len(tokens)
	if tokens[end-1].is(";") {
		end--
	}
	var actions []action
	for _, it := range splitItemsPlain(tokens, last+1, end) {
		a, err := parseAction(src, tokens, it.lo, it.hi)
		if err != nil {
			return nil, err
		}
		actions = append(actions, a)
	}
	return schemaCommand("ALTER TABLE", src, func(c *change) error {
		names, err := c.run("SELECT name FROM main.sqlite_schema WHERE type IN ('table', 'view') AND name = ?1 COLLATE NOCASE", table)
		switch {
		case err != nil:
			return err
		case len(names) == 0 && ifExists:
			return nil
		case len(names) == 0:
			return sqlError(pgwire.StateUndefinedTable, "relation %q does not exist", table)
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
	switch {
	case at(0).is("ADD") && at(1).isAny("CONSTRAINT", "UNIQUE", "PRIMARY", "FOREIGN", "CHECK", "EXCLUDE"):
		return addConstraint(parseDefinition(src[tokens[lo+1].start:tokens[hi-1].end]))
	case at(0).is("ADD"):
		skip("COLUMN", "IF", "NOT", "EXISTS")
		return addColumn(at(k).name(), text(lo+k), exists), nil
	case at(0).is("DROP") && at(1).is("CONSTRAINT"):
		k = 2
		skip("IF", "EXISTS")
		return dropConstraint(at(k).name(), exists), nil
	case at(0).is("DROP"):
		skip("COLUMN", "IF", "EXISTS")
		return dropColumn(at(k).name(), exists), nil
	case at(0).is("RENAME") && at(1).is("TO"):
		return sqliteAction("RENAME TO " + quoteIdent(at(2).name())), nil
	case at(0).is("RENAME") && !at(1).is("CONSTRAINT"):
		skip("COLUMN")
		return sqliteAction("RENAME COLUMN " + quoteIdent(at(k).name()) + " TO " + quoteIdent(at(k+2).name())), nil
	case at(0).is("ALTER"):
		skip("COLUMN")
		return alterColumn(src, tokens, lo+k, hi)
	}
	return nil, unsupported("ALTER TABLE %s %s", strings.ToUpper(at(0).text), strings.ToUpper(at(1).text)).at(src, tokens[lo].start)
}

// sqliteAction is an action that SQLite has.
func sqliteAction(what string) action {
	return func(c *change, table string) error { return c.do("ALTER TABLE main.%s %s", quoteIdent(table), what) }
}

// addConstraint adds a constraint of a table.
func addConstraint(d tableConstraint) (action, error) {
	switch d.kind {
	case "UNIQUE":
		if len(d.columns) == 0 {
			break
		}
		return func(c *change, table string) error { return c.addUnique(table, d.named(table), d.columns) }, nil
	case "FOREIGN", "CHECK":
		return func(c *change, table string) error {
			rw, err := rewrite("ALTER TABLE t ADD " + d.withName(d.named(table)))
			if err != nil {
				return err
			}
			text := strings.TrimSpace(strings.TrimPrefix(rw.sql, "ALTER TABLE t ADD "))
			return c.edit(table, func(t *tableText) error {
				t.items = append(t.items, text)
				return nil
			})
		}, nil
	}
	return nil, unsupported("ALTER TABLE ADD %s", d.kind).hint("SQLite makes a table's primary key when it makes the table.")
}

// addUnique makes a unique constraint.
func (c *change) addUnique(table, name string, columns []string) error {
	list := make([]string, len(columns))
	for i, column := range columns {
		list[i] = quoteIdent(column)
	}
	return c.do("CREATE UNIQUE INDEX main.%s %s ON %s (%s)", quoteIdent(name), constraintMark, quoteIdent(table), strings.Join(list, ", "))
}

// addColumn adds a column by its name and type first, gives it its default, and then the rest of its definition, which
// SQLite's ADD COLUMN takes in part only.
func addColumn(name, text string, ifNotExists bool) action {
	return func(c *change, table string) error {
		there, err := c.run("SELECT name FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE", table, name)
		if err != nil || len(there) > 0 && ifNotExists {
			return err
		}
		rw, err := rewrite("ALTER TABLE " + quoteIdent(table) + " ADD COLUMN " + text)
		if err != nil {
			return err
		}
		def := parseColumn(strings.SplitN(rw.sql, "ADD COLUMN ", 2)[1])
		if def.clause("PRIMARY") >= 0 || def.clause("GENERATED") >= 0 {
			return unsupported("ALTER TABLE ADD COLUMN … PRIMARY KEY or GENERATED")
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
		err = c.edit(table, func(t *tableText) error {
			return t.editColumn(name, func(d *columnDefinition) { d.clauses = def.clauses })
		})
		if err == nil && unique {
			err = c.addUnique(table, table+"_"+name+"_key", []string{name})
		}
		return err
	}
}

// dropConstraint drops a constraint by its name.
func dropConstraint(name string, ifExists bool) action {
	return func(c *change, table string) error {
		index, err := c.run("SELECT name FROM main.sqlite_schema WHERE type = 'index' AND tbl_name = ?1 AND name = ?2 AND sql IS NOT NULL", table, name)
		if err != nil {
			return err
		}
		if len(index) > 0 {
			return c.do("DROP INDEX main.%s", quoteIdent(name))
		}
		return c.edit(table, func(t *tableText) error {
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

// dropColumn drops a column, and as PostgreSQL does the indexes and foreign keys it is a part of.
func dropColumn(name string, ifExists bool) action {
	return func(c *change, table string) error {
		there, err := c.run("SELECT name FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE", table, name)
		if err != nil || len(there) == 0 && ifExists {
			return err
		}
		indexes, err := c.run("SELECT l.name FROM pragma_index_list(?1) l WHERE l.origin = 'c' AND EXISTS (SELECT 1 FROM pragma_index_info(l.name) i WHERE i.name = ?2 COLLATE NOCASE)", table, name)
		if err != nil {
			return err
		}
		for _, index := range indexes {
			if err := c.do("DROP INDEX main.%s", quoteIdent(index)); err != nil {
				return err
			}
		}
		err = c.edit(table, func(t *tableText) error {
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
			return c.edit(table, func(t *tableText) error { return t.editColumn(name, fn) })
		}
	}
	switch k := 1; {
	case at(1).is("DROP") && at(2).is("NOT"):
		return edit(func(d *columnDefinition) { d.remove("NOT") }), nil
	case at(1).is("SET") && at(2).is("NOT"):
		return edit(func(d *columnDefinition) {
			d.remove("NOT")
			d.clauses = append(d.clauses, "NOT NULL")
		}), nil
	case at(1).is("DROP") && at(2).is("DEFAULT"):
		return edit(func(d *columnDefinition) { d.remove("DEFAULT") }), nil
	case at(1).is("SET") && at(2).is("DEFAULT"):
		rw, err := rewrite("ALTER TABLE t ADD COLUMN c " + src[tokens[i+2].start:tokens[hi-1].end])
		if err != nil {
			return nil, err
		}
		value := strings.TrimPrefix(rw.sql, "ALTER TABLE t ADD COLUMN c ")
		return edit(func(d *columnDefinition) {
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
		if last+1 < hi && tokens[last+1].is("USING") {
			using = src[tokens[last+2].start:tokens[hi-1].end]
		}
		return alterType(name, written, typ, using), nil
	}
	return nil, unsupported("ALTER COLUMN %s", strings.ToUpper(at(1).text)).at(src, tokens[i].start)
}

// alterType changes the type of a column, and its values with it.
func alterType(name, written, typ, using string) action {
	return func(c *change, table string) error {
		rowid, err := c.run("SELECT 1 FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE AND pk = 1 AND upper(type) = 'INTEGER'", table, name)
		if err != nil {
			return err
		}
		if len(rowid) > 0 { // it must stay INTEGER, which holds all integers
			if castAffinity(typ) == "INTEGER" {
				return nil
			}
			return unsupported("another type for a primary key")
		}
		err = c.edit(table, func(t *tableText) error {
			return t.editColumn(name, func(d *columnDefinition) { d.typ = written })
		})
		if err != nil {
			return err
		}
		if using == "" {
			using = "CAST(" + quoteIdent(name) + " AS " + typ + ")"
		}
		_, err = c.run(fmt.Sprintf("UPDATE public.%s SET %s = %s", quoteIdent(table), quoteIdent(name), using))
		return err
	}
}
