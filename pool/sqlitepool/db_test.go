package sqlitepool_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/sqlitepool"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func open(t *testing.T, cfg sqlitepool.Config) *sqlitepool.DB {
	t.Helper()
	db, err := sqlitepool.Open(filepath.Join(t.TempDir(), "a.db"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { drain(t, db) })
	script(t, db, "CREATE TABLE t (id INTEGER PRIMARY KEY, x INTEGER); INSERT INTO t VALUES (1, 0);")
	return db
}

func drain(t *testing.T, db *sqlitepool.DB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := db.Drain(ctx); err != nil {
		t.Error("drain:", err)
	}
}

func script(t *testing.T, db *sqlitepool.DB, sql string) {
	t.Helper()
	err := db.Write(t.Context(), func(c *sqlite.Conn) error { return sqlitex.ExecuteScript(c, sql, nil) })
	if err != nil {
		t.Fatal(err)
	}
}

func number(c *sqlite.Conn, query string) (int64, error) {
	stmt, err := c.Prepare(query)
	if err != nil {
		return 0, err
	}
	defer stmt.Reset()
	if _, err := stmt.Step(); err != nil {
		return 0, err
	}
	return stmt.ColumnInt64(0), nil
}

func get(t *testing.T, db *sqlitepool.DB, query string) (n int64) {
	t.Helper()
	err := db.Read(t.Context(), func(c *sqlite.Conn) (err error) {
		n, err = number(c, query)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func increment(c *sqlite.Conn) error {
	return sqlitex.Execute(c, "UPDATE t SET x = (SELECT x FROM t WHERE id = 1) + 1 WHERE id = 1", nil)
}

func TestConcurrentWritersAndReadersNeverSeeBusy(t *testing.T) {
	db := open(t, sqlitepool.Config{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				if err := db.Write(t.Context(), increment); err != nil {
					t.Error("write:", err)
				}
			}
		})
		wg.Go(func() {
			for range 50 {
				if err := db.Read(t.Context(), func(c *sqlite.Conn) error { _, err := number(c, "SELECT x FROM t"); return err }); err != nil {
					t.Error("read:", err)
				}
			}
		})
	}
	wg.Wait()
	if n := get(t, db, "SELECT x FROM t WHERE id = 1"); n != 200 {
		t.Errorf("x = %d after 200 increments", n)
	}
}

func TestReadSeesOneSnapshot(t *testing.T) {
	db := open(t, sqlitepool.Config{})
	err := db.Read(t.Context(), func(c *sqlite.Conn) error {
		before, err := number(c, "SELECT x FROM t")
		if err != nil {
			return err
		}
		script(t, db, "UPDATE t SET x = 42")
		after, err := number(c, "SELECT x FROM t")
		if before != after {
			t.Errorf("x changed from %d to %d inside one Read", before, after)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := get(t, db, "SELECT x FROM t"); n != 42 {
		t.Errorf("the next Read sees %d, want 42", n)
	}
}

func TestWriteRollsBackOnErrorAndPanic(t *testing.T) {
	db := open(t, sqlitepool.Config{})
	boom := errors.New("boom")
	err := db.Write(t.Context(), func(c *sqlite.Conn) error { return errors.Join(increment(c), boom) })
	if !errors.Is(err, boom) {
		t.Errorf("error of fn is lost: %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		db.Write(t.Context(), func(c *sqlite.Conn) error { increment(c); panic("boom") })
	}()
	if n := get(t, db, "SELECT x FROM t"); n != 0 {
		t.Errorf("x = %d: not rolled back", n)
	}
}

func TestReadCannotWrite(t *testing.T) {
	db := open(t, sqlitepool.Config{})
	if err := db.Read(t.Context(), increment); !errors.Is(err, sqlitepool.ErrReadOnly) {
		t.Errorf("write in Read: %v", err)
	}
}

func TestContextInterruptsStatement(t *testing.T) {
	db := open(t, sqlitepool.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	err := db.Read(ctx, func(c *sqlite.Conn) error {
		stmt, err := c.Prepare("WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT i FROM r")
		if err != nil {
			return err
		}
		for {
			if _, err := stmt.Step(); err != nil {
				return err
			}
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted read: %v", err)
	}
	if n := get(t, db, "SELECT count(*) FROM t"); n != 1 {
		t.Error("the connection is not usable after an interrupt")
	}
}

func TestReleaseResetsTheConnection(t *testing.T) {
	db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}})
	lease, err := db.AcquireWriter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := sqlitex.ExecuteTransient(lease.Value(), "BEGIN IMMEDIATE", nil); err != nil {
		t.Fatal(err)
	}
	if err := increment(lease.Value()); err != nil {
		t.Fatal(err)
	}
	lease.Release()
	if n := get(t, db, "SELECT x FROM t"); n != 0 {
		t.Errorf("x = %d: released transaction was not rolled back", n)
	}
	reader, err := db.AcquireReader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := sqlitex.ExecuteTransient(reader.Value(), "PRAGMA query_only=OFF", nil); err != nil {
		t.Fatal(err)
	}
	reader.Release()
	if err := db.Read(t.Context(), increment); !errors.Is(err, sqlitepool.ErrReadOnly) {
		t.Errorf("query_only did not come back on release: %v", err)
	}
}

func TestForeignLockIsErrBusy(t *testing.T) {
	db := open(t, sqlitepool.Config{BusyTimeout: time.Millisecond})
	other, err := sqlite.OpenConn(db.Path(), sqlite.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := sqlitex.ExecuteTransient(other, "BEGIN IMMEDIATE", nil); err != nil {
		t.Fatal(err)
	}
	if err := db.Write(t.Context(), increment); !errors.Is(err, sqlitepool.ErrBusy) {
		t.Errorf("write under a foreign lock: %v", err)
	}
}

func TestWriterQueueTimesOut(t *testing.T) {
	db := open(t, sqlitepool.Config{})
	lease, err := db.AcquireWriter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := db.Write(ctx, increment); !errors.Is(err, pool.ErrTimeout) {
		t.Errorf("second writer: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, []byte("this is certainly no database, whatever it is called"), 0o600); err != nil {
		t.Fatal(err)
	}
	torn := filepath.Join(dir, "torn.db")
	if err := os.WriteFile(torn, append([]byte("SQLite format 3\x00"), make([]byte, 4096)...), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		path string
		want error
	}{
		"memory":            {":memory:", sqlitepool.ErrPath},
		"empty":             {"", sqlitepool.ErrPath},
		"uri":               {"file:x.db", sqlitepool.ErrPath},
		"directory":         {dir, sqlitepool.ErrPath},
		"missing directory": {filepath.Join(dir, "no", "a.db"), fs.ErrNotExist},
		"garbage":           {garbage, sqlitepool.ErrNotDatabase},
		"torn":              {torn, sqlitepool.ErrNotDatabase},
	} {
		t.Run(name, func(t *testing.T) {
			db, err := sqlitepool.Open(tc.path, sqlitepool.Config{})
			if !errors.Is(err, tc.want) {
				t.Errorf("Open(%q) = %v, %v; want %v", tc.path, db, err, tc.want)
			}
		})
	}
}

func TestReadOnlyFile(t *testing.T) {
	for name, freeze := range map[string]func(path string) error{
		"file":      func(path string) error { return os.Chmod(path, 0o444) },
		"directory": func(path string) error { return os.Chmod(filepath.Dir(path), 0o555) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.db")
			db, err := sqlitepool.Open(path, sqlitepool.Config{})
			if err != nil {
				t.Fatal(err)
			}
			script(t, db, "CREATE TABLE t (x); INSERT INTO t VALUES (7)")
			drain(t, db)
			if err := freeze(path); err != nil {
				t.Fatal(err)
			}
			defer os.Chmod(filepath.Dir(path), 0o755)
			db, err = sqlitepool.Open(path, sqlitepool.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer drain(t, db)
			if n := get(t, db, "SELECT x FROM t"); n != 7 || !db.ReadOnly() {
				t.Errorf("x = %d, read-only %v", n, db.ReadOnly())
			}
			if err := db.Write(t.Context(), increment); !errors.Is(err, sqlitepool.ErrReadOnly) {
				t.Errorf("write: %v", err)
			}
			if s := db.Stats(); s.Readers.Acquired == 0 || s.Writer.MaxSize != 0 {
				t.Errorf("stats: %+v", s)
			}
		})
	}
}

func TestUnfinishedStatementDoesNotPinTheSnapshot(t *testing.T) {
	db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}})
	err := db.Read(t.Context(), func(c *sqlite.Conn) error {
		stmt, err := c.Prepare("SELECT x FROM t UNION ALL SELECT 2")
		if err != nil {
			return err
		}
		_, err = stmt.Step()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	script(t, db, "UPDATE t SET x = 42")
	if n := get(t, db, "SELECT max(x) FROM t"); n != 42 {
		t.Errorf("the next Read sees %d, want 42", n)
	}
}

func TestDeletedFile(t *testing.T) {
	db := open(t, sqlitepool.Config{})
	get(t, db, "SELECT x FROM t")
	moved := db.Path() + ".moved"
	if err := os.Rename(db.Path(), moved); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := db.Write(t.Context(), increment); !errors.Is(err, pool.ErrOpen) {
			t.Errorf("write to a file that is gone: %v", err)
		}
	}
	if _, err := os.Stat(db.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a new file was made in its place: %v", err)
	}
	if err := os.Rename(moved, db.Path()); err != nil {
		t.Fatal(err)
	}
	lease, err := db.AcquireReader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	if n := get(t, db, "SELECT x FROM t"); n != 0 {
		t.Errorf("x = %d after the file came back", n)
	}
}
