package sqlite

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// SQLite forgets the names of constraints, and has none for those without.
// They are found in the text of CREATE TABLE, or made as PostgreSQL makes them.

// constraint is a PRIMARY KEY, UNIQUE or CHECK of a table.
type constraint struct {
	kind    string // PRIMARY, UNIQUE or CHECK
	name    string
	columns []string
	check   string // the expression of a CHECK
}

// tableConstraints returns the constraints in a CREATE TABLE, with PostgreSQL's
// names for those that have none.
func tableConstraints(table, sql string) []constraint {
	tokens := tokenize(sql)
	open := slices.IndexFunc(tokens, func(t token) bool { return t.is("(") })
	if open < 0 {
		return nil
	}
	var list []constraint
	taken, columns := map[string]int{}, map[string]bool{}
	for _, def := range splitItems(tokens, open+1, closing(tokens, open)) {
		end := def.lo
		for end < len(tokens) && end < closing(tokens, open) && !tokens[end].is(",") { // the item without an alias ends too early
			if tokens[end].is("(") {
				end = closing(tokens, end)
			}
			end++
		}
		columns[strings.ToLower(tokens[def.lo].name())] = true
		list = append(list, definition(sql, tokens[def.lo:min(end, len(tokens))])...)
	}
	for i := range list {
		c := &list[i]
		if c.kind == "CHECK" {
			c.columns = checkedColumn(c.check, columns)
		}
		if c.name == "" {
			c.name = defaultName(table, c)
			if n := taken[c.name]; n > 0 {
				c.name += strconv.Itoa(n)
			}
		}
		taken[defaultName(table, c)]++
	}
	return list
}

func defaultName(table string, c *constraint) string {
	switch c.kind {
	case "PRIMARY":
		return table + "_pkey"
	case "UNIQUE":
		return table + "_" + strings.Join(c.columns, "_") + "_key"
	}
	return strings.Join(append([]string{table}, append(slices.Clone(c.columns), "check")...), "_")
}

// checkedColumn returns the column of a CHECK if it is about one only: it is part of the name then.
func checkedColumn(check string, columns map[string]bool) (checked []string) {
	for _, t := range tokenize(check) {
		name := t.name()
		if (t.kind == kindIdent || t.kind == kindQuoted) && columns[strings.ToLower(name)] && !slices.Contains(checked, name) {
			checked = append(checked, name)
		}
	}
	if len(checked) > 1 {
		return nil
	}
	return checked
}

// definition returns the constraints of one column or table constraint.
func definition(sql string, tokens []token) (list []constraint) {
	column, name := "", ""
	if len(tokens) > 0 && !tokens[0].isAny("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN") {
		column = tokens[0].name()
	}
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		switch {
		case t.is("("):
			i = closing(tokens, i)
		case t.is("CONSTRAINT") && i+1 < len(tokens):
			i++
			name = tokens[i].name()
		case t.isAny("PRIMARY", "UNIQUE", "CHECK") && (i > 0 || column == ""):
			c := constraint{kind: strings.ToUpper(t.text), name: name}
			if column != "" {
				c.columns = []string{column}
			}
			at := i + 1
			if t.is("PRIMARY") {
				at++
			}
			if at < len(tokens) && tokens[at].is("(") {
				i = closing(tokens, at)
				c.inside(sql, tokens, at, i)
			}
			list, name = append(list, c), ""
		case t.isAny("REFERENCES", "NOT", "NULL", "DEFAULT", "COLLATE", "GENERATED"):
			name = ""
		}
	}
	return list
}

// inside reads what stands in a constraint's parentheses.
func (c *constraint) inside(sql string, tokens []token, open, end int) {
	if end >= len(tokens) {
		return
	}
	if c.kind == "CHECK" {
		c.check = strings.TrimSpace(sql[tokens[open].end:tokens[end].start])
		return
	}
	for _, it := range splitItems(tokens, open+1, end) {
		c.columns = append(c.columns, tokens[it.lo].name())
	}
}

