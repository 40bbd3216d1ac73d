package sqlite

import (
	"regexp"
	"slices"
	"strings"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// SQLite does not keep the names of constraints. They are read from the text of CREATE TABLE. A
// constraint without a name gets the one that PostgreSQL would give it.

// constraints returns the constraints of a table in the file, each with a name.
func (cs *connState) constraints(table string) []tableConstraint {
	if t := cs.textOf(table); t != nil {
		return t.constraints(table)
	}
	return nil
}

// keyName returns the name of the key or unique index on these columns.
func (cs *connState) keyName(table string, columns []string) string {
	for _, c := range cs.constraints(table) {
		if (c.kind == "PRIMARY" || c.kind == "UNIQUE") && slices.EqualFunc(c.columns, columns, strings.EqualFold) {
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

// indexName is the function that returns the constraint name of an index. Without an index it
// returns the name of a primary key that is the rowid.
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

// constraintError returns PostgreSQL's error for the constraint that a statement violated.
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
				if c.kind == "CHECK" && (c.name == m[1] || c.expression() == stripComments(m[1])) {
					said.Table, said.Constraint = table, c.name
					said.Message = `new row for relation "` + table + `" violates check constraint "` + c.name + `"`
					return &said
				}
			}
		}
	}
	return resp
}

// isConstraint reports whether err is a violation that constraintError explains.
func isConstraint(err error) bool {
	state, ok := constraintStates[sqlite.ErrCode(err)]
	return ok && state != pgwire.StateForeignKeyViolation
}
