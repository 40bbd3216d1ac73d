package sqlite

import (
	"strconv"
	"strings"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// tableText is a CREATE TABLE as SQLite keeps it: what stands before the columns, columns and constraints, and the rest.
type tableText struct {
	head, tail string
	items      []string
}

// parseTable reads a CREATE TABLE; nil if it is another statement, such as of a virtual table.
func parseTable(sql string) *tableText {
	tokens := tokenize(sql)
	if createdThing(tokens) != "CREATE TABLE" {
		return nil
	}
	for i, t := range tokens {
		if t.is("AS") {
			return nil
		}
		end := closing(tokens, i)
		if !t.is("(") || end == len(tokens) {
			continue
		}
		out := &tableText{head: sql[:t.end], tail: sql[tokens[end].start:]}
		for _, it := range splitItemsPlain(tokens, i+1, end) {
			out.items = append(out.items, sql[tokens[it.lo].start:tokens[it.hi-1].end])
		}
		return out
	}
	return nil
}

// String returns the statement.
func (t *tableText) String() string { return t.head + strings.Join(t.items, ", ") + t.tail }

// tableConstraint is a constraint, of a table or of a column.
type tableConstraint struct {
	name, kind, text string // the kind is its first word, in upper case
	columns          []string
	item, clause     int // where it is; the clause is -1 for a table's
}

// parseDefinition reads a constraint of a table.
func parseDefinition(text string) tableConstraint {
	d := tableConstraint{text: strings.TrimSpace(text), clause: -1}
	tokens := tokenize(d.text)
	if len(tokens) > 2 && tokens[len(tokens)-1].is("VALID") && tokens[len(tokens)-2].is("NOT") {
		tokens = tokens[:len(tokens)-2]
		d.text = d.text[:tokens[len(tokens)-1].end]
	}
	i := 0
	if len(tokens) > 2 && tokens[0].is("CONSTRAINT") {
		d.name, i = tokens[1].name(), 2
	}
	if i >= len(tokens) {
		return d
	}
	d.kind = strings.ToUpper(tokens[i].text)
	for ; i < len(tokens) && !tokens[i].is("("); i++ {
	}
	if end := closing(tokens, i); end < len(tokens) && d.kind != "CHECK" {
		for _, it := range splitItemsPlain(tokens, i+1, end) {
			d.columns = append(d.columns, tokens[it.lo].name())
		}
	}
	return d
}

// named returns the constraint's name, or the one that PostgreSQL gives to such a one.
func (d *tableConstraint) named(table string) string {
	if d.name != "" {
		return d.name
	}
	columns := strings.Join(append([]string{table}, d.columns...), "_")
	switch d.kind {
	case "PRIMARY":
		return table + "_pkey"
	case "UNIQUE":
		return columns + "_key"
	case "FOREIGN", "REFERENCES":
		return columns + "_fkey"
	}
	return columns + "_check"
}

// withName returns the constraint with its name.
func (d *tableConstraint) withName(name string) string {
	if d.name != "" {
		return d.text
	}
	return "CONSTRAINT " + quoteIdent(name) + " " + d.text
}

// isTableConstraint reports whether an item is a constraint and no column.
func isTableConstraint(item string) bool {
	tokens := tokenize(item)
	return len(tokens) > 0 && tokens[0].kind == kindIdent && tokens[0].isAny("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN")
}

// definitions returns the constraints of a table and of its columns.
func (t *tableText) definitions() (list []tableConstraint) {
	for i, item := range t.items {
		if isTableConstraint(item) {
			d := parseDefinition(item)
			d.item = i
			list = append(list, d)
			continue
		}
		column := parseColumn(item)
		for k, clause := range column.clauses {
			d := parseDefinition(clause)
			d.item, d.clause, d.columns = i, k, []string{column.name}
			if d.kind == "PRIMARY" || d.kind == "UNIQUE" || d.kind == "CHECK" || d.kind == "REFERENCES" {
				list = append(list, d)
			}
		}
	}
	return list
}

// constraint returns the constraint of that name, nil if there is none.
func (t *tableText) constraint(table, name string) *tableConstraint {
	for _, d := range t.definitions() {
		if strings.EqualFold(d.named(table), name) {
			return &d
		}
	}
	return nil
}

// remove removes a constraint.
func (t *tableText) remove(d *tableConstraint) {
	if d.clause < 0 {
		t.items = append(t.items[:d.item], t.items[d.item+1:]...)
		return
	}
	column := parseColumn(t.items[d.item])
	column.clauses = append(column.clauses[:d.clause], column.clauses[d.clause+1:]...)
	t.items[d.item] = column.String()
}

// dropReferences removes the foreign keys of a column.
func (t *tableText) dropReferences(column string) {
	for again := true; again; {
		again = false
		for _, d := range t.definitions() {
			for _, name := range d.columns {
				again = again || strings.EqualFold(name, column) && (d.kind == "FOREIGN" || d.kind == "REFERENCES")
			}
			if again {
				t.remove(&d)
				break
			}
		}
	}
}

// editColumn changes the definition of a column.
func (t *tableText) editColumn(name string, fn func(d *columnDefinition)) error {
	for i, item := range t.items {
		if d := parseColumn(item); !isTableConstraint(item) && strings.EqualFold(d.name, name) {
			fn(d)
			t.items[i] = d.String()
			return nil
		}
	}
	return sqlError(pgwire.StateUndefinedColumn, "column %q does not exist", name)
}

// columnDefinition is the definition of a column: its type and what stands behind it, clause by clause.
type columnDefinition struct {
	name, quoted, typ string
	clauses           []string
}

// parseColumn reads the definition of a column.
func parseColumn(text string) *columnDefinition {
	text = strings.TrimSpace(text)
	tokens := tokenize(text)
	if len(tokens) == 0 {
		return &columnDefinition{}
	}
	d := &columnDefinition{name: tokens[0].name(), quoted: tokens[0].text}
	starts := []int{}
	for i := 1; i < len(tokens); i++ {
		if tokens[i].is("(") {
			i = closing(tokens, i)
		} else if startsClause(tokens, i) {
			starts = append(starts, i)
		}
	}
	end := len(text)
	if len(starts) > 0 {
		end = tokens[starts[0]].start
	}
	d.typ = strings.TrimSpace(text[tokens[0].end:end])
	for k, i := range starts {
		end := len(text)
		if k+1 < len(starts) {
			end = tokens[starts[k+1]].start
		}
		d.clauses = append(d.clauses, strings.TrimSpace(text[tokens[i].start:end]))
	}
	return d
}

// startsClause reports whether a clause of a column's definition begins at token i.
func startsClause(tokens []token, i int) bool {
	t, prev := tokens[i], tokens[i-1]
	if t.kind != kindIdent || prev.isAny("CONSTRAINT", "SET") || i > 1 && tokens[i-2].is("CONSTRAINT") {
		return false
	}
	switch {
	case t.is("NOT"):
		return i+1 < len(tokens) && tokens[i+1].is("NULL")
	case t.is("NULL"):
		return !prev.isAny("NOT", "DEFAULT")
	case t.is("AS"):
		return !prev.is("ALWAYS")
	}
	return t.isAny("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "DEFAULT", "COLLATE", "REFERENCES", "GENERATED")
}

// clause returns the index of the clause of that kind, -1 if there is none.
func (d *columnDefinition) clause(kind string) int {
	for i, text := range d.clauses {
		if c := parseDefinition(text); c.kind == kind {
			return i
		}
	}
	return -1
}

// remove removes the clause of that kind and reports whether there was one.
func (d *columnDefinition) remove(kind string) bool {
	i := d.clause(kind)
	if i >= 0 {
		d.clauses = append(d.clauses[:i], d.clauses[i+1:]...)
	}
	return i >= 0
}

// String returns the definition.
func (d *columnDefinition) String() string {
	return strings.Join(append([]string{d.quoted, d.typ}, d.clauses...), " ")
}

// edit changes the CREATE TABLE of a table, and checks that its rows satisfy what it says then.
func (c *change) edit(table string, fn func(t *tableText) error) error {
	rows, err := c.run("SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?1", table)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return unsupported("ALTER TABLE of a view")
	}
	t := parseTable(rows[0])
	if t == nil {
		return unsupported("ALTER TABLE of a virtual table")
	}
	if err := fn(t); err != nil {
		return err
	}
	sql := t.String()
	if sql == rows[0] {
		return nil
	}
	if err := tryTable(sql); err != nil {
		return err
	}
	if err := c.replaceTable(table, sql); err != nil {
		return err
	}
	return c.verify(table)
}

// tryTable makes a table elsewhere: SQLite does not read what a schema is replaced with before it uses it.
func tryTable(sql string) error {
	scratch, err := sqlite.OpenConn(":memory:", sqlite.OpenReadWrite|sqlite.OpenMemory)
	if err != nil {
		return err
	}
	defer scratch.Close()
	return sqlitex.ExecuteTransient(scratch, sql, nil)
}

// replaceTable writes another CREATE TABLE into the schema. A new version of it has every connection read it again.
func (c *change) replaceTable(table, sql string) (err error) {
	if err := setDefensive(c.conn, false); err != nil {
		return err
	}
	defer func() {
		if end := c.do("PRAGMA writable_schema = OFF"); err == nil {
			err = end
		}
		if end := setDefensive(c.conn, true); err == nil {
			err = end
		}
	}()
	rows, err := c.run("PRAGMA main.schema_version")
	if err != nil || len(rows) == 0 {
		return err
	}
	version, err := strconv.Atoi(rows[0])
	if err != nil {
		return err
	}
	if err := c.do("PRAGMA writable_schema = ON"); err != nil {
		return err
	}
	if err := c.do("UPDATE main.sqlite_schema SET sql = %s WHERE type = 'table' AND name = %s", quoteString(sql), quoteString(table)); err != nil {
		return err
	}
	return c.do("PRAGMA main.schema_version = %d", version+1)
}

// verify checks the constraints of a table.
func (c *change) verify(table string) error {
	found, err := c.run("SELECT * FROM pragma_quick_check(?1)", table)
	if err != nil {
		return err
	}
	for _, row := range found {
		switch {
		case row == "ok":
		case strings.HasPrefix(row, "NULL value"):
			return sqlError(pgwire.StateNotNullViolation, "column %q contains null values", strings.TrimPrefix(row, "NULL value in "))
		case strings.HasPrefix(row, "CHECK"):
			return sqlError(pgwire.StateCheckViolation, "check constraint of relation %q is violated by some row", table)
		}
	}
	found, err = c.run("SELECT * FROM pragma_foreign_key_check(?1)", table)
	if err == nil && len(found) > 0 {
		return sqlError(pgwire.StateForeignKeyViolation, "insert or update on table %q violates foreign key constraint", table)
	}
	return err
}
