package sqlitepool_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/sqlitepool"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// The driver's fields have the expected names.
func TestDriverIsKnown(t *testing.T) {
	if !sqlitepool.KnowsDriver() {
		t.Error("the driver's fields have other names: every release takes the slow path")
	}
}

// compilations counts statements that SQLite compiles on all connections: it calls the authorizer
// then.
func compilations(cfg sqlitepool.Config) (sqlitepool.Config, *atomic.Int64) {
	n := new(atomic.Int64)
	cfg.Setup = func(c *sqlite.Conn) error {
		return c.SetAuthorizer(sqlite.AuthorizeFunc(func(sqlite.Action) sqlite.AuthResult { n.Add(1); return sqlite.AuthResultOK }))
	}
	return cfg, n
}

// A statement is compiled once, however often its connection is released.
func TestStatementsStayCompiled(t *testing.T) {
	cfg, compiled := compilations(sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}})
	db := open(t, cfg)
	use := func() {
		get(t, db, "SELECT x FROM t WHERE id = 1")
		if err := db.Write(t.Context(), increment); err != nil {
			t.Fatal(err)
		}
	}
	use()
	before := compiled.Load()
	for range 5 {
		use()
	}
	if n := compiled.Load() - before; n != 0 {
		t.Errorf("%d actions were authorized again", n)
	}
}

// leftovers is state that a lease may leave behind.
var leftovers = map[string]func(*sqlite.Conn) error{
	"query_only":         pragma("query_only=0"),
	"foreign_keys":       pragma("foreign_keys=0"),
	"recursive_triggers": pragma("recursive_triggers=1"),
	"temp_store":         pragma("temp_store=memory"),
	"busy_timeout":       pragma("busy_timeout=1"),
	"busy handler":       func(c *sqlite.Conn) error { c.SetBlockOnBusy(); return nil },
	"attach":             func(c *sqlite.Conn) error { return sqlitex.ExecuteTransient(c, "ATTACH ':memory:' AS more", nil) },
	"authorizer": func(c *sqlite.Conn) error {
		return c.SetAuthorizer(sqlite.AuthorizeFunc(func(sqlite.Action) sqlite.AuthResult { return sqlite.AuthResultDeny }))
	},
	"interrupt": func(c *sqlite.Conn) error {
		over := make(chan struct{})
		close(over)
		c.SetInterrupt(over)
		return nil
	},
	"transaction": func(c *sqlite.Conn) error { return sqlitex.ExecuteTransient(c, "BEGIN", nil) },
	"savepoint":   func(c *sqlite.Conn) error { return sqlitex.ExecuteTransient(c, "SAVEPOINT a", nil) },
	"statement": func(c *sqlite.Conn) error {
		stmt, err := c.Prepare("SELECT x FROM t UNION ALL SELECT 2")
		return errors.Join(err, step(stmt))
	},
	"transient statement": func(c *sqlite.Conn) error {
		stmt, _, err := c.PrepareTransient("SELECT x FROM t UNION ALL SELECT 2")
		return errors.Join(err, step(stmt))
	},
	"transient statement in a transaction": func(c *sqlite.Conn) error {
		if err := sqlitex.ExecuteTransient(c, "BEGIN", nil); err != nil {
			return err
		}
		stmt, _, err := c.PrepareTransient("SELECT x FROM t UNION ALL SELECT 2")
		return errors.Join(err, step(stmt))
	},
}

func pragma(text string) func(*sqlite.Conn) error {
	return func(c *sqlite.Conn) error { return sqlitex.ExecuteTransient(c, "PRAGMA "+text, nil) }
}

func step(stmt *sqlite.Stmt) error {
	_, err := stmt.Step()
	return err
}

// report is the state that a connection reports.
func report(c *sqlite.Conn) (string, error) {
	var b strings.Builder
	for _, name := range []string{"query_only", "foreign_keys", "recursive_triggers", "temp_store", "busy_timeout", "database_list"} {
		b.WriteString(name)
		err := sqlitex.ExecuteTransient(c, "PRAGMA "+name, &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
			for i := range stmt.ColumnCount() {
				b.WriteString(" " + stmt.ColumnText(i))
			}
			return nil
		}})
		if err != nil {
			return "", err
		}
		b.WriteString("\n")
	}
	if !c.AutocommitEnabled() {
		b.WriteString("in a transaction")
	}
	return b.String(), nil
}

