package sqlitepool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/sqlitepool"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// other is a connection of another process.
func other(t *testing.T, db *sqlitepool.DB) *sqlite.Conn {
	t.Helper()
	c, err := sqlite.OpenConn(db.Path(), sqlite.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// text runs a query and returns its column name.
func text(c *sqlite.Conn, query, name string) (got string, err error) {
	err = sqlitex.Execute(c, query, &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
		got = stmt.GetText(name)
		return nil
	}})
	return got, err
}

// A table that is created again, here or by another process, may have its columns in another order.
func TestColumnsKeepTheirNames(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *sqlitepool.DB, string){
		"here": script,
		"another process": func(t *testing.T, db *sqlitepool.DB, sql string) {
			if err := sqlitex.ExecuteScript(other(t, db), sql, nil); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}})
			for _, columns := range []string{"name, note", "note, name", "age, note, name"} {
				change(t, db, "DROP TABLE IF EXISTS s; CREATE TABLE s ("+columns+"); INSERT INTO s (name, note) VALUES ('ada', 'wrong')")
				readsAda(t, db, columns)
			}
		})
	}
}

func TestWriteEndsWithItsContext(t *testing.T) {
	db := open(t, sqlitepool.Config{BusyTimeout: time.Hour})
	lock := other(t, db)
	if err := sqlitex.ExecuteTransient(lock, "BEGIN IMMEDIATE", nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := db.Write(ctx, increment); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("under a foreign lock: %v", err)
	}
	done := make(chan error)
	go func() { done <- db.Write(t.Context(), increment) }()
	if err := sqlitex.ExecuteTransient(lock, "COMMIT", nil); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error("after the foreign lock: ", err)
	}
}

// A statement in the middle of its rows does not prevent COMMIT, unless the driver has lost it.
func TestStatementsLeftUnderWay(t *testing.T) {
	const insert = "INSERT INTO t (x) VALUES (7), (8) RETURNING id"
	db := open(t, sqlitepool.Config{})
	err := db.Write(t.Context(), func(c *sqlite.Conn) error {
		stmt, err := c.Prepare(insert)
		if err != nil {
			return err
		}
		_, err = stmt.Step()
		return err
	})
	if n := get(t, db, "SELECT count(*) FROM t"); err != nil || n != 3 {
		t.Errorf("with a cached statement: %v, %d rows", err, n)
	}
	var left *sqlite.Stmt
	err = db.Write(t.Context(), func(c *sqlite.Conn) (err error) {
		if left, _, err = c.PrepareTransient(insert); err == nil {
			_, err = left.Step()
		}
		return err
	})
	if err == nil || errors.Is(err, sqlitepool.ErrBusy) || !strings.Contains(err.Error(), "finalize") {
		t.Errorf("with a transient statement: %v", err)
	}
	if err := left.Finalize(); err != nil {
		t.Log("finalize:", err) // it was rolled back
	}
	if n := get(t, db, "SELECT count(*) FROM t"); n != 3 {
		t.Errorf("%d rows: not rolled back", n)
	}
	script(t, db, "INSERT INTO t (x) VALUES (9)")
}

