package sqlite

import (
	"encoding/json"

	"zombiezen.com/go/sqlite"
)

// rowsTable is the table-valued function pg_rows(array). It returns the elements as pg_set_row, with their index from 0
// as pg_set_n. It is json_each with column names that no table has.
type rowsTable struct{}

func registerRows(conn *sqlite.Conn) error {
	return conn.SetModule("pg_rows", &sqlite.Module{
		Connect: func(*sqlite.Conn, *sqlite.VTableConnectOptions) (sqlite.VTable, *sqlite.VTableConfig, error) {
			return rowsTable{}, &sqlite.VTableConfig{Declaration: "CREATE TABLE x(pg_set_row, pg_set_n, pg_set_array HIDDEN)"}, nil
		},
	})
}

// BestIndex requires the array argument.
func (rowsTable) BestIndex(in *sqlite.IndexInputs) (*sqlite.IndexOutputs, error) {
	out := &sqlite.IndexOutputs{ConstraintUsage: make([]sqlite.IndexConstraintUsage, len(in.Constraints)), EstimatedCost: 1e12, EstimatedRows: 1}
	for i, c := range in.Constraints {
		if c.Column == 2 && c.Op == sqlite.IndexConstraintEq {
			if !c.Usable {
				return nil, sqlite.ResultConstraint.ToError()
			}
			out.ConstraintUsage[i] = sqlite.IndexConstraintUsage{ArgvIndex: 1, Omit: true}
			out.EstimatedCost, out.EstimatedRows = 10, 10
		}
	}
	return out, nil
}

// Open opens a cursor.
func (rowsTable) Open() (sqlite.VTableCursor, error) { return &rowsCursor{}, nil }

// Disconnect does nothing.
func (rowsTable) Disconnect() error { return nil }

// Destroy does nothing.
func (rowsTable) Destroy() error { return nil }

// rowsCursor is a position in an array.
type rowsCursor struct {
	rows []json.RawMessage
	at   int64
}

// Filter starts at the first element of an array.
func (c *rowsCursor) Filter(_ sqlite.IndexID, args []sqlite.Value) error {
	c.rows, c.at = nil, 0
	if len(args) == 0 || isNull(args[0]) {
		return nil
	}
	return json.Unmarshal([]byte(args[0].Text()), &c.rows)
}

// Next moves to the next element.
func (c *rowsCursor) Next() error {
	c.at++
	return nil
}

// Column returns the element or its index.
func (c *rowsCursor) Column(i int, _ bool) (sqlite.Value, error) {
	switch i {
	case 0:
		return text(string(c.rows[c.at])), nil
	case 1:
		return sqlite.IntegerValue(c.at), nil
	}
	return sqlite.Value{}, nil
}

// RowID returns the element's index.
func (c *rowsCursor) RowID() (int64, error) { return c.at, nil }

// EOF reports whether the cursor is past the last element.
func (c *rowsCursor) EOF() bool { return c.at >= int64(len(c.rows)) }

// Close releases the array.
func (c *rowsCursor) Close() error {
	c.rows = nil
	return nil
}
