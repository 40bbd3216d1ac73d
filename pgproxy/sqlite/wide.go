package sqlite

import (
	"errors"
	"fmt"
	"strings"
)

// PostgreSQL's INTEGER has 4 bytes. Clients read it as a number, but 8 bytes as a string or a big
// integer. SQLite's INTEGER has 8 bytes, and files made by other programs use them. So INTEGER is
// announced as int4 unless the column holds larger values. The oldest and newest rows are checked
// when the table is first used. A larger value that is found later makes the column int8 from then
// on.

// sampled is the number of oldest and of newest rows that are checked.
const sampled = 100

// errWide reports an integer that does not fit the announced type of its column.
var errWide = errors.New("sqlite: an integer beyond its column's type")

func columnKey(table, column string) string { return strings.ToLower(table + "\x00" + column) }

// widen changes the type of the integer columns that hold larger values to int8.
func (cs *connState) widen(table string, fields []schemaField) {
	cs.sample(table, fields)
	for i, f := range fields {
		if _, wide := cs.wide.Load(columnKey(table, f.name)); wide && isInt(f.oid) {
			fields[i].oid = oidInt8
		}
	}
}

// sample checks some rows of a table for integers that do not fit their column's type. Views and
// tables without a rowid are not checked.
func (cs *connState) sample(table string, fields []schemaField) {
	var narrow, checks []string
	for _, f := range fields {
		if limits := intLimits[f.oid]; f.oid == oidInt4 || f.oid == oidInt2 {
			narrow = append(narrow, f.name)
			name := quoteIdent(f.name)
			checks = append(checks, fmt.Sprintf("max(typeof(%s) = 'integer' AND %s NOT BETWEEN %d AND %d)", name, name, limits[0], limits[1]))
		}
	}
	if narrow == nil {
		return
	}
	for _, order := range []string{"", " DESC"} {
		stmt, _, err := cs.conn.PrepareTransient(fmt.Sprintf("SELECT %s FROM (SELECT * FROM main.%s ORDER BY rowid%s LIMIT %d)",
			strings.Join(checks, ", "), quoteIdent(table), order, sampled))
		if err != nil {
			return
		}
		if row, err := stmt.Step(); err == nil && row {
			for i, name := range narrow {
				if stmt.ColumnBool(i) {
					cs.wide.Store(columnKey(table, name), true)
				}
			}
		}
		_ = stmt.Finalize() // returns the error of the step again
	}
}

// noteWide records that a column holds larger values than announced. Statements are described
// again.
func (b *Backend) noteWide(c *column, err error) error {
	if errors.Is(err, errWide) {
		b.wide.Store(columnKey(c.table, c.origin), true)
		b.generation.Add(1)
	}
	return err
}