// An interrupt ends SQLite's transaction. Later statements of a function that ignores it are not
// committed.
func TestNothingAfterAnInterrupt(t *testing.T) {
	db := open(t, sqlitepool.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	err := db.Write(ctx, func(c *sqlite.Conn) error {
		if err := increment(c); err != nil {
			return err
		}
		err := c.CreateFunction("stop", &sqlite.FunctionImpl{Scalar: func(sqlite.Context, []sqlite.Value) (sqlite.Value, error) {
			cancel()
			return sqlite.IntegerValue(1), nil
		}})
		if err != nil {
			return err
		}
		err = sqlitex.Execute(c, "INSERT INTO t (x) WITH RECURSIVE r(i) AS (SELECT stop() UNION ALL SELECT i + 1 FROM r) SELECT i FROM r", nil)
		if err == nil {
			t.Error("not interrupted")
		}
		if err := increment(c); err == nil {
			t.Error("a statement after the interrupt succeeded")
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if n := get(t, db, "SELECT sum(x) FROM t"); n != 0 {
		t.Errorf("x = %d after a write that was not committed", n)
	}
	script(t, db, "UPDATE t SET x = 1")
	if s := db.Stats(); s.Writer.Panics != 0 {
		t.Errorf("%+v", s.Writer)
	}
}

// Whatever panics, each connection is torn down and closed, so that the last one removes the log.
func TestPanicsCloseTheConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	var setups, teardowns atomic.Int64
	db, err := sqlitepool.Open(path, sqlitepool.Config{
		Setup: func(*sqlite.Conn) error {
			if setups.Add(1) == 3 {
				panic("setup")
			}
			return nil
		},
		Teardown: func(*sqlite.Conn) {
			if teardowns.Add(1) == 3 {
				panic("teardown")
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	script(t, db, "CREATE TABLE t (x)")
	err = db.Read(t.Context(), func(*sqlite.Conn) error { return nil })
	if pe, ok := errors.AsType[*pool.PanicError](err); !ok || pe.Value != "setup" {
		t.Errorf("got %v", err)
	}
	get(t, db, "SELECT count(*) FROM t")
	drain(t, db)
	if s, d := setups.Load(), teardowns.Load(); s != d || s < 4 {
		t.Errorf("%d setups, %d teardowns", s, d)
	}
	if _, err := os.Stat(path + "-wal"); err == nil {
		t.Error("a connection is still open: the log is there")
	}
}

func TestAttachedDatabase(t *testing.T) {
	aux := filepath.Join(t.TempDir(), "aux.db")
	db := open(t, sqlitepool.Config{Setup: func(c *sqlite.Conn) error {
		return errors.Join(
			sqlitex.ExecuteTransient(c, "ATTACH ? AS aux", &sqlitex.ExecOptions{Args: []any{aux}}),
			sqlitex.ExecuteTransient(c, "PRAGMA aux.journal_mode=WAL", nil))
	}})
	script(t, db, "CREATE TABLE aux.u (x INTEGER); INSERT INTO aux.u VALUES (0)")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				err := db.Write(t.Context(), func(c *sqlite.Conn) error {
					return errors.Join(increment(c), sqlitex.Execute(c, "UPDATE aux.u SET x = x + 1", nil))
				})
				if err != nil {
					t.Error("write:", err)
				}
			}
		})
		wg.Go(func() {
			for range 50 {
				err := db.Read(t.Context(), func(c *sqlite.Conn) error {
					_, err := number(c, "SELECT (SELECT x FROM t) + (SELECT x FROM aux.u)")
					return err
				})
				if err != nil {
					t.Error("read:", err)
				}
			}
		})
	}
	wg.Wait()
	if n := get(t, db, "SELECT (SELECT x FROM t) + (SELECT x FROM aux.u)"); n != 200 {
		t.Errorf("%d after a hundred writes to both", n)
	}
	err := db.Read(t.Context(), func(c *sqlite.Conn) error { return sqlitex.Execute(c, "DELETE FROM aux.u", nil) })
	if !errors.Is(err, sqlitepool.ErrReadOnly) {
		t.Errorf("a reader writes to it: %v", err)
	}
}

// The schema of an attached file may also change through another connection.
func TestAttachedColumnsKeepTheirNames(t *testing.T) {
	aux := filepath.Join(t.TempDir(), "aux.db")
	db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}, Setup: func(c *sqlite.Conn) error {
		return errors.Join(
			sqlitex.ExecuteTransient(c, `ATTACH ? AS "an aux"`, &sqlitex.ExecOptions{Args: []any{aux}}),
			sqlitex.ExecuteTransient(c, `PRAGMA "an aux".journal_mode=WAL`, nil),
			sqlitex.ExecuteTransient(c, "ATTACH ':memory:' AS scratch", nil))
	}})
	foreign, err := sqlite.OpenConn(aux, sqlite.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	for _, columns := range []string{"name, note", "note, name", "age, note, name"} {
		if err := sqlitex.ExecuteScript(foreign, "DROP TABLE IF EXISTS s; CREATE TABLE s ("+columns+"); INSERT INTO s (name, note) VALUES ('ada', 'wrong')", nil); err != nil {
			t.Fatal(err)
		}
		readsAda(t, db, columns)
	}
	// State of the connection alone stays.
	script(t, db, "CREATE TABLE scratch.v (x); INSERT INTO scratch.v VALUES (1)")
	script(t, db, "INSERT INTO scratch.v VALUES (2)")
}

// A drain that waits for a reader accepts no more writes.
func TestDrainTakesNoMoreWrites(t *testing.T) {
	db := open(t, sqlitepool.Config{})
	reader, err := db.AcquireReader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	drained := make(chan error)
	go func() { drained <- db.Drain(context.Background()) }()
	for err == nil { // the test's time limit bounds it
		var other pool.Lease[*sqlite.Conn]
		if other, err = db.AcquireReader(t.Context()); err == nil {
			other.Release()
		}
	}
	if !errors.Is(err, pool.ErrClosed) {
		t.Error("read: ", err)
	}
	if err := db.Write(t.Context(), increment); !errors.Is(err, pool.ErrClosed) {
		t.Error("write: ", err)
	}
	reader.Release()
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// If a file is replaced while a connection to it is opened, this is noticed: writes go to the file
// at the path.
func TestReplacedWhileItIsOpened(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "a.db"), filepath.Join(dir, "b.db")
	opens := 0
	replace := func(*sqlite.Conn) error {
		if opens++; opens != 2 {
			return nil
		}
		return os.Rename(other, path)
	}
	for p, x := range map[string]int{path: 0, other: 10} {
		db, err := sqlitepool.Open(p, sqlitepool.Config{})
		if err != nil {
			t.Fatal(err)
		}
		script(t, db, fmt.Sprintf("CREATE TABLE t (id INTEGER PRIMARY KEY, x INTEGER); INSERT INTO t VALUES (1, %d);", x))
		drain(t, db)
	}
	db, err := sqlitepool.Open(path, sqlitepool.Config{Setup: replace})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := db.Write(t.Context(), increment); err != nil {
			t.Error(err)
		}
	}
	drain(t, db)
	if db, err = sqlitepool.Open(path, sqlitepool.Config{}); err != nil {
		t.Fatal(err)
	}
	defer drain(t, db)
	if n := get(t, db, "SELECT x FROM t"); n != 12 {
		t.Errorf("x = %d after two writes, want 12", n)
	}
}