// Nothing that one lease leaves behind is visible to the next, which sees the newest data.
func TestNothingIsLeftBehind(t *testing.T) {
	for name, leave := range leftovers {
		for kind, acquire := range map[string]func(*sqlitepool.DB, context.Context) (pool.Lease[*sqlite.Conn], error){
			"reader": (*sqlitepool.DB).AcquireReader, "writer": (*sqlitepool.DB).AcquireWriter,
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}})
				use := func(fn func(*sqlite.Conn) error) {
					lease, err := acquire(db, t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer lease.Release()
					if err := fn(lease.Value()); err != nil {
						t.Fatal(err)
					}
				}
				var before, after string
				use(func(c *sqlite.Conn) (err error) { before, err = report(c); return err })
				use(leave)
				use(func(c *sqlite.Conn) (err error) { after, err = report(c); return err })
				if before != after {
					t.Errorf("before:\n%s\nafter:\n%s", before, after)
				}
				script(t, db, "UPDATE t SET x = 42")
				if n := get(t, db, "SELECT max(x) FROM t"); n != 42 {
					t.Errorf("the next Read sees %d, want 42", n)
				}
			})
		}
	}
}

// An open blob keeps its connection's snapshot, so that no other caller gets that connection.
func TestOpenBlobIsNotLeftBehind(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}})
	script(t, db, "CREATE TABLE b (data BLOB); INSERT INTO b VALUES (zeroblob(100))")
	err := db.Read(t.Context(), func(c *sqlite.Conn) error {
		_, err := c.OpenBlob("", "b", "data", 1, false)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	script(t, db, "UPDATE t SET x = 42")
	if n := get(t, db, "SELECT x FROM t"); n != 42 {
		t.Errorf("the next Read sees %d, want 42", n)
	}
	if !strings.Contains(log.String(), "blob") {
		t.Errorf("the log does not say why a connection was not closed: %q", &log)
	}
}

// The end of a context interrupts only its own function, however late it comes.
func TestLateCancellations(t *testing.T) {
	for _, known := range []bool{true, false} {
		db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 2}})
		if !known {
			db.Forget()
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := range 60 {
					ctx, cancel := context.WithCancel(t.Context())
					go cancel()
					run := db.Read
					if i%4 == 0 {
						run = db.Write
					}
					err := run(ctx, func(c *sqlite.Conn) error { _, err := number(c, "SELECT x FROM t"); return err })
					if err != nil && !errors.Is(err, context.Canceled) {
						t.Errorf("canceled: %v", err)
					}
					err = run(t.Context(), func(c *sqlite.Conn) error { _, err := number(c, "SELECT x FROM t"); return err })
					if err != nil {
						t.Errorf("not canceled: %v", err)
					}
				}
			})
		}
		wg.Wait()
	}
}

// A function of Read may use savepoints, scripts and its own transaction. Everything that it leaves open ends with it.
func TestReadWithSavepoints(t *testing.T) {
	db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}})
	err := db.Read(t.Context(), func(c *sqlite.Conn) (err error) {
		before, err := number(c, "SELECT x FROM t")
		if err != nil {
			return err
		}
		if err := sqlitex.ExecuteScript(c, "SELECT x FROM t; SELECT count(*) FROM t", nil); err != nil {
			return err
		}
		script(t, db, "UPDATE t SET x = x + 1")
		if err := sqlitex.ExecuteTransient(c, "SAVEPOINT a", nil); err != nil {
			return err
		}
		if err := sqlitex.ExecuteTransient(c, "ROLLBACK TO a", nil); err != nil {
			return err
		}
		after, err := number(c, "SELECT x FROM t")
		if before != after {
			t.Errorf("x was %d and is %d within one Read", before, after)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := get(t, db, "SELECT x FROM t"); n != 1 {
		t.Errorf("the next Read sees %d, want 1", n)
	}
}

// With an unknown driver everything works, only slower.
func TestUnknownDriver(t *testing.T) {
	db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}})
	db.Forget()
	for range 3 {
		for _, leave := range []string{"query_only", "foreign_keys", "busy_timeout", "interrupt", "transaction", "statement"} {
			for _, acquire := range []func(context.Context) (pool.Lease[*sqlite.Conn], error){db.AcquireReader, db.AcquireWriter} {
				lease, err := acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := leftovers[leave](lease.Value()); err != nil {
					t.Fatal(err)
				}
				lease.Release()
			}
			before := get(t, db, "SELECT x FROM t")
			if err := db.Write(t.Context(), increment); err != nil {
				t.Fatal(err)
			}
			if n := get(t, db, "SELECT x FROM t"); n != before+1 {
				t.Errorf("after %s: x = %d, want %d", leave, n, before+1)
			}
		}
	}
	if err := db.Read(t.Context(), increment); !errors.Is(err, sqlitepool.ErrReadOnly) {
		t.Errorf("write in Read: %v", err)
	}
}

