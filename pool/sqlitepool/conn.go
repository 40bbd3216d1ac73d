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
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// logPatience is how long the writer waits for readers, each time the log has grown by
// Config.LogSize: see keepLogShort.
const logPatience = time.Second

// open opens one connection and makes it a reader or the writer.
func (db *DB) open(ctx context.Context, reader bool) (*sqlite.Conn, error) {
	file, err := os.Stat(db.path) // before opening: if the file is replaced in between, check finds out
	if err != nil && (db.made || db.readOnly || !errors.Is(err, fs.ErrNotExist)) {
		return nil, fmt.Errorf("sqlitepool: %w", err)
	}
	conn, err := db.openConn()
	if err != nil {
		return nil, fmt.Errorf("sqlitepool: %w", explain(ctx, err))
	}
	sound := false
	defer func() { // runs even if Setup panics
		if !sound {
			db.closeConn(conn)
		}
	}()
	if err := db.configure(conn, reader); err != nil {
		return nil, fmt.Errorf("sqlitepool: open %q: %w", db.path, explain(ctx, err))
	}
	if file == nil { // the file exists now
		if file, err = os.Stat(db.path); err != nil {
			return nil, fmt.Errorf("sqlitepool: %w", err)
		}
	}
	st := newState(conn, db.nativeOf(conn), reader, db.cfg.BusyTimeout, file)
	db.states.Store(conn, st)
	if err := st.recordSchemas(); err != nil {
		return nil, fmt.Errorf("sqlitepool: open %q: %w", db.path, explain(ctx, err))
	}
	sound = true
	return conn, nil
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
	script := fmt.Sprintf("PRAGMA cache_size=-%d; PRAGMA foreign_keys=ON; SELECT count(*) FROM sqlite_schema;", db.cfg.CacheSize>>10)
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

// run executes every statement of script and drops the rows.
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

// keepLogShort restarts the logs if one is too long. SQLite does so only when a commit finds no
// reader that uses the log. If reads overlap, however short they are, there always is one, and the
// log would grow forever. So the writer waits for the current readers. Later readers find the whole
// database in the file. Source:
// https://www.sqlite.org/wal.html#avoiding_excessively_large_wal_files
func (db *DB) keepLogShort(st *state) error {
	size := int64(0)
	for _, log := range st.logs {
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
	st.conn.SetBusyTimeout(logPatience)
	defer st.conn.SetBusyTimeout(db.cfg.BusyTimeout)
	return exec(st.conn, "PRAGMA wal_checkpoint(RESTART)")
}

// exec runs one cached statement.
func exec(conn *sqlite.Conn, query string) error {
	return sqlitex.Execute(conn, query, nil)
}

func (db *DB) closeConn(conn *sqlite.Conn) {
	st, known := db.states.LoadAndDelete(conn)
	if known && st.(*state).native.closed() {
		if len(st.(*state).schemas) > 0 { // else the holder's Close has closed it
			st.(*state).native.finish()
		}
		return
	}
	defer func() { // runs even if Teardown panics
		db.closing.Lock()
		defer db.closing.Unlock()
		if err := conn.Close(); err != nil {
			slog.Warn("sqlitepool: a connection was not closed: a transient statement or a blob of it is still open", "path", db.path, "err", err)
		}
	}()
	conn.SetInterrupt(nil)
	if known {
		st.(*state).close()
	}
	if db.cfg.Teardown != nil {
		db.cfg.Teardown(conn)
	}
}

// walMissing reports whether there is no log: then the file alone is the whole database.
func (db *DB) walMissing() bool {
	info, err := os.Stat(logOf(db.path))
	return err != nil || info.Size() == 0
}