// A panic in a function of the application, called by SQLite, leaves a statement in the middle of
// its rows, with its snapshot.
func TestPanicInAFunctionOfSQL(t *testing.T) {
	db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}})
	blow := func(c *sqlite.Conn) error {
		err := c.CreateFunction("blow", &sqlite.FunctionImpl{Scalar: func(sqlite.Context, []sqlite.Value) (sqlite.Value, error) {
			panic("blow")
		}})
		return errors.Join(err, sqlitex.Execute(c, "SELECT x, blow() FROM t", nil))
	}
	for way, run := range map[string]func(context.Context, func(*sqlite.Conn) error) error{"Read": db.Read, "Write": db.Write} {
		func() {
			defer func() {
				if v := recover(); v != "blow" {
					t.Errorf("%s: recovered %v", way, v)
				}
			}()
			_ = run(t.Context(), blow)
		}()
	}
	script(t, db, "UPDATE t SET x = 42")
	if n := get(t, db, "SELECT x FROM t"); n != 42 {
		t.Errorf("the next Read sees %d, want 42", n)
	}
}

// A timeout that SQLite cannot represent is not treated as zero.
func TestOddBusyTimeouts(t *testing.T) {
	for _, d := range []time.Duration{1 << 62, 1<<63 - 1} {
		db := open(t, sqlitepool.Config{BusyTimeout: d})
		lock := other(t, db)
		if err := sqlitex.ExecuteTransient(lock, "BEGIN IMMEDIATE", nil); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- db.Write(context.Background(), increment) }()
		for db.Stats().Writer.InUse == 0 && len(done) == 0 { // the test's time limit bounds it
			runtime.Gosched()
		}
		for range 100_000 { // the writer tries to take that lock now or in a moment
			runtime.Gosched()
		}
		if err := sqlitex.ExecuteTransient(lock, "COMMIT", nil); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("BusyTimeout %v: %v", d, err)
		}
	}
}