// constraints returns the constraints of a table of the file.
func (cs *connState) constraints(table string) []constraint {
	sql, err := lookup("SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE")(cs, []sqlite.Value{text(table)})
	if err != nil {
		return nil
	}
	return tableConstraints(table, sql.Text())
}

// keyName returns the name of the key or unique index on these columns.
func (cs *connState) keyName(table string, columns []string) string {
	for _, c := range cs.constraints(table) {
		if c.kind != "CHECK" && slices.EqualFunc(c.columns, columns, strings.EqualFold) {
			return c.name
		}
	}
	name, err := lookup(`SELECT l.name FROM pragma_index_list(?1) l WHERE l."unique" AND ?2 =
		(SELECT group_concat(k.name) FROM (SELECT name FROM pragma_index_info(l.name) ORDER BY seqno) k)`)(cs, []sqlite.Value{text(table), text(strings.Join(columns, ","))})
	if err != nil || isNull(name) {
		return ""
	}
	return name.Text()
}

// indexName gives the index of a constraint the constraint's name; without an
// index it is about the primary key by rowid.
func indexName(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
	table, index := args[0].Text(), args[1].Text()
	if index != "" && !strings.HasPrefix(index, "sqlite_autoindex_") {
		return args[1], nil
	}
	query := "SELECT group_concat(name) FROM (SELECT name FROM pragma_index_info(?2) ORDER BY seqno) WHERE ?1 <> ''"
	if index == "" {
		query = "SELECT name FROM pragma_table_xinfo(?1) WHERE pk = 1 AND ?2 = ''"
	}
	columns, err := lookup(query)(cs, []sqlite.Value{text(table), text(index)})
	if err != nil || isNull(columns) {
		return args[1], err
	}
	if name := cs.keyName(table, strings.Split(columns.Text(), ",")); name != "" {
		return text(name), nil
	}
	return args[1], nil
}

var (
	failedColumns = regexp.MustCompile(`^(UNIQUE|NOT NULL) constraint failed: (.+)$`)
	failedCheck   = regexp.MustCompile(`^CHECK constraint failed: ((?s:.+))$`)
	failedIndex   = regexp.MustCompile(`^UNIQUE constraint failed: index '(.+)'$`)
)

// constraintError says which constraint a statement violated as PostgreSQL does.
func (cs *connState) constraintError(err error, tables map[string]bool) error {
	resp := toResponse(err)
	said := *resp
	said.Schema, said.Detail = "public", resp.Message
	if m := failedIndex.FindStringSubmatch(resp.Message); m != nil {
		said.Constraint = m[1]
		said.Message = `duplicate key value violates unique constraint "` + m[1] + `"`
		return &said
	}
	if m := failedColumns.FindStringSubmatch(resp.Message); m != nil {
		var columns []string
		for _, c := range strings.Split(m[2], ", ") {
			table, column, _ := strings.Cut(c, ".")
			said.Table, columns = table, append(columns, column)
		}
		if m[1] == "NOT NULL" {
			said.Column = columns[0]
			said.Message = `null value in column "` + columns[0] + `" of relation "` + said.Table + `" violates not-null constraint`
			return &said
		}
		said.Column, said.Constraint = "", cs.keyName(said.Table, columns)
		said.Message = `duplicate key value violates unique constraint "` + said.Constraint + `"`
		return &said
	}
	if m := failedCheck.FindStringSubmatch(resp.Message); m != nil {
		for table := range tables {
			for _, c := range cs.constraints(table) {
				if c.kind == "CHECK" && (c.name == m[1] || c.check == m[1]) {
					said.Table, said.Constraint = table, c.name
					said.Message = `new row for relation "` + table + `" violates check constraint "` + c.name + `"`
					return &said
				}
			}
		}
	}
	return resp
}

// isConstraint reports whether a step ended with one of the violations that constraintError explains.
func isConstraint(err error) bool {
	state, ok := constraintStates[sqlite.ErrCode(err)]
	return ok && state != pgwire.StateForeignKeyViolation
}
