package sqlite

import (
	"strings"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// syntaxFunctions implement special syntax of PostgreSQL that the rewriter turns into function calls, and related
// functions.
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

// timeZone implements x AT TIME ZONE zone. Times are stored in UTC; no other zone is supported.
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

// isUTC reports whether name is a name of UTC.
func isUTC(name string) bool {
	switch strings.ToUpper(name) {
	case "UTC", "GMT", "Z", "ETC/UTC", "+00", "+00:00", "-00:00", "UCT", "ZULU":
		return true
	}
	return false
}

// defaultOf evaluates the default of a column, given by name or by its index from 0. It returns NULL for the column
// that is the rowid, which SQLite replaces by the next number.
func defaultOf(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
	query := "SELECT dflt_value FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE"
	if args[1].Type() == sqlite.TypeInteger {
		query = "SELECT dflt_value FROM pragma_table_xinfo(?1) WHERE cid = ?2"
	}
	stmt, err := cs.conn.Prepare(query)
	if err != nil {
		return sqlite.Value{}, err
	}
	defer func() { _ = stmt.Reset() }() // returns the error of Step again
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

// evaluate evaluates an expression in SQLite's dialect.
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