// Whether the log can be written depends on the directory of a link's target.
func TestLinks(t *testing.T) {
	direct := open(t, sqlitepool.Config{})
	here, there := filepath.Dir(linkTo(t, direct.Path())), filepath.Dir(direct.Path())
	for frozen, readOnly := range map[string]bool{here: false, there: true} {
		if err := os.Chmod(frozen, 0o555); err != nil {
			t.Fatal(err)
		}
		db, err := sqlitepool.Open(filepath.Join(here, "link.db"), sqlitepool.Config{})
		if chmodErr := os.Chmod(frozen, 0o755); chmodErr != nil {
			t.Fatal(chmodErr)
		}
		if err != nil {
			t.Fatal(err)
		}
		if db.ReadOnly() != readOnly {
			t.Errorf("read-only: %v, want %v", db.ReadOnly(), readOnly)
		}
		drain(t, db)
	}
}

func TestBigRows(t *testing.T) {
	db := open(t, sqlitepool.Config{})
	script(t, db, "CREATE TABLE big (b BLOB)")
	blob := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // 16 MiB
	err := db.Write(t.Context(), func(c *sqlite.Conn) error {
		return sqlitex.Execute(c, "INSERT INTO big VALUES (?)", &sqlitex.ExecOptions{Args: []any{blob}})
	})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Read(t.Context(), func(c *sqlite.Conn) error {
		return sqlitex.Execute(c, "SELECT b FROM big", &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
			got := make([]byte, stmt.ColumnLen(0))
			if stmt.ColumnBytes(0, got); !bytes.Equal(got, blob) {
				return fmt.Errorf("%d bytes were read, not the %d written", len(got), len(blob))
			}
			return nil
		}})
	})
	if err != nil {
		t.Error(err)
	}
	err = db.Write(t.Context(), func(c *sqlite.Conn) error {
		return errors.Join(increment(c), sqlitex.Execute(c, "INSERT INTO big VALUES (zeroblob(2000000000))", nil))
	})
	if sqlite.ErrCode(err).ToPrimary() != sqlite.ResultTooBig {
		t.Errorf("over SQLite's limit: %v", err)
	}
	if n := get(t, db, "SELECT x FROM t"); n != 0 {
		t.Errorf("x = %d: not rolled back", n)
	}
}

// Reads that follow each other without a gap do not make the log grow forever. The same holds for a
// path that is a link, whose log is beside the target, and for the logs of attached files.
func TestLogStaysShort(t *testing.T) {
	const size, create = 1 << 20, "CREATE TABLE big (id INTEGER PRIMARY KEY, b BLOB)"
	t.Run("file", func(t *testing.T) {
		db := open(t, sqlitepool.Config{LogSize: size})
		script(t, db, create)
		logStaysShort(t, db, db.Path()+"-wal", size)
	})
	t.Run("link", func(t *testing.T) {
		direct := open(t, sqlitepool.Config{})
		script(t, direct, create)
		link := linkTo(t, direct.Path())
		db, err := sqlitepool.Open(link, sqlitepool.Config{LogSize: size})
		if err != nil {
			t.Fatal(err)
		}
		defer drain(t, db)
		logStaysShort(t, db, direct.Path()+"-wal", size)
	})
	t.Run("attached", func(t *testing.T) {
		aux := open(t, sqlitepool.Config{})
		script(t, aux, create)
		db := open(t, sqlitepool.Config{LogSize: size, Setup: func(c *sqlite.Conn) error {
			return sqlitex.ExecuteTransient(c, "ATTACH ? AS aux", &sqlitex.ExecOptions{Args: []any{aux.Path()}})
		}})
		logStaysShort(t, db, aux.Path()+"-wal", size)
	})
}

// linkTo makes a symbolic link in a new folder.
func linkTo(t *testing.T, path string) string {
	t.Helper()
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	return link
}

func logStaysShort(t *testing.T, db *sqlitepool.DB, log string, size int64) {
	const commits = 400 // of 64 KiB and more
	written := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { overlap(t, db, written) })
	for i := range commits {
		err := db.Write(t.Context(), func(c *sqlite.Conn) error {
			return sqlitex.Execute(c, "INSERT OR REPLACE INTO big VALUES (?, zeroblob(65536))", &sqlitex.ExecOptions{Args: []any{i % 4}})
		})
		if err != nil {
			t.Error(err)
		}
	}
	info, err := os.Stat(log)
	close(written)
	wg.Wait()
	if err != nil || info.Size() > 8*size {
		t.Errorf("%d bytes of log, %v", info.Size(), err)
	}
}

