package sqlite

import (
	"errors"
	"fmt"
	"strings"
)

// PostgreSQL's INTEGER has 4 bytes, and clients make a number of it where they
// make a string or a big integer of 8. SQLite's has 8, and files that were not
// made by way of PostgreSQL use them. So INTEGER is announced as int4, unless the
// column holds more: the newest and oldest rows are looked at when a table
// becomes known, and a value that is met later makes its column wide from then on.

// sampled is how many of the oldest and of the newest rows are looked at.
const sampled = 100

// errWide reports a value beyond the announced type of its column.
var errWide = errors.New("sqlite: an integer beyond its column's type")

func columnKey(table, column string) string { return strings.ToLower(table + "\x00" + column) }

// widen makes int8 of the integer columns that hold more than their type.
func (cs *connState) widen(table string, fields []schemaField) {
	cs.sample(table, fields)
	for i, f := range fields {
		if _, wide := cs.wide.Load(columnKey(table, f.name)); wide && isInt(f.oid) {
			fields[i].oid = oidInt8
		}
	}
}

// sample looks at some rows of a table for integers that their column's type
// does not hold. Views and tables without a rowid are not looked at.
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
		_ = stmt.Finalize() // repeats the error of the step
	}
}

// noteWide makes a column wide whose value did not fit; statements are described again.
func (b *Backend) noteWide(c *column, err error) error {
	if errors.Is(err, errWide) {
		b.wide.Store(columnKey(c.table, c.origin), true)
		b.generation.Add(1)
	}
	return err
}