// When the replacement of the file has been noticed, no connection to the old one is leased.
func TestReplacedFileIsNoticedByAll(t *testing.T) {
	db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 3}})
	var leases []pool.Lease[*sqlite.Conn]
	for range 3 {
		lease, err := db.AcquireReader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	fresh := open(t, sqlitepool.Config{})
	script(t, fresh, "UPDATE t SET x = 42")
	drain(t, fresh) // its file has no log
	if err := os.Rename(db.Path(), db.Path()+".old"); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Rename(db.Path()+suffix, db.Path()+".old"+suffix); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(fresh.Path(), db.Path()); err != nil {
		t.Fatal(err)
	}
	script(t, db, "INSERT INTO t (x) VALUES (1)") // notices the replacement
	for _, lease := range leases {
		lease.Release()
	}
	for range 3 {
		if n := get(t, db, "SELECT max(x) FROM t"); n != 42 {
			t.Errorf("x = %d in the old file, want 42", n)
		}
	}
}

// Interrupt ends the running statement and later ones, until Resume or the release.
func TestInterruptAndResume(t *testing.T) {
	db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}})
	const endless = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT count(*) FROM r"
	for _, resume := range []bool{true, false} {
		lease, err := db.AcquireReader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conn := lease.Value()
		var wg sync.WaitGroup
		for range 2 { // the second changes nothing
			wg.Go(func() { db.Interrupt(conn) })
		}
		_, err = number(conn, endless)
		wg.Wait()
		if _, next := number(conn, "SELECT x FROM t"); sqlite.ErrCode(err) != sqlite.ResultInterrupt || sqlite.ErrCode(next) != sqlite.ResultInterrupt {
			t.Errorf("interrupted: %v; the next statement: %v", err, next)
		}
		if resume {
			db.Resume(conn)
			if _, err := number(conn, "SELECT x FROM t"); err != nil {
				t.Errorf("resumed: %v", err)
			}
		}
		lease.Release()
		get(t, db, "SELECT x FROM t")
	}
}

// Each statement of Query reads the newest commit and cannot write, the context interrupts it, and state that the
// function leaves behind is removed.
func TestQuery(t *testing.T) {
	db := open(t, sqlitepool.Config{Readers: pool.Limits{MaxSize: 1}})
	err := db.Query(t.Context(), func(c *sqlite.Conn) error {
		for want := range int64(3) {
			if n, err := number(c, "SELECT x FROM t"); err != nil || n != want {
				t.Errorf("x = %d, %v; want %d", n, err, want)
			}
			script(t, db, "UPDATE t SET x = x + 1")
		}
		return sqlitex.ExecuteTransient(c, "BEGIN", nil)
	})
	if err != nil {
		t.Error(err)
	}
	if err := db.Query(t.Context(), increment); !errors.Is(err, sqlitepool.ErrReadOnly) {
		t.Errorf("write in Query: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = db.Query(ctx, func(c *sqlite.Conn) error {
		cancel()
		_, err := number(c, "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT count(*) FROM r")
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = db.Query(t.Context(), func(*sqlite.Conn) error { panic("boom") })
	}()
	if n := get(t, db, "SELECT x FROM t"); n != 3 {
		t.Errorf("x = %d, want 3", n)
	}
}