// overlap reads alternately by two connections: each begins before the other ends.
func overlap(t *testing.T, db *sqlitepool.DB, until <-chan struct{}) {
	var leases [2]pool.Lease[*sqlite.Conn]
	for i := range leases {
		var err error
		if leases[i], err = db.AcquireReader(t.Context()); err != nil {
			t.Error(err)
			return
		}
		defer leases[i].Release()
	}
	for i := 0; ; i++ {
		c := leases[i%2].Value()
		if !c.AutocommitEnabled() {
			if err := sqlitex.Execute(c, "ROLLBACK", nil); err != nil {
				t.Error(err)
			}
		}
		err := sqlitex.Execute(c, "BEGIN", nil)
		if err == nil {
			_, err = number(c, "SELECT count(*) FROM big")
		}
		if err != nil {
			t.Error(err)
		}
		select {
		case <-until:
			return
		default:
		}
	}
}

// TestCacheSize checks the cache sizes of readers and the writer, also after another connection has changed the schema.
func TestCacheSize(t *testing.T) {
	for _, c := range []struct {
		readers    int
		size, want int64
	}{
		{4, 0, sqlitepool.DefaultCacheSize / 5},
		{1, 0, 16 << 20},
		{100, 0, 2 << 20},
		{4, 1 << 20, 1 << 20},
		{4, 1, 1 << 10},
		{4, math.MaxInt64, math.MaxInt32 << 10},
	} {
		db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: c.readers}, CacheSize: c.size})
		if got := db.CacheSize(); got != c.want {
			t.Errorf("%d readers, CacheSize %d: %d bytes, want %d", c.readers, c.size, got, c.want)
		}
		want := -(c.want >> 10) // as SQLite has it: in KiB
		for range 2 {
			if got := get(t, db, "PRAGMA cache_size"); got != want {
				t.Errorf("a reader has %d, want %d", got, want)
			}
			err := db.Write(t.Context(), func(conn *sqlite.Conn) error {
				got, err := number(conn, "PRAGMA cache_size")
				if got != want {
					t.Errorf("the writer has %d, want %d", got, want)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			other, err := sqlite.OpenConn(db.Path(), sqlite.OpenReadWrite)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(sqlitex.ExecuteTransient(other, "CREATE TABLE IF NOT EXISTS more (x)", nil), other.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestLimitsThatMakeNoSense has Open refuse limits, from which a default would be computed.
func TestLimitsThatMakeNoSense(t *testing.T) {
	for _, size := range []int{-1, -2, math.MinInt} {
		db, err := sqlitepool.Open(filepath.Join(t.TempDir(), "a.db"), sqlitepool.Config{Readers: pool.Limits{MaxSize: size}})
		if !errors.Is(err, pool.ErrConfig) {
			t.Errorf("MaxSize %d: %v", size, err)
		}
		if err == nil {
			db.Close()
		}
	}
}

// readsAda checks that the name in table s, found by the column's name, is ada for Read and Write.
func readsAda(t *testing.T, db *sqlitepool.DB, columns string) {
	t.Helper()
	for way, run := range map[string]func(context.Context, func(*sqlite.Conn) error) error{"Read": db.Read, "Write": db.Write} {
		err := run(t.Context(), func(c *sqlite.Conn) error {
			got, err := text(c, "SELECT * FROM s", "name")
			if got != "ada" {
				t.Errorf("%s with columns %s: name is %q", way, columns, got)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestHolderClosesItsConnection: that is a bug of the holder, and harms nobody else.
func TestHolderClosesItsConnection(t *testing.T) {
	db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}})
	for name, call := range map[string]func(context.Context, func(*sqlite.Conn) error) error{"Read": db.Read, "Query": db.Query, "Write": db.Write} {
		func() {
			defer func() {
				if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "closed its connection") {
					t.Errorf("%s: %v", name, p)
				}
			}()
			_ = call(t.Context(), func(c *sqlite.Conn) error { return c.Close() })
		}()
	}
	lease, err := db.AcquireReader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = lease.Value().Close()
	lease.Release()
	if n := get(t, db, "SELECT x FROM t WHERE id = 1"); n != 0 {
		t.Errorf("x is %d", n)
	}
	if err := db.Write(t.Context(), increment); err != nil {
		t.Error(err)
	}
}
