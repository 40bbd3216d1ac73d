package sqlitepool

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// walSizeLimit is what the log file is cut back to after a checkpoint, in
// bytes, so that one large transaction does not cost its size for ever.
const walSizeLimit = 64 << 20

// open opens one connection and makes it a reader or the writer.
func (db *DB) open(ctx context.Context, reader bool) (*sqlite.Conn, error) {
	conn, err := db.openConn()
	if err != nil {
		return nil, fmt.Errorf("sqlitepool: %w", explain(ctx, err))
	}
	if err := db.configure(conn, reader); err != nil {
		db.closeConn(conn)
		return nil, fmt.Errorf("sqlitepool: open %q: %w", db.path, explain(ctx, err))
	}
	info, err := os.Stat(db.path)
	if err != nil {
		db.closeConn(conn)
		return nil, fmt.Errorf("sqlitepool: %w", err)
	}
	db.files.Store(conn, info)
	return conn, nil
}

// check tells whether the file a connection has open is still the one at the
// path: what is written to a file that was deleted or replaced is lost.
func (db *DB) check(conn *sqlite.Conn) error {
	now, err := os.Stat(db.path)
	if err != nil {
		return fmt.Errorf("sqlitepool: %w", err)
	}
	if was, ok := db.files.Load(conn); !ok || !os.SameFile(was.(os.FileInfo), now) {
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
		script = fmt.Sprintf("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA journal_size_limit=%d; ", walSizeLimit) + script
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

// exec runs one cached statement.
func exec(conn *sqlite.Conn, query string) error {
	return sqlitex.Execute(conn, query, nil)
}

func (db *DB) closeConn(conn *sqlite.Conn) {
	conn.SetInterrupt(nil)
	db.files.Delete(conn)
	if db.cfg.Teardown != nil {
		db.cfg.Teardown(conn)
	}
	conn.Close()
}

// walMissing reports whether no log lies beside the file, so that the file
// alone is the whole database.
func (db *DB) walMissing() bool {
	info, err := os.Stat(db.path + "-wal")
	return err != nil || info.Size() == 0
}
