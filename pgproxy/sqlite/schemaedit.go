package sqlite

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/pgwire"
	lib "modernc.org/sqlite/lib"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// allowed are the changes that an edit of a CREATE TABLE may make, in addition to changes of CHECK
// constraints.
type allowed struct {
	column  string // type, default and NOT NULL of this column may change
	foreign bool   // foreign keys may change
}

// edit changes the CREATE TABLE of a table by fn. The rows are checked at the end of the client's
// statement.
func (c *change) edit(table string, may allowed, fn func(t *tableText) error) error {
	rows, err := c.query("SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?1", table)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return unsupported("ALTER TABLE of a view")
	}
	t, err := parseTable(rows[0])
	if err != nil {
		return err
	}
	before := t.String()
	if err := fn(t); err != nil {
		return err
	}
	sql := t.String()
	if sql == before {
		return nil
	}
	old, err := c.fingerprint(rows[0], may)
	if err != nil {
		return err
	}
	edited, err := c.fingerprint(sql, may)
	if err != nil {
		return err
	}
	if !slices.Equal(old, edited) {
		return unsupported("this ALTER TABLE").hint("It would change more of the table than it says.")
	}
	c.touch(table)
	return c.replaceTable(table, sql)
}

// fingerprintQueries describe the only table of a database: what the pages of the file depend on, and what an edit must
// not change accidentally. ?1 is the column that may change; ?2 is 1 if the foreign keys may change.
var fingerprintQueries = []string{
	`SELECT json_array(l.wr, l.strict, (SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_sequence'), ?1, ?2)
		FROM sqlite_schema s JOIN pragma_table_list(s.name) l WHERE s.type = 'table' AND s.name NOT LIKE 'sqlite!_%' ESCAPE '!'`,
	`SELECT json_array(x.cid, x.name, x.pk, x.hidden, CASE WHEN x.name <> ?1 COLLATE NOCASE THEN json_array(x.type, x."notnull", x.dflt_value) END, ?2)
		FROM sqlite_schema s JOIN pragma_table_xinfo(s.name) x WHERE s.type = 'table' AND s.name NOT LIKE 'sqlite!_%' ESCAPE '!'`,
	`SELECT json_array(l.seq, l."unique", l.origin, l.partial, x.seqno, x.cid, x."desc", x.coll, x.key, ?1, ?2)
		FROM sqlite_schema s JOIN pragma_index_list(s.name) l JOIN pragma_index_xinfo(l.name) x WHERE s.type = 'table'`,
	`SELECT json_array(f.id, f.seq, f."table", f."from", f."to", f.on_update, f.on_delete, f.match, ?1)
		FROM sqlite_schema s JOIN pragma_foreign_key_list(s.name) f WHERE s.type = 'table' AND NOT ?2`,
}

// fingerprint creates the table in a database in memory and returns the results of fingerprintQueries. SQLite does not
// parse an edited schema before it is used, so the edit must be checked this way.
func (c *change) fingerprint(sql string, may allowed) (lines []string, err error) {
	scratch, err := sqlite.OpenConn(":memory:", sqlite.OpenReadWrite|sqlite.OpenMemory)
	if err != nil {
		return nil, err
	}
	defer scratch.Close()
	if err := c.s.b.registerFunctions(newConnState(scratch, &c.s.b.wide)); err != nil {
		return nil, err
	}
	if err := sqlitex.ExecuteTransient(scratch, sql, nil); err != nil {
		return nil, err
	}
	for _, query := range fingerprintQueries {
		err := sqlitex.ExecuteTransient(scratch, query, &sqlitex.ExecOptions{Args: []any{may.column, may.foreign}, ResultFunc: func(stmt *sqlite.Stmt) error {
			lines = append(lines, stmt.ColumnText(0))
			return nil
		}})
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}

// replaceTable writes a new CREATE TABLE into the schema. It increments the schema version, so that every connection
// reads the schema again.
func (c *change) replaceTable(table, sql string) (err error) {
	if err := setDefensive(c.conn, false); err != nil {
		return err
	}
	defer func() {
		off := configure(c.conn, lib.SQLITE_DBCONFIG_WRITABLE_SCHEMA, false)
		on := setDefensive(c.conn, true)
		err = cmp.Or(err, off, on)
	}()
	rows, err := c.query("PRAGMA main.schema_version")
	if err != nil || len(rows) == 0 {
		return err
	}
	version, err := strconv.ParseInt(rows[0], 10, 64)
	if err != nil {
		return err
	}
	if err := configure(c.conn, lib.SQLITE_DBCONFIG_WRITABLE_SCHEMA, true); err != nil {
		return err
	}
	if _, err := c.query("UPDATE main.sqlite_schema SET sql = ?1 WHERE type = 'table' AND name = ?2", sql, table); err != nil {
		return err
	}
	if err := c.do("PRAGMA main.schema_version = %d", int32(version+1)); err != nil {
		return err
	}
	return c.do("SELECT 1 FROM main.sqlite_schema LIMIT 1") // makes this connection read the new schema
}

// touch marks a table to be checked by verify.
func (c *change) touch(table string) {
	if !contains(c.touched, table) {
		c.touched = append(c.touched, table)
	}
}

// verify checks the edited tables and those that refer to them.
func (c *change) verify() error {
	for _, table := range c.touched {
		found, err := c.query("SELECT * FROM pragma_integrity_check(?1)", table)
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
			default:
				return sqlError(stateNotReady, "relation %q does not pass SQLite's integrity check: %s", table, row)
			}
		}
		children, err := c.referencing(table)
		if err != nil {
			return err
		}
		for _, child := range append(children, table) {
			found, err = c.query("SELECT * FROM pragma_foreign_key_check(?1)", child)
			switch {
			case err != nil && strings.Contains(err.Error(), "foreign key mismatch"):
				return sqlError("42830", "there is no unique constraint matching given keys for a foreign key of table %q", child)
			case err != nil:
				return err
			case len(found) > 0:
				return sqlError(pgwire.StateForeignKeyViolation, "insert or update on table %q violates foreign key constraint", child)
			}
		}
	}
	return nil
}

// stateNotReady is object_not_in_prerequisite_state.
const stateNotReady = "55000"

// referencing returns the other tables that have a foreign key to a table.
func (c *change) referencing(table string) ([]string, error) {
	return c.query(`SELECT DISTINCT m.name FROM main.sqlite_schema m JOIN pragma_foreign_key_list(m.name) f
		WHERE m.type = 'table' AND f."table" = ?1 COLLATE NOCASE AND m.name <> ?1 COLLATE NOCASE`, table)
}

// parentsExist returns an error if a foreign key of a table refers to a missing table. SQLite would notice that only
// when rows are written.
func (c *change) parentsExist(table string) error {
	missing, err := c.query(`SELECT f."table" FROM pragma_foreign_key_list(?1) f
		WHERE NOT EXISTS (SELECT 1 FROM main.sqlite_schema m WHERE m.type = 'table' AND m.name = f."table" COLLATE NOCASE)`, table)
	if err == nil && len(missing) > 0 {
		return sqlError(pgwire.StateUndefinedTable, "relation %q does not exist", missing[0])
	}
	return err
}
