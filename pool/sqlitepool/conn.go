package sqlitepool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// logPatience is how long the writer waits for readers, once for every
// Config.LogSize by which the log has grown beyond that: see keepLogShort.
const logPatience = time.Second

// open opens one connection and makes it a reader or the writer.
func (db *DB) open(ctx context.Context, reader bool) (*sqlite.Conn, error) {
	file, err := os.Stat(db.path) // before it is opened: if it is replaced in between, check sees it
	if err != nil && (db.made || db.readOnly || !errors.Is(err, fs.ErrNotExist)) {
		return nil, fmt.Errorf("sqlitepool: %w", err)
	}
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
	found := &opened{file: file}
	if err := found.look(conn); err != nil {
		return nil, fmt.Errorf("sqlitepool: open %q: %w", db.path, explain(ctx, err))
	}
	if file == nil { // it is there now
		if found.file, err = os.Stat(db.path); err != nil {
			return nil, fmt.Errorf("sqlitepool: %w", err)
		}
	}
	db.opened.Store(conn, found)
	sound = true
	return conn, nil
}

// opened is what a connection found when it was opened.
type opened struct {
	file    os.FileInfo
	schemas []schema
	logs    []string // paths of the write-ahead logs
}

func (db *DB) found(conn *sqlite.Conn) *opened {
	v, _ := db.opened.Load(conn)
	o, _ := v.(*opened)
	return o
}

// schema is that of the database file or of one that Setup has attached.
type schema struct {
	version *sqlite.Stmt // asks for a number that changes with it
	was     int64        // which it was when the connection was opened
}

// look notes the schemas and logs of all files that conn has open. What the connection
// alone has, in memory, is nobody else's to change.
// Source: https://www.sqlite.org/pragma.html#pragma_schema_version
func (o *opened) look(conn *sqlite.Conn) error {
	var names []string
	err := sqlitex.ExecuteTransient(conn, "PRAGMA database_list", &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
		if name, file := stmt.ColumnText(1), stmt.ColumnText(2); file != "" && name != "temp" {
			names = append(names, name)
			o.logs = append(o.logs, logOf(file))
		}
		return nil
	}})
	for i := 0; i < len(names) && err == nil; i++ {
		// The comment makes it a cached statement that nobody else has.
		s := schema{}
		query := `PRAGMA "` + strings.ReplaceAll(names[i], `"`, `""`) + `".schema_version -- sqlitepool`
		if s.version, err = conn.Prepare(query); err == nil {
			s.was, err = one(s.version)
		}
		o.schemas = append(o.schemas, s)
	}
	return err
}

// logOf is where SQLite keeps the log of the file at path: beside what a link leads to.
func logOf(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	return path + "-wal"
}

// outdated tells whether a schema has changed since the connection was opened.
func (o *opened) outdated() (bool, error) {
	for i := range o.schemas {
		if now, err := one(o.schemas[i].version); err != nil || now != o.schemas[i].was {
			return err == nil, err
		}
	}
	return false, nil
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

// keepLogShort has the logs begin anew when one is too long. SQLite does that by
// itself only when a commit finds nobody reading from the log: where reads overlap,
// however short, there always is somebody, and the log would grow for ever. So the
// writer waits for those who read now; who comes later finds all of it in the file.
// Source: https://www.sqlite.org/wal.html#avoiding_excessively_large_wal_files
func (db *DB) keepLogShort(conn *sqlite.Conn) error {
	size := int64(0)
	for _, log := range db.found(conn).logs {
		if info, err := os.Stat(log); err == nil {
			size = max(size, info.Size())
		}
	}
	switch {
	case size <= db.cfg.LogSize:
		db.logTried = 0
		return nil
	case size <= db.logTried:
		return nil
	}
	db.logTried = size + db.cfg.LogSize
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
		db.closing.Lock()
		defer db.closing.Unlock()
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
	info, err := os.Stat(logOf(db.path))
	return err != nil || info.Size() == 0
}
