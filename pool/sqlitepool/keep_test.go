package sqlitepool_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/sqlitepool"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// keeping returns a DB whose writer keeps a snapshot, because another Write seems to wait, and a connection as of
// another program.
func keeping(t *testing.T, cfg sqlitepool.Config) (*sqlitepool.DB, *sqlite.Conn) {
	t.Helper()
	db := open(t, cfg)
	other, err := sqlite.OpenConn(db.Path(), sqlite.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	other.SetBusyTimeout(0)
	change(t, other, "SELECT count(*) FROM t") // opens the log
	db.PretendWriters(1)
	for !db.Keeps() { // a Write does not keep it when a check of the log is due
		script(t, db, "UPDATE t SET x = 0")
	}
	return db, other
}

// restart tries to restart the log and reports whether a reader prevents that.
func restart(t *testing.T, other *sqlite.Conn) (busy bool) {
	t.Helper()
	err := sqlitex.ExecuteTransient(other, "PRAGMA wal_checkpoint(TRUNCATE)", &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
		busy = stmt.ColumnBool(0)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return busy
}

func change(t *testing.T, other *sqlite.Conn, sql string) {
	t.Helper()
	if err := sqlitex.ExecuteTransient(other, sql, nil); err != nil {
		t.Fatal(err)
	}
}

func TestKeptSnapshotAndOtherPrograms(t *testing.T) {
	t.Run("a write", func(t *testing.T) {
		db, other := keeping(t, sqlitepool.Config{})
		change(t, other, "UPDATE t SET x = 10")
		if err := db.Write(t.Context(), increment); err != nil {
			t.Fatal(err)
		}
		if n := get(t, db, "SELECT x FROM t"); n != 11 {
			t.Errorf("x = %d, want 11", n)
		}
	})
	t.Run("a lock", func(t *testing.T) {
		db, other := keeping(t, sqlitepool.Config{BusyTimeout: time.Millisecond})
		change(t, other, "BEGIN IMMEDIATE")
		if err := db.Write(t.Context(), increment); !errors.Is(err, sqlitepool.ErrBusy) || db.Keeps() {
			t.Errorf("write under another program's lock: %v; a snapshot is kept: %t", err, db.Keeps())
		}
	})
	t.Run("a change of the schema", func(t *testing.T) {
		db, other := keeping(t, sqlitepool.Config{})
		var before, after *sqlite.Conn
		hold := func(conn **sqlite.Conn) error {
			return db.Write(t.Context(), func(c *sqlite.Conn) error { *conn = c; return nil })
		}
		err := hold(&before)
		change(t, other, "ALTER TABLE t ADD COLUMN y")
		if err = errors.Join(err, hold(&after)); err != nil || before == after {
			t.Errorf("the same connection after the change: %t, %v", before == after, err)
		}
	})
	t.Run("a new file", func(t *testing.T) {
		db, _ := keeping(t, sqlitepool.Config{})
		moved := db.Path() + ".moved"
		if err := os.Rename(db.Path(), moved); err != nil {
			t.Fatal(err)
		}
		if err := db.Write(t.Context(), increment); !errors.Is(err, pool.ErrOpen) {
			t.Errorf("write to a file that is gone: %v", err)
		}
		if err := os.Rename(moved, db.Path()); err != nil {
			t.Fatal(err)
		}
		if err := db.Write(t.Context(), increment); err != nil {
			t.Error(err)
		}
		if n := get(t, db, "SELECT x FROM t"); n != 1 {
			t.Errorf("x = %d, want 1", n)
		}
	})
}

// A snapshot is kept no longer than a Write waits, and not by a Write that has changed the schema, because the next one
// must check it.
func TestKeptSnapshotEnds(t *testing.T) {
	ends := map[string]func(t *testing.T, db *sqlitepool.DB) error{
		"with the last Write": func(t *testing.T, db *sqlitepool.DB) error {
			db.PretendWriters(-1)
			return db.Write(t.Context(), increment)
		},
		"with the wait of the last Write": func(t *testing.T, db *sqlitepool.DB) error {
			db.PretendWriters(-1)
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := db.Write(ended, increment); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("write after the end of its context: %w", err)
			}
			return nil
		},
		"for AcquireWriter": func(t *testing.T, db *sqlitepool.DB) error {
			lease, err := db.AcquireWriter(t.Context())
			if err == nil {
				err = sqlitex.Execute(lease.Value(), "DROP TABLE t", nil) // refused while a statement reads
				lease.Release()
			}
			return err
		},
		"after a change of the schema": func(t *testing.T, db *sqlitepool.DB) error {
			return db.Write(t.Context(), func(c *sqlite.Conn) error { return sqlitex.Execute(c, "DROP TABLE t", nil) })
		},
		"after an error": func(t *testing.T, db *sqlitepool.DB) error {
			failed := errors.New("failed")
			if err := db.Write(t.Context(), func(*sqlite.Conn) error { return failed }); !errors.Is(err, failed) {
				return err
			}
			return nil
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			db, other := keeping(t, sqlitepool.Config{})
			if !restart(t, other) {
				t.Error("no snapshot was kept")
			}
			if err := end(t, db); err != nil {
				t.Error(err)
			}
			if db.Keeps() || restart(t, other) {
				t.Error("the snapshot is kept")
			}
		})
	}
}

// Writes that follow each other at once, change the schema, or end with their contexts, while another program writes,
// lose nothing.
func TestManyWrites(t *testing.T) {
	const each = 100
	db := open(t, sqlitepool.Config{BusyTimeout: time.Minute})
	other, err := sqlite.OpenConn(db.Path(), sqlite.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.SetBusyTimeout(time.Minute)
	var done atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			table := fmt.Sprint("own", g)
			for i := range each {
				ctx, cancel := context.WithCancel(t.Context())
				if i%8 == 0 {
					go cancel() // at an arbitrary moment
				}
				err := db.Write(ctx, func(c *sqlite.Conn) error {
					if i%10 == 9 {
						return errors.Join(increment(c), sqlitex.ExecuteScript(c, "CREATE TABLE "+table+"(x); DROP TABLE "+table, nil))
					}
					return increment(c)
				})
				cancel()
				switch {
				case err == nil:
					done.Add(1)
				case !errors.Is(err, context.Canceled):
					t.Error(err)
				}
			}
		})
	}
	for range each {
		if err := sqlitex.ExecuteTransient(other, "UPDATE t SET x = x + 1", nil); err != nil {
			t.Error(err)
		}
		done.Add(1)
	}
	wg.Wait()
	if n := get(t, db, "SELECT x FROM t"); n != done.Load() {
		t.Errorf("x = %d after %d increments", n, done.Load())
	}
	if db.Keeps() || restart(t, other) {
		t.Error("a snapshot is kept")
	}
}
