package sqlite_test

import (
	"fmt"
	"strings"
	"testing"
)

// The time for a statement is proportional to its length. These statements would run for hours if
// it were quadratic.
func TestLongStatements(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE TABLE wide (a INTEGER, b TEXT)`)
	var rows, list strings.Builder
	var args []any
	const n = 8000
	for i := range n {
		fmt.Fprintf(&rows, ", ($%d, $%d)", 2*i+1, 2*i+2)
		fmt.Fprintf(&list, ", $%d", i+1)
		args = append(args, i, "x")
	}
	if tag := mustExec(t, conn, `INSERT INTO wide VALUES `+rows.String()[2:], args...); tag != "INSERT 0 8000" {
		t.Errorf("tag %q", tag)
	}
	ids := make([]any, n)
	for i := range ids {
		ids[i] = i
	}
	if got := one[int64](t, conn, `SELECT count(*) FROM wide WHERE a IN (`+list.String()[2:]+`)`, ids...); got != n {
		t.Errorf("found %d", got)
	}
	for name, sql := range map[string]string{
		"nested casts":       `SELECT ` + strings.Repeat("cast(", 1<<15),
		"closed casts":       `SELECT ` + strings.Repeat("cast(", 1<<15) + "1" + strings.Repeat(" as int)", 1<<15),
		"chained casts":      `SELECT 1` + strings.Repeat("::int", 1<<15),
		"parentheses":        `SELECT ` + strings.Repeat("(", 1<<15) + "1" + strings.Repeat(")::int", 1<<15),
		"arrays of catalogs": `SELECT ` + strings.Repeat("array(select ", 1<<15) + " from pg_class",
		"locks":              `SELECT 1` + strings.Repeat(" for update of x", 1<<15) + " !",
	} {
		if _, err := conn.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	one[int64](t, conn, `SELECT 1`)
}
