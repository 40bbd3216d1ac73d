package sqlite

import (
	"strings"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// syntaxFunctions are the functions into which the rewriter turns PostgreSQL's special syntax, and functions beside
// them.
func syntaxFunctions() map[string]fn {
	return map[string]fn{
		"timezone_of": {[]int{2}, timeZone}, "timezone": {[]int{2}, func(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
			return timeZone(cs, []sqlite.Value{args[1], args[0]})
		}},
		"pg_trim": {[]int{3}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			if isNull(args[1]) || isNull(args[2]) {
				return sqlite.Value{}, nil
			}
			s, set := args[2].Text(), args[1].Text()
			if args[0].Text() != "trailing" {
				s = strings.TrimLeft(s, set)
			}
			if args[0].Text() != "leading" {
				s = strings.TrimRight(s, set)
			}
			return text(s), nil
		}},
		"pg_position": {[]int{2}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			if isNull(args[0]) || isNull(args[1]) {
				return sqlite.Value{}, nil
			}
			before, _, found := strings.Cut(args[1].Text(), args[0].Text())
			if !found {
				return sqlite.IntegerValue(0), nil
			}
			return sqlite.IntegerValue(int64(len([]rune(before)) + 1)), nil
		}},
		"pg_default":             {[]int{2}, defaultOf},
		"pg_advisory_unlock_all": constant(text(""), 0),
	}
}

// timeZone is x AT TIME ZONE zone. Times are kept in UTC, and no other zone is known.
func timeZone(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
	if isNull(args[0]) || isNull(args[1]) {
		return sqlite.Value{}, nil
	}
	if !isUTC(args[1].Text()) {
		return sqlite.Value{}, unsupported("the time zone %s", clip(args[1].Text())).hint("Times are kept in UTC: convert them in the client.")
	}
	t, ok := moment(oidTimestamp, fromSQL(args[0]), false)
	if !ok {
		return sqlite.Value{}, sqlError(pgwire.StateInvalidDatetime, "invalid input syntax for type timestamp: %q", clip(args[0].Text()))
	}
	return text(formatTime(t, oidTimestamp)), nil
}

// isUTC reports whether a name of a time zone is one of UTC's.
func isUTC(name string) bool {
	switch strings.ToUpper(name) {
	case "UTC", "GMT", "Z", "ETC/UTC", "+00", "+00:00", "-00:00", "UCT", "ZULU":
		return true
	}
	return false
}

// defaultOf computes the default of a table's column, which is named, or counted from 0. That of the rowid's column is
// NULL, for which SQLite takes the next one.
func defaultOf(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
	query := "SELECT dflt_value FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE"
	if args[1].Type() == sqlite.TypeInteger {
		query = "SELECT dflt_value FROM pragma_table_xinfo(?1) WHERE cid = ?2"
	}
	stmt, err := cs.conn.Prepare(query)
	if err != nil {
		return sqlite.Value{}, err
	}
	defer func() { _ = stmt.Reset() }() // repeats the error of Step
	stmt.BindText(1, args[0].Text())
	if args[1].Type() == sqlite.TypeInteger {
		stmt.BindInt64(2, args[1].Int64())
	} else {
		stmt.BindText(2, args[1].Text())
	}
	row, err := stmt.Step()
	if err != nil || !row || stmt.ColumnIsNull(0) {
		return sqlite.Value{}, err
	}
	return evaluate(cs.conn, stmt.ColumnText(0))
}

// evaluate computes an expression of SQLite's.
func evaluate(conn *sqlite.Conn, expression string) (sqlite.Value, error) {
	stmt, _, err := conn.PrepareTransient("SELECT (" + expression + ")")
	if err != nil {
		return sqlite.Value{}, err
	}
	defer stmt.Finalize()
	if _, err := stmt.Step(); err != nil {
		return sqlite.Value{}, err
	}
	switch stmt.ColumnType(0) {
	case sqlite.TypeInteger:
		return sqlite.IntegerValue(stmt.ColumnInt64(0)), nil
	case sqlite.TypeFloat:
		return sqlite.FloatValue(stmt.ColumnFloat(0)), nil
	case sqlite.TypeText:
		return text(stmt.ColumnText(0)), nil
	case sqlite.TypeBlob:
		blob := make([]byte, stmt.ColumnLen(0))
		return sqlite.BlobValue(blob[:stmt.ColumnBytes(0, blob)]), nil
	}
	return sqlite.Value{}, nil
}
