package sqlitepool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// logPatience is how long the writer waits for readers, once for every
// Config.LogSize by which the log has grown beyond that: see keepLogShort.
const logPatience = time.Second

// open opens one connection and makes it a reader or the writer.
func (db *DB) open(ctx context.Context, reader bool) (*sqlite.Conn, error) {
	conn, err := db.openConn()
	if err != nil {
		return nil, fmt.Errorf("sqlitepool: %w", explain(ctx, err))
	}
	sound := false
	defer func() { // also when Setup panics
		if !sound {
			db.closeConn(conn)
		}
	}()
	if err := db.configure(conn, reader); err != nil {
		return nil, fmt.Errorf("sqlitepool: open %q: %w", db.path, explain(ctx, err))
	}
	version, err := conn.Prepare(schemaVersion)
	if err != nil {
		return nil, fmt.Errorf("sqlitepool: open %q: %w", db.path, explain(ctx, err))
	}
	schema, err := one(version)
	if err != nil {
		return nil, fmt.Errorf("sqlitepool: open %q: %w", db.path, explain(ctx, err))
	}
	file, err := os.Stat(db.path)
	if err != nil {
		return nil, fmt.Errorf("sqlitepool: %w", err)
	}
	db.opened.Store(conn, &opened{file, version, schema})
	sound = true
	return conn, nil
}

// schemaVersion asks for a number that changes with the schema, whoever changes it
// (https://www.sqlite.org/pragma.html#pragma_schema_version). The comment makes it a
// cached statement that nobody else has.
const schemaVersion = "PRAGMA schema_version -- sqlitepool"

// opened is what a connection found when it was opened.
type opened struct {
	file    os.FileInfo
	version *sqlite.Stmt // of schemaVersion
	schema  int64        // what it told
}

func (db *DB) found(conn *sqlite.Conn) *opened {
	v, _ := db.opened.Load(conn)
	o, _ := v.(*opened)
	return o
}

// outdated tells whether the schema has changed since the connection was opened.
func (o *opened) outdated() (bool, error) {
	now, err := one(o.version)
	return now != o.schema, err
}

// one runs a statement that has one row of one number.
func one(stmt *sqlite.Stmt) (n int64, err error) {
	if _, err := stmt.Step(); err != nil {
		return 0, err
	}
	n = stmt.ColumnInt64(0)
	return n, stmt.Reset()
}

// check tells whether the file a connection has open is still the one at the
// path: what is written to a file that was deleted or replaced is lost.
func (db *DB) check(conn *sqlite.Conn) error {
	now, err := os.Stat(db.path)
	if err != nil {
		return fmt.Errorf("sqlitepool: %w", err)
	}
	if was := db.found(conn); was == nil || !os.SameFile(was.file, now) {
		return fmt.Errorf("sqlitepool: %q was replaced by another file", db.path)
	}
	return nil
}

func (db *DB) openConn() (*sqlite.Conn, error) {
	if !db.readOnly {
		flags := sqlite.OpenReadWrite
		if !db.made {
			flags |= sqlite.OpenCreate
		}
		return sqlite.OpenConn(db.path, flags)
	}
	if !db.immutable {
		return sqlite.OpenConn(db.path, sqlite.OpenReadOnly)
	}
	abs, err := filepath.Abs(db.path)
	if err != nil {
		return nil, err
	}
	uri := url.URL{Scheme: "file", Path: abs, RawQuery: "immutable=1"}
	return sqlite.OpenConn(uri.String(), sqlite.OpenReadOnly|sqlite.OpenURI)
}

func (db *DB) configure(conn *sqlite.Conn, reader bool) error {
	conn.SetBusyTimeout(db.cfg.BusyTimeout)
	script := "PRAGMA foreign_keys=ON; SELECT count(*) FROM sqlite_schema;"
	if !db.readOnly {
		script = fmt.Sprintf("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA journal_size_limit=%d; ", db.cfg.LogSize) + script
	}
	if err := run(conn, script); err != nil {
		return err
	}
	if db.cfg.Setup != nil {
		if err := db.cfg.Setup(conn); err != nil {
			return err
		}
	}
	if reader {
		return run(conn, "PRAGMA query_only=ON")
	}
	return nil
}

// run executes every statement of script and forgets the rows.
func run(conn *sqlite.Conn, script string) error {
	for script != "" {
		stmt, trailing, err := conn.PrepareTransient(script)
		if err != nil {
			return err
		}
		script = script[len(script)-trailing:]
		for row := true; row && err == nil; {
			row, err = stmt.Step()
		}
		if err := errors.Join(err, stmt.Finalize()); err != nil {
			return err
		}
	}
	return nil
}

// reset makes a released connection as good as new: no interrupt, no statement
// under way, no transaction, the PRAGMAs that guard the others as they were.
func reset(conn *sqlite.Conn, reader bool) error {
	conn.SetInterrupt(nil)
	if !conn.AutocommitEnabled() {
		if err := exec(conn, "ROLLBACK"); err != nil {
			return err
		}
	}
	if reader {
		return exec(conn, "PRAGMA query_only=ON")
	}
	return exec(conn, "PRAGMA foreign_keys=ON")
}

// keepLogShort has the log begin anew when it is too long. SQLite does that by
// itself only when a commit finds nobody reading from the log: where reads overlap,
// however short, there always is somebody, and the log would grow for ever. So the
// writer waits for those who read now; who comes later finds all of it in the file.
// Source: https://www.sqlite.org/wal.html#avoiding_excessively_large_wal_files
func (db *DB) keepLogShort(conn *sqlite.Conn) error {
	info, err := os.Stat(db.path + "-wal")
	switch {
	case err != nil || info.Size() <= db.cfg.LogSize:
		db.logTried = 0
		return nil
	case info.Size() <= db.logTried:
		return nil
	}
	db.logTried = info.Size() + db.cfg.LogSize
	conn.SetBusyTimeout(logPatience)
	defer conn.SetBusyTimeout(db.cfg.BusyTimeout)
	return exec(conn, "PRAGMA wal_checkpoint(RESTART)")
}

// exec runs one cached statement.
func exec(conn *sqlite.Conn, query string) error {
	return sqlitex.Execute(conn, query, nil)
}

func (db *DB) closeConn(conn *sqlite.Conn) {
	db.opened.Delete(conn)
	defer func() { // also when Teardown panics
		if err := conn.Close(); err != nil {
			slog.Warn("sqlitepool: a connection was not closed: a transient statement or a blob of it is still open", "path", db.path, "err", err)
		}
	}()
	conn.SetInterrupt(nil)
	if db.cfg.Teardown != nil {
		db.cfg.Teardown(conn)
	}
}

// walMissing reports whether no log lies beside the file, so that the file
// alone is the whole database.
func (db *DB) walMissing() bool {
	info, err := os.Stat(db.path + "-wal")
	return err != nil || info.Size() == 0
}
